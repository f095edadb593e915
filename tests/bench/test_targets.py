"""The targets: on which side of a bound a report is, and that a run measures what they need."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable

import pytest

from kineto_step_tracker.bench import footprint, steps, threads
from kineto_step_tracker.bench.contenders import Contender, Hook
from kineto_step_tracker.bench.report import PACKAGE, Key, Question, Report, Spread
from kineto_step_tracker.bench.targets import Target, Verdict, verdicts

Values = dict[Key, list[float]]


def report(values: Values, free_threaded: bool = False) -> Report:
    return Report({}, "native", free_threaded, False, 1, values)


def targets(values: Values, free_threaded: bool = False) -> list[Target]:
    return [verdict.target for verdict in verdicts(report(values, free_threaded))]


def verdict_on(target: Target, values: Values, free_threaded: bool = False) -> Verdict:
    (verdict,) = [v for v in verdicts(report(values, free_threaded)) if v.target == target]
    return verdict


def measuring(target: Target, value: float) -> Values:
    """Values of which the target's is this one."""
    values = {target.over: [value]}
    if target.by is not None:
        values[target.by] = [1.0]
    return values


every_target = pytest.mark.parametrize(
    ("target", "free_threaded"),
    [
        pytest.param(target, free_threaded, id=f"{target.text}{' (free)' * free_threaded}")
        for free_threaded in (False, True)
        for target in targets({}, free_threaded)
    ],
)


@every_target
def test_the_bound_itself_meets_it_and_what_is_worse_misses_it(
    target: Target, free_threaded: bool
) -> None:
    better, worse = (math.inf, -math.inf) if target.at_least else (-math.inf, math.inf)
    for value, met in (
        (target.bound, True),
        (math.nextafter(target.bound, better), True),
        (math.nextafter(target.bound, worse), False),
    ):
        verdict = verdict_on(target, measuring(target, value), free_threaded)
        assert verdict.measured == Spread(value, value, value)
        assert verdict.met is met


@every_target
def test_it_is_grossly_missed_beyond_its_slack(target: Target, free_threaded: bool) -> None:
    assert target.slack >= 2
    if target.at_least:
        limit = target.bound / target.slack
        beyond = math.nextafter(limit, 0)
    else:
        limit = target.bound * target.slack
        beyond = math.nextafter(limit, math.inf)
    assert not verdict_on(target, measuring(target, limit), free_threaded).grossly_missed
    verdict = verdict_on(target, measuring(target, beyond), free_threaded)
    assert verdict.met is False
    assert verdict.grossly_missed


@every_target
def test_of_what_was_not_measured_nothing_is_said(target: Target, free_threaded: bool) -> None:
    full = measuring(target, target.bound)
    for missing in full:
        partly = {key: values for key, values in full.items() if key != missing}
        verdict = verdict_on(target, partly, free_threaded)
        assert verdict.measured is None
        assert verdict.met is None
        assert not verdict.grossly_missed


@every_target
def test_the_median_decides_and_not_the_luckiest_turn(target: Target, free_threaded: bool) -> None:
    lucky, unlucky = (1e9, 1e-9) if target.at_least else (1e-12, 1e9)
    values: Values = {target.over: [lucky, unlucky, unlucky]}
    if target.by is not None:
        values[target.by] = [1.0] * 3
    assert verdict_on(target, values, free_threaded).met is False


def test_a_ratio_is_taken_turn_by_turn() -> None:
    target = targets({})[0]
    assert target.by is not None
    assert (target.bound, target.at_least) == (10, True)
    # Of the medians it would be 10, and of the sums 5.05.
    verdict = verdict_on(target, {target.over: [10, 1, 100], target.by: [1, 1, 20]})
    assert verdict.measured == Spread.of([10, 1, 5])
    assert verdict.met is False


@pytest.mark.parametrize("nothing", [0.0, -1e-9])
def test_of_a_difference_that_is_none_there_is_no_ratio(nothing: float) -> None:
    hooks = [target for target in targets({}) if target.over.question is Question.HOOK]
    for target in hooks:
        assert target.by is not None
        for over, by in ((nothing, 1.0), (1.0, nothing)):
            assert verdict_on(target, {target.over: [over], target.by: [by]}).met is None


def test_the_two_builds_have_some_targets_of_their_own_and_some_in_common() -> None:
    gil, free = set(targets({})), set(targets({}, free_threaded=True))
    assert {target.over.question for target in gil & free} == {
        Question.HOOK,
        Question.MEMORY,
        Question.IMPORT,
        Question.NEEDLESS,
    }
    assert {target.over.question for target in gil - free} == {
        Question.NO_RISE,
        Question.RISE,
        Question.SHARED,
    }
    assert {target.over.question for target in free - gil} == {
        Question.BEHIND,
        Question.SEPARATE,
    }


