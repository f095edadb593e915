"""What is timed side by side: ours in its forms, and what people would otherwise use.

It imports this package's trackers; PyTorch, cereggii and atomics only where they are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache, partial
from types import ModuleType
from typing import Any

from kineto_step_tracker import KinetoStepTracker, StepTracker, backend
from kineto_step_tracker.bench.clocks import Work
from kineto_step_tracker.bench.portable import load_portable
from kineto_step_tracker.textbook import LockedStepTracker, TextbookStepTracker


class Contender(StrEnum):
    """Ours by handle, by name, through the drop-in class and on the portable substrate; others."""

    HANDLE = "by handle"
    NAME = "by name"
    DROP_IN = "drop-in class"
    PORTABLE = "portable"
    PYTORCH = "PyTorch's class"
    TEXTBOOK = "textbook"
    LOCKED = "locked"
    CEREGGII = "cereggii"
    METHOD = "empty method"
    LOOK_UP = "dict look-up"


class Hook(StrEnum):
    """What PyTorch calls after each optimizer's step."""

    NONE = "no hook"
    EMPTY = "empty hook"
    OURS = "our hook"
    STOCK = "stock's hook"


class Callback(Enum):
    """What a rise calls: nothing, in C and in Python."""

    C = "an empty C callback"
    PYTHON = "an empty Python callback"


# What a contender needs besides this package.
_NEEDS = {
    Contender.PORTABLE: "atomics",
    Contender.PYTORCH: "torch",
    Contender.CEREGGII: "cereggii",
}

# Nobody steps this far, so behind a requester that did, no increment is a rise. In CPython an
# integer from 2**30 on takes longer to add to, which is not what is to be measured.
_FAR = 2**29


def is_there(contender: Contender) -> bool:
    """Return whether the contender can be timed here."""
    if contender is Contender.PORTABLE and backend == "portable":
        return False  # ours by name is that already
    needed = _NEEDS.get(contender)
    return needed is None or (
        importlib.util.find_spec(needed) is not None and not trouble_with(needed)
    )


@cache
def trouble_with(package: str) -> str:
    """Return why a package that is installed cannot be imported; nothing if it can."""
    try:
        importlib.import_module(package)
    except (ImportError, OSError) as error:
        return str(error) or type(error).__name__
    return ""


@dataclass(frozen=True)
class Stage:
    """A contender that is ready to step.

    Args:
        work: makes the work of stepping the requester of a name, on the thread that will do it.
        around: makes the context in which its works are to be timed.
    """

    work: Callable[[str], Work]
    around: Callable[[], AbstractContextManager[object]] = nullcontext


def stage(
    contender: Contender,
    requesters: Sequence[str],
    rising: bool = True,
    callback: Callback = Callback.C,
) -> Stage:
    """Prepare a contender with these requesters, all at step 0.

    If not ``rising``, one requester more is far ahead, so that no step raises the global one.
    """
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    match contender:
        case Contender.METHOD:
            return Stage(lambda name: Work("method()", {"method": [].clear}))
        case Contender.LOOK_UP:
            counts = dict.fromkeys(requesters, 0)
            return Stage(lambda name: Work(f"counts[{name!r}]", {"counts": counts}))
        case Contender.DROP_IN:
            around = partial(_drop_in, requesters, rising, callback)
            names = {"KinetoStepTracker": KinetoStepTracker}
            statement = "KinetoStepTracker.increment_step({!r})"
            return Stage(lambda name: Work(statement.format(name), names, around), around)
        case Contender.PYTORCH:
            tracker, around = _pytorchs(), partial(kineto_step, callback)
        case _:
            tracker = _MAKERS[contender](_ON_STEP[callback])
    for name in requesters:
        tracker.init_step_count(name)
    if not rising:
        _put_far_ahead(tracker)
    if contender is Contender.HANDLE:
        return Stage(lambda name: Work("step()", {"step": tracker.requester(name).increment}))
    return Stage(
        lambda name: Work(f"step({name!r})", {"step": tracker.increment_step}, around), around
    )


