# cython: language_level=3, binding=False, nonecheck=True, annotation_typing=False
# cython: freethreading_compatible=True, embedsignature=True, embedsignature.format=clinic
"""The step tracker: a count per requester, the global step their largest, a callback per rise.

This file is the whole algorithm. It runs as it stands on the portable substrate, and compiled
by Cython, with the types in ``tracker.pxd``, on the native one. It imports the substrate only.

How it works. Every requester has a *cell*, an atomic integer found by name, and nobody ever
waits for anybody:

- To increment, add one to the cell and, if the sum is above the global step, raise the global
  step to it by compare-and-swap.
- Steps are *risen* in `_global_max` and *run* in `_dispatched`. Whoever finds fewer run than
  risen tries to take the baton. Its holder runs the callback for one step after another until
  none is left; everybody else leaves its steps to the holder.
- Whoever is about to overwrite a count first raises the global step to it, for the thread that
  has counted and not yet done so.
- A cell below zero is not a count. `_FRESH`: just added, not registered by anyone yet.
  `_RETIRED`: erased, for ever; whoever meets it in the map removes it and looks again. Both
  are so far below zero that the increments of threads which hold such a cell do not matter.

Since no operation waits, each may interrupt any other: a signal handler, a finaliser or a
callback is just one more thread, and a fork leaves nothing locked but the baton.
"""

from __future__ import annotations

import os
import sys
import weakref

from kineto_step_tracker import _atomic
from kineto_step_tracker._atomic import AtomicInt64, CellMap

# typing's own would cost its import, two thirds of what importing this package would take.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import NoReturn, Self

_MAX_START = 2**62
_FRESH = -(2**61)
_RETIRED = -(2**62)
_NOBODY = 0

# For the child of a fork, which has to free what threads hold that it does not have.
_trackers: weakref.WeakSet[StepTracker] = weakref.WeakSet()


