"""Makes README.md, and its pictures in nbs/images, from nbs/index.ipynb.

python .ci/readme.py           writes them
python .ci/readme.py --check   writes nothing; names what differs from a fresh conversion, exits 1 if anything does
"""
import base64, posixpath, re, sys
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import Preprocessor

ROOT = Path(__file__).resolve().parent.parent
INDEX, README, IMAGES = "nbs/index.ipynb", "README.md", "nbs/images"
DIRECTIVE = re.compile(r"^#\s*\|\s*([\w-]+):?[ \t]*(.*)\n?", re.M)
# A link's target in Markdown or HTML; code is matched first, so that what looks like a link in it stays as it is.
LINK = re.compile(r"```.*?```|`[^`\n]+`|(?P<before>\]\(|^\[[^\]]+\]:\s*|\b(?:src|href)=\")(?P<target>[^\s)\"]+)", re.M | re.S)

def from_root(match):
    "The link with its target, relative to nbs, made relative to the root, where README.md stands."
    target = match["target"]
    if not target or re.match(r"[a-z]+:|[#/]", target): return match[0]  # code, an address, or a place in this page
    return match["before"] + posixpath.normpath("nbs/" + target)

class ForReadme(Preprocessor):
    "Turns the notebook into what a reader of README.md should see; the pictures, taken out of it, are left in `pictures`."
    def preprocess(self, nb, resources):
        self.pictures = {}
        nb.cells = [cell for cell in nb.cells if self.keep(cell)]
        nb.metadata.language_info = {"name": "python"}  # nbdev_clean strips it, and the code fences want it
        return nb, resources

    def keep(self, cell):
        "Makes the cell ready. Whether anything of it is to be seen."
        if cell.cell_type != "code":
            cell.source = LINK.sub(from_root, cell.source)
            return True
        directives = dict(DIRECTIVE.findall(cell.source))
        if "hide" in directives: return False
        cell.source = DIRECTIVE.sub("", cell.source).strip()
        if directives.get("echo") == "false" or not cell.source: cell.metadata.transient = {"remove_source": True}
        cell.outputs = [self.picture(out, directives.get("fig-alt", "")) for out in cell.outputs if out.get("name") != "stderr"]
        return True

    def picture(self, output, alt):
        "The output, with a link in place of a picture."
        png = output.get("data", {}).get("image/png")
        if png:
            path = f"{IMAGES}/index_{len(self.pictures)}.png"
            self.pictures[path] = base64.b64decode(png)
            output.data = {"text/markdown": f"![{alt}]({path})"}
        return output

def convert():
    "What the files made from the index should hold: path → bytes."
    pre = ForReadme(enabled=True)
    exporter = MarkdownExporter()
    exporter.register_preprocessor(pre)
    text, _ = exporter.from_notebook_node(nbformat.read(ROOT / INDEX, as_version=4))
    text = re.sub(r"^[ \t]+$", "", text, flags=re.M)          # indented output leaves blanks on empty lines
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return {README: text.encode(), **pre.pictures}

def main():
    want = convert()
    have = {p.relative_to(ROOT).as_posix(): p.read_bytes() for p in [ROOT / README, *(ROOT / IMAGES).glob("index_*.png")] if p.exists()}
    stale = sorted(path for path in want.keys() | have.keys() if want.get(path) != have.get(path))
    if "--check" in sys.argv[1:]:
        for path in stale: print(f"{path} is not what {INDEX} gives")
        if stale: sys.exit("mend it with: python .ci/readme.py")
        return
    for path in stale:
        if path in want:
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_bytes(want[path])
        else: (ROOT / path).unlink()
        print(f"{path} {'written' if path in want else 'removed'}")

if __name__ == "__main__": main()
