"""Start, names, threads and forks, with a real kernel family."""

from __future__ import annotations

import pytest

from tests.load.conftest import Site


def test_importing_the_package_is_quick_and_brings_neither_torch_nor_files(bare: Site) -> None:
    code = """
        import sys, time
        known = set(sys.modules)
        start = time.perf_counter()
        import precast
        seconds = time.perf_counter() - start
        brought = {name.split(".")[0] for name in set(sys.modules) - known}
        assert "torch" not in brought and "numpy" not in brought, brought
        assert not [name for name in sys.modules if name.startswith("precast._load")]
        assert {"load", "ops", "optim", "errors", "kernel_loader"} <= set(dir(precast))
        print(seconds)
    """
    assert min(float(bare.anew.ok(code)) for _ in range(5)) < 0.030
    assert list(bare.home.iterdir()) == [] and not bare.cache.exists()


def test_a_name_the_package_does_not_have_is_an_attribute_error(bare: Site) -> None:
    assert "module 'precast' has no attribute 'opps'" in bare.run("import precast; precast.opps").stderr


@pytest.mark.torch
@pytest.mark.compiler
def test_all_ways_to_a_kernel_lead_to_one_object(wheel: Site) -> None:
    wheel.ok("""
        import platform, torch
        from precast.kernel_loader import CPUAdamLoader
        kernels = CPUAdamLoader().load()
        name = "cpu_adam_x86" if platform.machine() == "x86_64" else "cpu_adam_arm"
        import precast._C
        assert kernels is CPUAdamLoader().load(ext_name=name) is getattr(precast._C, name)
        assert kernels.__name__ == name and kernels.source.kind == "prebuilt"
        import precast.optim
        assert kernels.CPUAdamOptimizer is precast.optim.CPUAdamOptimizer
    """)


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize("adamw", [True, False])
def test_the_older_optimizer_steps_like_torch(wheel: Site, adamw: bool) -> None:
    wheel.ok(f"""
        import torch
        from precast.kernel_loader import CPUAdamLoader
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(1000))
        ours = weight.detach().clone()
        exp_avg, exp_avg_sq = torch.zeros(1000), torch.zeros(1000)
        adam = CPUAdamLoader().load().CPUAdamOptimizer(0.01, 0.9, 0.99, 1e-8, 0.1, {adamw})
        theirs = (torch.optim.AdamW if {adamw} else torch.optim.Adam)(
            [weight], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
        for step in range(1, 6):
            weight.grad = torch.randn(1000)
            version = ours._version
            adam.step(step, 0.01, 0.9, 0.99, 1e-8, 0.1, True, ours, weight.grad * 128, exp_avg, exp_avg_sq, 128.0)
            assert ours._version > version
            theirs.step()
        assert torch.allclose(ours, weight, atol=1e-6), (ours - weight).abs().max()
    """)


@pytest.mark.torch
@pytest.mark.compiler
def test_eight_cold_threads_load_once_and_all_get_their_result(wheel: Site) -> None:
    said = wheel.ok(
        """
        import threading, torch
        import precast.ops
        from precast._load import loader
        opened, original = [], loader.HostLibrary.__init__
        def count(self, path):
            opened.append(path)
            original(self, path)
        loader.HostLibrary.__init__ = count
        start, failures = threading.Barrier(8), []
        def work():
            tensors = [torch.ones(10) for _ in range(4)]
            start.wait()
            try:
                precast.ops.adam_(*[[t] for t in tensors], lr=0.5, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0,
                                  bias_correction1=0.1, bias_correction2=0.01)
                assert (tensors[0] != 1).all()
            except BaseException as error:
                failures.append(error)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not failures, failures
        print(len(opened))
    """
    )
    assert said == "1\n"


@pytest.mark.torch
@pytest.mark.compiler
def test_a_child_forked_while_another_thread_loads_can_load_itself(wheel: Site) -> None:
    wheel.ok("""
        import os, threading, torch
        import precast
        from precast._load import loader
        held, done = threading.Event(), threading.Event()
        def hold():
            with loader._state.locks["cpu_adam"]:
                held.set()
                done.wait(60)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads: it is the point here
        child = os.fork()
        if child == 0:
            threading.Timer(60, lambda: os._exit(9)).start()
            os._exit(0 if precast.load("adam_").host.kind == "prebuilt" else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done.set(); thread.join()
        assert status == 0, status
        assert precast.load("adam_").host.kind == "prebuilt"
    """)


@pytest.mark.torch
def test_the_loader_leaves_cuda_alone(bare: Site) -> None:
    """A process that has asked the doctor can still fork and use CUDA in the child: nothing was initialised."""
    bare.ok("""
        import contextlib, io, torch
        from precast.__main__ import main
        with contextlib.redirect_stdout(io.StringIO()):
            main(["doctor"])
        assert not torch.cuda.is_initialized()
    """)


@pytest.mark.torch
@pytest.mark.compiler
def test_build_aot_gives_setuptools_an_extension_it_can_build(built: Site) -> None:
    built.ok("""
        import warnings
        warnings.simplefilter("ignore")  # of setuptools, about itself
        from setuptools import Distribution
        from precast.kernel_loader import CPUAdamLoader
        made = CPUAdamLoader.extensions()[0].build_aot()
        assert made.name == "precast._C.cpu_adam_x86"
        command = Distribution({"ext_modules": [made]}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = "aot"
        command.ensure_finalized()
        command.run()
        (path,) = command.get_outputs()
        import torch
        from pathlib import Path
        from precast._load.library import HostLibrary
        library = HostLibrary(Path(path).resolve())
        assert library.families() == ("cpu_adam", "cpu_optim")
    """)


@pytest.mark.torch
def test_build_aot_without_a_compiler_says_where_it_looked(bare: Site) -> None:
    said = bare.refusal(
        "from precast.kernel_loader import CPUAdamLoader; CPUAdamLoader.extensions()[0].build_aot()",
        env={"PATH": "/nonexistent"},
    )
    assert said.startswith("KernelUnavailable: precast._C.cpu_adam_x86 cannot be built")
    assert "compiler: g++" in said and "not there" in said
