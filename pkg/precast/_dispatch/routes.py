"""The route of a public call to its kernel: the shortest one that gives the dispatcher's result.

1. Direct: the function of the host library in ``csrc/host/direct.cpp``. It calls the kernel, or the formula that
   records a gradient, if the tensors are plain, the thread has no mode, transform, tracer or profiler, and all kernels
   of the op are ours.
2. Below autograd: the dispatcher without its ``Autograd`` key, if no tangent, transform or graph can be needed. Calls
   take this route until the kernels are loaded, and in a torch that lacks what the direct route reads.
3. The dispatcher with all its keys, as a call of ``torch.ops.precast``. ``torch.compile`` traces this one alone.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

from precast._dispatch import namespace
from precast._dispatch.formulas import AUTOGRAD_KEY, HAS_KEY_BITS, key_bits, plain_keys, without_autograd
from precast._dispatch.in_place import below, mark_written, refuse_inference, written_arguments
from precast._load.handover import NAMESPACE

if TYPE_CHECKING:
    from precast._load.library import HostLibrary

# Bound once, because each attribute lookup of a call takes a few hundredths of a microsecond.
is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_transform_active = torch._C._are_functorch_transforms_active
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded


def _is_exporting() -> bool:
    """Whether a trace is for ONNX."""
    return _is_tracing() and torch.onnx.is_in_onnx_export()


_autocasts = getattr(torch._C, "_is_any_autocast_enabled", None) or (
    lambda: torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()
)

_CODES = {"Tensor": "t", "Optional[Tensor]": "o", "float": "d", "int": "i", "bool": "b"}
_DEVICES = {"CPU": 1, "CUDA": 2}


class Route:
    """The routes of one op. A public function calls ``call``, unless ``torch.compile`` traces it.

    Args:
        op: the op.
        record: called with a function that computes the op below autograd, and the arguments, if a gradient is wanted:
            an ``autograd.Function``, or a function that raises. None: the dispatcher does what the op's formulas say.
        otherwise: called with the arguments of a call that only the third route can take; None: the op.
    """

    __slots__ = (
        *("_below", "_below_all", "_entry", "_function", "_record", "_registered", "_written"),
        *("call", "op", "otherwise"),
    )

    def __init__(
        self,
        op: torch._ops.OpOverload,
        record: type[Any] | Callable[..., Any] | None = None,
        otherwise: Callable[..., Any] | None = None,
    ) -> None:
        self.op = op
        self._function = cast("Any", record) if isinstance(record, type) else None
        self._record: Callable[..., Any] | None = record if self._function is None else self._function.apply
        self.otherwise: Callable[..., Any] = op if otherwise is None else otherwise
        # The dispatcher's own entry point, without the Python frame of OpOverload.__call__ (0.3 us).
        self._entry: Callable[..., Any] = op._op
        self._below = without_autograd(self._entry)
        self._below_all = below(self._entry)
        self._written = written_arguments(op)
        self._registered: dict[HostLibrary, int] = {}  # devices by the library that has kernels for them
        self.call: Callable[..., Any] = self.below
        namespace.BINDINGS.setdefault(op._opname, []).append(self._bind)

    def __call__(self, *args: Any) -> Any:
        """The result by the shortest route. All arguments of the schema must be given, by position."""
        # is_compiling comes first, because torch.compile cannot trace what follows.
        if not is_compiling() and forward_ad._current_level < 0:
            return self.call(*args)
        return self.otherwise(*args)

    def below(self, *args: Any) -> Any:
        """The second route, or the third; an error about the kind of an argument names it."""
        try:
            return self._dispatched(*args)
        except (RuntimeError, TypeError) as error:
            problem = _wrong_kind(self.op, args)
            if problem is None:
                raise
            raise TypeError(problem) from error

    def _dispatched(self, *args: Any) -> Any:
        if _transform_active() or has_torch_function(args) or _is_excluded(AUTOGRAD_KEY) or _is_exporting():
            return self.otherwise(*args)
        if _autocasts():  # a rule that somebody else has registered for it comes before autograd
            return self.otherwise(*args)
        alone = not _is_grad_enabled() or not any(isinstance(a, Tensor) and a.requires_grad for a in args)
        if not alone:
            if self._record is None:
                return self.op(*args)
            if not _is_tracing() or not self._function:
                return self._record(self._below, *args)
        # torch.jit.trace cannot save a Function, and wants one line for one op.
        if self._written and alone:
            return self._below_in_place(*args)
        _set_excluded(AUTOGRAD_KEY, alone)
        try:
            return self._entry(*args)
        finally:
            _set_excluded(AUTOGRAD_KEY, False)

    def _below_in_place(self, *args: Any) -> Any:
        """The second route of an op in place, with what its kernels above would have done."""
        targets = [args[i] for i in self._written if isinstance(args[i], Tensor)]
        refuse_inference(self.op._opname, targets)
        done = self._below_all(*args)
        mark_written(targets)
        return done

    def _bind(self, library: HostLibrary, key: str) -> None:
        """Take the first route from now on, for the devices whose kernels this library has registered."""
        schema = self.op._schema
        types = [_CODES.get(str(argument.type)) for argument in schema.arguments]
        if None in types or any(str(result.type) != "Tensor" for result in schema.returns) or not _is_readable(library):
            return
        if _has_others(self.op.name(), bool(self._written)):
            self.call = self.otherwise
            return
        count = _registrations(library, self.op.name())
        if count is None:
            return
        self._registered[library] = self._registered.get(library, 0) | _DEVICES[key]
        record = self._record if self._function is None else _apply(self._function)
        now = _word(count)
        make = functools.partial(
            library.direct,
            op=self.op._opname,
            types="".join(cast("list[str]", types)),
            results=len(schema.returns),
            devices=self._registered[library],
            written=sum(1 << i for i in self._written),
            plain=plain_keys(),
            included=key_bits("ADInplaceOrView"),
            excluded=key_bits("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", *_AUTOCAST),
            autograd=key_bits("AutogradFunctionality"),
            registered=count,
            expected=now,
            dispatched=self.otherwise,
        )
        below = make(record=None, first=None, otherwise=self._below)
        found = make(record=record, first=below, otherwise=self.below)
        if found is not None:
            self.call = found


_AUTOCAST = ("AutocastCPU", "AutocastCUDA", "AutocastXPU")  # our ops have no kernel for these
_OTHERS = (*_AUTOCAST, "AutogradCPU", "AutogradCUDA", "AutogradXPU")  # nor for these


def _has_others(op: str, writes: bool) -> bool:
    """Whether somebody has registered a kernel for a key that plain tensors have, above those of the devices.

    An op in place has a kernel of ours for ``ADInplaceOrView``.
    """
    keys = _OTHERS if writes else (*_OTHERS, "ADInplaceOrView")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op, key) for key in keys)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _registrations(library: HostLibrary, op: str) -> int | None:
    """The address of the dispatcher's count of an op's kernels; None if it cannot be found in this torch."""
    offset, found = _place_of_count(library), library.operator(op)
    return None if offset is None or found is None else found[0] + offset


@functools.cache
def _place_of_count(library: HostLibrary) -> int | None:
    """Where the dispatcher counts an op's kernels: a word that becomes 1, 2 and 3 as an op of our own gets two."""
    space = f"{NAMESPACE}_counts_{threading.get_ident()}"
    # Without torch.library.Library, which reads the sources of its callers: 0.2 ms of a first call.
    own = torch._C._dispatch_library("DEF", space, "")
    try:
        own.define("counted() -> ()", "")
        found = library.operator(f"{space}::counted")
        if found is None:
            return None
        seen = [_words(*found)]
        for key in ("CPU", "CUDA"):
            own.impl("counted", key, lambda: None)
            seen.append(_words(*found))
    finally:
        own.reset()  # the op is gone
    places = [8 * i for i, counts in enumerate(zip(*seen, strict=True)) if counts == (1, 2, 3)]
    return places[0] if len(places) == 1 else None


