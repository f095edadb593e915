"""The contenders, before they are timed: each does what its name says, and leaves no trace."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kineto_step_tracker import KinetoStepTracker, backend
from kineto_step_tracker.bench import contenders, threads
from kineto_step_tracker.bench.clocks import Work
from kineto_step_tracker.bench.contenders import Callback, Contender, is_there, kineto_step, stage
from kineto_step_tracker.bench.report import Key, Question
from kineto_step_tracker.textbook import TextbookStepTracker

# Those that count. Of the others nothing rises: they are there for scale.
COUNTING = [c for c in Contender if c not in (Contender.METHOD, Contender.LOOK_UP)]
PROFILER = "torch.autograd.profiler"

pytestmark = pytest.mark.usefixtures("process_wide")


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyTorch's module, by whose ``_kineto_step`` a rise calls; or what stands in for it."""
    if importlib.util.find_spec("torch") is not None:
        return importlib.import_module(PROFILER)
    loaded = SimpleNamespace(_kineto_step=lambda: None)
    monkeypatch.setitem(sys.modules, PROFILER, loaded)
    return loaded


@pytest.fixture(params=COUNTING)
def contender(request: pytest.FixtureRequest, profiler: object) -> Contender:
    contender: Contender = request.param
    if not is_there(contender):
        if contender is Contender.PORTABLE and backend == "portable":
            pytest.skip("the package itself is on the portable substrate here")
        pytest.skip(f"times what is made with {contenders._NEEDS[contender]}, not installed here")
    return contender


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[Callback, int]:
    """How often each callback was called."""
    calls = dict.fromkeys(Callback, 0)

    def counting(callback: Callback) -> Any:
        def call(step: int = 0) -> None:
            calls[callback] += 1

        return call

    for callback in Callback:
        monkeypatch.setitem(contenders._ON_STEP, callback, counting(callback))
        monkeypatch.setitem(contenders._KINETO_STEP, callback, counting(callback))
    return calls


def execute(work: Work, times: int) -> None:
    work.loop()(times)


def count_of(work: Work, requester: str) -> int:
    """The requester's count, wherever the contender keeps it."""
    names: dict[str, Any] = dict(work.names)
    if "KinetoStepTracker" in names:
        return KinetoStepTracker.step_counts()[requester]
    owner = names["step"].__self__
    if hasattr(owner, "count"):
        return int(owner.count)
    if hasattr(owner, "step_counts"):
        return int(owner.step_counts()[requester])
    counts = owner._step_dict if hasattr(owner, "_step_dict") else owner._counts
    count = counts[requester]
    return int(count.get()) if hasattr(count, "get") else int(count)


@pytest.mark.parametrize("callback", Callback)
def test_each_step_of_a_lone_requester_is_a_rise(
    contender: Contender, callback: Callback, calls: dict[Callback, int]
) -> None:
    work = stage(contender, ["r0"], callback=callback).work("r0")
    with work.around():
        execute(work, 20)
        assert count_of(work, "r0") == 20
    assert calls == {**dict.fromkeys(Callback, 0), callback: 20}


def test_each_step_of_one_among_many_is_a_rise(
    contender: Contender, calls: dict[Callback, int]
) -> None:
    staged = stage(contender, [f"r{number}" for number in range(30)])
    work = staged.work("r7")
    with work.around():
        execute(work, 20)
        assert count_of(work, "r7") == 20
    assert calls[Callback.C] == 20


def test_requesters_that_catch_up_rise_no_more(
    contender: Contender, calls: dict[Callback, int]
) -> None:
    staged = stage(contender, ["r0", "r1"])
    first, second = staged.work("r0"), staged.work("r1")
    with staged.around():
        execute(first, 5)
        execute(second, 5)
        assert calls[Callback.C] == 5
        execute(second, 1)
        assert calls[Callback.C] == 6


def test_no_step_behind_a_requester_far_ahead_is_a_rise_but_each_counts(
    contender: Contender, calls: dict[Callback, int]
) -> None:
    work = stage(contender, ["r0", "r1"], rising=False).work("r1")
    with work.around():
        execute(work, 20)
        assert count_of(work, "r1") == 20
    assert calls == dict.fromkeys(Callback, 0)


@pytest.mark.parametrize("rising", [True, False])
def test_a_measurement_again_begins_where_each_step_is_what_it_was(
    contender: Contender, rising: bool, calls: dict[Callback, int]
) -> None:
    work = stage(contender, ["r0", "r1"], rising).work("r0")
    for turn in (1, 2, 3):
        with work.around():
            execute(work, 4)
        assert calls[Callback.C] == 4 * turn * rising


def what_a_process_has_one_of(profiler: Any) -> list[object]:
    stock = getattr(profiler, "KinetoStepTracker", None)
    return [
        KinetoStepTracker.current_step(),
        KinetoStepTracker.step_counts(),
        profiler._kineto_step,
        stock,
        stock and (stock._current_step, dict(stock._step_dict)),
    ]