class StepTracker:
    """Counts steps for any number of requesters and calls back once for every global step.

    The global step is the largest count. It never falls. Each time it grows by one, which is
    called a *rise*, ``on_step`` is called once, with the new step.

    Args:
        on_step: called as ``on_step(step)`` for every step from ``start + 1`` on: once each,
            in increasing order, never two calls at once, on whichever thread raised the step
            or is already calling. What it returns is ignored. What it raises leaves the
            operation that called it, with a note naming the step; the steps behind it still
            run, and if several raise, an `ExceptionGroup` leaves. `KeyboardInterrupt` and
            `SystemExit`, and nothing else, leave at once; the steps not yet run then run with
            the next rise, init or erase. Besides increments, the operations that may call it,
            for a step that another thread has counted and not yet raised, are init, erase,
            `step_counts`, `Requester.count` and ``repr()``.
            None to count only.
        start: the global step to start from, an int from 0 to 2**62.

    Raises:
        TypeError: ``on_step`` is neither callable nor None, or ``start`` is no int.
        ValueError: ``start`` is out of range.

    Thread-safety and progress:
        Every method may be called on any thread, from the callback itself, a signal handler,
        a finaliser or the child of a fork. None takes a lock around user code or waits for
        the callback. `increment_step` of a known requester is lock-free, and its
        compare-and-swap is tried at most once for each thread that increments with it.
        Exact, exactly-once and linearizable under any number of threads. Only Ctrl-C that
        arrives in the moment before a callback makes that step go without, never run twice.

    A tracker can be neither pickled nor copied: a second one would not share its counts.

    >>> tracker = StepTracker(on_step=lambda step: print("step", step))
    >>> tracker.increment_step("Generator")
    step 1
    1
    >>> tracker.increment_step("Critic")
    step 2
    2
    >>> tracker.increment_step("Generator")
    2
    >>> tracker.step_counts()
    {'Generator': 2, 'Critic': 2}
    """

    __slots__ = (
        "__weakref__",
        "_baton",
        "_cells",
        "_dispatched",
        "_global_max",
        "_on_step",
    )

    def __init__(self, on_step: Callable[[int], object] | None = None, start: int = 0) -> None:
        if on_step is not None and not callable(on_step):
            raise TypeError(
                "on_step must be a callable that takes the step, or None, "
                f"not {_described(on_step)}"
            )
        start = _checked_step("start", start)
        if self in _trackers:
            raise TypeError("a StepTracker is initialised only once; use reset() to start anew")
        self._on_step = on_step
        self._cells = CellMap()
        self._global_max = AtomicInt64(start)
        self._dispatched = AtomicInt64(start)
        self._baton = AtomicInt64(_NOBODY)
        _trackers.add(self)
        _atomic.defer_reference_counts(self)

    def increment_step(self, requester: str) -> int:
        """Count one step for the requester, and return the global step.

        An unknown requester is registered first, at the global step, so that its first
        increment raises it. Registering and counting are two steps: threads whose first
        increments of different names overlap may raise it once, all to the same count.

        If the count is a new maximum, ``on_step`` runs before this returns, or another thread
        that is running it takes the step over.

        Args:
            requester: the requester's name, a str.

        Returns:
            The global step at some instant after the count; never below the count.

        Raises:
            TypeError: ``requester`` is not a str.
            Exception: whatever ``on_step`` raises, if this call runs it.

        Lock-free for a known requester, O(1) whatever the number of requesters.

        >>> StepTracker(start=41).increment_step("Optimizer1Step")
        42
        """
        if type(requester) is not str:
            return self.increment_step(_plain_name(requester))
        count = self._cells.add(requester, 1)
        if count <= 0:
            count = self._count_afresh(requester)
        return self._reach(count)

    def init_step_count(self, requester: str) -> None:
        """Set the requester's count to the global step, registering it if it is unknown.

        Args:
            requester: the requester's name, a str.

        Raises:
            TypeError: ``requester`` is not a str.

        Thread-safe; waits for no callback, and for another thread at most while that changes
        the map of names. O(1).

        >>> tracker = StepTracker(start=7)
        >>> tracker.init_step_count("ProfilerStep")
        >>> tracker.step_counts()
        {'ProfilerStep': 7}
        """
        if type(requester) is not str:
            self.init_step_count(_plain_name(requester))
            return
        while True:
            cell = self._cell_of(requester)
            count = cell.load()
            if count < _FRESH:
                continue
            # Help: an increment may have counted here and not raised the global step yet.
            # Once overwritten, its count would be seen by nobody but that increment.
            step = self._raise_to(count, self._global_max.load())
            if cell.compare_exchange(count, step):
                break
        self._dispatch()

    def erase_step_count(self, requester: str) -> bool:
        """Forget the requester. The global step stays as it is.

        Args:
            requester: the requester's name, a str.

        Returns:
            True if the requester was known. Of several threads that erase one registration,
            exactly one gets True.

        Raises:
            TypeError: ``requester`` is not a str.

        Thread-safe; waits for no callback, and for another thread at most while that changes
        the map of names. O(1).

        >>> tracker = StepTracker()
        >>> tracker.increment_step("Optimizer1Step")
        1
        >>> tracker.erase_step_count("Optimizer1Step"), tracker.erase_step_count("Optimizer1Step")
        (True, False)
        >>> tracker.current_step()
        1
        """
        if type(requester) is not str:
            return self.erase_step_count(_plain_name(requester))
        cell = self._cells.find(requester)
        if cell is None:
            return False
        while True:
            count = cell.load()
            # Help, and before the count is hidden, as in init_step_count.
            self._raise_to(count, self._global_max.load())
            if cell.compare_exchange(count, _RETIRED):
                break
        self._cells.discard(requester, cell)
        self._dispatch()
        return count >= 0

    def current_step(self) -> int:
        """Return the global step: the largest count that any requester has reached.

        Wait-free, O(1).

        >>> StepTracker(start=3).current_step()
        3
        """
        return self._global_max.load()

    def step_counts(self) -> dict[str, int]:
        """Return a copy of every requester's count.

        Thread-safe; never waits. No count in it is above `current_step`. Where other threads
        step meanwhile, each count is right for some instant, not all for the same; one that a
        thread is registering or initialising may still be missing or the one from before.
        O(number of requesters).

        >>> tracker = StepTracker(start=10)
        >>> tracker.increment_step("Optimizer1Step")
        11
        >>> tracker.step_counts()
        {'Optimizer1Step': 11}
        """
        counts = {}
        for name, cell in self._cells.snapshot().items():
            count = cell.load()
            if count >= 0:
                counts[name] = count
        if counts:
            self._reach(max(counts.values()))
        return counts

    def requester(self, name: str) -> Requester:
        """Return a handle on a requester.

        An unknown requester is registered, at the global step; a known one keeps its count.
        Incrementing by handle is faster than by name, and on free-threaded builds a handle that
        each thread makes for itself scales best.

        Args:
            name: the requester's name, a str.

        Raises:
            TypeError: ``name`` is not a str.

        Thread-safe; waits for no callback, and for another thread at most while that changes
        the map of names. O(1).

        >>> tracker = StepTracker(start=7)
        >>> tracker.requester("Optimizer1Step").increment()
        8
        """
        if type(name) is not str:
            return self.requester(_plain_name(name, "name"))
        while True:
            cell = self._cell_of(name)
            count = cell.load()
            if count >= 0 or (
                count >= _FRESH and cell.compare_exchange(count, self._global_max.load())
            ):
                return _make_requester(self, _interned(name), cell)

    def reset(self, step: int = 0) -> None:
        """Forget every requester and set the global step, without calling ``on_step``.

        For tests, and to go on from a checkpoint before anything steps. Exact only while no other
        thread uses the tracker.

        Args:
            step: the global step to go on from, an int from 0 to 2**62.

        Raises:
            TypeError: ``step`` is no int.
            ValueError: ``step`` is out of range.

        >>> tracker = StepTracker()
        >>> tracker.increment_step("Optimizer1Step")
        1
        >>> tracker.reset(100)
        >>> tracker.current_step(), tracker.step_counts()
        (100, {})
        """
        step = _checked_step("step", step)
        for name, cell in self._cells.snapshot().items():
            cell.store(_RETIRED)
            self._cells.discard(name, cell)
        self._assign_step(step)

    def __repr__(self) -> str:
        counts = self.step_counts()
        shown = str(counts) if len(counts) <= 10 else f"of {len(counts)} requesters"
        return f"<StepTracker at step {self.current_step()}, counts {shown}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a StepTracker can be neither pickled nor copied: the copy would not share its "
            "counts. Save current_step() and pass it as start"
        )

    def _assign(self, requester: str, count: int, known: bool = True) -> int:
        """Set a requester's count, for the drop-in's ``_step_dict``, and return it.

        With ``known`` false, one that is known keeps its count. A count above the global step
        raises that too, and the callbacks run with the next rise, as they do when PyTorch's
        class finds a count that was written into its dict.
        """
        if type(requester) is not str:
            return self._assign(_plain_name(requester), count, known)
        count = _checked_step("count", count)
        while True:
            cell = self._cell_of(requester)
            before = cell.load()
            if before >= 0 and not known:
                return before
            if before >= _FRESH and cell.compare_exchange(before, count):
                break
        self._raise_to(max(before, count), self._global_max.load())
        return count

    def _assign_step(self, step: int) -> None:
        """Set the global step without callbacks, for the drop-in's ``_current_step``.

        Counts above it come down to it, or the next operation would raise it again.
        """
        step = _checked_step("step", step)
        for cell in self._cells.snapshot().values():
            count = cell.load()
            while count > step and not cell.compare_exchange(count, step):
                count = cell.load()
        self._global_max.store(step)
        self._dispatched.store(step)

    def _reach(self, count: int) -> int:
        """Make a count visible in the global step, run what has risen, return the global step."""
        step = self._global_max.load()
        if step >= count:
            return step
        step = self._raise_to(count, step)
        self._dispatch()
        return step

    def _raise_to(self, count: int, step: int) -> int:
        """Raise the global step, last seen at ``step``, to at least ``count``, and return it.

        A failed try means that another thread has raised it, so there are no more tries than
        threads with a count above it.
        """
        while step < count:
            if self._global_max.compare_exchange(step, count):
                return count
            step = self._global_max.load()
        return step

    def _cell_of(self, name: str) -> AtomicInt64:
        """Return the name's cell, fresh if it had none; not retired when it was looked at."""
        while True:
            cell = self._cells.find(name)
            if cell is None:
                cell = self._cells.find_or_add(_interned(name), AtomicInt64(_FRESH))
            if cell.load() >= _FRESH:
                return cell
            # Whoever erased it may be stopped before it could do this, for as long as it likes.
            self._cells.discard(name, cell)

    def _count_afresh(self, name: str) -> int:
        """Count one for a requester that was unknown or erased a moment ago; return its count.

        A fresh cell gets its first count in one step and not as a registration and an
        increment after it, and only once it can be found by everybody. Otherwise, a second
        registration of the name, erased again in between, would stay unseen.
        """
        while True:
            cell = self._cell_of(name)
            count = cell.load()
            if count >= 0:
                count = cell.add(1)
                if count > 0:
                    return count
            elif count >= _FRESH:
                first = self._global_max.load() + 1
                if cell.compare_exchange(count, first):
                    return first

    def _count_of(self, name: str, cell: AtomicInt64) -> int | None:
        """Return the count in this cell or, if that is retired, in the one that the name has now.

        Not by name at once: a training step asks 300 handles, and each look-up would fetch
        several cache lines more.
        """
        count = cell.load()
        if count < 0:
            current = self._cells.find(name)
            if current is None:
                return None
            count = current.load()
            if count < 0:
                return None
        # As in step_counts: no count that anyone has seen is above the global step.
        self._reach(count)
        return count

    def _dispatch(self) -> None:
        """Run the callback for every step risen and not yet run, or leave that to the holder."""
        # A list only for an error: to make one costs as much as two atomic operations.
        errors: list[BaseException] | None = None
        me = _atomic.thread_ident()
        # Looking again after the baton is free: a step may have risen since the holder last
        # looked, by a thread that found the baton taken.
        while self._on_step is not None and self._dispatched.load() < self._global_max.load():
            if self._baton.load() == me:
                break  # called from the callback: the holder is further down this stack
            try:
                if not self._baton.compare_exchange(_NOBODY, me):
                    break
                errors = self._run_callbacks(errors)
            finally:
                # Twice, since in the portable tracker a KeyboardInterrupt may arrive here too.
                try:
                    self._free_baton(me)
                finally:
                    self._free_baton(me)
        if errors is not None:
            raise _one_of(errors)

    def _run_callbacks(self, errors: list[BaseException] | None) -> list[BaseException] | None:
        """Run them as the holder of the baton; return the errors, those passed in before others."""
        step = self._dispatched.load() + 1
        while step <= self._global_max.load():
            # Before the callback: one that raises, forks or never returns is not run again. No
            # more than release order: the next holder takes the baton after it was freed, and
            # whoever sees too low a number only looks at the baton in vain.
            self._dispatched.store_release(step)
            try:
                self._on_step(step)  # type: ignore[misc]  # _dispatch saw that it is not None
            except (KeyboardInterrupt, SystemExit) as stop:
                if errors is not None and stop.__cause__ is None:
                    raise stop from _one_of(errors)
                raise
            except BaseException as error:
                _add_note(error, f"raised by the on_step callback for step {step}")
                if errors is None:
                    errors = []
                errors.append(error)
            step = self._dispatched.load() + 1
        return errors

    def _free_baton(self, me: int) -> None:
        if self._baton.load() == me:
            self._baton.store(_NOBODY)

    def _free_what_the_dead_hold(self) -> None:
        """In the child of a fork: free what threads hold that were not forked along."""
        self._cells.free_dead_lock()
        if self._baton.load() != _atomic.thread_ident():
            self._baton.store(_NOBODY)


