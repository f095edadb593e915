"""The tracker inside PyTorch: put in by `install`, taken out by `uninstall`.

It imports PyTorch and, of this package, the drop-in only. It promises that every step that
PyTorch or an optimizer takes while it is installed is counted once, on whichever thread, and
that PyTorch is as it was after `uninstall` and after an `install` that fails.

A count is kept for each optimizer, not one for all: two optimizers that step in turn are one
step of the training loop, and the largest count is the number of its iterations.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import pkgutil
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from kineto_step_tracker import drop_in
from kineto_step_tracker.drop_in import KinetoStepTracker

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "kineto_step_tracker.pytorch needs PyTorch: pip install 'kineto-step-tracker[torch]'",
        name="torch",
    ) from error

import torch.autograd.profiler
import torch.profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from kineto_step_tracker.tracker import Requester

__all__ = ["install", "installed", "is_installed", "uninstall"]

# What install() and the hook use of PyTorch, private names among it, found on 2.13.
_METHODS = ("init_step_count", "erase_step_count", "increment_step", "current_step")
_ATTRIBUTES = ("_current_step", "_step_dict")
_NEEDED = (
    *(f"torch.autograd.profiler:KinetoStepTracker.{name}" for name in _METHODS + _ATTRIBUTES),
    "torch.autograd.profiler:_kineto_step",
    "torch._C._autograd:_record_function_with_args_enter",
    "torch.profiler:KinetoStepTracker",
    "torch.profiler:_optimizer_post_hook",
    "torch.optim.optimizer:Optimizer.profile_hook_step",
    "torch.optim.optimizer:_global_optimizer_post_hooks",
    "torch.optim.optimizer:register_optimizer_step_post_hook",
    "torch.compiler:is_dynamo_compiling",
    "torch.library:custom_op",
    "torch._library.custom_ops:CustomOpDef.register_effect",
    "torch._library.effects:EffectType.ORDERED",
)

# at::hasCallbacks() in the Itanium C++ ABI, which Linux and macOS have.
_HAS_CALLBACKS = "_ZN2at12hasCallbacksEv"

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# Over install and uninstall only: no step takes it.
_lock = threading.RLock()
_installation: _Installation | None = None
# Who wants it installed, and with which ``kineto``; the last one that is not None decides.
_holders: dict[object, bool | None] = {}

# The optimizers' claims, by name and by id. Threads, finalisers and signal handlers meet here in
# single operations of these dicts, since a lock might be held by the very thread they interrupt.
_names: dict[str, _Claim] = {}
_claims: dict[int, _Claim] = {}
# The handles of those that are registered and do not nest, by the optimizers' id. A claim has its
# handle too, but in a training step with many optimizers each object on the way to it is one
# more to fetch into the caches, which by then hold others.
_handles: dict[int, Requester] = {}


def install(kineto: bool | None = None) -> None:
    """Put the tracker into PyTorch, in place of its own ``KinetoStepTracker``.

    From then on:

    - ``torch.autograd.profiler.KinetoStepTracker`` and ``torch.profiler.KinetoStepTracker``
      are `kineto_step_tracker.KinetoStepTracker`, and whatever is done with a reference to
      PyTorch's class from before is done to it.
    - The global step and the requesters' counts go on from PyTorch's.
    - Each optimizer is a requester of its own, named after its class and the smallest free
      number, such as "AdamW#1". It is registered by its first ``step()`` and erased when it is
      garbage-collected; a copy and an unpickled optimizer are new ones. PyTorch's own hook,
      which counts all optimizers as one requester, is out, and so is that requester.

    An optimizer starts at the global step, so its first ``step()`` raises that by one. The
    exception: where the global step was made by another optimizer's first ``step()``, and that
    has not stepped since, both first steps are one. So 300 optimizers, one for each parameter,
    count one step in the first iteration too; and optimizers that are used once each, one after
    another, count as one iteration for as long as they are alive.

    A ``step()`` that is called by another ``step()`` of the same optimizer, as a subclass does
    with ``super()``, is part of it and not counted. One that raises is not counted, nor one
    that ``GradScaler`` skips; a fused optimizer does its skipping itself, and is.

    In functions under `torch.compile` steps are counted by an operator in the graph, which
    breaks no graph. What runs the hooks of such a step twice, ``super().step()`` between
    classes that both have instances, counts it twice there. Graphs recompile after `install`
    and after `uninstall`.

    All `torch.profiler.profile` objects share the requester "ProfilerStep". Making one sets
    its count to the global step, leaving one erases it for all, and if ``KINETO_USE_DAEMON``
    is set every ``step()`` of every one adds to it: two profilers that are stepped once an
    iteration count two steps.

    Args:
        kineto: whether a rise of the global step calls Kineto's ``step()``. None for what
            PyTorch does: exactly if the environment variable ``KINETO_USE_DAEMON`` is set.
            `install` looks at it now, and PyTorch when it is imported: set it before both.

    Installing again changes ``kineto``, if it is not None, and nothing else. One `uninstall`
    undoes any number of calls.

    Raises:
        TypeError: ``kineto`` is neither a bool nor None.
        RuntimeError: this PyTorch lacks something, which the message names, and is unchanged.

    Thread-safe, and other threads may step meanwhile. Do not call it in a signal handler, nor,
    if other global optimizer hooks are registered, while a thread runs one: PyTorch's dict of
    them must not change then.

    >>> import torch
    >>> from kineto_step_tracker import KinetoStepTracker
    >>> install()
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizers = torch.optim.SGD([weight]), torch.optim.AdamW([weight])
    >>> for optimizer in optimizers:
    ...     optimizer.step()
    >>> KinetoStepTracker.step_counts(), KinetoStepTracker.current_step()
    ({'SGD#1': 1, 'AdamW#1': 1}, 1)
    >>> uninstall()
    """
    with _lock:
        _hold(install, kineto)


def uninstall() -> None:
    """Take the tracker out of PyTorch, whoever installed it; nothing happens if it is not in.

    PyTorch's class and hook are back, with the global step and the counts, which leave
    `kineto_step_tracker.KinetoStepTracker`. Its step stays, since it never falls. Optimizers
    keep their names until they are garbage-collected.

    Thread-safe. Steps that other threads take meanwhile are counted on one side or the other,
    never on both, and each one that returned before the call is among those handed over. What is
    counted here after that stays here: an `install` that follows at once goes on from the larger
    of the two steps, not from their sum.
    """
    with _lock:
        _holders.clear()
        _settle()


@contextlib.contextmanager
def installed(kineto: bool | None = None) -> Iterator[None]:
    """Install for the length of a ``with`` statement, or of the function that it decorates.

    Such statements may be nested, and may overlap on several threads: the last to be left
    uninstalls, unless `install` was called besides. Of several ``kineto`` that are not None,
    the last one given by those still in force decides. After `uninstall`, leaving one does
    nothing.

    Args:
        kineto: as for `install`.

    Raises:
        TypeError, RuntimeError: as `install` does.

    >>> with installed():
    ...     with installed(kineto=True):
    ...         pass
    ...     is_installed()
    True
    >>> is_installed()
    False
    """
    holder = object()
    with _lock:
        _hold(holder, kineto)
    try:
        yield
    finally:
        with _lock:
            if holder in _holders:
                del _holders[holder]
                _settle()


def is_installed() -> bool:
    """Return whether the tracker is in PyTorch. Thread-safe; never waits.

    >>> is_installed()
    False
    """
    return _installation is not None


def _hold(holder: object, kineto: bool | None) -> None:
    if kineto is not None and not isinstance(kineto, bool):
        raise TypeError(f"kineto must be a bool or None, not {kineto!r}")
    if kineto is None:
        kineto = _holders.get(holder)
    # Taken out first, so that the last one given is the last in the dict.
    _holders.pop(holder, None)
    # Before the question: the garbage collector may end a forgotten installed() at any moment, and
    # with the last holder would go what was found installed.
    _holders[holder] = kineto
    if not is_installed():
        try:
            _put_in()
        except BaseException:
            del _holders[holder]
            raise
    _settle()


def _put_in() -> None:
    global _installation
    missing = [name for name in _NEEDED if not _exists(name)]
    if not missing and type(torch.autograd.profiler.KinetoStepTracker) is not type:
        missing = ["torch.autograd.profiler:KinetoStepTracker as a plain class"]
    if missing:
        raise RuntimeError(
            f"cannot install into PyTorch {torch.__version__}, which is unchanged. Not found: "
            f"{', '.join(missing).replace(':', '.')}. This release was tested with PyTorch 2.13"
        )
    _installation = _Installation()


def _settle() -> None:
    """Make the installation what its holders want."""
    global _installation
    if _holders:
        wanted = [kineto for kineto in _holders.values() if kineto is not None]
        daemon = bool(os.environ.get("KINETO_USE_DAEMON"))
        drop_in.step_kineto = wanted[-1] if wanted else daemon
    elif _installation is not None:
        _installation.undo()
        _installation = None


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def _find_is_recording() -> Callable[[], bool] | None:
    """Return PyTorch's ``at::hasCallbacks()``, or None if it is not found by its name.

    The question that PyTorch answers from Python, `torch.autograd._profiler_enabled`, is about
    traces that this thread has started; those that Kineto's daemon asks for are none of them.
    """
    function = getattr(ctypes.PyDLL(torch._C.__file__), _HAS_CALLBACKS, None)
    if function is not None:
        function.restype = ctypes.c_bool
    return function


class _Installation:
    """What is replaced in PyTorch, from its making, which may fail, to `undo`."""

    def __init__(self) -> None:
        self._stock = stock = torch.autograd.profiler.KinetoStepTracker
        _define_operator()
        _take_over(stock)
        with contextlib.ExitStack() as names, contextlib.ExitStack() as attributes:
            _replace(names, drop_in, "step_kineto", drop_in.step_kineto)
            drop_in.annotate = torch._C._autograd._record_function_with_args_enter
            _replace(names, drop_in, "is_recording", _find_is_recording())
            self._had_hook = _replace_hook(names)
            for module in (torch.autograd.profiler, torch.profiler):
                _replace(names, module, "KinetoStepTracker", KinetoStepTracker)
            for method in _METHODS:
                _replace(names, stock, method, getattr(KinetoStepTracker, method))
            for attribute in _ATTRIBUTES:
                # Out of sight of what looks into the class's dict, such as pytest's monkeypatch.
                attributes.callback(setattr, stock, attribute, vars(stock)[attribute])
                delattr(stock, attribute)
            attributes.callback(_set_metaclass, stock, type)
            _set_metaclass(stock, type(KinetoStepTracker))
            self._names, self._attributes = names.pop_all(), attributes.pop_all()

    def undo(self) -> None:
        self._attributes.close()
        self._stock._step_dict.clear()
        handed = self._hand_over({})
        if self._had_hook:
            # It begins again at the global step, as any requester does.
            self._stock._step_dict["Optimizer"] = self._stock._current_step
        self._names.close()
        # Once more: other threads may have counted between the first time and the hooks' return.
        for name in self._hand_over(handed):
            KinetoStepTracker.erase_step_count(name)

    def _hand_over(self, handed: dict[str, int]) -> dict[str, int]:
        """Give PyTorch's class what was counted since ``handed``; return all the counts."""
        counts = KinetoStepTracker.step_counts()
        theirs = self._stock._step_dict
        for name in handed.keys() - counts.keys():
            theirs.pop(name, None)
        for name, count in counts.items():
            before = theirs.get(name, 0)
            # One that is new on both sides began at the global step on both.
            theirs[name] = before + count - handed[name] if name in handed else max(before, count)
        self._stock._current_step = max(
            self._stock._current_step, KinetoStepTracker.current_step(), *theirs.copy().values()
        )
        return counts


