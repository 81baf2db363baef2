"""Makes a web site of the notebooks, with an API reference from the docstrings, and checks every link in it.

python .ci/site.py [--into _docs]   writes it; names each dead link and exits 1 if there is any
"""
import argparse, ast, html, posixpath, re, shutil, sys
from bisect import bisect
from configparser import ConfigParser
from functools import cache
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import nbformat
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from readme import DIRECTIVE

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"
TEXTS = [p for p in ("CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "runs/README.md") if (ROOT / p).exists()]
OUTSIDE = re.compile(r"[a-z]+:|//")

parser = ConfigParser()
parser.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = parser["DEFAULT"]
PACKAGE = ROOT / SETTINGS["lib_path"]

def page_of(path):
    "The page made from a notebook or text, given relative to the root; None for what is no page."
    if re.fullmatch(r"nbs/\w+\.ipynb", path): return Path(path).stem + ".html"
    return re.sub(r"\W", "-", path.removesuffix(".md").lower()) + ".html" if path in TEXTS else None

def target(url, folder):
    "Where a link in a file of `folder` leads on the site: a page, a place in this one, or a file of the repository."
    if OUTSIDE.match(url) or url.startswith("#"): return url
    path, hash_, anchor = url.partition("#")
    path = posixpath.normpath(posixpath.join(folder, unquote(path)))
    page = page_of(path)
    if page is None and (ROOT / path).exists(): return f"{SETTINGS['git_url']}/blob/{SETTINGS['branch']}/{path}"
    return (page or path) + hash_ + anchor

### The API reference ###

class Symbol(NamedTuple):
    "A public name of the package."
    module: str
    name: str
    node: ast.AST   # its definition
    cell: str       # the place of the notebook's cell that it stands in

    @property
    def url(self): return f"api-{self.module}.html#{self.name}"

def public(tree):
    "The names in `__all__` of the module `tree`, in the order of the file → their nodes."
    nodes = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)): nodes[node.name] = node
        for t in getattr(node, "targets", []):
            nodes.update((n.id, node) for n in ast.walk(t) if isinstance(n, ast.Name))
    listed = ast.literal_eval(nodes["__all__"].value)
    return {name: node for name, node in nodes.items() if name in listed}

@cache
def modules():
    "The package's modules in the order of their notebooks: name → (source, its `Symbol`s in the order of the file)."
    found = {}
    for path in PACKAGE.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        cells = re.findall(r"^# %% \.\./nbs/(\S+) #(\S+)\n", source, re.M)
        if not cells: continue                                                  # it comes from no notebook
        starts = [source[:m.start()].count("\n") for m in re.finditer(r"^# %% \.\./nbs/", source, re.M)]
        names = []
        for name, node in public(ast.parse(source)).items():
            notebook, cell = cells[bisect(starts, node.lineno) - 1]
            names.append(Symbol(path.stem, name, node, f"{page_of('nbs/' + notebook)}#cell-id={cell}"))
        found[cells[0][0], path.stem] = source, names
    return {name: found[notebook, name] for notebook, name in sorted(found)}

def symbol(text, module=""):
    """The `Symbol` that `text`, code in the prose of `module`, speaks of, or None.

    A plain word such as `step` may mean anything, so in other modules' prose it takes `step()` or `bench.step`."""
    name, called = text.removesuffix("()"), text.endswith("()")
    here = [s for _, names in modules().values() for s in names
            if name in (s.name, f"{s.module}.{s.name}", f"{PACKAGE.name}.{s.module}.{s.name}")]
    if any(s.module == module for s in here): return next(s for s in here if s.module == module)
    return here[0] if len(here) == 1 and (called or not name.islower() or re.search(r"[._]", name)) else None

def head(source, node):
    "The lines of a definition before its body, comments on its parameters included; all lines of what has no body."
    lines = source.splitlines()[node.lineno - 1:node.end_lineno]
    body = getattr(node, "body", None)
    if body and body[0].lineno > node.lineno: lines = lines[:body[0].lineno - node.lineno]
    elif body: lines = [lines[0].encode()[:body[0].col_offset].decode()]
    return re.sub(rf"(?m)^ {{{node.col_offset}}}", "", "\n".join(lines)).rstrip()

