"""Checks the notebooks as they stand in nbs: clean, run, and fit to be read and parameterized. Prints what is wrong; exits 1 if anything is."""
import json, os, re, shutil, sys, tempfile
from pathlib import Path

NBS = Path(__file__).resolve().parent.parent / "nbs"
PARAMETERIZED = {"train.ipynb", "compare.ipynb"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|tmp|farm|opt|usr)/[\w./-]+")
MAX_LINES = 40

def changed_by_clean(paths):
    "Those of `paths` that nbdev_clean would change, tried on a copy."
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(shutil.copytree(NBS, Path(tmp) / "nbs"))
        shutil.copy(NBS.parent / "settings.ini", tmp)
        os.chdir(tmp)  # nbdev looks for settings.ini from the current folder up
        from nbdev.clean import nbdev_clean
        nbdev_clean()
        changed = [p for p in paths if (copy / p.relative_to(NBS)).read_bytes() != p.read_bytes()]
        os.chdir(NBS)
    return changed

def texts(output):
    "What an output says in words; pictures are left out, for base64 may look like a path."
    yield "".join(output.get("text", ""))
    for mime, data in output.get("data", {}).items():
        if mime.startswith("text/") or "svg" in mime: yield "".join(data)

def faults(path):
    "What is wrong with the notebook at `path`, one sentence each."
    nb = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    outputs = [out for cell in code for out in cell["outputs"]]
    kernel = nb["metadata"].get("kernelspec", {}).get("name")
    if kernel != "python3": yield f"its kernelspec is {kernel}; papermill needs python3"
    if code and not outputs: yield "it has code and no outputs; run it from top to bottom and save"
    if path.name in PARAMETERIZED and not any("parameters" in cell["metadata"].get("tags", []) for cell in code):
        yield "no cell has the tag `parameters`; papermill's -p would be ignored"
    for out in outputs:
        if out["output_type"] == "error": yield f"a saved error: {out['ename']}: {out['evalue']}"
        if out.get("name") == "stderr" and re.search("warn", "".join(out["text"]), re.I): yield f"a saved warning: {''.join(out['text']).strip()}"
    for cell in nb["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and len(source.splitlines()) > MAX_LINES: yield f"a cell of more than {MAX_LINES} lines begins with: {source.splitlines()[0]}"
        for text in [source, *(t for out in cell.get("outputs", []) for t in texts(out))]:
            for hit in MACHINE_PATH.findall(text): yield f"a path of one machine: {hit}"

def main():
    paths = sorted(p for p in NBS.rglob("*.ipynb") if not any(part.startswith((".", "_")) for part in p.relative_to(NBS).parts))
    found = [(p, fault) for p in paths for fault in faults(p)]
    found += [(p, "it is not clean; mend it with: nbdev_clean") for p in changed_by_clean(paths)]
    for path, fault in found: print(f"{path.relative_to(NBS.parent)}: {fault}")
    sys.exit(1 if found else 0)

if __name__ == "__main__": main()
