# cython: language_level=3, binding=False, annotation_typing=False, freethreading_compatible=True
"""KinetoStepTracker: the process-wide tracker, under the names that PyTorch's class has.

It imports the tracker and the substrate only, and never PyTorch: it finds Kineto's ``step()`` in
a PyTorch that somebody else has loaded. Its methods are the bound methods of one tracker, made
once: a classmethod would be bound anew by each call, which costs more than counting does.

It is compiled for the sake of `_on_step`: a signal handler, which runs between bytecodes, then
finds no place where a step is marked as run and Kineto is not yet called.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from time import perf_counter, sleep

from kineto_step_tracker._atomic import dict_get, keep_for_ever
from kineto_step_tracker.tracker import StepTracker, _checked_step, _plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
    from typing import Any

# Whether a rise calls Kineto. kineto_step_tracker.pytorch.install() decides.
step_kineto = True

# What a rise that calls Kineto leaves in a trace that is being recorded, before the step's number:
# the step ends here.
MARK = "KinetoStepTracker.step#"

# In seconds: Kineto's step takes longer only when it starts a thread, or is kept from the CPU.
_ENDING = 10e-6
_PATIENCE = 5e-3
_NAP = 20e-6

# PyTorch's "is a trace being recorded?" and what begins an annotation in it, which ends when its
# result is dropped. kineto_step_tracker.pytorch.install() brings both. Neither runs Python code.
is_recording: Callable[[], bool] | None = None
annotate: Callable[[str], object] = str


def _on_step(step: int) -> None:
    """Call Kineto's ``step()`` where PyTorch is loaded, by the name that PyTorch's class uses."""
    profiler = dict_get(sys.modules, "torch.autograd.profiler")
    if step_kineto and profiler is not None:
        # None while PyTorch is still being imported.
        kineto = getattr(profiler, "_kineto_step", None)
        if kineto is not None:
            ask = is_recording  # once: uninstall() on another thread may take it away
            if ask is None or not ask():
                kineto()
                return
            # Before Kineto ends the trace, so that the marks in it are the steps in it.
            annotate(MARK + str(step))
            began = perf_counter()
            kineto()
            if perf_counter() - began > _ENDING:
                _await_end(ask)


def _await_end(ask: Callable[[], bool]) -> None:
    """Wait until the trace that Kineto seems to be ending has ended, though not for long.

    Kineto ends it from a thread that it starts for that. Meanwhile training would go on into the
    trace, and into the memory that this thread frees: PyTorch 2.13 may crash then.
    """
    deadline = perf_counter() + _PATIENCE
    while ask() and perf_counter() < deadline:
        sleep(_NAP)


_tracker = StepTracker(_on_step)


class _StepDict(MutableMapping[str, int]):
    """PyTorch's private ``_step_dict``: the counts of the process-wide tracker, live.

    A mapping and no dict, but like PyTorch's ``defaultdict(int)`` it registers a requester at
    0 when an unknown one is read by ``[]``. Each operation is one of the tracker's; several,
    such as ``update()``, are not one step together. ``keys()``, ``values()`` and ``items()``
    show the moment at which they were called.
    """

    __slots__ = ()

    def __getitem__(self, requester: str) -> int:
        return self.setdefault(requester)

    def __setitem__(self, requester: str, count: int) -> None:
        _tracker._assign(requester, count)

    def __delitem__(self, requester: str) -> None:
        if not _tracker.erase_step_count(requester):
            raise KeyError(requester)

    def __iter__(self) -> Iterator[str]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def __contains__(self, requester: object) -> bool:
        return requester in self.copy()

    # The mixins of MutableMapping recognise an unknown name by the KeyError that [] does not
    # raise here, so what they build on it is built on a copy instead.

    def get(self, requester: str, default: Any = None) -> Any:
        return self.copy().get(requester, default)

    def keys(self) -> KeysView[str]:
        return self.copy().keys()

    def values(self) -> ValuesView[int]:
        return self.copy().values()

    def items(self) -> ItemsView[str, int]:
        return self.copy().items()

    def setdefault(self, requester: str, default: int = 0) -> int:
        return _tracker._assign(requester, default, known=False)

    def pop(self, requester: str, *default: Any) -> Any:
        counts = self.copy()
        if requester in counts and _tracker.erase_step_count(requester):
            return counts[requester]
        if default:
            return default[0]
        raise KeyError(requester)

    def popitem(self) -> tuple[str, int]:
        counts = self.copy()
        while counts:
            requester, count = counts.popitem()
            if _tracker.erase_step_count(requester):
                return requester, count
        raise KeyError("popitem(): no requester is registered")

    def update(self, *counts: Any, **more_counts: int) -> None:
        for requester, count in _checked(dict(*counts, **more_counts)).items():
            self[requester] = count

    def copy(self) -> dict[str, int]:
        return _tracker.step_counts()

    def __reduce__(self) -> tuple[type[dict[str, int]], tuple[dict[str, int]]]:
        # A copy is one of the counts, not a second view of them.
        return dict, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self.copy())


_step_dict = _StepDict()


# What assignments replaced, the latest last. Not all: nobody but a test takes one back.
_REMEMBERED = 16
_replaced: dict[str, list[tuple[int, dict[str, int]]]] = {"_current_step": [], "_step_dict": []}


class _DropInType(type):
    """Gives the drop-in PyTorch's two private attributes, readable and writable.

    Deleting one takes back what was last assigned to it, as ``pytest``'s ``monkeypatch`` and
    ``unittest.mock`` do at the end of a test: step and counts are again as they were before.
    """

    @property
    def _current_step(cls) -> int:
        return _tracker.current_step()

    @_current_step.setter
    def _current_step(cls, step: int) -> None:
        before = _state()
        _tracker._assign_step(step)
        _remember("_current_step", before)

    @_current_step.deleter
    def _current_step(cls) -> None:
        _take_back("_current_step")

    @property
    def _step_dict(cls) -> _StepDict:
        return _step_dict

    @_step_dict.setter
    def _step_dict(cls, counts: Mapping[str, int]) -> None:
        before = _state()
        _set_counts(counts)
        _remember("_step_dict", before)

    @_step_dict.deleter
    def _step_dict(cls) -> None:
        _take_back("_step_dict")


def _state() -> tuple[int, dict[str, int]]:
    counts = _tracker.step_counts()
    return _tracker.current_step(), counts


def _remember(attribute: str, before: tuple[int, dict[str, int]]) -> None:
    states = _replaced[attribute]
    states.append(before)
    del states[:-_REMEMBERED]


def _take_back(attribute: str) -> None:
    if not _replaced[attribute]:
        raise AttributeError(
            f"KinetoStepTracker.{attribute} cannot be deleted; it can only be taken back "
            "after an assignment"
        )
    step, counts = _replaced[attribute].pop()
    _set_counts(counts)
    _tracker._assign_step(step)


def _set_counts(counts: Mapping[str, int]) -> None:
    wanted = _checked(dict(counts))
    for requester in _step_dict:
        if requester not in wanted:
            _tracker.erase_step_count(requester)
    for requester, count in wanted.items():
        _step_dict[requester] = count


def _checked(counts: dict[str, int]) -> dict[str, int]:
    """Refuse all of them if one is bad, before anything is changed."""
    return {
        _plain_name(requester): _checked_step("count", count) for requester, count in counts.items()
    }


class KinetoStepTracker(metaclass=_DropInType):
    """The step tracker of this process, a drop-in for PyTorch's class of the same name.

    It has the four methods of PyTorch's class. On one thread each call does and returns what
    PyTorch's does. On several, where PyTorch's class loses and repeats steps, it stays exact.
    ``step_counts``, ``requester`` and ``reset`` are `StepTracker`'s. Call all of them on the
    class itself; an instance is of no use. A rise calls Kineto's ``step()`` if PyTorch is
    loaded in the process and does nothing otherwise; the class never imports PyTorch.

    PyTorch's private attributes work too, for code that inspects or resets the count:
    ``_current_step`` is the global step, and ``_step_dict`` a mapping of the counts. Writing
    to them runs no callback. A count written above the global step raises it; a lower global
    step brings the counts above it down.

    Thread-safety, progress and complexity are those of `StepTracker`, writing to the private
    attributes excepted: that is exact only while no other thread steps.

    >>> KinetoStepTracker.reset()
    >>> KinetoStepTracker.init_step_count("ProfilerStep")
    >>> KinetoStepTracker.increment_step("Optimizer1Step")
    1
    >>> KinetoStepTracker.current_step()
    1
    >>> KinetoStepTracker._step_dict
    {'ProfilerStep': 0, 'Optimizer1Step': 1}
    """

    __slots__ = ()

    init_step_count = keep_for_ever(_tracker.init_step_count)
    erase_step_count = keep_for_ever(_tracker.erase_step_count)
    increment_step = keep_for_ever(_tracker.increment_step)
    current_step = keep_for_ever(_tracker.current_step)
    step_counts = keep_for_ever(_tracker.step_counts)
    requester = keep_for_ever(_tracker.requester)
    reset = keep_for_ever(_tracker.reset)
