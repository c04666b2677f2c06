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
    late: bool = False  # its ops wait for the import of precast.ops.<name>, and cost other first calls nothing
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
    host=("cpu_adam/host.cpp", "cpu_optim/lists.cpp"),
    cpu=("cpu_optim/cpu.cpp",),
    ops=(
        (
            "adam_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs,"
            " Tensor(d!)[] copies, float lr, float beta1, float beta2, float eps, float weight_decay,"
            " float bias_correction1, float bias_correction2, float grad_scale, bool decoupled, bool maximize) -> ()"
        ),
    ),
    devices=("cpu",),
)

# Every optimizer on the CPU, all groups at once. It shares its sources with the one step of cpu_adam.
CPU_OPTIM = Family(
    name="cpu_optim",
    device=None,
    host=("cpu_optim/host.cpp", "cpu_optim/lists.cpp", "common/kind.cpp"),
    cpu=("cpu_optim/cpu.cpp",),
    ops=(
        (
            "optimize_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] first, Tensor(c!)[] second,"
            " Tensor(d!)[] third, Tensor(e!)[] steps, Tensor(f!)[] copies, Tensor(g!) plan, Tensor numbers,"
            " float grad_scale, int rule) -> ()"
        ),
        "optimize_again_(Tensor(a!) plan, Tensor numbers, float grad_scale) -> bool",
    ),
    devices=("cpu",),
    late=True,
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

# Forward, gradient and gradient of the gradient are one op: back is the same with the sines' other sign.
ROTARY = Family(
    name="rotary",
    device="rotary/device.cu",
    host=("rotary/host.cpp",),
    cpu=("rotary/cpu.cpp",),
    ops=(
        (
            "rotary_embedding(Tensor query, Tensor? key, Tensor cos, Tensor sin, Tensor? positions, bool interleaved,"
            " bool inverse) -> (Tensor, Tensor)"
        ),
        (
            "rotary_embedding_(Tensor(a!) query, Tensor(b!)? key, Tensor cos, Tensor sin, Tensor? positions,"
            " bool interleaved, bool inverse) -> ()"
        ),
    ),
    devices=("cpu", "cuda"),
    late=True,
)

# Optimizer steps over lists of tensors on the GPU. A plan is a number that stands for the tensors of a step: their
# table on the device is written once, and again when one of them has moved.
MULTI_TENSOR = Family(
    name="multi_tensor",
    device="multi_tensor/device.cu",
    host=(
        "multi_tensor/host.cpp",
        "common/kind.cpp",
        "multi_tensor/plan.cpp",
        "multi_tensor/table.cpp",
        "multi_tensor/lists.cpp",
    ),
    cpu=(),
    ops=(
        (
            "multi_tensor_plan(Tensor[] params, Tensor[] grads, Tensor[] firsts, Tensor[] seconds, Tensor[] thirds,"
            " Tensor[] copies, Tensor[] idle, Tensor layout) -> int"
        ),
        (
            "multi_tensor_step_(int plan, Tensor[] grads, Tensor(a!) steps, Tensor groups, Tensor[] rates,"
            " Tensor? found_inf, Tensor? grad_scale, float max_norm, int kind, int flags) -> int"
        ),
        "multi_tensor_forget(int plan, Tensor steps) -> ()",
        "multi_tensor_l2norm(Tensor[] tensors) -> (Tensor, Tensor)",
        (
            "multi_tensor_axpby_(Tensor(a!)[] outs, Tensor[] xs, Tensor[] ys, float a, float b, Tensor? factor,"
            " Tensor(b!)? found_inf) -> ()"
        ),
    ),
    devices=("cuda",),
    late=True,
    twins=TRITON,
)

# Keys and values of tokens into a paged cache, in place.
KV_CACHE = Family(
    name="kv_cache",
    device="kv_cache/device.cu",
    host=("kv_cache/host.cpp",),
    cpu=("rotary/cpu.cpp",),
    ops=(
        (
            "reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache,"
            " Tensor slot_mapping) -> ()"
        ),
        (
            "rotary_embedding_and_cache(Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor cos, Tensor sin,"
            " Tensor(c!) key_cache, Tensor(d!) value_cache, Tensor slot_mapping, Tensor? positions, bool interleaved)"
            " -> ()"
        ),
    ),
    devices=("cpu", "cuda"),
    late=True,
)

# Attention of up to sixteen tokens of each sequence over its keys and values in a paged cache. For inference.
DECODE_ATTENTION = Family(
    name="decode_attention",
    device="decode_attention/device.cu",
    host=("decode_attention/host.cpp",),
    cpu=("decode_attention/cpu.cpp",),
    ops=(
        (
            "paged_decode_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables,"
            " Tensor lengths, float scale, int window, float softcap, Tensor? alibi_slopes, Tensor? sinks,"
            " Tensor? key_scale, Tensor? value_scale) -> (Tensor, Tensor)"
        ),
    ),
    devices=("cpu", "cuda"),
    late=True,
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
    CPU_OPTIM,
    ROTARY,
    MULTI_TENSOR,
    KV_CACHE,
    DECODE_ATTENTION,
)


def get(name: str) -> Family:
    """Find a family by name, or raise KeyError with the names there are."""
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(f"no kernel family {name!r}; there are: {', '.join(family.name for family in FAMILIES)}")