def _words(address: int, size: int) -> list[int]:
    return list((ctypes.c_uint64 * (size // 8)).from_address(address))


def _wrong_kind(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> str | None:
    """What is wrong with the first argument that is no tensor where one is needed."""
    for argument, value in zip(op._schema.arguments, args, strict=False):
        kind = str(argument.type)
        if kind == "Tensor" and not isinstance(value, Tensor):
            return f"{op._opname}: {argument.name} is a {type(value).__name__}; needed a torch.Tensor"
    return None


def _apply(function: type[Any]) -> Callable[..., Any]:
    """``function.apply`` without its Python frames (2 us), which only concern tensors that the direct route refuses."""
    method: Any = torch._C._FunctionBase.__dict__["apply"]
    bound: Callable[..., Any] = method.__get__(None, function)
    return bound


@functools.cache
def _is_readable(library: HostLibrary) -> bool:
    """Whether the library reads this thread's dispatch keys correctly; a test call sets one and looks."""
    before = library.thread_keys() if HAS_KEY_BITS else None
    if before is None:
        return False
    key = torch._C.DispatchKey.AutogradFunctionality
    was = _is_excluded(key)
    _set_excluded(key, not was)
    try:
        after = library.thread_keys()
    finally:
        _set_excluded(key, was)
    return after == (before[0], before[1] ^ key_bits("AutogradFunctionality"))
