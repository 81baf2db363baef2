"""Trains a few steps through papermill, as a user would: what -p says must reach the run, and a misspelt -p must not pass.

The runs stay in runs/ of the folder that this file stands in; .ci/run calls it in a copy of the tree.
"""
import json, os, re, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHORT = ("-p", "sample_tokens", 20, "-p", "val_tokens", 8192)

def new_name(): return f"ci-{os.urandom(4).hex()}"

def papermill(notebook, *args, cwd=ROOT):
    print("papermill", notebook, *args)
    return subprocess.run([sys.executable, "-m", "papermill", notebook, *map(str, args)], cwd=cwd, capture_output=True, text=True)

def must(ok, what, ran):
    "Ends with the reason and the end of what papermill printed unless `ok`."
    if not ok: sys.exit(f"{what}\n{ran.stdout[-1500:]}\n{ran.stderr[-4000:]}")

def errors(nb): return [out for cell in nb["cells"] for out in cell.get("outputs", []) if out["output_type"] == "error"]

def parameters_reach_the_run(out):
    want = dict(preset="tiny", num_iterations=20, val_loss_every=10, run_name=new_name())
    ran = papermill("nbs/train.ipynb", out, *SHORT, *(a for name, value in want.items() for a in ("-p", name, value)))
    must(ran.returncode == 0, "papermill failed", ran)
    must(not errors(json.loads(out.read_text())), f"{out.name} holds an error", ran)
    path = ROOT / "runs" / want["run_name"] / "config.json"
    must(path.exists(), f"-p did not reach the run: there is no runs/{want['run_name']}/config.json", ran)
    config = json.loads(path.read_text())
    got = {name: config.get(name) for name in want}
    must(got == want, f"-p did not reach the run: asked for {want}, config.json has {got}", ran)

def unknown_parameter_is_refused(out):
    name = new_name()
    ran = papermill("nbs/train.ipynb", out, "-p", "preset", "tiny", "-p", "num_iterations", 4, "-p", "run_name", name, "-p", "cooldown_fra", 0.6)
    must(ran.returncode != 0, "cooldown_fra was taken for a parameter", ran)
    must(re.search("did you mean '?cooldown_frac", ran.stderr), "the error does not name cooldown_frac", ran)
    must(not (ROOT / "runs" / name).exists(), "the run had begun before cooldown_fra was refused", ran)

def staged_without_output_path():
    name = new_name()
    ran = papermill("train.ipynb", *SHORT, "-p", "preset", "tiny", "-p", "num_iterations", 6, "-p", "stages", "8-16-24-20", "-p", "run_name", name, cwd=ROOT / "nbs")
    must(ran.returncode == 0, "papermill failed", ran)
    must(ran.stdout.lstrip().startswith("{"), "standard output is not a notebook", ran)
    must(not errors(json.loads(ran.stdout)), "the notebook on standard output holds an error", ran)
    log = (ROOT / "runs" / name / "log.txt").read_text()
    batches = re.findall(r"^from step (\d+): ([\d,]+) tokens", log, re.M)
    must(batches == [("0", "2,048"), ("2", "4,096"), ("3", "6,144"), ("5", "5,120")], f"the log does not show the growing batch: {batches}", ran)

with tempfile.TemporaryDirectory() as tmp:
    parameters_reach_the_run(Path(tmp) / "out.ipynb")
    unknown_parameter_is_refused(Path(tmp) / "out.ipynb")
staged_without_output_path()
