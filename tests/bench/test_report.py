"""The report: what is written reads back, and its figures are those of the values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import Key, Question, Report, Spread, human

PREFIXES = {"p": 1e-12, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

seconds = st.floats(allow_nan=False, allow_infinity=False)
keys = st.builds(
    Key, st.sampled_from(Question), st.sampled_from(Contender) | st.text(), st.integers()
)
reports = st.builds(
    Report,
    environment=st.dictionaries(st.text(), st.text()),
    backend=st.sampled_from(["native", "portable"]),
    free_threaded=st.booleans(),
    quick=st.booleans(),
    seconds=seconds,
    values=st.dictionaries(
        keys, st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5), max_size=5
    ),
)


@given(report=reports)
def test_what_is_written_as_json_reads_back(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


def test_the_json_is_for_other_programs_too() -> None:
    values = {
        Key(Question.RISE, Contender.NAME, 1): [3e-8, 1e-8, 2e-8],
        Key(Question.SHARED, "other", 4): [2e6],
    }
    text = Report({"Python": "3"}, "native", False, True, 1.5, values).to_json()
    assert text.endswith("}\n")
    assert json.loads(text) == {
        "environment": {"Python": "3"},
        "backend": "native",
        "free_threaded": False,
        "quick": True,
        "seconds": 1.5,
        "values": [
            {
                "question": "a rise, empty C callback",
                "contender": "by name",
                "x": 1,
                "unit": "s",
                "median": 2e-8,
                "values": [3e-8, 1e-8, 2e-8],
            },
            {
                "question": "threads that share one requester, every step a rise",
                "contender": "other",
                "x": 4,
                "unit": "1/s",
                "median": 2e6,
                "values": [2e6],
            },
        ],
    }


def test_numbers_of_requesters_are_in_order_and_of_that_question_and_contender() -> None:
    report = Report(
        {},
        "native",
        False,
        False,
        1,
        {
            Key(Question.RISE, Contender.NAME, 10): [1],
            Key(Question.RISE, Contender.NAME, 9): [1],
            Key(Question.RISE, Contender.HANDLE, 8): [1],
            Key(Question.NO_RISE, Contender.NAME, 7): [1],
        },
    )
    assert report.xs(Question.RISE, Contender.NAME) == [9, 10]
    assert report.xs(Question.SHARED, Contender.NAME) == []
    assert report.spread(Key(Question.RISE, Contender.NAME, 9)) == Spread(1, 1, 1)


@pytest.mark.parametrize(
    ("values", "low", "median", "high"),
    [
        ([3], 3, 3, 3),
        ([3, 1], 1.5, 2, 2.5),
        ([9, 1, 2], 1.5, 2, 5.5),
        ([5, 1, 4, 2, 3], 2, 3, 4),
        (range(101), 25, 50, 75),
    ],
)
def test_the_median_and_the_quartiles(
    values: Sequence[int], low: float, median: float, high: float
) -> None:
    assert Spread.of(values) == Spread(median=median, low=low, high=high)
    assert Spread.of(iter(values)) == Spread.of(values)


@given(values=st.lists(st.integers(-1000, 1000), min_size=1))
def test_quartiles_are_in_order_and_within_the_values(values: list[int]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert Spread.of(sorted(values)) == spread


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (8.3e-6, "s", "8.3 µs"),
        (1e-9, "s", "1 ns"),
        (1.04e-9, "s", "1 ns"),
        (9.96e-9, "s", "10 ns"),
        (999.4e-9, "s", "999 ns"),
        (999.9e-9, "s", "1 µs"),
        (0.0123, "s", "12 ms"),
        (1, "s", "1 s"),
        (512, "B", "512 B"),
        (1, "", "1"),
        (1_000, "", "1 k"),
        (2_340_000, "1/s", "2.3 M1/s"),
        (5e9, "", "5 G"),
        (3e16, "", "30000 T"),
    ],
)
def test_a_value_for_people(value: float, unit: str, text: str) -> None:
    assert human(value, unit) == text


@given(value=st.floats(1e-12, 9e14))
def test_a_value_for_people_is_short_and_nearly_right(value: float) -> None:
    number, prefix = f"{human(value, '')} ".split(" ")[:2]
    assert 1 <= float(number) <= 999
    assert len(number) <= 3
    assert math.isclose(float(number) * PREFIXES.get(prefix, 1), value, rel_tol=0.051)


def test_units() -> None:
    assert {question.name: question.unit for question in Question if question.unit != "s"} == {
        "SHARED": "1/s",
        "SEPARATE": "1/s",
        "BEHIND": "1/s",
        "MEMORY": "B",
        "NEEDLESS": "",
    }


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"values": [{}]}', '{"values": []}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text must be what to_json"):
        Report.from_json(text)


@pytest.mark.parametrize("value", [0.0, -1e-9])
def test_a_time_that_is_none_is_shown_as_none(value: float) -> None:
    assert human(value, "s") == "0 s"
