"""Contract point 7: an interrupt at any point leaves the baton free and no later step behind."""

from __future__ import annotations

import contextlib
import dis
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from kineto_step_tracker import StepTracker
from kineto_step_tracker.bench.portable import load_portable
from tests.conftest import PlainAtomics, repetitions

See = Callable[[CodeType, int], object]


def with_tracing(codes: list[CodeType], see: See) -> Iterator[None]:
    files = {code.co_filename for code in codes}

    def local(frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            see(frame.f_code, frame.f_lasti)
        return local

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def with_monitoring(codes: list[CodeType], see: See) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tool, instruction = 4, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, instruction, see)
    for code in codes:
        monitoring.set_local_events(tool, code, instruction)
    try:
        yield
    finally:
        for code in codes:
            monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, instruction, None)
        monitoring.free_tool_id(tool)


# Call see(code, offset) before every instruction of the codes. It may raise.
seeing = contextlib.contextmanager(with_monitoring if sys.version_info >= (3, 12) else with_tracing)


class Interruption:
    """Interrupt at the instruction of a number, and tell whether CPython could have."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""
        self.possible = True
        self._before: dict[int, int] = {}

    def __call__(self, code: CodeType, offset: int) -> None:
        self.left -= 1
        if self.left == 0:
            before = self._before.get(id(code))
            names = {each.offset: each.opname for each in dis.get_instructions(code)}
            self.where = f"{code.co_qualname}, line {code.co_firstlineno}: {names[offset]}"
            # CPython looks for signals at the start of a function, on a jump back and after
            # a call, and nowhere else.
            self.possible = before is None or names[before].startswith(
                ("CALL", "RESUME", "JUMP_BACKWARD")
            )
            raise KeyboardInterrupt
        self._before[id(code)] = offset


def step_twice(tracker: Any, handle: Any) -> None:
    """A rise whose callback raises the next."""
    tracker.increment_step("re-enters")


def use_as_a_context(tracker: Any, handle: Any) -> None:
    with handle:
        handle.increment()


OPERATIONS: dict[str, Callable[[Any, Any], object]] = {
    "increment": lambda tracker, handle: tracker.increment_step("a"),
    "increment by handle": lambda tracker, handle: handle.increment(),
    "first increment": lambda tracker, handle: tracker.increment_step("new"),
    "increment in the callback": step_twice,
    "init": lambda tracker, handle: tracker.init_step_count("a"),
    "first init": lambda tracker, handle: tracker.init_step_count("new"),
    "erase": lambda tracker, handle: tracker.erase_step_count("a"),
    "requester": lambda tracker, handle: tracker.requester("new"),
    "context": use_as_a_context,
    "count": lambda tracker, handle: handle.count,
    "step_counts": lambda tracker, handle: tracker.step_counts(),
    "reset": lambda tracker, handle: tracker.reset(tracker.current_step()),
    "assign": lambda tracker, handle: tracker._assign("a", 5),
    "assign step": lambda tracker, handle: tracker._assign_step(tracker.current_step()),
}


def codes_of(modules: Iterable[ModuleType]) -> list[CodeType]:
    """The code of every function and method that the modules define."""
    codes = []
    for module in modules:
        names = list(vars(module).values())
        for scope in [names, *(vars(thing).values() for thing in names if isinstance(thing, type))]:
            functions = [thing.fget if isinstance(thing, property) else thing for thing in scope]
            codes += [
                function.__code__ for function in functions if isinstance(function, FunctionType)
            ]
    return codes


def interrupt(
    portable: tuple[ModuleType, ModuleType],
    operation: Callable[[Any, Any], object],
    codes: list[CodeType],
    number: int,
) -> Interruption:
    """Interrupt an operation at one instruction, and check that the tracker goes on after it."""
    substrate, tracker_module = portable
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 2:
            tracker.increment_step("re-enters")

    tracker = tracker_module.StepTracker(on_step)
    tracker.increment_step("a")
    handle = tracker.requester("a")
    # A step that nobody has run yet, so that every operation finds some to run.
    tracker._assign("left", 2)
    interruption = Interruption(number)
    with contextlib.suppress(KeyboardInterrupt), seeing(codes, interruption):
        operation(tracker, handle)

    if substrate._discarding._is_owned() or tracker._baton.load() != 0:
        assert not interruption.possible, f"left something taken: {interruption.where}"
        while substrate._discarding._is_owned():
            substrate._discarding.release()
        tracker._baton.store(0)
    risen = tracker.current_step()
    for _ in range(2):
        tracker.increment_step("after")
    last = tracker.current_step()
    assert last >= risen + 2
    assert steps == sorted(set(steps)), f"a step was run twice: {interruption.where}"
    assert set(range(risen + 1, last + 1)) <= set(steps), f"no callback: {interruption.where}"
    skipped = last - len(steps)
    assert skipped <= 1 or operation in (OPERATIONS["reset"], OPERATIONS["assign step"]), (
        f"skipped {skipped} steps: {interruption.where}"
    )
    assert tracker.erase_step_count("after") is True
    assert "after" not in tracker.step_counts()
    return interruption


@pytest.fixture(scope="module")
def on_plain_integers() -> tuple[ModuleType, ModuleType]:
    return load_portable(PlainAtomics("atomics"))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_at_any_bytecode_of_the_portable_tracker(
    on_plain_integers: tuple[ModuleType, ModuleType],
    operation: Callable[[Any, Any], object],
    record_property: Callable[[str, object], None],
) -> None:
    codes = codes_of(on_plain_integers)
    number = 1
    while interrupt(on_plain_integers, operation, codes, number).left <= 0:
        number += 1
    assert number > 20, "instructions were seen"
    record_property("interrupts", number - 1)


@pytest.fixture(scope="module")
def on_atomics() -> tuple[ModuleType, ModuleType]:
    # Its dependency cffi cannot be built for free-threaded CPython 3.13.
    return load_portable(pytest.importorskip("atomics"))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_at_any_bytecode_of_atomics_beneath_it(
    on_atomics: tuple[ModuleType, ModuleType],
    operation: Callable[[Any, Any], object],
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sample of thousands, another one in every run."""
    beneath = [module for name, module in sys.modules.items() if name.startswith("atomics.")]
    codes = codes_of([*on_atomics, *beneath])
    # CPython reports an interrupt inside a finaliser, of which it has some, and goes on.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    tried = 0
    number = random.randint(1, 100)
    while interrupt(on_atomics, operation, codes, number).left <= 0:
        number += random.randint(1, 299)
        tried += 1
    assert tried > 1
    record_property("interrupts", tried)


@pytest.mark.usefixtures("alarm")
def test_by_a_real_signal_a_thousand_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    steps: list[int] = []
    tracker = StepTracker(steps.append)
    armed = False
    interrupted = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def step_until_interrupted() -> None:
        # A function of its own: CPython 3.13 leaves out the jump back of a loop right inside
        # a try statement when it looks for the except clause.
        nonlocal armed
        armed = True
        # And once more later, since CPython up to 3.12 may forget one.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-4), 0.05)
        while armed:  # an interrupt in a finaliser of atomics does not leave that
            tracker.increment_step("a")
            tracker.increment_step("b")
            tracker.erase_step_count("b")

    signal.signal(signal.SIGALRM, handler)
    for _ in range(repetitions(1_000, portable=500)):
        try:
            step_until_interrupted()
        except KeyboardInterrupt:
            interrupted += 1
        risen = tracker.current_step()
        last = [tracker.increment_step("after"), tracker.increment_step("after")]
        assert steps[-2:] == last, "the steps after it are run"
        tracker.erase_step_count("after")
        assert risen < last[0]
    assert interrupted > 0
    assert steps == sorted(set(steps)), "a step was run twice"
    assert tracker.current_step() - len(steps) <= interrupted, "one at most is skipped by each"