def described(source, node):
    "What the reference says of a definition: (code, docstring) of itself, then of each public method of a class."
    if not hasattr(node, "body"): return [(head(source, node), None)]
    own, methods = [head(source, node)], []
    if isinstance(node, ast.ClassDef):
        own += [f"    {head(source, n)}" for n in node.body if isinstance(n, ast.AnnAssign)]
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and re.match("__init__|[^_]", n.name)]
    return [("\n".join(own), ast.get_docstring(node)), *((head(source, n), ast.get_docstring(n)) for n in methods)]

def api_page(module):
    source, names = modules()[module]
    code = lambda text: highlight(text, PythonLexer(), HtmlFormatter())
    doc = lambda text: markdown(text, "nbs", module) if text else ""
    parts = [f"<h1>{module}</h1>", doc(ast.get_docstring(ast.parse(source)))]
    for _, group in groupby(names, key=lambda s: s.node):                       # one definition may bind several names
        s, *others = group
        title = ", ".join([s.name, *(f'<span id="{o.name}">{o.name}</span>' for o in others)])
        parts.append(f'<h2 id="{s.name}"><a class="source" href="{s.cell}">source</a>{title}</h2>')
        parts += [code(text) + doc(docstring) for text, docstring in described(source, s.node)]
    return "\n".join(parts)

### Notebooks and texts ###

class SiteRenderer(IPythonRenderer):
    "HTML with links to the site's pages, the package's names linked to their reference, and formulas as MathML."
    def __init__(self, folder, module):
        super().__init__(escape=False)
        self.folder, self.module = folder, module
    def link(self, text, url, title=None): return super().link(text, target(url, self.folder), title)
    def image(self, text, url, title=None): return f'<img src="{html.escape(url)}" alt="{html.escape(text)}">'
    def inline_math(self, body, display="inline"): return mathml(body, display=display).replace(r"\_", "_")
    def block_math(self, body): return self.inline_math(body, "block")
    def codespan(self, text):
        found = symbol(text, self.module)
        return f'<a href="{found.url}">{super().codespan(text)}</a>' if found else super().codespan(text)

def markdown(text, folder, module=""):
    body = MarkdownWithMath(renderer=SiteRenderer(folder, module)).render(text)
    return re.sub(r"<a ([^>]*)><a [^>]*>(.*?)</a></a>", r"<a \1>\2</a>", body)      # code in a link is not linked again

class ForSite(Preprocessor):
    "Takes out what a reader need not see: nbdev's directives, cells that hide themselves, and empty ones."
    def preprocess(self, nb, resources):
        nb.cells = [cell for cell in nb.cells if cell.cell_type != "code" or self.keep(cell)]
        nb.metadata.language_info = {"name": "python"}
        return nb, resources

    def keep(self, cell):
        directives = dict(DIRECTIVE.findall(cell.source))
        cell.source = DIRECTIVE.sub("", cell.source).strip()
        if directives.get("echo") == "false": cell.metadata.transient = {"remove_source": True}
        if "export" in directives: cell.metadata.tags = ["export"]
        if "fig-alt" in directives: cell.metadata.alt = directives["fig-alt"]
        return cell.source and "hide" not in directives

def notebook_page(path):
    nb = nbformat.read(path, as_version=4)
    module = dict(found for cell in nb.cells for found in DIRECTIVE.findall(cell.source)).get("default_exp", "")
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.log.setLevel("ERROR")                                              # it warns of pictures without a text
    exporter.register_preprocessor(ForSite(enabled=True))
    exporter.register_filter("markdown2html", lambda text: markdown(text, "nbs", module))
    return exporter.from_notebook_node(nb)[0]

### The pages together ###

def notebooks():
    "All notebooks in the order in which the index's table links them."
    cells = nbformat.read(NBS / "index.ipynb", as_version=4).cells
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    order = ["index", *re.findall(r"^\| \[\w+\]\((\w+)\.ipynb\)", text, re.M)]
    differ = {p.stem for p in NBS.glob("[!_.]*.ipynb")} ^ set(order)
    if differ: sys.exit(f"the table in nbs/index.ipynb and the notebooks in nbs/ differ by {', '.join(sorted(differ))}")
    return [f"nbs/{stem}.ipynb" for stem in order]