def _take_over(stock: type[torch.autograd.profiler.KinetoStepTracker]) -> None:
    """Bring the tracker to PyTorch's counts. By way of the private attributes, it is silent."""
    theirs = stock._step_dict.copy()
    # Whom PyTorch's own hook counts for. That goes out, and nobody would step or erase this one.
    hooks = list(torch_optimizer._global_optimizer_post_hooks.values())
    stale = theirs.pop("Optimizer", 0) if torch.profiler._optimizer_post_hook in hooks else 0
    step = max(KinetoStepTracker.current_step(), stock._current_step, stale)
    KinetoStepTracker._current_step = step
    ours = KinetoStepTracker._step_dict
    for name, count in theirs.items():
        ours[name] = max(count, ours.get(name, 0))
        if (claim := _names.get(name)) is not None:
            # Nobody has counted it since the last uninstall(); it would have to catch up first.
            ours[name] = claim.start = step


def _replace(undo: contextlib.ExitStack, owner: object, name: str, value: object) -> None:
    # From vars(), where a classmethod is one and not yet a bound method.
    undo.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


def _replace_hook(undo: contextlib.ExitStack) -> bool:
    """Register the hook, in the place of PyTorch's own if that is registered: return whether."""
    hooks = torch_optimizer._global_optimizer_post_hooks
    theirs = torch.profiler._optimizer_post_hook
    for number, hook in list(hooks.items()):
        if hook is theirs:
            # One assignment, so no step is counted by both or neither.
            undo.callback(hooks.__setitem__, number, theirs)
            hooks[number] = _count
            return True
    undo.callback(torch_optimizer.register_optimizer_step_post_hook(_count).remove)
    return False


