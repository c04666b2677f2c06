"""Device code as data: CUDA sources without host code, compiled by NVRTC for each GPU, launched through the driver.

A build uses no nvcc, no toolkit and no torch header. Its result depends only on the GPU and the driver, so it serves
every torch and Python. docs/guides/device-code.md lists what authors can use and what they cannot.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from precast._abi import fixes
from precast._abi.settings import JitMode, Settings
from precast._cubin import images, launch, launcher, tma
from precast._load import probe, verdict
from precast._load.source import Source
from precast.core.capability import GpuTarget, TargetKind
from precast.core.host import Gpu, Host, Nvrtc
from precast.errors import KernelUnavailable, PrebuiltRefused
from precast.extension.base import Extension
from precast.extension.module import KernelModule
from precast.extension.places import Places, forbidden

if TYPE_CHECKING:
    from setuptools import Extension as SetuptoolsExtension

    from precast._cubin.programs import Built, Programs

tensor_map = tma.tensor_map  # part of the interface of this module


class DeviceExtension(Places, Extension):
    """Kernels in CUDA C++ without host code, for NVIDIA GPUs: in a ``setup.py``, for a loader, or built at run time.

    The constructor, or methods of a subclass, give the sources and options. Supported: folders of headers
    (``include_dirs``: CCCL, CUTLASS, the CUDA headers, see ``extension.headers``), ``defines``, template instances,
    more than 48 KB of shared memory, clusters, TMA descriptors, the registers and spills of each entry point,
    ``-lineinfo`` (``PRECAST_DEBUG=1``), and kernel names in torch.profiler. Not supported: host code, ``<<<>>>``,
    separate compilation, textures, device-side launches, printf before a synchronisation.

    ``load()`` returns an object with the kernels, or the result of ``functions``, as attributes::

        module.scale((blocks,), (256,), x, 2.0, x.numel())         # tensors and numbers, held against the parameters

    In ``precast.build.ext_modules`` it becomes a module with the same attributes, of images for any Python and torch,
    which defines an op for each schema in ``ops``. That build needs no nvcc, no torch and no GPU::

        ops={"scale(Tensor x, float factor) -> Tensor": ["scale"]}
        # a thread for each element: extern "C" __global__ void scale(const float* x, float factor, float* out, int n)

    Args:
        name: the dotted name of the module to build, such as ``"my_ops.cuda"``; of a subclass in a package its last
            part is enough, and the module is in the package's ``_C``.
        sources: the ``.cu`` files. NVRTC compiles each as a separate program.
        targets: the allowed targets, such as ``["sm_90a", "compute_80"]``. By default plain code: in a wheel for
            ``PRECAST_CUDA_ARCH_LIST``, else for the visible GPUs.
        include_dirs: folders to search for headers, in addition to the folder of each source.
        defines: macros, as ``#define`` lines before each source.
        instances: the template instances of each source, by file name, as written in C++: ``scale<float, 4>``.
        flags: additional NVRTC options, such as ``--use_fast_math`` or ``--maxrregcount=64``.
        ops: the kernels of each op, by its schema. A module that is built at run time has kernels alone.
        priority: the rank among the extensions of a loader.
    """

    backend: ClassVar[str] = "cubin"
    _support_aot = True
    _support_jit = True
    # For a subclass that calls no __init__, as those of the older package.
    _dotted: str = ""
    _sources: Sequence[str] = ()
    _folders: Sequence[str] = ()
    _flags: Sequence[str] = ()
    _targets: Sequence[str] = ()
    _defines: Mapping[str, str] = MappingProxyType({})
    _instances: Mapping[str, Sequence[str]] = MappingProxyType({})
    _ops: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        sources: str | Sequence[str] = (),
        *,
        targets: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
        defines: Mapping[str, str] | None = None,
        instances: Mapping[str, Sequence[str]] | None = None,
        flags: Sequence[str] = (),
        ops: Mapping[str, Sequence[str]] | None = None,
        priority: int = 1,
    ) -> None:
        package, _, last = name.rpartition(".")
        super().__init__(last, support_aot=True, support_jit=True, priority=priority)
        if package:
            self._dotted, self.prebuilt_module_path, self.prebuilt_import_path = name, package, name
        every = [sources] if isinstance(sources, str) else sources
        self._sources, self._folders, self._flags = tuple(every), tuple(include_dirs), tuple(flags)
        self._defines, self._instances, self._ops = defines or {}, instances or {}, ops or {}
        self._targets = tuple(targets)

    # What a subclass may define.

    def sources_files(self) -> list[str]:
        """The ``.cu`` files, as absolute paths."""
        return [str(Path(source).resolve()) for source in self._sources]

    def include_dirs(self) -> list[str]:
        """The folders of headers, as absolute paths."""
        return [str(Path(folder).resolve()) for folder in self._folders]

    def defines(self) -> Mapping[str, str]:
        """The macros. Extensions may build one source with different macros."""
        return self._defines

    def instances(self) -> Mapping[str, Sequence[str]]:
        """The template instances of each source."""
        return self._instances

    def nvrtc_flags(self) -> list[str]:
        """The additional NVRTC options."""
        return list(self._flags)

    def targets(self) -> list[str]:
        """The allowed targets."""
        return list(self._targets)

    def functions(self, kernels: Mapping[str, launch.Kernel]) -> Mapping[str, Any]:
        """The functions for callers. By default the kernels themselves, under their C++ names."""
        return kernels

    # Called by a loader.

    def is_available(self) -> bool:
        """Whether torch is a CUDA build and a GPU is visible; creates no CUDA context."""
        return verdict.sees_cuda_gpu()

    def assert_compatible(self) -> None:
        """Raises an error with the reason if a visible GPU has no image and none can be built."""
        self._choose(probe.read_settings(), certain=False)

    def assert_build_compatible(self) -> None:
        """Raises KernelUnavailable unless there is an NVRTC, and lists what was searched."""
        self._nvrtc(probe.read_settings())

    def aot_name(self) -> str:
        """The constructor's dotted name, else ``prebuilt_import_path``."""
        return self._dotted or super().aot_name()

    def build_aot(self) -> SetuptoolsExtension:
        """A setuptools extension for ``ext_modules``, which compiles nothing before ``build_ext``."""
        from precast._cubin.code import DeviceCode

        said = self._programs()
        return DeviceCode(
            self.aot_name(),
            said.sources,
            targets=self.targets(),
            include_dirs=said.include_dirs,
            defines=said.defines,
            instances=said.instances,
            flags=said.flags,
            ops=self._ops,
        )

    def build_jit(self) -> KernelModule:
        """The images from the cache, compiled on a miss, for the visible GPUs."""
        return self._module(probe.read_settings(), prebuilt=False)

    def load(self) -> KernelModule:
        """The images from install time for the GPUs they fit, and those of ``build_jit`` for the others."""
        return self._module(probe.read_settings(), prebuilt=True)

    # Internal.

    def _programs(self) -> Programs:
        """The subclass' settings as one value."""
        from precast._cubin.programs import Programs  # only imported if something has to be built

        return Programs(
            self.name,
            tuple(self.strip_empty_entries(self.sources_files())),
            tuple(self.strip_empty_entries(self.include_dirs())),
            dict(self.defines()),
            {source: tuple(names) for source, names in self.instances().items()},
            tuple(self.strip_empty_entries(self.nvrtc_flags())),
        )

    def _nvrtc(self, settings: Settings) -> Nvrtc:
        builders = probe.probe_builders(settings)
        if builders.nvrtc is None:
            host = replace(probe.probe_host(settings, gpus=False), installer=probe.probe_installer())
            raise verdict.cannot_build(self.name, "NVRTC", builders.looked_at, fixes.install_nvrtc(host))
        return builders.nvrtc

    def _shipped(self, settings: Settings) -> tuple[Mapping[int, tuple[images.Image, ...]], str]:
        """For each GPU the images that were built at install time; and why there are none for the others."""
        missing = f"{self.prebuilt_import_path} is not there"
        if settings.jit is JitMode.JIT:
            return {}, missing
        try:
            return launcher.shipped(self.prebuilt_import_path), "there is no prebuilt image for it"
        except ModuleNotFoundError:
            return {}, missing
        except PrebuiltRefused as error:
            return {}, "; ".join(line.strip() for line in str(error).splitlines() if "rejected" in line) or str(error)

    def _choose(self, settings: Settings, *, certain: bool, prebuilt: bool = True) -> list[Chosen]:
        """For each visible GPU, the images that were built at install time, or the target to build."""
        if settings.jit is JitMode.NONE:
            raise forbidden(self.name, self.prebuilt_import_path, "load a kernel", settings.jit)
        host = probe.probe_host(settings, gpus=True, certain=certain)
        if host.driver is None or not host.gpus:
            found = "no GPU is visible" if host.driver else "no CUDA driver (libcuda.so.1)"
            raise KernelUnavailable(
                f"{self.name} cannot be loaded here",
                found=found,
                needed="a visible NVIDIA GPU, and its driver",
                fix=_no_gpu(host, settings),
            )
        shipped, why = self._shipped(settings) if prebuilt else ({}, "")
        chosen = []
        for gpu in host.gpus:
            if gpu.index in shipped:
                chosen.append(Chosen(gpu, shipped[gpu.index], None, f"prebuilt {self.prebuilt_import_path}"))
                continue
            if settings.jit is JitMode.AOT:
                raise forbidden(self.name, self.prebuilt_import_path, f"build it ({why})", settings.jit)
            chosen.append(Chosen(gpu, (), self._target(gpu, self._nvrtc(settings)), why))
        return chosen

    def _target(self, gpu: Gpu, nvrtc: Nvrtc) -> GpuTarget:
        """The target to build for one GPU."""
        from precast._builder import machine

        named = [GpuTarget.parse(target) for target in self.targets()]
        if not named:
            return machine.target_for(gpu.capability, nvrtc.targets)
        fitting = [target for target in named if target.runs_on(gpu.capability)]
        if not fitting:
            raise KernelUnavailable(
                f"{self.name} cannot run on GPU {gpu.index}, {gpu.name}",
                found=f"compute capability {gpu.capability}",
                needed=f"a GPU that {' or '.join(map(str, named))} runs on",
                fix=f"add '{gpu.capability}' to targets() of the extension",
            )
        return max(fitting, key=lambda target: (target.kind is not TargetKind.PTX, target.capability, target.suffix))

    def _module(self, settings: Settings, *, prebuilt: bool) -> KernelModule:
        chosen = self._choose(settings, certain=True, prebuilt=prebuilt)
        targets = list(dict.fromkeys(item.target for item in chosen if item.target is not None))
        built: list[Built] = []
        if targets:
            from precast._cubin import programs

            why = next(item.why for item in chosen if item.target is not None)
            built = programs.build(self._programs(), targets, self._nvrtc(settings), settings, why)
        sources: list[tuple[int, Source]] = []
        per_gpu: dict[int, tuple[images.Image, ...]] = {}
        for item in chosen:
            ours = [one for one in built if one.image.target == item.target]
            per_gpu[item.gpu.index] = item.images or tuple(one.image for one in ours)
            if item.images:
                place = Path(str(sys.modules[self.prebuilt_import_path].__file__))
                sources.append((item.gpu.index, Source("prebuilt", place, str(item.images[0].target))))
            sources += [(item.gpu.index, one.source) for one in ours]
        kernels = launch.kernels(self.name, per_gpu)
        return KernelModule(self.name, self.functions(kernels), sources[0][1], tuple(sources))


class Chosen:
    """The choice for one GPU, with the reason: existing images, or a target to build."""

    __slots__ = ("gpu", "images", "target", "why")

    def __init__(self, gpu: Gpu, found: tuple[images.Image, ...], target: GpuTarget | None, why: str) -> None:
        self.gpu, self.images, self.target, self.why = gpu, found, target, why


def _no_gpu(host: Host, settings: Settings) -> str:
    """What makes a GPU visible."""
    if host.driver is None:
        return fixes.DRIVER
    return "none: there is no GPU" if settings.visible_devices is None else "unset CUDA_VISIBLE_DEVICES"