def stocks(found: Iterable[Target]) -> set[str]:
    contenders = {key.contender for target in found for key in (target.over, target.by) if key}
    return contenders & {Contender.PYTORCH, Contender.TEXTBOOK}


def test_the_textbook_stands_in_where_pytorchs_class_was_not_measured() -> None:
    measured = {Key(Question.NO_RISE, Contender.PYTORCH, 4): [1.0]}
    checks = [target for target in targets(measured) if target.text.startswith("check: ")]
    assert len(checks) == 2, "that the textbook costs what PyTorch's class does"
    assert stocks(set(targets(measured)) - set(checks)) == {Contender.PYTORCH}
    assert stocks(targets({})) == {Contender.TEXTBOOK}
    for values, stock in ((measured, Contender.PYTORCH), ({}, Contender.TEXTBOOK)):
        named = [target.text for target in targets(values) if "faster than" in target.text]
        assert len(named) == 5
        assert all(f"faster than {stock}, " in text for text in named)


@pytest.mark.parametrize("free_threaded", [False, True])
def test_no_two_targets_have_the_same_text(free_threaded: bool) -> None:
    texts = [target.text for target in targets({}, free_threaded)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("bound", "at_least", "over", "by", "wanted"),
    [
        (1 / 3, False, Question.HOOK, True, "at most 0.333 x"),
        (4.5, True, Question.RISE, True, "at least 4.5 x"),
        (150, True, Question.RISE, True, "at least 150 x"),
        (1234.5, True, Question.MEMORY, True, "at least 1234 x"),
        (0.005, False, Question.IMPORT, False, "at most 5 ms"),
        (512, False, Question.MEMORY, False, "at most 512 B"),
        (0, False, Question.NEEDLESS, False, "at most 0"),
    ],
)
def test_a_bound_in_words(
    bound: float, at_least: bool, over: Question, by: bool, wanted: str
) -> None:
    other = Key(over, Contender.TEXTBOOK, 1) if by else None
    assert Target("", bound, at_least, Key(over, PACKAGE, 1), other).wanted == wanted


@pytest.fixture(scope="module")
def measured() -> Values:
    """What each part of a quick run measures, in as few turns as there can be."""
    values = {
        **steps.measure(1, id),
        **threads.measure((1, 2, 4), 1, 0.001, id),
        **footprint.measure(1, id),
    }
    if importlib.util.find_spec("torch") is not None:
        from kineto_step_tracker.bench import optimizers

        values |= optimizers.measure(1, id)
    return values


@pytest.mark.parametrize("free_threaded", [False, True])
@pytest.mark.parametrize("stock", [Contender.PYTORCH, Contender.TEXTBOOK])
def test_a_run_measures_what_every_target_is_about(
    measured: Values, stock: Contender, free_threaded: bool
) -> None:
    if stock is Contender.TEXTBOOK:
        measured = {key: v for key, v in measured.items() if key.contender != Contender.PYTORCH}
    elif not any(key.contender == stock for key in measured):
        pytest.skip("compares with PyTorch's own class, and PyTorch is not installed")
    unmeasured = {
        verdict.target.over
        for verdict in verdicts(report(measured, free_threaded))
        if verdict.measured is None
    }
    if importlib.util.find_spec("torch") is None:
        unmeasured -= {Key(Question.HOOK, Hook.OURS, number) for number in (1, 300)}
    assert unmeasured == set()


def test_a_run_asks_every_question(measured: Values) -> None:
    asked = {key.question for key in measured}
    of_pytorch = {Question.OPTIMIZER, Question.BACKWARD, Question.HOOK}
    if importlib.util.find_spec("torch") is None:
        asked |= of_pytorch
    assert asked == set(Question)
    assert all(len(values) == 1 for values in measured.values())


def test_the_textbook_steps_on_threads_only_in_place_of_pytorchs_class(measured: Values) -> None:
    for question in threads.QUESTIONS:
        contenders = {key.contender for key in measured if key.question == question}
        assert len(contenders & {Contender.PYTORCH, Contender.TEXTBOOK}) == 1
        assert (Contender.METHOD in contenders) == (question is Question.BEHIND)
        for contender in contenders:
            assert report(measured).xs(question, contender) == [1, 2, 4]


def test_imports_that_are_not_needed_are_counted_none_of_them_here(measured: Values) -> None:
    assert measured[Key(Question.NEEDLESS, PACKAGE, 0)] == [0]