@pytest.mark.parametrize("rising", [True, False])
def test_nothing_is_left_of_a_measurement(
    contender: Contender, rising: bool, profiler: Any
) -> None:
    before = what_a_process_has_one_of(profiler)
    work = stage(contender, ["r0"], rising).work("r0")
    with work.around():
        execute(work, 3)
    assert what_a_process_has_one_of(profiler) == before


@pytest.mark.parametrize("rising", [True, False])
def test_nothing_is_left_of_a_measurement_that_raises(
    contender: Contender, rising: bool, profiler: Any
) -> None:
    before = what_a_process_has_one_of(profiler)
    work = stage(contender, ["r0"], rising).work("r0")
    with pytest.raises(ZeroDivisionError), work.around():
        execute(Work(f"{work.statement}; 1 / 0", work.names), 1)
    assert what_a_process_has_one_of(profiler) == before


def test_where_pytorch_is_not_loaded_something_stands_in_for_it(
    monkeypatch: pytest.MonkeyPatch, calls: dict[Callback, int]
) -> None:
    monkeypatch.delitem(sys.modules, PROFILER, raising=False)
    with kineto_step(Callback.PYTHON):
        KinetoStepTracker.increment_step("a")
    assert calls[Callback.PYTHON] == 1
    assert PROFILER not in sys.modules


@pytest.mark.parametrize("error", ["ImportError('no such symbol')", "OSError('no libcudart')"])
def test_what_cannot_be_imported_is_not_there(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"broken_by_{error.partition('(')[0]}"
    (tmp_path / f"{package}.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(contenders._NEEDS, Contender.CEREGGII, package)
    assert not is_there(Contender.CEREGGII)
    assert contenders.trouble_with(package) in error


@pytest.mark.parametrize("callback", Callback)
def test_the_callbacks_take_what_a_rise_gives_them(callback: Callback) -> None:
    contenders._ON_STEP[callback](1)
    contenders._KINETO_STEP[callback]()


def test_threads_behind_one_far_ahead_stay_behind_on_the_process_wide_tracker_too(
    profiler: object, calls: dict[Callback, int]
) -> None:
    """Were a thread to set it up or to reset it by itself, steps of the others would be rises."""
    threads._steps_a_second(Key(Question.BEHIND, Contender.DROP_IN, 4), 0.01)
    assert calls[Callback.C] == 0


def test_threads_rise_where_they_are_to_and_not_behind(calls: dict[Callback, int]) -> None:
    threads._steps_a_second(Key(Question.BEHIND, Contender.NAME, 2), 0.01)
    assert calls[Callback.C] == 0
    threads._steps_a_second(Key(Question.SHARED, Contender.NAME, 2), 0.01)
    shared = calls[Callback.C]
    assert shared > 0
    threads._steps_a_second(Key(Question.SEPARATE, Contender.NAME, 2), 0.01)
    assert calls[Callback.C] > shared


operations = st.lists(
    st.tuples(
        st.sampled_from(["init_step_count", "increment_step"]),
        st.sampled_from(["ProfilerStep", "Optimizer1Step", "Optimizer2Step"]),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(program=operations)
def test_the_textbook_on_a_class_does_what_the_textbook_does(
    program: list[tuple[str, str]],
) -> None:
    def history(make: Any) -> list[object]:
        seen: list[object] = []
        tracker = make(lambda step: seen.append(("callback", step)))
        for method, requester in program:
            seen.append(getattr(tracker, method)(requester))
        return seen

    assert history(contenders._textbook) == history(TextbookStepTracker)


@pytest.mark.parametrize(
    "contender", [c for c in COUNTING if c is not Contender.DROP_IN], indirect=True
)
def test_two_stages_of_a_contender_share_no_counts(contender: Contender) -> None:
    first, second = (stage(contender, ["r0"]).work("r0") for _ in range(2))
    with first.around():
        execute(first, 3)
    assert (count_of(first, "r0"), count_of(second, "r0")) == (3, 0)


@pytest.mark.parametrize("missing", ["torch", "cereggii", "atomics"])
def test_a_contender_whose_package_is_missing_is_not_there(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "backend", "native")
    monkeypatch.setattr(contenders, "trouble_with", lambda package: "")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else object()
    )
    assert [contender for contender in Contender if not is_there(contender)] == [
        {
            "torch": Contender.PYTORCH,
            "cereggii": Contender.CEREGGII,
            "atomics": Contender.PORTABLE,
        }[missing]
    ]


def test_on_the_portable_substrate_ours_is_not_timed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contenders, "backend", "portable")
    monkeypatch.setattr(contenders, "trouble_with", lambda package: "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert [contender for contender in Contender if not is_there(contender)] == [Contender.PORTABLE]
