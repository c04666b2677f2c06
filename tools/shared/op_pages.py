"""A page of the site for each function of ``precast.ops``: its docstring, and what the project knows about it.

The docstring has the formula, shapes, dtypes, errors and an example. Devices, gradient kernels and autocast come from
``family.toml``, and so does what the function replaces in other libraries; numerics come from the docstring of the
folder's module, and charts from the benchmarks.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from precast._builder import catalogue, descriptions, public
from precast._builder.catalogue import Family, Folder
from precast.errors import KernelError

LIBRARIES = {"torch": "PyTorch", "apex": "apex", "vllm": "vLLM", "liger": "Liger-Kernel"}
NOTE = "note"
# What a layer of a language model looks like with these functions.
IN_A_MODEL = """\
```python
import torch
import precast
from precast import ops


class Block(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = precast.nn.RMSNorm(width)
        self.gate_and_up = torch.nn.Linear(width, 2 * hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(ops.silu_and_mul(self.gate_and_up(self.norm(x))))


y = Block(64, 128)(torch.randn(2, 8, 64))  # with gradients, torch.compile and torch.export
```
"""
# In a docstring, what stands before the example, from the arguments on: a page shows the example first.
_EXAMPLE = re.compile(
    r"(?P<rest>\n(?P<margin> *)Args:\n(?:(?!\"\"\").)*?)"
    r"(?P<example>\n(?P=margin)\*\*Example\*\*\n\n(?P=margin)```python\n(?:(?!\"\"\").)*?\n(?P=margin)```\n)",
    re.DOTALL,
)
# A shape, a dtype, or a reference to a function that has them.
_SHAPED = re.compile(r"``?\(|float32|dtype|int64|as in|as for|parameter")


def functions() -> list[str]:
    """Every public function, in alphabetical order."""
    return sorted(name for folder in catalogue.FOLDERS for name in folder.public)


def pages(root: Path) -> dict[str, str]:
    """File name -> Markdown, for each function and for the list of them."""
    known = descriptions.replaces(root / "csrc")
    index = "\n".join(
        ("# All ops", "", IN_A_MODEL, *(line for folder in catalogue.FOLDERS for line in _group(root, folder)))
    )
    return {"index.md": index, **{f"{name}.md": page(root, name, known.get(name, {})) for name in functions()}}


def _group(root: Path, folder: Folder) -> Iterator[str]:
    """The functions of a folder, below what they are for: the first words of its module."""
    if folder.public:
        yield f"\n## {re.split('[:.,(]', _module(root, folder))[0].strip()}\n"
        yield from ("| Function of `precast.ops` | Result |", "| --- | --- |")
        yield from (f"| [`{name}`]({name}.md) | {_summary(root, name)} |" for name in folder.public)


def page(root: Path, name: str, instead: Mapping[str, str]) -> str:
    """The page of one function."""
    folder = catalogue.folder_of(name)
    families = [catalogue.get(family) for family in public.families_of(name)]
    lines = [
        f"::: precast.ops.{folder.name}.{name}",
        "    options: { heading_level: 1, show_root_full_path: false }",
        "",
        "## Where it runs",
        "",
        *([instead[NOTE]] if NOTE in instead else _devices(folder, families)),
        "",
        "## Gradients",
        "",
        _gradients(families, docstring(root, folder, name)),
        "",
        *_numerics(root, folder),
        *_charts(root, name),
        *_replaces(instead),
    ]
    return "\n".join(lines)


def _devices(folder: Folder, families: Sequence[Family]) -> Iterator[str]:
    devices = {device for family in families for device in family.devices}
    plain = {device for family in families for device in family.plain}
    others = " and ".join(title for key, title in {"cuda": "AMD", "xpu": "Intel"}.items() if key in plain)
    yield "| Device | Kernel |"
    yield "| --- | --- |"
    yield f"| CPU | {'prebuilt, for each instruction set' if 'cpu' in devices else 'none'} |"
    yield f"| NVIDIA GPU | {'prebuilt, for each CUDA label' if 'cuda' in devices else 'none'} |"
    yield f"| {others or 'Other'} GPU | {'plain torch' if plain else 'none'} |"
    yield ""
    yield f"Families: {', '.join(f'`{family.name}`' for family in families)}. Sources: `csrc/{folder.name}`."


def _gradients(families: Sequence[Family], text: str) -> str:
    if "ifferentiable" not in text:
        return "The function has no gradient formula. Use it for inference or in an optimizer step."
    kernels = [op for family in families for op in family.op_names if "backward" in op]
    own = f" Kernels of the gradients: {', '.join(f'`{op}`' for op in kernels)}." if kernels else ""
    return f"The function is differentiable, and it works under `torch.compile` and `torch.export`.{own}"


def _numerics(root: Path, folder: Folder) -> Iterator[str]:
    """The module's docstring after its first paragraph, and what autocast does."""
    said = _module(root, folder).partition("\n\n")[2].strip()
    rows = [words for names, *words in descriptions.autocast(root / "csrc") if names == folder.public]
    if said or rows:
        yield "## Numerics"
        yield ""
    if said:
        yield said
        yield ""
    for ours, torchs in rows:
        yield f"Dtype of the result under `torch.autocast`: {ours}. Of the functions of torch: {torchs}."
        yield ""