def navigation(page, groups, body):
    "The list of all pages in `groups`, with the sections of `page` below its own line."
    sections = re.findall(r'<h2 id="([^"]*)">(?:<a class="source".*?</a>)?(.*?)(?:<a class="anchor-.*?)?</h2>', body)
    inside = "".join(f'<li><a href="#{id_}">{re.sub("<.*?>", "", text)}</a></li>' for id_, text in sections)
    lists = []
    for title, pages in groups.items():
        lines = {p: f'<a href="{p}">{name}</a>' for p, name in pages.items()}
        if page in lines: lines[page] = lines[page].replace("<a", '<a aria-current="page"') + f"<ul>{inside}</ul>"
        lists.append(f"<h2>{title}</h2><ul>{''.join(f'<li>{line}</li>' for line in lines.values())}</ul>")
    return "".join(lists)

def neighbours(page, groups):
    "Links to the pages before and after `page`."
    flat = [None, *(entry for pages in groups.values() for entry in pages.items()), None]
    at = next(i for i, entry in enumerate(flat) if entry and entry[0] == page)
    link = lambda entry, text: f'<a href="{entry[0]}">{text.format(entry[1])}</a>' if entry else "<span></span>"
    return f'<p class="next">{link(flat[at - 1], "← {}")}{link(flat[at + 1], "{} →")}</p>'

def whole(page, groups, body):
    "The page as a file."
    name, site = next(pages[page] for pages in groups.values() if page in pages), SETTINGS["title"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · {site}</title><link rel="stylesheet" href="site.css"></head>
<body><nav><details open><summary>{site}</summary>{navigation(page, groups, body)}</details></nav>
<script>if (innerWidth < 960) document.querySelector("nav details").open = false</script>
<main>{body}{neighbours(page, groups)}</main></body></html>
"""

def colours():
    "The colours of highlighted code, on light and on dark ground."
    style = lambda name: HtmlFormatter(style=name).get_style_defs(".highlight")
    return f"{style('default')}\n@media (prefers-color-scheme: dark) {{\n{style('github-dark')}\n}}\n"

class Links(HTMLParser):
    "Reads a page: `ids`, the places in it, and `links`, what it links or shows."
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.ids.update(value for name, value in attrs if name == "id")
        self.links += [value for name, value in attrs if name in ("href", "src")]

def dead_links(folder):
    "A sentence for each link in the pages of `folder` to a file or a place that is not there."
    pages = {p.name: Links(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.html"))}
    for page, seen in pages.items():
        for url in seen.links:
            path, _, anchor = url.partition("#")
            if OUTSIDE.match(url): continue
            if not url: yield f"{page}: a link leads nowhere"
            elif path and not (folder / unquote(path)).is_file(): yield f"{page}: there is no {path}"
            elif anchor and not {anchor, unquote(anchor)} & pages[path or page].ids:
                yield f"{page}: {path or 'it'} has no place #{anchor}"

def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--into", type=Path, default=ROOT / SETTINGS["doc_path"], help="the folder to write, made anew")
    into = args.parse_args().into
    if into.exists() and not (into / "site.css").exists(): sys.exit(f"{into} exists and is no site; choose another")
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(NBS / "images", into / "images")
    (into / "site.css").write_text((ROOT / ".ci/site.css").read_text(encoding="utf-8") + colours(), encoding="utf-8")
    bodies = {page_of(path): notebook_page(ROOT / path) for path in notebooks()}
    groups = {"Notebooks": {page: page.removesuffix(".html") for page in bodies},
              "Reference": {f"api-{name}.html": name for name in modules()},
              "Project": {page_of(path): path for path in TEXTS}}
    bodies |= {f"api-{name}.html": api_page(name) for name in modules()}
    for path in TEXTS:
        bodies[page_of(path)] = markdown((ROOT / path).read_text(encoding="utf-8"), posixpath.dirname(path))
    for page, body in bodies.items(): (into / page).write_text(whole(page, groups, body), encoding="utf-8")
    found = list(dead_links(into))
    for fault in found: print(fault)
    print(f"{len(bodies)} pages in {into}, {len(found)} dead links")
    sys.exit(1 if found else 0)

if __name__ == "__main__": main()
