"""Each row of docs/reference/parity.toml is true: what is said to be callable takes the arguments; the rest raises."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from precast import kernel_loader
from precast._builder import catalogue
from precast.errors import KernelError
from tools.shared import parity
from tools.shared.parity import Row, Section

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = parity.read(ROOT / parity.FILE)
ROWS = [pytest.param(one, row, id=f"{one.loader or one.module}-{row.shown}") for one in SECTIONS for row in one.rows]
REFUSALS = (AttributeError, ImportError, TypeError, KernelError)


def members_of(loader: type[kernel_loader.KernelLoader]) -> list[Mapping[str, Any]]:
    """What the extension over each kind of kernel gives; nothing for other packages' attention."""
    return [getattr(one, "members", {}) for one in loader.extensions() if getattr(one, "families", ())]


def owners(section: Section) -> Iterator[Any]:
    """The module; or what each built-in extension of the loader would give, without loading a kernel."""
    if section.module is not None:
        yield importlib.import_module(section.module)
        return
    from types import SimpleNamespace

    loader = getattr(kernel_loader, str(section.loader))
    made = [SimpleNamespace(**members) for members in members_of(loader)]
    yield from made or [loader().load()]


def used(owner: Any, row: Row) -> None:
    """Find the name, and pass its arguments by place as far as Python can tell without a call."""
    found = functools.reduce(getattr, filter(None, row.ours.split(".")), owner)
    if row.arguments is not None:
        inspect.signature(found).bind(*row.arguments)


def outcome(use: Callable[[], Any]) -> str:
    """What the use of a name raises; an empty text if it is fine."""
    try:
        use()
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(section: Section, row: Row) -> list[str]:
    """The outcome for each owner, or that of the loader if it has nothing to load."""
    found: list[str] = []
    loaded = outcome(lambda: found.extend(outcome(functools.partial(used, owner, row)) for owner in owners(section)))
    return found + [loaded] * bool(loaded)


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_a_row_of_the_parity_table(section: Section, row: Row) -> None:
    found = outcomes(section, row)
    assert found
    if row.verdict == "raises":
        assert all(text.partition(":")[0] in row.note for text in found if text) and all(found)
    elif section.module == "precast._C":
        home = kernel_loader.home_of(row.name)
        assert home is not None
        # On another processor, or without a GPU, the name is known and the loader says why it cannot be loaded.
        assert found == [""] or (found[0].startswith("ImportError") and "not written" not in found[0])
    else:
        assert found == [""] * len(found)


def test_every_extension_and_member_has_a_row() -> None:
    """What the loaders of the older package give, by our own tables."""
    older = {section.loader for section in SECTIONS if section.loader} - {"FlashAttentionLoader"}
    ours = catalogue.folder_of("moe").public
    named = {(section.loader, row.name.partition(".")[0]) for section in SECTIONS for row in section.rows}
    for loader in older:
        added = {"LayerNormLoader": {"layer_norm"}, "MoeLoader": set(ours)}.get(loader, set())  # ours alone
        every = members_of(getattr(kernel_loader, loader))
        assert every and {(loader, name) for members in every for name in members if name not in added} <= named
    loaders = {row.name for row in SECTIONS[0].rows}
    assert older | {"KernelLoader", "FlashAttentionLoader"} <= loaders


def test_a_false_row_is_noticed() -> None:
    section = next(one for one in SECTIONS if one.loader == "FusedOptimizerLoader")
    (owner, *_) = owners(section)
    good = section.rows[0]
    used(owner, good)
    for wrong in (
        {"ours": "multi_tensor_novograd"},
        {"arguments": (*(good.arguments or ()), "more")},
        {"arguments": (good.arguments or ())[:-2]},
    ):
        with pytest.raises((AttributeError, TypeError)):
            used(owner, Row(**{**vars(good), **wrong}))  # type: ignore[arg-type]


def test_a_row_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "parity.toml"
    for row in ('["f(a)", "similar", "why"]', '["f(a)", "better", ""]', '["f(a", "same", ""]'):
        path.write_text(f'[[section]]\ntitle = "t"\nmodule = "precast"\nrows = [{row}]\n')
        with pytest.raises(KernelError, match="needed  name"):
            parity.read(path)


def test_the_page_has_what_raises_and_only_counts_what_is_unchanged() -> None:
    text = (ROOT / "docs/reference/parity.md").read_text(encoding="utf-8")
    assert text.endswith(parity.page(SECTIONS)), "python -m tools tables writes it"
    assert "| `op_builder` | raises: " in text and "`_CppExtension.load`" not in text
