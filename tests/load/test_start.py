"""What a first call leaves out. Each module takes 0.1 to 3 ms to import, and a prebuilt first call is to take 20 ms."""

from __future__ import annotations

import pytest

from tests.load.conftest import Site

# What only a build, an error, a GPU or another way in has a use for.
NOT_NEEDED = {
    "precast._abi.fixes",
    "precast._abi.served",
    "precast._abi.toolkits",
    "precast.core.explain",
    "precast._cli",
    "precast.core.gpus",
    "precast._load.jit",
    "precast._load.progress",
    "precast._load.report",
    "precast.core.unopened",
    "precast._load.verdict",
    "precast.extension",
    "precast.kernel_loader",
    "precast.optim",
}
OF_THE_BUILD = {"precast._builder", "precast._builder.catalogue"}
SLOW = {"argparse", "asyncio", "concurrent", "email", "http", "inspect", "subprocess", "tempfile", "urllib"}

FIRST_CALL = """
    import sys, torch
    known = set(sys.modules)
    import precast.ops
    tensors = [[torch.ones(4)] for _ in range(4)]
    numbers = dict(lr=0.1, beta1=0.9, beta2=0.9, eps=1e-8, weight_decay=0.0, bias_correction1=1.0, bias_correction2=1.0)
    precast.ops.adam_(*tensors, **numbers)
    assert precast.load("adam_").host.kind == "prebuilt" and tensors[0][0][0] < 1
    brought = sorted(set(sys.modules) - known)
    ours = [sys.modules[name] for name in brought if name.split(".")[0] == "precast"]
    named = {value.__name__ for module in ours for value in vars(module).values() if isinstance(value, type(sys))}
    print(*brought, "|", *sorted(named))
"""

# A room is a module of ours that runs between the call of an op and its result, as it is imported or called. A return
# is a call that enters a room which was entered before and left. A call from one place counts once, so that a loop is
# walked through once; what modules do as they are imported counts for the rooms alone, and making a value for neither.
ROOMS, RETURNS = 30, 40
WALK = """
    import os, sys, torch
    import precast.ops
    home = os.path.dirname(precast.__file__) + os.sep
    importing, seen, rooms, entered = 0, set(), set(), []

    def walk(frame, event, _):
        global importing
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event not in ("call", "return") or not file.startswith(home) or file.endswith("core/value.py"):
            return
        rooms.add(file)
        if name == "<module>":
            importing += 1 if event == "call" else -1
        elif event == "call" and not importing:
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(home):
                caller = caller.f_back
            place = (file, name, caller and (caller.f_code.co_filename, caller.f_lineno))
            if place not in seen:
                seen.add(place)
                entered.append(file)

    tensors = [[torch.ones(4)] for _ in range(4)]
    numbers = dict(lr=0.1, beta1=0.9, beta2=0.9, eps=1e-8, weight_decay=0.0, bias_correction1=1.0, bias_correction2=1.0)
    sys.setprofile(walk)
    precast.ops.adam_(*tensors, **numbers)
    sys.setprofile(None)
    walked = [here for here, before in zip(entered, [None, *entered]) if here != before]
    print(len(rooms), len(walked) - len(set(walked)), int(torch.__version__.split(".")[1]))
"""


@pytest.mark.torch
@pytest.mark.compiler
def test_a_first_call_is_a_short_walk(wheel: Site) -> None:
    rooms, returns, torch_minor = map(int, wheel.anew.ok(WALK).split())
    assert 15 < rooms <= ROOMS
    assert returns > 15 and (returns <= RETURNS or torch_minor < 10), "an adapter is one more thing to choose"


@pytest.mark.torch
@pytest.mark.compiler
def test_a_prebuilt_first_call_imports_what_it_uses(wheel: Site) -> None:
    brought, named = (set(part.split()) for part in wheel.anew.ok(FIRST_CALL).split("|"))
    assert "precast._load.loader" in brought
    assert brought & NOT_NEEDED == set()
    assert {name for name in brought if name.startswith("precast._builder")} == OF_THE_BUILD
    # Torch may have brought these already, but another torch need not.
    assert named & SLOW == set()
    # Nothing that a process with torch in it does not have anyway, but for what is quick.
    assert {name for name in brought if name.split(".")[0] != "precast"} <= {"mmap"}


def test_the_package_itself_imports_next_to_nothing(bare: Site) -> None:
    code = """
        import sys
        known = set(sys.modules)
        import precast
        print(*sorted(set(sys.modules) - known))
    """
    assert set(bare.anew.ok(code).split()) <= {"__future__", "precast", "precast._version", "precast.core"}


@pytest.mark.torch
@pytest.mark.compiler
def test_the_first_call_is_judged_by_this_very_list(wheel: Site) -> None:
    """A module that would be imported again is seen: the check above can fail."""
    loader = wheel.folder / "precast" / "_load" / "loader.py"
    loader.write_text(loader.read_text().replace("import threading", "import subprocess\nimport threading", 1))
    choose = wheel.folder / "precast" / "_load" / "choose.py"
    choose.write_text(choose.read_text() + "\nfrom precast._builder import elf\n")
    brought, named = (set(part.split()) for part in wheel.anew.ok(FIRST_CALL).split("|"))
    assert "precast._builder.elf" in brought and "subprocess" in named
