"""What the algorithm stands on, portable: the ``atomics`` package, no compiler needed.

The native twin is ``_atomic.pyx``; where that was built, Python imports it instead of this
file, because an extension module wins over a ``.py`` of the same name. Both offer the same
seven names, and nothing else in the package touches an atomic, the dictionary of cells or a
thread's identity. Every operation is one indivisible step, sequentially consistent unless it says
less, and may be interrupted by a signal handler, a finaliser or a fork without harm.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import atomics

backend: str = "portable"

_Shared = TypeVar("_Shared")


class AtomicInt64:
    """A signed 64-bit integer that threads may change at once."""

    __slots__ = ("_value",)

    def __init__(self, value: int) -> None:
        self._value: Any = atomics.atomic(width=8, atype=atomics.INT)
        self._value.store(value)

    def load(self) -> int:
        return int(self._value.load())

    def store(self, value: int) -> None:
        self._value.store(value)

    def store_release(self, value: int) -> None:
        """Store, in release order: whoever sees it also sees all that was done before."""
        self._value.store(value)

    def add(self, amount: int) -> int:
        """Add, and return the sum."""
        return int(self._value.fetch_add(amount)) + amount

    def compare_exchange(self, expected: int, desired: int) -> bool:
        """Store ``desired`` if ``expected`` is there; say whether it was."""
        return bool(self._value.cmpxchg_strong(expected=expected, desired=desired).success)


# Held only for the look-up and the deletion in `CellMap.discard`. CPython runs a signal handler
# or a finaliser at calls and allocations, and between those two there is neither. Re-entrant,
# because the release may allocate. A fork waits for it, so the child never finds it taken.
_discarding = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_discarding.acquire,
        after_in_parent=_discarding.release,
        after_in_child=_discarding.release,
    )


class CellMap:
    """Names and their cells: a dict whose every operation, but for `add`, is one step."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: dict[str, AtomicInt64] = {}

    def find(self, name: str) -> AtomicInt64 | None:
        return self._cells.get(name)

    def add(self, name: str, amount: int) -> int:
        """Find the cell that the name has, add to it, and return the sum; 0 if it has none."""
        cell = self._cells.get(name)
        return 0 if cell is None else cell.add(amount)

    def find_or_add(self, name: str, cell: AtomicInt64) -> AtomicInt64:
        """The cell that the name has; ``cell``, now added, if it had none."""
        return self._cells.setdefault(name, cell)

    def discard(self, name: str, cell: AtomicInt64) -> None:
        """Remove the name if ``cell`` is what it has."""
        with _discarding:
            if name in self._cells and self._cells[name] is cell:
                del self._cells[name]

    def snapshot(self) -> dict[str, AtomicInt64]:
        return self._cells.copy()

    def free_dead_lock(self) -> None:
        """In the child of a fork: free a lock that only threads of the parent could free."""


thread_ident = threading.get_ident

# Of a dict that threads share, with str keys.
dict_get = dict.get


def defer_reference_counts(shared: object) -> None:
    """Make a shared object cheap to reach from many threads, where the build can do that."""


def keep_for_ever(shared: _Shared) -> _Shared:
    """Return an object that lives as long as the process; threads need not count its references."""
    return shared
