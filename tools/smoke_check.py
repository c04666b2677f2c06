"""Run one op from the prebuilt files of the installed precast, and compare it with torch.

A separate program: it runs in a fresh environment with the wheel and torch, but without the checkout.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Compare on the CPU, and on the GPU if torch sees one; nothing may be built."""
    os.environ["PRECAST_JIT"] = "aot"
    import torch

    import precast
    from precast._builder import catalogue
    from precast.ops.norm import rms_norm

    for device in ("cpu", "cuda") if torch.version.cuda and torch.cuda.is_available() else ("cpu",):
        x, weight = torch.randn(3, 40, device=device), torch.randn(40, device=device)
        torch.testing.assert_close(
            rms_norm(x, weight), torch.nn.functional.rms_norm(x, (40,), weight, 1e-6), rtol=1e-4, atol=1e-5
        )
        loaded = precast.load("rms_norm", device)
        sources = [loaded.host, *(source for _, source in loaded.images)]
        foreign = [str(source) for source in sources if source.kind != "prebuilt"]
        if foreign:
            print(f"not from the wheel: {', '.join(foreign)}", file=sys.stderr)
            return 1
        print(f"precast {precast.__version__} in {Path(precast.__file__).parent}")
        print(f"rms_norm on {device}, torch {torch.__version__}: {loaded.host.path}, equal to torch's")
    for family in catalogue.FAMILIES:
        if "cpu" in family.devices:
            precast.load(family.name)
    unknown = [text for text in torch._C._dispatch_find_dangling_impls() if "name: precast::" in text]
    if unknown:
        print(f"kernels for ops that do not exist:\n{''.join(unknown)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
