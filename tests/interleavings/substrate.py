"""What tracker.py stands on in the explorer: atomics and a map that wait for their turn.

Stands in for ``kineto_step_tracker._atomic``: the same names, the same promises.
"""

from __future__ import annotations

import builtins
from types import ModuleType, SimpleNamespace
from typing import Any

from .explorer import bit, scheduler


class AtomicInt64:
    def __init__(self, value: int) -> None:
        self._value = value
        self.label = scheduler.new_name()
        self._bit = bit(self.label)

    def load(self) -> int:
        scheduler.turn().reads(self._bit, self, "load", self._value)
        return self._value

    def store(self, value: int) -> None:
        scheduler.turn().changes(self._bit, self, "store", value)
        self._value = value

    store_release = store

    def add(self, amount: int) -> int:
        event = scheduler.turn()
        self._value += amount
        event.changes(self._bit, self, "add", self._value)
        return self._value

    def compare_exchange(self, expected: int, desired: int) -> bool:
        event = scheduler.turn()
        if self._value != expected:
            event.reads(self._bit, self, "cas failed", expected, desired, self._value)
            return False
        self._value = desired
        event.changes(self._bit, self, "cas", expected, desired)
        return True


class CellMap:
    def __init__(self) -> None:
        self._cells: dict[str, AtomicInt64] = {}

    def find(self, name: str) -> AtomicInt64 | None:
        scheduler.turn().reads(bit(("find", name)), name, "find", name in self._cells)
        return self._cells.get(name)

    def add(self, name: str, amount: int) -> int:
        cell = self.find(name)
        return 0 if cell is None else cell.add(amount)

    def find_or_add(self, name: str, cell: AtomicInt64) -> AtomicInt64:
        event = scheduler.turn()
        if name in self._cells:
            event.reads(bit(("find", name)), name, "find instead of add")
        else:
            event.changes(bit(("find", name)) | bit("names"), name, "add")
            cell.label = f"{name}#{cell.label}"
        return self._cells.setdefault(name, cell)

    def discard(self, name: str, cell: AtomicInt64) -> None:
        event = scheduler.turn()
        if self._cells.get(name) is cell:
            event.changes(bit(("find", name)) | bit("names"), name, "discard")
            del self._cells[name]
        else:
            event.reads(bit(("find", name)), name, "discard in vain")

    def snapshot(self) -> dict[str, AtomicInt64]:
        scheduler.turn().reads(bit("names"), "map", "snapshot", *self._cells)
        return self._cells.copy()

    def free_dead_lock(self) -> None:
        """There is none, and no fork."""


def load_tracker(source: str) -> ModuleType:
    """Execute the source of tracker.py with this module as its substrate."""
    substrate = SimpleNamespace(
        AtomicInt64=AtomicInt64,
        CellMap=CellMap,
        thread_ident=scheduler.thread_ident,
        defer_reference_counts=lambda shared: None,
    )

    def import_(name: str, *how: Any) -> Any:
        if name == "kineto_step_tracker":
            return SimpleNamespace(_atomic=substrate)
        if name == "kineto_step_tracker._atomic":
            return substrate
        return builtins.__import__(name, *how)

    module = ModuleType("tracker_under_exploration")
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_}
    exec(compile(source, "tracker.py", "exec"), vars(module))
    return module
