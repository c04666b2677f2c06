"""``python -m tests.adopt.releases``: what ``precast.adopt`` takes in small models of each release of transformers.

A release is a process of its own and a file of tests/snapshots/adopt. Without versions, all that have a file are
fetched and compared; ``installed`` is the one of this environment, which must take what the newest known one does if it
has no file. ``--update`` writes the files. Exit status 1 if one differs.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import re
import sys
import time
import types
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.kit import fetched, spawn

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ROOT / "tests" / "snapshots" / "adopt"
CAUSAL = "Llama Qwen2 Qwen3 Qwen3Moe Qwen3_5 Gemma3 Gemma4 Mistral Phi3 Phi4Multimodal Glm4Moe GptOss DeepseekV3"
BITS = re.compile(r"(; bits) (?:equal|close)$", re.MULTILINE)  # the order of sums on a machine decides which
MODELS = (
    *(f"{name}ForCausalLM" for name in f"{CAUSAL} SmolLM3 Olmo2".split()),
    *("ModernBertForMaskedLM", "ViTForImageClassification", "SiglipModel", "WhisperForConditionalGeneration"),
)


def said(site: Path | None, *more: object) -> str:
    """What a process with the transformers in a folder, or else of this environment, prints: by default its table."""
    quick = spawn.environ(OMP_NUM_THREADS=1, PYTHONPATH=spawn.search_path(ROOT))
    return spawn.python("-m", "tests.adopt.releases", "--child", site or "", *more, env=quick, cwd=ROOT).stdout


def use(site: str) -> Any:
    """The transformers in a folder, or else of this environment."""
    if site:  # the versions of what it requires are not its own: nothing here tokenizes or makes a request
        sys.path.insert(0, site)
        checks: Any = types.ModuleType("transformers.dependency_versions_check")
        checks.dep_version_check = lambda *_, **__: None
        sys.modules[checks.__name__] = checks
        sys.modules["httpx"] = importlib.import_module("httpx2")
        sys.modules["kernels"] = None  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    logging.disable()
    return importlib.import_module("transformers")


def _child(site: str, certificate: Path | None) -> None:
    """Print the table, or write the certificate of one model, or what is not as a written one says."""
    transformers = use(site)
    if certificate is not None:
        import precast
        from precast._adopt import command, report
        from precast._adopt.small import small

        if certificate.exists():
            print(*command.drift(report.parse(certificate.read_text())), sep="\n")
        else:
            certificate.write_text(precast.adopt(small(transformers.Gemma3ForCausalLM)).json())
        return
    for name in MODELS:
        print(_row(name, getattr(transformers, name)) if hasattr(transformers, name) else f"{name}: none here")


def _row(name: str, cls: Any) -> str:
    import torch

    import precast
    from precast._adopt import samples
    from precast._adopt.small import small
    from precast.errors import KernelError

    torch.manual_seed(0)
    model = small(cls).to(torch.bfloat16).eval()
    batch = samples.sample(model)
    before = _outputs(model, batch)
    report = precast.adopt(model)
    held = "put back" if report.undone else "not compared" if not report.compared else "bits close"
    if held == "bits close" and all(map(torch.equal, before, _outputs(model, batch))):
        held = "bits equal"
    taken, left = (Counter[str]() for _ in range(2))
    for count, groups in ((taken, report.replaced), (left, report.left)):
        for group in groups:
            count[group.kind] += len(group.modules)
    kinds = (f"{kind} {taken[kind]}/{taken[kind] + left[kind]}" for kind in sorted(taken + left))
    lines = [f"{name}: {', '.join(kinds)}; {held}"]
    lines += [f"    {group.cls.rpartition('.')[2]} stays: {group.note}" for group in report.left]
    lines += [f"    {reason}" for reason in report.not_compared]
    precast.undo_adopt(model)
    if "loss" in taken + left:
        try:
            why = "taken" if precast.adopt(model, logits=False).ok else "not compared"
        except KernelError as error:
            why = str(error.found)
        lines.append(f"    logits=False: {why}")
    return "\n".join(lines)


def _outputs(model: Any, batch: Any) -> list[Any]:
    """All but the loss, a sum of float32."""
    import torch

    with torch.no_grad():
        return [value for name, value in model(**batch).items() if isinstance(value, torch.Tensor) and name != "loss"]


def known() -> list[str]:
    """The releases that have a table, the oldest first."""
    return sorted((path.stem for path in KNOWN.glob("*.txt")), key=lambda one: [*map(int, one.split("."))])


def differences(release: str, site: Path | None, *, update: bool = False) -> list[str]:
    """The lines in which the table of a release, in a folder or of this environment, differs from the one kept."""
    text = said(site)
    if update:
        (KNOWN / f"{release}.txt").write_text(text)
    kept = release if release in known() else known()[-1]
    then, now = (BITS.sub(r"\1", one).splitlines() for one in ((KNOWN / f"{kept}.txt").read_text(), text))
    return list(difflib.unified_diff(then, now, kept, release, n=0, lineterm=""))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.adopt.releases", description=__doc__)
    parser.add_argument("releases", nargs="*", help="versions, or installed")
    parser.add_argument("--update", action="store_true", help="write the tables")
    parser.add_argument("--child", metavar="SITE", help=argparse.SUPPRESS)
    parser.add_argument("--certificate", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        _child(options.child, options.certificate)
        return 0
    failed = 0
    for one in options.releases or known():
        begun = time.perf_counter()
        site, release = None, version("transformers")
        if one != "installed":
            site, release = fetched.package(f"transformers=={one}", ROOT / "build" / "releases" / one), one
        lines = differences(release, site, update=options.update)
        print(f"transformers {release}: {time.perf_counter() - begun:.0f} s, {'as' if not lines else 'not as'} known")
        print("\n".join(lines), end="\n" * bool(lines))
        failed += bool(lines)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
