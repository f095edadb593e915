"""Threads that die in the middle of a step leave nothing stranded and hold up nobody."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import time

import pytest

from kineto_step_tracker import StepTracker, backend
from tests.conftest import repetitions


class Killed(Exception):  # noqa: N818
    pass


def kill(thread: threading.Thread, death: type[BaseException]) -> None:
    """Have CPython raise an exception in a thread, between any two bytecodes."""
    while thread.is_alive():
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(death))
        # Again only if it was lost in a finaliser, where CPython reports and drops it.
        thread.join(1)


class Notes:
    """A callback that takes its time, so that death finds it, and notes when it did."""

    def __init__(self, death: type[BaseException]) -> None:
        self.death = death
        self.steps: list[int] = []
        self.overlaps: list[int] = []
        self.killed = 0
        self._inside = False

    def __call__(self, step: int) -> None:
        if self._inside:
            self.overlaps.append(step)
        try:
            self._inside = True
            self.steps.append(step)
            for _ in range(repetitions(20, portable=20_000)):
                pass
        except self.death:
            self.killed += 1
            raise
        finally:
            self._inside = False


@pytest.mark.parametrize("death", [SystemExit, Killed])
@pytest.mark.usefixtures("restless")
def test_threads_killed_in_increments_and_callbacks(
    death: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    stopping = threading.Event()
    notes = Notes(death)
    tracker = StepTracker(notes)
    tracker.increment_step("first")

    def step(name: str) -> None:
        while not stopping.is_set():
            tracker.requester(name).increment()
            tracker.increment_step("shared")
            tracker.erase_step_count("shared")
            # The holder stays in its call while others raise steps as fast as it runs them.
            if tracker.current_step() > notes.steps[-1] + 50:
                while tracker.current_step() > notes.steps[-1] and not stopping.is_set():
                    time.sleep(1e-4)

    def live(born: threading.Event) -> None:
        with contextlib.suppress(death):
            born.set()
            step("mortal")

    survivors = [threading.Thread(target=step, args=(f"survivor{n}",)) for n in range(2)]
    for thread in survivors:
        thread.start()
    kills = 0
    try:
        # Some of them inside the callback.
        while kills < repetitions(300, portable=40) or not notes.killed:
            kills += 1
            born = threading.Event()
            mortal = threading.Thread(target=live, args=(born,))
            mortal.start()
            assert born.wait(60)
            time.sleep(random.uniform(0, 1e-3 if backend == "native" else 2e-2))
            kill(mortal, death)
    finally:
        stopping.set()
        for thread in survivors:
            thread.join(60)
    assert not any(thread.is_alive() for thread in survivors)
    assert notes.overlaps == []
    last = [tracker.increment_step("after") for _ in range(2)]
    assert notes.steps[-2:] == last, "nothing holds the baton"
    assert notes.steps == sorted(set(notes.steps)), "a step was run twice, or out of order"
    assert last[1] - len(notes.steps) <= kills, "each may be killed as it calls the callback"
