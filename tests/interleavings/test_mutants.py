"""Deliberate breaks of the algorithm and of its substrate, each found by a program of its own.

A break that no program finds is a missing program. Each also names what must go wrong, so that
one which merely crashes does not pass for found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from . import substrate
from .programs import SOURCE, examine
from .substrate import load_tracker

SUBSTRATE = Path(substrate.__file__)

HISTORY = "not linearizable"
STEPS = "the callback ran for steps"
OVERLAP = "the callback overlaps itself"
SPIN = "a thread waits or spins"
ERRORS = "were raised and"
SWALLOWED = "did not leave"
HELD_UP = "was held up by step"
NOTES = "has no note of its step"
TRIES = "tries to raise the step"


@dataclass(frozen=True)
class Mutant:
    """A text that stands in the file once, what it becomes, and the program that finds it."""

    name: str
    old: str
    new: str
    program: str
    shows: str = HISTORY
    file: Path = SOURCE

    def load(self) -> ModuleType:
        source = self.file.read_text()
        assert source.count(self.old) == 1, f"{self.name}: fits {source.count(self.old)} times"
        source = source.replace(self.old, self.new)
        if self.file == SOURCE:
            return load_tracker(source)
        module = ModuleType("mutant")
        module.__package__ = __package__
        exec(compile(source, self.file, "exec"), vars(module))
        tracker: ModuleType = module.load_tracker(SOURCE.read_text())
        return tracker


MUTANTS = [
    Mutant(
        "init does not help",
        "step = self._raise_to(count, self._global_max.load())\n            if cell",
        "step = self._global_max.load()\n            if cell",
        "handle a: step a | init a",
    ),
    Mutant(
        "init stores without comparing",
        "if cell.compare_exchange(count, step):\n                break\n        self._dispatch()",
        "cell.store(step)\n            break\n        self._dispatch()",
        "handle a: step a | init a",
    ),
    Mutant(
        "init revives a retired cell",
        "            if count < _FRESH:\n                continue\n",
        "",
        "handle a: erase a | erase a; init a",
    ),
    Mutant(
        "init helps without running the callback",
        "                break\n        self._dispatch()\n\n    def erase",
        "                break\n\n    def erase",
        "handle a: step a | init a / plain",
        STEPS,
    ),
    Mutant(
        "erase does not help",
        "            self._raise_to(count, self._global_max.load())\n            if cell",
        "            if cell",
        "handle a: step a | erase a; current",
    ),
    Mutant(
        "erase helps after the count is hidden",
        "            self._raise_to(count, self._global_max.load())\n"
        "            if cell.compare_exchange(count, _RETIRED):\n                break\n",
        "            if cell.compare_exchange(count, _RETIRED):\n                break\n"
        "        self._raise_to(count, self._global_max.load())\n",
        "handle a: increment a | erase a | erase a; current",
    ),
    Mutant(
        "erase helps without running the callback",
        "        self._cells.discard(requester, cell)\n        self._dispatch()\n",
        "        self._cells.discard(requester, cell)\n",
        "handle a: step a | erase a / plain",
        STEPS,
    ),
    Mutant(
        "erase leaves a fresh cell alone",
        "            count = cell.load()\n            # Help, and before",
        "            count = cell.load()\n            if count < 0:\n                return False\n"
        "            # Help, and before",
        "increment a | increment b; erase a",
    ),
    Mutant(
        "erase finds a fresh cell known",
        "return count >= 0\n\n    def current_step",
        "return count >= _FRESH\n\n    def current_step",
        "increment a | erase a",
    ),
    Mutant(
        "erase stores without comparing",
        "if cell.compare_exchange(count, _RETIRED):\n                break",
        "cell.store(_RETIRED)\n            break",
        "handle a: erase a | erase a",
    ),
    Mutant(
        "a retired cell is 0",
        "_RETIRED = -(2**62)",
        "_RETIRED = 0",
        "handle a: step a | erase a",
    ),
    Mutant(
        "a retired cell stays until whoever erased it goes on",
        "            # Whoever erased it may be stopped before it could do this, for as long as it "
        "likes.\n            self._cells.discard(name, cell)\n",
        "",
        "handle a: erase a | increment a",
        SPIN,
    ),
    Mutant(
        "a handle counts in a retired cell",
        "        if count <= 0:\n            return self._tracker.increment_step(self._name)\n",
        "",
        "handle a: step a | erase a",
    ),
    Mutant(
        "a handle takes a retired cell for registered",
        "        if count <= 0:\n            return False\n",
        "",
        "handle a: try a; current | erase a",
    ),
    Mutant(
        "a handle counts and does not raise the step",
        "            return False\n        self._tracker._reach(count)\n",
        "            return False\n",
        "handle a: try a; current | current",
    ),
    Mutant(
        "a first increment counts before its cell can be found",
        "            cell = self._cell_of(name)\n            count = cell.load()\n"
        "            if count >= 0:\n                count = cell.add(1)",
        "            count = self._global_max.load() + 1\n            mine = AtomicInt64(count)\n"
        "            cell = self._cells.find_or_add(name, mine)\n"
        "            if cell is mine:\n                return count\n"
        "            cell = self._cell_of(name)\n            count = cell.load()\n"
        "            if count >= 0:\n                count = cell.add(1)",
        "increment a | increment a; erase a",
    ),
    Mutant(
        "a first increment registers and counts after it",
        "first = self._global_max.load() + 1\n"
        "                if cell.compare_exchange(count, first):\n                    return first",
        "first = self._global_max.load()\n"
        "                if cell.compare_exchange(count, first) and cell.add(1) > 0:\n"
        "                    return first + 1",
        "increment a | erase a",
    ),
    Mutant(
        "a first increment stores without comparing",
        "                if cell.compare_exchange(count, first):\n                    return first",
        "                cell.store(first)\n                return first",
        "increment a | increment a",
    ),
    Mutant(
        "a requester erased while it is counted is given up",
        "                if count > 0:\n                    return count\n",
        "                return count\n",
        "handle a; erase a: increment a | handle a; erase a",
    ),
    Mutant(
        "a handle takes a known requester for a new one",
        "            if count >= 0 or (\n                count >= _FRESH and ",
        "            if (\n                count >= _FRESH and ",
        "increment a; increment b; increment b: handle a",
    ),
    Mutant(
        "the global step is stored",
        "            if self._global_max.compare_exchange(step, count):\n"
        "                return count\n",
        "            self._global_max.store(count)\n            return count\n",
        "handle a: step a | step a",
    ),
    Mutant(
        "a failed rise is given up",
        "        while step < count:\n            if self._global_max",
        "        if step < count:\n            if self._global_max",
        "handle a: step a | step a",
    ),
    Mutant(
        "a failed rise is tried again without looking",
        "            if self._global_max.compare_exchange(step, count):\n",
        "            if self._global_max.compare_exchange(step, count) or (\n"
        "                self._global_max.compare_exchange(step, count)\n            ):\n",
        "handle a: step a | step a",
        TRIES,
    ),
    Mutant(
        "step_counts shows a count above the global step",
        "        if counts:\n            self._reach(max(counts.values()))\n",
        "",
        "handle a: step a | counts; current",
    ),
    Mutant(
        "step_counts raises the global step without running the callback",
        "            self._reach(max(counts.values()))\n",
        "            self._raise_to(max(counts.values()), self._global_max.load())\n",
        "handle a: step a | counts / plain",
        STEPS,
    ),
    Mutant(
        "a handle raises the global step without running the callback",
        "        self._reach(count)\n        return count\n",
        "        self._raise_to(count, self._global_max.load())\n        return count\n",
        "handle a: step a | count a / plain",
        STEPS,
    ),
    Mutant(
        "a handle shows a count above the global step",
        "        # As in step_counts: no count that anyone has seen is above the global step.\n"
        "        self._reach(count)\n",
        "",
        "handle a: step a | count a; current",
    ),
    Mutant(
        "the baton is freed without looking again",
        "                finally:\n                    self._free_baton(me)\n        if errors",
        "                finally:\n                    self._free_baton(me)\n            break\n"
        "        if errors",
        "handle a: step a | step a / plain",
        STEPS,
    ),
    Mutant(
        "the baton is looked at and then stored",
        "                if not self._baton.compare_exchange(_NOBODY, me):\n"
        "                    break\n",
        "                if self._baton.load() != _NOBODY:\n                    break\n"
        "                self._baton.store(me)\n",
        "handle a: step a | step a / plain",
        STEPS,
    ),
    Mutant(
        "a callback that increments runs the next one itself",
        "                break  # called",
        "                self._run_callbacks(errors)\n                break  # called",
        "handle a: step a / reenters",
        OVERLAP,
    ),
    Mutant(
        "a callback may take its own baton",
        "            if self._baton.load() == me:\n                break  # called",
        "            if False:\n                break  # called",
        "handle a: step a | step a / reenters",
        STEPS,
    ),
    Mutant(
        "an interrupt leaks the baton",
        "            finally:\n                # Twice",
        "            except SystemExit:\n                raise\n            else:\n"
        "                # Twice",
        "handle a: step a; step a / interrupts",
        STEPS,
    ),
    Mutant(
        "a step is taken for run after its callback",
        "            self._dispatched.store_release(step)\n            try:\n"
        "                self._on_step(step)  #",
        "            try:\n                self._on_step(step); self._dispatched.store(step)  #",
        "handle a: step a; step a / interrupts",
        STEPS,
    ),
    Mutant(
        "an interrupt is swallowed",
        "                    raise stop from _one_of(errors)\n                raise\n",
        "                    raise stop from _one_of(errors)\n",
        "handle a: step a / interrupts",
        SWALLOWED,
    ),
    Mutant(
        "an interrupt is held up by the steps behind it",
        "            except (KeyboardInterrupt, SystemExit) as stop:\n"
        "                if errors is not None and stop.__cause__ is None:\n"
        "                    raise stop from _one_of(errors)\n                raise\n",
        "",
        "handle a: step a | step a / interrupts",
        HELD_UP,
    ),
    Mutant(
        "an interrupt hides the errors before it",
        "                if errors is not None and stop.__cause__ is None:\n"
        "                    raise stop from _one_of(errors)\n",
        "",
        "handle a: step a | step a / raises, interrupts",
        ERRORS,
    ),
    Mutant(
        "errors are lost",
        "        if errors is not None:\n            raise _one_of(errors)\n",
        "",
        "handle a: step a / raises",
        ERRORS,
    ),
    Mutant(
        "of several errors the first is raised",
        "    if len(errors) == 1:\n        return errors[0]\n",
        "    return errors[0]\n",
        "handle a: step a | step a / raises",
        ERRORS,
    ),
    Mutant(
        "an error stops the steps behind it",
        "                errors.append(error)\n",
        "                raise\n",
        "handle a: step a | step a / raises",
        STEPS,
    ),
    Mutant(
        "an error has no note",
        '_add_note(error, f"raised by the on_step callback for step {step}")',
        "pass",
        "handle a: step a / raises",
        NOTES,
    ),
    Mutant(
        "add is two operations",
        "        event = scheduler.turn()\n        self._value += amount\n"
        '        event.changes(self._bit, self, "add", self._value)\n        return self._value\n',
        "        value = self.load() + amount\n        self.store(value)\n        return value\n",
        "handle a: step a | step a",
        file=SUBSTRATE,
    ),
    Mutant(
        "compare-and-swap is two operations",
        "        event = scheduler.turn()\n        if self._value != expected:\n",
        "        if self.load() == expected:\n            self.store(desired)\n"
        "            return True\n"
        "        event = scheduler.turn()\n        if self._value != expected:\n",
        "handle a: erase a | erase a",
        file=SUBSTRATE,
    ),
    Mutant(
        "find_or_add replaces the cell that the name has",
        "return self._cells.setdefault(name, cell)",
        "self._cells[name] = cell\n        return cell",
        "increment a | increment a",
        file=SUBSTRATE,
    ),
    Mutant(
        "discard removes whatever cell the name has",
        "if self._cells.get(name) is cell:",
        "if name in self._cells:",
        "handle a: erase a | erase a; increment a",
        file=SUBSTRATE,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    outcome = examine(mutant.program, mutant.load(), limit=10_000)
    assert mutant.shows in outcome.failure, f"{outcome.schedules} schedules"


@pytest.mark.parametrize("program", sorted({mutant.program for mutant in MUTANTS}))
def test_what_ships_passes_every_program_that_finds_a_mutant(program: str) -> None:
    assert not examine(program, limit=1_000).failure
