"""What can be said about a library and one torch: its names, its C++ ABI, and the torch that built it."""

from __future__ import annotations

from precast._builder import torch_names
from precast._builder.verdicts import Verdict, against
from precast._builder.xray import Contents, Library
from precast.core.reasons import Reason
from precast.core.version import Release, TorchVersion


def judge(contents: Contents, library: Library, torch: TorchVersion | None) -> Verdict | None:
    """What can be said about a torch; None if it fits."""
    if torch is None or not library.needs_torch:
        return None
    missing = library.missing()
    if missing.get(torch.release):
        names = missing[torch.release]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return against("no", Reason.TORCH_ABI, f"{names[0]}{more}", f"torch {torch.release}, which does not have it")
    other = _other_build(library, torch)
    if other is not None:
        return other
    if library.bound.torch_cuda and torch.local == "cpu":
        return against("no", Reason.CUDA_RUNTIME, "torch's CUDA libraries", f"torch {torch}")
    if not library.bound.classic:
        return None
    if library.cxx11 not in (None, has_cxx11(torch, library.info.machine)):
        return against("no", Reason.TORCH_ABI, f"cxx11 ABI {int(bool(library.cxx11))}", f"the other, of torch {torch}")
    stated, said = (library.stated, "its path says") if library.stated else (contents.stated, "its metadata say")
    if stated is None:
        return _unstated(library, torch)
    if stated == torch.release:
        return None
    return against("no", Reason.TORCH_ABI, f"torch {stated}, as {said}", f"torch {torch}")


def _unstated(library: Library, torch: TorchVersion) -> Verdict | None:
    """What the names of classic C++ say, where nothing says which torch built it."""
    missing = library.missing()
    if torch.release not in missing:
        return against(
            "unknown",
            Reason.TORCH_ABI,
            "the torch that built it, which nothing says",
            f"torch {torch}, whose names are not known",
        )
    fitting = [str(release) for release, names in missing.items() if not names]
    if len(fitting) > 1:
        several = f"the one that built it, of torch {', '.join(fitting)}: its C++ has no stable ABI"
        return against("unknown", Reason.TORCH_ABI, several, f"torch {torch}")
    unrecorded = [name for name in library.bound.classic if not torch_names.is_recorded(name)]
    unrecorded = [name for name in unrecorded if name not in library.provided]
    if unrecorded:
        return against("unknown", Reason.TORCH_ABI, unrecorded[0], "no torch that is known to have it")
    return None


def _other_build(library: Library, torch: TorchVersion) -> Verdict | None:
    """The builds for other GPUs: those on PyPI are none, and the names of the others are not known."""
    for kind, local in (("xpu", "xpu"), ("hip", "rocm")):
        if {f"libtorch_{kind}.so", f"libc10_{kind}.so"}.isdisjoint(library.info.needed):
            continue
        if (torch.local or "").startswith(local):
            return against(
                "unknown",
                Reason.TORCH_ABI,
                f"torch's libraries for {local}",
                f"torch {torch}, whose names are not known",
            )
        return against("no", Reason.TORCH_ABI, f"torch's libraries for {local}", f"torch {torch}")
    return None


def has_cxx11(torch: TorchVersion, machine: str) -> bool:
    """The C++ ABI of PyPI's build of a torch. Torch 2.7 and newer have the new one, as these builds of 2.6 have."""
    if torch.release == Release(2, 6) and (torch.local == "cu126" or machine == "aarch64"):
        return True
    return next((one.cxx11 for one in torch_names.recorded() if one.release == torch.release), True)