class Requester:
    """A handle on one requester of a tracker, made by `StepTracker.requester`.

    After an erase, by this handle or anyone, `increment` starts the requester afresh, as
    `StepTracker.increment_step` would; the handle is then no faster than the name.

    As a context manager it erases the requester on exit. Thread-safety and progress are the
    tracker's.

    >>> tracker = StepTracker()
    >>> with tracker.requester("Optimizer1Step") as optimizer:
    ...     optimizer.increment(), optimizer.name, optimizer.count
    (1, 'Optimizer1Step', 1)
    >>> optimizer.count is None, tracker.step_counts()
    (True, {})
    """

    __slots__ = ("_cell", "_name", "_tracker")

    _cell: AtomicInt64
    _name: str
    _tracker: StepTracker

    def __init__(self, *_arguments: object, **_options: object) -> None:
        raise TypeError("a Requester is made by StepTracker.requester(name)")

    def increment(self) -> int:
        """Count one step and return the global step, as `StepTracker.increment_step` does.

        Lock-free, O(1).
        """
        count = self._cell.add(1)
        if count <= 0:
            return self._tracker.increment_step(self._name)
        return self._tracker._reach(count)

    def _count_if_registered(self) -> bool:
        """Count one step, unless the registration that this handle was made of is erased."""
        count = self._cell.add(1)
        if count <= 0:
            return False
        self._tracker._reach(count)
        return True

    def erase(self) -> bool:
        """Forget the requester, as `StepTracker.erase_step_count` does."""
        return self._tracker.erase_step_count(self._name)

    @property
    def name(self) -> str:
        """The requester's name."""
        return self._name

    @property
    def count(self) -> int | None:
        """The requester's count, None once it is erased."""
        return self._tracker._count_of(self._name, self._cell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.erase()

    def __repr__(self) -> str:
        return f"<Requester {self._name!r}, count {self.count}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a Requester can be neither pickled nor copied: it counts in a tracker of this "
            "process. Ask the tracker for another with requester(name)"
        )