def _charts(root: Path, name: str) -> Iterator[str]:
    """The charts that have this function's bars, if there are benchmarks of it."""
    charts = sorted((root / "docs" / "benchmarks").glob("bars-*.svg"), key=lambda path: path.stem)
    texts = {chart.name: chart.read_text(encoding="utf-8") for chart in charts}
    ours = [chart for chart, text in texts.items() if name in charted(text)]
    yield "## Speed"
    yield ""
    if not ours:
        yield "This function has no chart. [The benchmarks](../../benchmarks.md) list what is measured."
    elif any("per cent of the copy rate" in texts[chart] for chart in ours):
        yield "Longer is faster. 100 % is the rate of a large copy. [All results](../../benchmarks.md)."
    else:
        yield "Shorter is faster. [All results](../../benchmarks.md)."
    yield ""
    yield from (f"![{name}: {_said(texts[chart])}](../../benchmarks/{chart})" for chart in ours)
    yield ""


def _said(svg: str) -> str:
    """What a chart shows, in words: the figures of its bars."""
    return svg.partition("<desc>")[2].partition("</desc>")[0].replace("[", "(").replace("]", ")")


def _replaces(instead: Mapping[str, str]) -> Iterator[str]:
    rows = [f"| {title} | {instead[key]} |" for key, title in LIBRARIES.items() if key in instead]
    if rows:
        yield from ("## What it replaces", "", "| Library | There |", "| --- | --- |", *rows, "")


def charted(svg: str) -> list[str]:
    """The functions that a chart is about, from its own ``data-ops``."""
    return svg.partition('data-ops="')[2].partition('"')[0].split()


def lacking(root: Path, name: str) -> list[str]:
    """What the page of a function lacks, each with where it is written."""
    folder = catalogue.folder_of(name)
    text, made = docstring(root, folder, name), page(root, name, descriptions.replaces(root / "csrc").get(name, {}))
    where = f"pkg/precast/ops/{folder.name}/__init__.py"
    summary, _, arguments = text.partition("Args:\n")
    summary = summary.partition("**Example**")[0]
    wanted = {
        f"a formula or a name in code in the first lines of the docstring in {where}": "`" in summary,
        f"Args with shapes and dtypes, or the function that has them, in {where}": bool(_SHAPED.search(arguments)),
        f"Raises in the docstring in {where}": "Raises:\n" in text,
        f"Example:: in the docstring in {where}": "**Example**" in text,
        f"numerics below the first paragraph of the module's docstring in {where}": "## Numerics" in made,
        f"[replaces.{name}] in csrc/{folder.name}/family.toml": "## What it replaces" in made,
    }
    return [what for what, found in wanted.items() if not found]


def _summary(root: Path, name: str) -> str:
    """The first line of the docstring, as a cell of a table."""
    return docstring(root, catalogue.folder_of(name), name).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def docstring(root: Path, folder: Folder, name: str) -> str:
    """The docstring of a public function, read without an import from the folder's module or a private one."""
    beside = sorted((root / "pkg" / "precast" / "ops" / folder.name).glob("_[a-z]*.py"))
    texts = [_source(root, folder), *(path.read_text(encoding="utf-8") for path in beside)]
    for node in (node for text in texts for node in ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name == name and (text := ast.get_docstring(node)):
            return as_markdown(text)
    raise KernelError(f"pkg/precast/ops/{folder.name}/__init__.py has no function {name} with a docstring")


def _module(root: Path, folder: Folder) -> str:
    return as_markdown(ast.get_docstring(ast.parse(_source(root, folder))) or "")


def _source(root: Path, folder: Folder) -> str:
    return (root / "pkg" / "precast" / "ops" / folder.name / "__init__.py").read_text(encoding="utf-8")


def as_markdown(text: str) -> str:
    """A docstring, or a file of them, with examples and references in the form that Markdown knows."""
    text = re.sub(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`", r"`\1`", text)
    text = re.sub(r"^( *)(\S.*)::\n\n((?:\1    .*\n|\n)+)", _fenced, text + "\n", flags=re.MULTILINE)
    return _EXAMPLE.sub(r"\g<example>\g<rest>", text).removesuffix("\n")


def _fenced(found: re.Match[str]) -> str:
    """A line that ends with ``::`` and the indented code below it, as a fenced block."""
    margin, words, code = found[1], found[2], textwrap.dedent(found[3])
    lead = "**Example**" if words == "Example" else f"{words}:"
    return textwrap.indent(f"{lead}\n\n```python\n{code.strip()}\n```\n", margin) + code[len(code.rstrip()) + 1 :]