def _set_metaclass(cls: type, metaclass: type) -> None:
    """Change a class's type, as ``Py_SET_TYPE`` of the C API does.

    With the drop-in's metaclass, PyTorch's class forwards what is read from and assigned to its
    private attributes. Nothing else sees an assignment to a class, and an assignment to
    ``__class__`` is refused where the type so far is `type` itself.
    """
    # In every build of CPython the type is the last field of an object's head.
    head = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
    ob_type = ctypes.c_void_p.from_address(id(cls) + head)
    if ob_type.value != id(type(cls)):
        raise RuntimeError("cannot install: objects are not laid out as CPython does")
    # Every object owns a reference to its type. The one to the former type is never given back,
    # since a thread may be looking something up there at this moment.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(metaclass))
    ob_type.value = id(metaclass)


class _Claim(weakref.ref[Optimizer]):
    """An optimizer's claim to a name, good until the optimizer is garbage-collected."""

    __slots__ = ("key", "name", "nests", "requester", "start")

    key: int
    name: str
    nests: bool
    requester: Requester | None
    start: int

    def has_begun(self, step: int) -> bool:
        """Return whether the optimizer's first step, and no other yet, was this step."""
        requester = self.requester
        return requester is not None and requester.count == step == self.start + 1


def _count(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The global optimizer hook: an optimizer has stepped."""
    if _is_dynamo_compiling():
        torch.ops.kineto_step_tracker.increment_step(_name_of(optimizer))
        return
    try:
        # No get(): on free-threaded 3.13 that can take microseconds (see _atomic.pyx).
        handle: Requester | None = _handles[id(optimizer)]
    except KeyError:
        handle = None
    if handle is not None and handle._count_if_registered():
        return
    claim = _claim_of(optimizer)
    if claim.nests and not _is_outermost(optimizer, sys._getframe(1)):
        return
    if claim.requester is None or not claim.requester._count_if_registered():
        _register(claim).increment()


def _name_of(optimizer: Optimizer) -> str:
    return _claim_of(optimizer).name


def _claim_of(optimizer: Optimizer) -> _Claim:
    try:
        return _claims[id(optimizer)]
    except KeyError:
        return _claim(optimizer)


def _register(claim: _Claim) -> Requester:
    """Register the optimizer, which is to count its first step, or its first after a reset.

    It starts at the global step, so that it raises it. But an iteration in which several
    optimizers take their first steps is one step: all but the first start where that one did.
    """
    step = KinetoStepTracker.current_step()
    together = any(other.has_begun(step) for other in list(_claims.values()))
    claim.start = step - 1 if together else step
    KinetoStepTracker._step_dict.setdefault(claim.name, claim.start)
    claim.requester = KinetoStepTracker.requester(claim.name)
    if not claim.nests:
        _handles[claim.key] = claim.requester
    return claim.requester


def _claim(optimizer: Optimizer) -> _Claim:
    """Return the optimizer's claim; to the smallest free number, if it has none yet.

    Threads may be here for the same optimizer. They agree, since each takes a claim of that
    optimizer's for its own.
    """
    mine = _Claim(optimizer, _release)
    mine.key = id(optimizer)
    mine.nests = _nests(type(optimizer))
    mine.requester = None
    mine.start = 0
    for number in itertools.count(1):
        mine.name = f"{type(optimizer).__name__}#{number}"
        claim = _names.setdefault(mine.name, mine)
        if claim() is optimizer:
            break
    winner = _claims.setdefault(id(optimizer), claim)
    if claim is mine and claim is not winner:
        # A smaller number became free in between, and another thread was there first.
        del _names[mine.name]
    return winner


def _release(claim: _Claim) -> None:
    _handles.pop(claim.key, None)
    _claims.pop(claim.key, None)
    # Here too: a step that overlapped an uninstall() may have been counted here after it.
    for tracker in (KinetoStepTracker, torch.autograd.profiler.KinetoStepTracker):
        tracker.erase_step_count(claim.name)
    # Last: whoever takes the name must not find the count.
    del _names[claim.name]


def _erase(optimizer: Optimizer) -> None:
    """Erase an optimizer's requester, if it has one; its next step registers it again."""
    claim = _claims.get(id(optimizer))
    if claim is not None and claim() is optimizer:
        KinetoStepTracker.erase_step_count(claim.name)


def _nests(kind: type[Optimizer]) -> bool:
    """Return whether one step of such an optimizer may run the hooks more than once.

    PyTorch wraps ``step`` in each class when its first instance is made, so a step that calls
    that of its base class may pass two wrappers. And two threads that make the first instances
    at the same time may wrap it twice.
    """
    bodies = {
        _layers(vars(base)["step"])[-1]
        for base in kind.__mro__
        if base is not Optimizer and "step" in vars(base)
    }
    codes = [getattr(layer, "__code__", None) for layer in _layers(kind.step)]
    return len(bodies) > 1 or codes.count(Optimizer.profile_hook_step(kind.step).__code__) > 1


def _layers(function: Any) -> list[Any]:
    """Return a decorated function and all that it wraps, the innermost last."""
    layers = [function]
    while hasattr(layers[-1], "__wrapped__"):
        layers.append(layers[-1].__wrapped__)
    return layers


def _is_outermost(optimizer: Optimizer, wrapper: FrameType) -> bool:
    """Return whether no other step of the optimizer is below on the stack."""
    frame = wrapper.f_back
    while frame is not None:
        if frame.f_code is wrapper.f_code and frame.f_locals["self"] is optimizer:
            return False
        frame = frame.f_back
    return True


@functools.cache
def _define_operator() -> None:
    """Make what `_count` counts with in a compiled graph.

    The requester's name is a constant in the graph, guarded by the identity of the optimizer.
    The effect keeps the compiler from removing an operator without result, and the tag keeps
    it out of CUDA graphs, which would replay it without running it.
    """
    from torch._library.effects import EffectType

    @torch.library.custom_op(
        "kineto_step_tracker::increment_step",
        mutates_args=(),
        tags=torch.Tag.cudagraph_unsafe,
    )
    def increment_step(requester: str) -> None:
        optimizer = _names[requester]()
        if optimizer is not None:
            _count(optimizer, (), {})

    increment_step.register_fake(lambda requester: None)
    increment_step.register_effect(EffectType.ORDERED)
    # What torch.compiler.assume_constant_result() does, once it has imported the compiler. That
    # takes as long as importing PyTorch, and is of no use before there is an optimizer.
    _name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
