"""The process-wide tracker: the four methods of PyTorch's class and its two private attributes."""

from __future__ import annotations

import copy
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from functools import partial
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kineto_step_tracker import KinetoStepTracker, backend, drop_in
from kineto_step_tracker.textbook import TextbookStepTracker
from tests.conftest import repetitions, run_together

Tracker = type[KinetoStepTracker]


@pytest.fixture
def kineto(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A PyTorch that is loaded, as far as the drop-in looks, and the steps it was told of."""
    seen: list[int] = []
    profiler = ModuleType("torch.autograd.profiler")
    profiler._kineto_step = lambda: seen.append(KinetoStepTracker.current_step())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    return seen


def test_the_class_counts_for_the_whole_process(process_wide: Tracker) -> None:
    times = repetitions(20_000)
    names = ("a", "b", "c", "d")

    def work(name: str) -> None:
        process_wide.init_step_count(name)
        for _ in range(times):
            process_wide.increment_step(name)

    run_together(*(partial(work, name) for name in names))
    step = process_wide.current_step()
    assert max(process_wide.step_counts().values()) == step >= times
    assert process_wide.requester("a").increment() >= process_wide.step_counts()["a"]
    assert [process_wide.erase_step_count(name) for name in (*names, "a")] == [True] * 4 + [False]
    assert process_wide.current_step() >= step


def test_a_rise_steps_kineto_once(process_wide: Tracker, kineto: list[int]) -> None:
    process_wide.init_step_count("late")
    process_wide.increment_step("a")
    process_wide.increment_step("late")
    process_wide.increment_step("a")
    assert kineto == [1, 2]


@pytest.mark.parametrize("loaded", [False, True])
def test_without_kineto_it_counts_and_imports_nothing(
    process_wide: Tracker, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """PyTorch may be absent, or not have got as far as Kineto in its own import."""
    if loaded:
        empty = ModuleType("torch.autograd.profiler")
        monkeypatch.setitem(sys.modules, "torch.autograd.profiler", empty)
    else:
        monkeypatch.delitem(sys.modules, "torch.autograd.profiler", raising=False)
    before = set(sys.modules)
    assert process_wide.increment_step("a") == 1
    assert set(sys.modules) == before


@pytest.mark.skipif(backend != "native", reason="the portable tracker is Python code itself")
def test_no_signal_handler_comes_between_a_step_and_kineto(
    process_wide: Tracker, kineto: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signal handlers run in Python code only, and between the two there is none."""
    profiler: Any = sys.modules["torch.autograd.profiler"]
    monkeypatch.setattr(profiler, "_kineto_step", partial(kineto.append, 0))
    entered: list[str] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        entered.append(frame.f_code.co_qualname)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        process_wide.increment_step("a")
    finally:
        sys.settrace(before)
    assert kineto == [0]
    assert entered == []


def test_its_methods_are_made_once() -> None:
    """To bind one anew costs as much as to count; to share one, on free-threaded builds, more."""
    for name in ("init_step_count", "erase_step_count", "increment_step", "current_step"):
        method = getattr(KinetoStepTracker, name)
        assert getattr(KinetoStepTracker, name) is method
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            before = sys.getrefcount(method)
            more = [method] * 100
            assert sys.getrefcount(more[0]) == before


def test_a_refused_requester_changes_nothing(process_wide: Tracker) -> None:
    for call in (
        process_wide.init_step_count,
        process_wide.increment_step,
        process_wide.erase_step_count,
        process_wide.requester,
    ):
        with pytest.raises(TypeError, match=r"(requester|name) must be a str, not int \(3\)"):
            call(3)  # type: ignore[arg-type]
    assert process_wide.step_counts() == {}


class BesideTheTextbook(RuleBasedStateMachine):
    """Any sequence of calls and of reads of the private attributes is alike on both."""

    def __init__(self) -> None:
        super().__init__()
        KinetoStepTracker.reset()
        self.expected = TextbookStepTracker()

    requesters = st.sampled_from(["ProfilerStep", "Optimizer1Step", "Optimizer2Step"])

    @rule(requester=requesters)
    def init(self, requester: str) -> None:
        KinetoStepTracker.init_step_count(requester)
        self.expected.init_step_count(requester)

    @rule(requester=requesters)
    def increment(self, requester: str) -> None:
        ours = KinetoStepTracker.increment_step(requester)
        assert ours == self.expected.increment_step(requester)

    @rule(requester=requesters)
    def erase(self, requester: str) -> None:
        ours = KinetoStepTracker.erase_step_count(requester)
        assert ours is self.expected.erase_step_count(requester)

    @rule()
    def start_anew(self) -> None:
        """As test suites do it, in the order in which they do it."""
        KinetoStepTracker._step_dict.clear()
        KinetoStepTracker._current_step = 0
        self.expected = TextbookStepTracker()

    @invariant()
    def alike(self) -> None:
        assert KinetoStepTracker.current_step() == self.expected.current_step()
        assert KinetoStepTracker._current_step == self.expected.current_step()
        assert KinetoStepTracker._step_dict == self.expected.step_counts()


BesideTheTextbook.TestCase.settings = settings(deadline=None, max_examples=100)
TestBesideTheTextbook = BesideTheTextbook.TestCase


class TestStepDict:
    """PyTorch's ``_step_dict`` is a ``defaultdict(int)``; so does ours behave."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda counts: counts["a"],
            lambda counts: counts["new"],
            lambda counts: counts.get("a"),
            lambda counts: counts.get("new"),
            lambda counts: counts.get("new", 7),
            lambda counts: "a" in counts,
            lambda counts: "new" in counts,
            lambda counts: 3 in counts,
            lambda counts: len(counts),
            lambda counts: list(counts),
            lambda counts: dict(counts),
            lambda counts: list(counts.keys()),
            lambda counts: max(counts.values()),
            lambda counts: sorted(counts.items()),
            lambda counts: counts.copy(),
            lambda counts: counts.pop("a"),
            lambda counts: counts.pop("new", None),
            lambda counts: counts.popitem(),
            lambda counts: counts.setdefault("a", 9),
            lambda counts: counts.setdefault("new", 2),
            lambda counts: counts.clear(),
            lambda counts: counts.update({"a": 3, "new": 1}),
            lambda counts: counts.update(new=1),
            lambda counts: counts.__setitem__("new", 3),
            lambda counts: counts.__setitem__("a", 0),
            lambda counts: counts.__delitem__("a"),
            lambda counts: counts == {"a": 3, "b": 2},
            lambda counts: counts == {"a": 3},
            lambda counts: bool(counts),
        ],
    )
    def test_as_pytorchs(
        self, process_wide: Tracker, use: Callable[[MutableMapping[str, int]], object]
    ) -> None:
        expected = defaultdict(int, {"a": 3, "b": 2})
        process_wide._step_dict = expected
        assert use(process_wide._step_dict) == use(expected)
        assert process_wide._step_dict == expected
        assert list(process_wide._step_dict) == list(expected)

    @pytest.mark.parametrize("use", [lambda c: c.pop("new"), lambda c: c.__delitem__("new")])
    def test_unknown_names_are_key_errors(
        self, process_wide: Tracker, use: Callable[[MutableMapping[str, int]], object]
    ) -> None:
        with pytest.raises(KeyError, match="new"):
            use(process_wide._step_dict)
        assert process_wide._step_dict == {}

    def test_is_live(self, process_wide: Tracker) -> None:
        counts = process_wide._step_dict
        process_wide.increment_step("a")
        assert counts == {"a": 1}
        assert repr(counts) == "{'a': 1}"

    @pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy])
    def test_a_copy_is_not(
        self, process_wide: Tracker, make_copy: Callable[[object], object]
    ) -> None:
        saved = make_copy(process_wide._step_dict)
        process_wide.increment_step("a")
        assert saved == {}

    def test_a_count_written_above_the_global_step_raises_it(
        self, process_wide: Tracker, kineto: list[int]
    ) -> None:
        process_wide._step_dict["a"] = 3
        assert (process_wide.current_step(), kineto) == (3, []), "writing runs no callback"
        assert process_wide.increment_step("a") == 4
        assert len(kineto) == 4, "and the next rise makes up for it, as in PyTorch's class"

    @pytest.mark.parametrize(
        ("name", "count", "message"),
        [
            (3, 1, "requester must be a str"),
            ("a", "1", "count must be an int"),
            ("a", -1, "count must be from 0"),
        ],
    )
    def test_bad_items_are_refused(
        self, process_wide: Tracker, name: str, count: int, message: str
    ) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            process_wide._step_dict[name] = count
        assert process_wide._step_dict == {}

    @pytest.mark.parametrize("bad", [{"n": 5, "m": -1}, {"n": 5, 7: 5}, {"n": 5, "m": None}])
    @pytest.mark.parametrize("whole", [True, False])
    def test_of_several_items_none_is_taken_if_one_is_bad(
        self, process_wide: Tracker, bad: dict[str, int], whole: bool
    ) -> None:
        process_wide.increment_step("a")
        write: Callable[[dict[str, int]], None] = partial(setattr, process_wide, "_step_dict")
        if not whole:
            write = process_wide._step_dict.update
        with pytest.raises((TypeError, ValueError)):
            write(bad)
        assert process_wide._step_dict == {"a": 1}
        assert process_wide.current_step() == 1

    @pytest.mark.usefixtures("restless")
    def test_reading_an_unknown_name_overwrites_no_count(self, process_wide: Tracker) -> None:
        names = [f"r{number}" for number in range(repetitions(5_000))]

        def read() -> None:
            for name in names:
                process_wide._step_dict[name]

        def increment() -> None:
            for name in names:
                for _ in range(5):
                    process_wide.increment_step(name)

        run_together(read, increment)
        counts = process_wide.step_counts()
        assert all(counts[name] >= 5 for name in names)

    def test_a_str_subclass_is_read_as_its_characters(self, process_wide: Tracker) -> None:
        class Name(str):
            __hash__ = None  # type: ignore[assignment]

        process_wide._step_dict[Name("a")] = 8
        assert process_wide._step_dict[Name("a")] == 8


class TestCurrentStep:
    def test_raising_it_runs_no_callback(self, process_wide: Tracker, kineto: list[int]) -> None:
        process_wide._current_step = 100
        assert (process_wide.current_step(), kineto) == (100, [])
        assert process_wide.increment_step("a") == 101
        assert kineto == [101]

    def test_lowering_it_brings_counts_down(self, process_wide: Tracker) -> None:
        for _ in range(5):
            process_wide.increment_step("a")
        process_wide._current_step = 2
        assert process_wide._step_dict == {"a": 2}
        process_wide._step_dict.clear()
        assert process_wide.current_step() == 2, "in either order the reset holds"

    def test_a_bad_step_is_refused(self, process_wide: Tracker) -> None:
        with pytest.raises(TypeError, match="step must be an int, not NoneType"):
            process_wide._current_step = None  # type: ignore[assignment]
        assert process_wide._current_step == 0


def test_saved_and_restored_in_either_order(process_wide: Tracker) -> None:
    for _ in range(3):
        process_wide.increment_step("a")
    process_wide.init_step_count("b")
    step, counts = process_wide._current_step, dict(process_wide._step_dict)
    for step_first in (True, False):
        process_wide.reset()
        process_wide.increment_step("other")
        if step_first:
            process_wide._current_step = step
        process_wide._step_dict = counts
        process_wide._current_step = step
        assert (process_wide.current_step(), process_wide.step_counts()) == (step, counts)


@pytest.mark.parametrize("library", ["monkeypatch", "mock"])
def test_patched_by_a_test_and_taken_back(process_wide: Tracker, library: str) -> None:
    process_wide.increment_step("a")
    if library == "mock":
        with (
            mock.patch.object(process_wide, "_current_step", 7),
            mock.patch.object(process_wide, "_step_dict", {"b": 7}),
        ):
            assert process_wide.increment_step("b") == 8
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_wide, "_current_step", 7)
            patch.setattr(process_wide, "_step_dict", {"b": 7})
            assert process_wide.increment_step("b") == 8
    assert process_wide._current_step == 1
    assert process_wide._step_dict == {"a": 1}


def test_patched_inside_a_patch(process_wide: Tracker) -> None:
    for _ in range(1000):
        process_wide.increment_step("a")
    with mock.patch.object(process_wide, "_current_step", 0):
        assert process_wide._step_dict == {"a": 0}
        with (
            mock.patch.object(process_wide, "_current_step", 5),
            mock.patch.object(process_wide, "_step_dict", {"b": 7}),
        ):
            assert process_wide.current_step() == 7
        assert process_wide.current_step() == 0
    assert process_wide._step_dict == {"a": 1000}
    assert process_wide.increment_step("a") == 1001


@pytest.mark.parametrize("attribute", ["_current_step", "_step_dict"])
def test_nothing_to_take_back(process_wide: Tracker, attribute: str) -> None:
    drop_in._replaced[attribute].clear()
    with pytest.raises(AttributeError, match=f"{attribute} cannot be deleted"):
        delattr(process_wide, attribute)
