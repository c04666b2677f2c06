"""Functions of ``fla.ops.gated_delta_rule`` and ``fla.ops.kda``, by their names and arguments, on top of precast's ops.

What FLA computes in its kernels besides the rule, the activations of gates and of ``beta``, is plain torch here.
Bounded gates are refused.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["chunk_gated_delta_rule", "chunk_kda", "fused_recurrent_gated_delta_rule", "fused_recurrent_kda"]

# Arguments that other versions have, by what they must be; None: what it is does not change the result.
_OTHERS: dict[str, tuple[Any, ...] | None] = {
    "chunk_indices": None,
    "chunk_size": None,
    "cp_context": (None,),
    "cu_seqlens_cpu": None,
    "disable_recompute": None,
    "gv": (None,),
    "head_first": (False,),
    "lower_bound": (None,),
    "max_num_seqs": None,
    "return_intermediate_states": (False,),
    "safe_gate": None,
    "use_graph": None,
}


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The outputs of ``(batch, length, heads, width)``, and the final states or None. Differentiable."""
    given = {name: value for name, value in locals().items() if name != "others"}
    return fused_recurrent_gated_delta_rule(**given, **others)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same with ``g`` of ``(batch, length, heads, width)``, one for each element of a key. Differentiable."""
    given = {name: value for name, value in locals().items() if name != "others"}
    return fused_recurrent_gated_delta_rule(**given, **others)


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,  # noqa: N803 - a name to keep
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same as ``chunk_kda``."""
    given = {name: value for name, value in locals().items() if name != "others"}
    return fused_recurrent_gated_delta_rule(**given, **others)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,  # noqa: N803 - a name to keep
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool | None = None,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The same function: the op chooses how it computes. ``gv`` is refused."""
    import torch

    from precast import ops

    by_value = _is_by_value(state_v_first, others)
    _check_others({"gv": gv, **others})
    if use_gate_in_kernel:
        if g is None or A_log is None:
            raise ValueError("use_gate_in_kernel is set, and g or A_log is None; needed both")
        raw = g.float() if dt_bias is None else g.float() + dt_bias.float().reshape(g.shape[2:])
        g = -A_log.float().exp().reshape(-1, *(1,) * (g.dim() - 3)) * torch.nn.functional.softplus(raw)
    if use_beta_sigmoid_in_kernel and beta is not None:
        beta = beta.float().sigmoid() * (2 if allow_neg_eigval else 1)
    if gk is not None:
        g = gk.float() if g is None else gk.float() + g.float().unsqueeze(-1)
    wanted = (torch.float32, q.dtype)
    g, beta = (one if one is None or one.dtype in wanted else one.float() for one in (g, beta))
    state = None if initial_state is None else initial_state.float()
    out, final = ops.gated_delta_rule(
        *(q, k.to(q.dtype), v.to(q.dtype), g, beta),
        scale=scale,
        initial_state=state.mT if by_value and state is not None else state,
        starts=cu_seqlens,
        l2_norm=use_qk_l2norm_in_kernel,
    )
    if not output_final_state:
        return out, None
    return out, final.mT.contiguous() if by_value else final


def _is_by_value(state_v_first: bool | None, others: dict[str, Any]) -> bool:
    """Whether a state is ``(value_dim, key_dim)``, from the argument or its older name."""
    older: bool | None = others.pop("transpose_state_layout", None)
    if older is None:
        return bool(state_v_first)
    if state_v_first:
        raise ValueError("state_v_first and transpose_state_layout are two names of one argument; needed only one")
    warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
    return older


def _check_others(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name not in _OTHERS:
            raise TypeError(f"{name} is no argument of this function")
        needed = _OTHERS[name]
        if needed is not None and value not in (None, *needed):
            found = repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
            raise NotImplementedError(f"{name} is {found}; needed {needed[0]}")