def _make_requester(tracker: StepTracker, name: str, cell: AtomicInt64) -> Requester:
    handle = Requester.__new__(Requester)
    handle._tracker = tracker
    handle._name = name
    handle._cell = cell
    return handle


def _plain_name(name: object, argument: str = "requester") -> str:
    """The characters of a str subclass: its own hash and comparison might run any code."""
    if not issubclass(type(name), str):
        raise TypeError(f"{argument} must be a str, not {_described(name)}")
    return str.__str__(name)


def _interned(name: str) -> str:
    """The one string of these characters, so that literal names are found by identity.

    Interning changes the string object itself, which other threads may be using
    (https://github.com/python/cpython/issues/113956). So it is done to a copy.
    """
    return sys.intern(name[:1] + name[1:])


def _checked_step(argument: str, step: object) -> int:
    if not isinstance(step, int):
        raise TypeError(f"{argument} must be an int, not {_described(step)}")
    value = int.__index__(step)  # a subclass may compare as it likes
    if not 0 <= value <= _MAX_START:
        raise ValueError(f"{argument} must be from 0 to 2**62, not {_shown(step)}")
    return value


def _described(argument: object) -> str:
    return f"{type(argument).__name__} ({_shown(argument)})"


def _shown(argument: object) -> str:
    """An argument's repr, short enough for an error message, and whatever the argument is."""
    try:
        value = repr(argument)
    except Exception:
        return "unprintable"
    return f"{value[:60]}…" if len(value) > 60 else value


def _add_note(error: BaseException, note: str) -> None:
    try:
        error.add_note(note)
    except Exception:
        # Some take none, such as a frozen dataclass: then the error itself is what matters.
        return


def _one_of(errors: list[BaseException]) -> BaseException:
    if len(errors) == 1:
        return errors[0]
    # An ExceptionGroup, unless one of them is no Exception.
    return BaseExceptionGroup("the on_step callback raised for several steps", errors)


def _free_what_the_dead_hold() -> None:
    for tracker in list(_trackers):
        tracker._free_what_the_dead_hold()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_what_the_dead_hold)
