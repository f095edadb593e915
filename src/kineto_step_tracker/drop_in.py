# cython: language_level=3, binding=False, nonecheck=True, annotation_typing=False
# cython: freethreading_compatible=True, embedsignature=True, embedsignature.format=clinic
"""KinetoStepTracker: the process-wide tracker, under the names that PyTorch's class has.

It imports the tracker only, and never PyTorch: it finds Kineto's ``step()`` in a PyTorch that
somebody else has loaded. Its methods are classmethods of an extension type, the form of call
that costs least and, on free-threaded builds, scales with the threads that make it.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from kineto_step_tracker.tracker import StepTracker

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

    from kineto_step_tracker.tracker import Requester

# Whether a rise calls Kineto. kineto_step_tracker.pytorch.install() decides.
step_kineto = True


def _on_step(step: int) -> None:
    """Call Kineto's ``step()`` where PyTorch is loaded, by the name that PyTorch's class uses."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if step_kineto and profiler is not None:
        # None while PyTorch is still being imported.
        kineto = getattr(profiler, "_kineto_step", None)
        if kineto is not None:
            kineto()


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
        counts = self.copy()
        if requester not in counts:
            self[requester] = counts[requester] = 0
        return counts[requester]

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
        if requester not in self:
            self[requester] = default
        return self[requester]

    def pop(self, requester: str, *default: Any) -> Any:
        count = self.copy().pop(requester, *default)
        _tracker.erase_step_count(requester)
        return count

    def popitem(self) -> tuple[str, int]:
        item = self.copy().popitem()
        _tracker.erase_step_count(item[0])
        return item

    def copy(self) -> dict[str, int]:
        return _tracker.step_counts()

    def __reduce__(self) -> tuple[type[dict[str, int]], tuple[dict[str, int]]]:
        # A copy is one of the counts, not a second view of them.
        return dict, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self.copy())


_step_dict = _StepDict()


_replaced: dict[str, int | dict[str, int]] = {}


class _DropInType(type):
    """Gives the drop-in PyTorch's two private attributes, readable and writable.

    Deleting one takes back what was last assigned, as ``pytest``'s ``monkeypatch`` and
    ``unittest.mock`` do at the end of a test.
    """

    @property
    def _current_step(cls) -> int:
        return _tracker.current_step()

    @_current_step.setter
    def _current_step(cls, step: int) -> None:
        before = _tracker.current_step()
        _tracker._assign_step(step)
        _replaced["_current_step"] = before

    @_current_step.deleter
    def _current_step(cls) -> None:
        _tracker._assign_step(cls._take_back("_current_step"))

    @property
    def _step_dict(cls) -> _StepDict:
        return _step_dict

    @_step_dict.setter
    def _step_dict(cls, counts: Mapping[str, int]) -> None:
        before = _step_dict.copy()
        _set_counts(counts)
        _replaced["_step_dict"] = before

    @_step_dict.deleter
    def _step_dict(cls) -> None:
        _set_counts(cls._take_back("_step_dict"))

    def _take_back(cls, attribute: str) -> Any:
        try:
            return _replaced.pop(attribute)
        except KeyError:
            raise AttributeError(
                f"KinetoStepTracker.{attribute} cannot be deleted; it can only be taken back "
                "after an assignment"
            ) from None


def _set_counts(counts: Mapping[str, int]) -> None:
    counts = dict(counts)
    for requester in _step_dict:
        if requester not in counts:
            _tracker.erase_step_count(requester)
    _step_dict.update(counts)


class _ClassMethods:
    """The process-wide tracker's operations as classmethods of an extension type."""

    __slots__ = ()

    @classmethod
    def init_step_count(cls, requester: str) -> None:
        """Set the requester's count to the global step: `StepTracker.init_step_count`."""
        _tracker.init_step_count(requester)

    @classmethod
    def erase_step_count(cls, requester: str) -> bool:
        """Forget the requester; True if it was known: `StepTracker.erase_step_count`."""
        return _tracker.erase_step_count(requester)

    @classmethod
    def increment_step(cls, requester: str) -> int:
        """Count one step and return the global step: `StepTracker.increment_step`."""
        return _tracker.increment_step(requester)

    @classmethod
    def current_step(cls) -> int:
        """Return the global step: `StepTracker.current_step`."""
        return _tracker.current_step()

    @classmethod
    def step_counts(cls) -> dict[str, int]:
        """Return a copy of every requester's count: `StepTracker.step_counts`."""
        return _tracker.step_counts()

    @classmethod
    def requester(cls, name: str) -> Requester:
        """Return a handle on a requester: `StepTracker.requester`."""
        return _tracker.requester(name)

    @classmethod
    def reset(cls, step: int = 0) -> None:
        """Forget every requester and set the global step, for tests: `StepTracker.reset`."""
        _tracker.reset(step)


class KinetoStepTracker(_ClassMethods, metaclass=_DropInType):
    """The step tracker of this process, a drop-in for PyTorch's class of the same name.

    PyTorch's four methods mean what they mean there, for one thread call by call, and keep
    their meaning under any number of threads; the other three are `StepTracker`'s. All are
    called on the class, which has no instances of interest. A rise calls Kineto's ``step()``
    if PyTorch is loaded in the process and does nothing otherwise; the class never imports
    PyTorch.

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
