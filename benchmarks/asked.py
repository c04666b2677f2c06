"""The targets of each GPU kernel, at the shapes for which we make claims. Other figures are only reported."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """The minimum share of the copy rate and the minimum speedups over peers. None: no target."""

    share: float | None = None
    peer: float | None = None  # over the best peer; torch.compile on the first shape that it sees
    second: float | None = None  # over torch.compile on its second shape
    copy: float | None = None  # over a ``copy_`` of as many bytes, where the fixed cost of a launch decides

    @property
    def share_text(self) -> str:
        """The target as text for a report."""
        return "" if self.share is None else f"share >= {self.share:.2f}"


NORM_SHAPES = ((32768, 4096), (16384, 8192))
SOFTMAX_SHAPES = ((8, 32, 2048, 2048),)
ADAMW_SHAPES = ((40, 4096 * 4096),)
IMAGE_SHAPES = ((16, 128, 256, 256),)
SMALL = (4096, 4096)

LARGE: dict[str, dict[Shape, Asked]] = {
    "rms_norm": dict.fromkeys(NORM_SHAPES, Asked(0.96, 1.0)),
    "fused_add_rms_norm": dict.fromkeys(NORM_SHAPES, Asked(0.98, 1.0)),
    "rms_norm backward": dict.fromkeys(NORM_SHAPES, Asked(0.92, 1.1)),
    "layer_norm": dict.fromkeys(NORM_SHAPES, Asked(0.95, 1.3)),
    "layer_norm backward": dict.fromkeys(NORM_SHAPES, Asked(0.92, 1.1)),
    "silu_and_mul": {
        **dict.fromkeys(NORM_SHAPES, Asked(0.99, 1.0, second=2.0)),
        (65536, 1024): Asked(0.96, 1.0, second=2.0),
    },
    "silu_and_mul backward": dict.fromkeys((*NORM_SHAPES, (65536, 1024)), Asked(0.95, 1.0)),
    "masked softmax forward": dict.fromkeys(SOFTMAX_SHAPES, Asked(0.96, 2.6)),
    "causal softmax forward": dict.fromkeys(SOFTMAX_SHAPES, Asked(0.95, 3.5)),
    "masked softmax backward": dict.fromkeys(SOFTMAX_SHAPES, Asked(0.92, 2.0)),
    "causal softmax backward": dict.fromkeys(SOFTMAX_SHAPES, Asked(0.92, 2.0)),
    "moe_permute_rows": {(16384, 4096, 1): Asked(0.90, 1.0), (16384, 4096, 8): Asked(0.90, 1.0)},
    "moe_unpermute": {(16384, 4096, 1): Asked(0.90, 1.0), (16384, 4096, 8): Asked(0.90, 1.0)},
    "rotary_embedding": {(16384, 32, 8, 128): Asked(0.91)},
    "rotary_embedding backward": {(16384, 32, 8, 128): Asked(0.91)},
    "bias_act": dict.fromkeys(IMAGE_SHAPES, Asked(0.97)),
    "bias_act backward": dict.fromkeys(IMAGE_SHAPES, Asked(0.92)),
    "upfirdn2d": dict.fromkeys(IMAGE_SHAPES, Asked(0.95, 10.0)),
    "upfirdn2d backward": dict.fromkeys(IMAGE_SHAPES, Asked(0.90)),
    **{f"upfirdn2d {way} 2": dict.fromkeys(IMAGE_SHAPES, Asked(0.88, 10.0)) for way in ("up", "down")},
    **{f"upfirdn2d {way} 2 backward": dict.fromkeys(IMAGE_SHAPES, Asked(0.83)) for way in ("up", "down")},
    "AdamW": dict.fromkeys(ADAMW_SHAPES, Asked(0.99, 1.2)),
    "AdamW with masters": dict.fromkeys(ADAMW_SHAPES, Asked(0.97, 1.3)),
}


def asked(op: str, shape: Shape) -> Asked:
    """The targets of an op at a shape."""
    if shape == SMALL and op in LARGE:
        return Asked(copy=0.97)
    return LARGE.get(op, {}).get(shape, Asked())