def _nothing(step: int = 0) -> None:
    return


# The emptiest there are: with one argument, and for Kineto's step with none.
_ON_STEP: dict[Callback, Callable[[int], object]] = {
    Callback.C: callable,
    Callback.PYTHON: _nothing,
}
_KINETO_STEP: dict[Callback, Callable[[], object]] = {
    Callback.C: [].clear,
    Callback.PYTHON: _nothing,
}


class _CereggiiStepTracker:
    """What one would write with cereggii's atomic integers: counts are exact, callbacks overlap."""

    def __init__(self, on_step: Callable[[int], object]) -> None:
        self._on_step = on_step
        self._atomic = importlib.import_module("cereggii").AtomicInt64
        self._counts: dict[str, Any] = {}
        self._step = self._atomic(0)

    def init_step_count(self, requester: str) -> None:
        self._counts[requester] = self._atomic(self._step.get())

    def increment_step(self, requester: str) -> int:
        count: int = self._counts[requester].increment_and_get()
        step: int = self._step.get()
        while count > step:
            if self._step.compare_and_set(step, count):
                self._on_step(count)
                return count
            step = self._step.get()
        return step


def _portable(on_step: Callable[[int], object]) -> Any:
    return _portable_module().StepTracker(on_step)


@cache
def _portable_module() -> ModuleType:
    return load_portable(importlib.import_module("atomics"))[1]


def _pytorchs() -> Any:
    """Return PyTorch's own methods on counts of their own."""
    from torch.autograd import profiler

    class Stock(profiler.KinetoStepTracker):
        _current_step = 0

    Stock._step_dict = defaultdict(int)
    return Stock


def _textbook(on_step: Callable[[int], object]) -> Any:
    """Return the textbook's methods on a class, which holds the counts, as PyTorch's are.

    In CPython 3.11 that takes a third longer than on an instance.
    """
    methods: dict[str, Any] = {
        name: classmethod(getattr(TextbookStepTracker, name))
        for name in ("init_step_count", "increment_step")
    }
    state = {"_counts": defaultdict(int), "_step": 0, "_on_step": on_step}
    return type("Textbook", (), methods | state)


_MAKERS: dict[Contender, Callable[[Callable[[int], object]], Any]] = {
    Contender.HANDLE: StepTracker,
    Contender.NAME: StepTracker,
    Contender.PORTABLE: _portable,
    Contender.TEXTBOOK: _textbook,
    Contender.LOCKED: LockedStepTracker,
    Contender.CEREGGII: _CereggiiStepTracker,
}


def _put_far_ahead(tracker: Any) -> None:
    name = "far ahead"
    if hasattr(tracker, "_assign"):
        tracker._assign(name, _FAR)
    elif isinstance(tracker, _CereggiiStepTracker):
        tracker._step.set(_FAR)
    elif hasattr(tracker, "_step_dict"):
        tracker._step_dict[name] = tracker._current_step = _FAR
    else:
        tracker._counts[name] = tracker._step = _FAR


@contextmanager
def _drop_in(requesters: Sequence[str], rising: bool, callback: Callback) -> Iterator[None]:
    """Keep the process-wide tracker at the start of this stage, and then at step 0."""
    KinetoStepTracker.reset()
    for name in requesters:
        KinetoStepTracker.init_step_count(name)
    if not rising:
        KinetoStepTracker._step_dict["far ahead"] = _FAR
    try:
        with kineto_step(callback):
            yield
    finally:
        KinetoStepTracker.reset()


@contextmanager
def kineto_step(callback: Callback) -> Iterator[None]:
    """Let PyTorch, or what stands in for it where it is not loaded, call this instead of Kineto."""
    name = "torch.autograd.profiler"
    profiler: Any = sys.modules.get(name)
    if profiler is None:
        sys.modules[name] = profiler = ModuleType(name)
    before = getattr(profiler, "_kineto_step", None)
    profiler._kineto_step = _KINETO_STEP[callback]
    try:
        yield
    finally:
        profiler._kineto_step = before
        if before is None:
            del sys.modules[name]
