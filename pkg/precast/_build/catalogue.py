"""The one authored list of kernel families: their sources, their ops and the devices they serve.

A family is what is compiled, shipped and loaded together. To add one: a folder in ``csrc``, an entry here, a module in
``ops``, a test. Everything else (build, wheel, loader, doctor) walks this list.
"""

from __future__ import annotations

from precast._abi.value import value


@value(frozen=True)
class Family:
    """One kernel family. Paths are relative to ``csrc``; ``cpu`` sources are compiled once per CPU level."""

    name: str
    device: str | None
    host: tuple[str, ...]
    cpu: tuple[str, ...]
    ops: tuple[str, ...]  # full schemas, without the namespace
    devices: tuple[str, ...]
    twins: tuple[str, ...] = ()  # device types on which Triton kernels (ops/_twins) stand in for what is refused

    @property
    def sources(self) -> tuple[str, ...]:
        """Every file that is handed to a compiler for this family."""
        device = () if self.device is None else (self.device,)
        return (*device, *self.host, *self.cpu)


# What every host library holds besides its families: the C interface, the adapter to torch, the launch protocol.
COMMON_HOST: tuple[str, ...] = (
    "common/api.cpp",
    "common/torch.cpp",
    "common/cpu_level.cpp",
    "common/driver.cpp",
    "common/launch.cpp",
    "common/glibc_compat.cpp",
)

# And what it holds for torch's classic C++ ABI in place of torch's own functions.
CLASSIC_ADAPTER = "common/torch_classic.cpp"

# What Triton compiles for; AMD's GPUs are "cuda" to torch.
TRITON = ("cuda", "xpu")

RMS_NORM = Family(
    name="rms_norm",
    device="rms_norm/device.cu",
    host=("rms_norm/host.cpp",),
    cpu=("rms_norm/cpu.cpp",),
    ops=(
        "rms_norm(Tensor x, Tensor weight, float eps, int casting) -> Tensor",
        "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, int casting) -> (Tensor, Tensor)",
        "fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, int casting) -> ()",
    ),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

# Apart from the forward, so that inference neither compiles nor loads it. It shares the CPU sources.
RMS_NORM_BACKWARD = Family(
    name="rms_norm_backward",
    device="rms_norm/backward.cu",
    host=("rms_norm/backward.cpp",),
    cpu=("rms_norm/cpu.cpp",),
    ops=(
        "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps, int casting) -> (Tensor, Tensor)",
        (
            "fused_add_rms_norm_backward(Tensor grad_y, Tensor grad_sum, Tensor sum, Tensor weight, float eps,"
            " int casting) -> (Tensor, Tensor)"
        ),
    ),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

ACTIVATIONS = Family(
    name="activations",
    device="activations/device.cu",
    host=("activations/host.cpp",),
    cpu=("activations/cpu.cpp",),
    ops=("gated_activation(Tensor x, int kind) -> Tensor",),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

ACTIVATIONS_BACKWARD = Family(
    name="activations_backward",
    device="activations/backward.cu",
    host=("activations/backward.cpp",),
    cpu=("activations/cpu.cpp",),
    ops=("gated_activation_backward(Tensor grad, Tensor x, int kind) -> Tensor",),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

LAYER_NORM = Family(
    name="layer_norm",
    device="layer_norm/device.cu",
    host=("layer_norm/host.cpp",),
    cpu=("layer_norm/cpu.cpp",),
    ops=("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

LAYER_NORM_BACKWARD = Family(
    name="layer_norm_backward",
    device="layer_norm/backward.cu",
    host=("layer_norm/backward.cpp",),
    cpu=("layer_norm/cpu.cpp",),
    ops=(
        (
            "layer_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps, bool weight_grad, bool bias_grad)"
            " -> (Tensor, Tensor, Tensor)"
        ),
    ),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

CPU_ADAM = Family(
    name="cpu_adam",
    device=None,
    host=("cpu_adam/host.cpp",),
    cpu=("cpu_adam/cpu.cpp",),
    ops=(
        (
            "adam_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs,"
            " Tensor(d!)[] copies, float lr, float beta1, float beta2, float eps, float weight_decay,"
            " float bias_correction1, float bias_correction2, float grad_scale, bool decoupled, bool maximize) -> ()"
        ),
    ),
    devices=("cpu",),
)

SOFTMAX = Family(
    name="softmax",
    device="softmax/device.cu",
    host=("softmax/host.cpp",),
    cpu=("softmax/cpu.cpp",),
    ops=(
        "scaled_softmax(Tensor x, float scale) -> Tensor",
        "scaled_masked_softmax(Tensor x, Tensor mask, float scale, float masked_value, bool uniform) -> Tensor",
        "scaled_upper_triang_masked_softmax(Tensor x, float scale) -> Tensor",
        "scaled_aligned_causal_softmax(Tensor x, float scale) -> Tensor",
    ),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

# One gradient for all four, from the result. It shares the CPU sources.
SOFTMAX_BACKWARD = Family(
    name="softmax_backward",
    device="softmax/backward.cu",
    host=("softmax/backward.cpp",),
    cpu=("softmax/cpu.cpp",),
    ops=("scaled_softmax_backward(Tensor grad, Tensor y, float scale, bool causal) -> Tensor",),
    devices=("cpu", "cuda"),
    twins=TRITON,
)

FAMILIES = (
    RMS_NORM,
    RMS_NORM_BACKWARD,
    LAYER_NORM,
    LAYER_NORM_BACKWARD,
    ACTIVATIONS,
    ACTIVATIONS_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    CPU_ADAM,
)


def get(name: str) -> Family:
    """Find a family by name, or raise KeyError with the names there are."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(f"no kernel family {name!r}; there are: {', '.join(family.name for family in FAMILIES)}")
