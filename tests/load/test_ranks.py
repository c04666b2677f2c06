"""Many ranks, threads, forks and interpreters: one build, no hang, or one clear error."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.load.conftest import Site

pytestmark = pytest.mark.torch


def torchrun(site: Site, ranks: int, code: str, env: dict[str, str] | None = None) -> list[dict[str, str]]:
    """Runs the code in so many ranks of one node; each puts what it has to say into ``said``."""
    script = site.home / "rank.py"
    script.write_text(
        "import json, os, sys, torch, torch.distributed as dist\n"
        "torch.set_num_threads(1)\ndist.init_process_group('gloo')\nrank, said = dist.get_rank(), {}\nimport precast\n"
        + textwrap.dedent(code)
        + "open(f'said{rank}', 'w').write(json.dumps(said))\ndist.destroy_process_group()\n"
        # Threads of gloo that let go of tensors while Python ends would abort.
        + "sys.stdout.flush()\nsys.stderr.flush()\nos._exit(0)\n"
    )
    launch = f"""
        import runpy, sys, warnings
        warnings.simplefilter("ignore")  # of the launcher, about itself
        sys.argv = ["torchrun", "--standalone", "--nproc-per-node={ranks}", {str(script)!r}]
        runpy.run_module("torch.distributed.run", run_name="__main__")
    """
    done = site.run(launch, env={"OMP_NUM_THREADS": "1", **(env or {})})
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((site.home / f"said{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.compiler
def test_eight_cold_ranks_build_once(cold: Site) -> None:
    said = torchrun(cold, 8, "dist.barrier()\nsaid['kind'] = precast.load('adam_').host.kind\ndist.barrier()\n")
    assert sorted(one["kind"] for one in said) == ["cache"] * 7 + ["jit"]
    assert list((cold.cache / "v1" / ".staging").iterdir()) == []


@pytest.mark.compiler
def test_prebuild_builds_in_one_rank_of_a_node_and_loads_in_all(cold: Site) -> None:
    code = """
        (loaded,) = precast.prebuild(ops=["adam_", "precast::adam_"])
        said["kind"], said["again"] = loaded.host.kind, precast.prebuild(ops=["adam_"])[0].host.kind
    """
    assert [one["kind"] for one in torchrun(cold, 2, code)] == ["jit", "cache"]


def test_a_prebuild_that_fails_fails_in_every_rank_with_the_reason(cold: Site) -> None:
    code = """
        try:
            precast.prebuild(ops=["adam_"])
        except precast.errors.KernelError as error:
            said["error"] = f"{type(error).__name__}: {error}"
    """
    for one in torchrun(cold, 2, code, env={"PATH": "/nonexistent"}):
        assert one["error"].startswith("BuildFailed: rank 0 could not prepare the kernels of its node\n")
        assert "no-compiler" in one["error"]


@pytest.mark.compiler
def test_prebuild_needs_no_group(built: Site) -> None:
    built.ok("""
        import precast
        (loaded,) = precast.prebuild(ops=["adam_"])
        assert loaded is precast.load("adam_") and loaded.device == "cpu"
    """)


def test_prebuild_refuses_a_typo_before_any_rank_waits(bare: Site) -> None:
    assert "precast.load('adam_')" in bare.refusal("import precast; precast.prebuild(ops=['adam'])")


@pytest.mark.compiler
def test_thirty_two_cold_threads_build_once(cold: Site) -> None:
    said = cold.ok("""
        import threading, torch
        import precast
        from precast._builder import cache
        builds, publish = [], cache.Cache.publish
        cache.Cache.publish = lambda *args: (builds.append(1), publish(*args))[1]
        start, kinds = threading.Barrier(32), []
        def work():
            start.wait()
            kinds.append(precast.load("adam_").host.kind)
        threads = [threading.Thread(target=work) for _ in range(32)]
        for t in threads: t.start()
        for t in threads: t.join()
        print(len(builds), *sorted(kinds))
    """)
    assert said.split() == ["1", *["jit"] * 32]


@pytest.mark.compiler
def test_processes_forked_before_and_after_the_load_and_a_spawned_one_all_load(built: Site) -> None:
    (built.home / "worker.py").write_text(
        "import precast\ndef work(queue):\n    queue.put(precast.load('adam_').host.kind)\n"
    )
    said = built.ok("""
        import multiprocessing, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside torch's threads: it is the point here
        sys.path.insert(0, "")
        from worker import work
        def child(how):
            context = multiprocessing.get_context(how)
            queue = context.Queue()
            process = context.Process(target=work, args=(queue,))
            process.start()
            kind = queue.get(timeout=120)
            process.join(120)
            return kind, process.exitcode
        if __name__ == "__main__":
            early = child("fork")
            import precast
            precast.load("adam_")
            print(early, child("fork"), child("spawn"))
    """)
    assert said.strip() == "('cache', 0) ('cache', 0) ('cache', 0)"


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
    run = lambda code: interpreters.exec(interpreters.create(), code)
except ImportError:
    import _xxsubinterpreters as interpreters
    run = lambda code: interpreters.run_string(interpreters.create(), code)
run('''
try:
    USE
except Exception as error:
    open("said", "w").write(type(error).__name__ + ": " + str(error))
''')
print(open("said").read())
"""


@pytest.mark.parametrize(
    "use", ["import precast; precast.load('adam_')", "import precast.ops", "import precast.optim", "import precast.nn"]
)
def test_a_subinterpreter_gets_a_clear_error(bare: Site, use: str) -> None:
    said = bare.anew.ok(SUBINTERPRETER.replace("USE", use))
    assert said.startswith("KernelUnavailable: precast works in the main interpreter only"), said
    assert "found   a subinterpreter" in said
