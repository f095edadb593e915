"""What can be asked for: what is refused and in which words, and the text that Kineto gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kineto_step_tracker.on_demand import ACTIVITIES, Request
from kineto_step_tracker.on_demand.request import check_path

FILE = Path("/tmp/trace.json")
MOST = 2**31 - 1
# Kineto keeps what a request does not say from the one before.
KEPT = (
    "PROFILE_START_ITERATION",
    "PROFILE_START_ITERATION_ROUNDUP",
    "ACTIVITIES_WARMUP_ITERATIONS",
    "ACTIVITIES_ITERATIONS",
    "ACTIVITIES_DURATION_MSECS",
    "ACTIVITY_TYPES",
    "ACTIVITIES_LOG_FILE",
)
NUMBERS = (("iterations", 1), ("start", 2), ("align", 1), ("warmup", 0))

make: Callable[..., Request] = Request


def refused(error: type[Exception], message: str, **arguments: Any) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make(**{"iterations": 1, **arguments})


def lines(request: Request) -> list[str]:
    return request.configuration(FILE).split("\n")


@pytest.mark.parametrize("value", [True, False, 1.0, float("nan"), "3", b"3", [3], 3j])
@pytest.mark.parametrize("name", [name for name, _ in NUMBERS])
def test_a_number_of_another_type_is_refused(name: str, value: object) -> None:
    refused(TypeError, f"{name} must be an int, not {value!r}", **{name: value})


@pytest.mark.parametrize("name", ["iterations", "warmup"])
def test_a_number_that_has_no_none_refuses_it(name: str) -> None:
    refused(TypeError, f"{name} must be an int, not None", **{name: None})


@pytest.mark.parametrize(("name", "least"), NUMBERS)
def test_a_number_out_of_range_is_refused_and_the_ends_are_not(name: str, least: int) -> None:
    # So that with one iteration Kineto's 32 bits hold the last one.
    most = MOST - {"iterations": 2, "start": 1, "warmup": 3, "align": 0}[name]
    for value in (least - 1, -1, -(2**31), most + 1, 2**32 + least, 2**64):
        refused(ValueError, f"{name} must be from {least} to {most}, not {value}", **{name: value})
    for value in (least, most):
        assert getattr(make(**{"iterations": 1, name: value}), name) == value


def test_a_start_that_leaves_no_room_for_the_warmup_is_refused() -> None:
    refused(ValueError, f"start must be from 7 to {MOST - 1}, not 6", start=6, warmup=5)
    assert "PROFILE_START_ITERATION=5" in lines(Request(iterations=1, start=7, warmup=5))


def test_start_and_align_exclude_each_other() -> None:
    refused(ValueError, "start and align exclude each other", start=100, align=100)


@pytest.mark.parametrize("activity", ["CPU_OP", "cpu_op,kernel", "", "cpu_op\n", None, 3, ["x"]])
def test_an_unknown_activity_is_refused_and_the_known_ones_named(activity: object) -> None:
    known = ", ".join(ACTIVITIES)
    message = f"activities must not have {activity!r}; there are {known}"
    refused(ValueError, message, activities=["cpu_op", activity])


@pytest.mark.parametrize("activities", ["cpu_op", ""])
def test_a_text_is_no_sequence_of_activities(activities: str) -> None:
    message = f"activities must be a sequence of names, not {activities!r}"
    refused(TypeError, message, activities=activities)


@pytest.mark.parametrize(
    "key",
    ["", "profile_with_stack", "Profile", "1A", "_A", "A B", "A=", "A\n", "A#", "Ä", 1, None],
)
def test_a_key_that_is_not_in_capitals_is_refused(key: object) -> None:
    message = f"config must have keys in capitals such as PROFILE_WITH_STACK, not {key!r}"
    refused(ValueError, message, config={key: "true"})


@pytest.mark.parametrize("key", KEPT)
def test_a_key_that_the_other_arguments_decide_is_refused(key: str) -> None:
    message = f"config must not have {key}, which follows from the other arguments"
    refused(ValueError, message, config={"PROFILE_WITH_STACK": "true", key: "1"})
    # One that only begins alike is none of ours.
    assert lines(make(iterations=1, config={f"{key}_X": "1"}))[-1] == f"{key}_X=1"


@pytest.mark.parametrize(
    "value", ["a#b", "A=B", "a\nb", "\n", "a\r", "a\tb", "a\0", "\x1f", True, 1, None, b"a"]
)
def test_a_value_that_would_not_stay_one_line_is_refused(value: object) -> None:
    message = (
        "config must have values that are text without '#', '=' and line breaks; "
        f"PROFILE_WITH_STACK has {value!r}"
    )
    refused(ValueError, message, config={"PROFILE_WITH_STACK": value})


def test_arguments_have_names() -> None:
    with pytest.raises(TypeError, match="positional"):
        make(10)
    with pytest.raises(TypeError, match="iterations"):
        make()


@pytest.mark.parametrize(
    ("request_", "configuration"),
    [
        (
            Request(iterations=3),
            "PROFILE_START_ITERATION=0\n"
            "PROFILE_START_ITERATION_ROUNDUP=1\n"
            "ACTIVITIES_WARMUP_ITERATIONS=0\n"
            "ACTIVITIES_ITERATIONS=3\n"
            "ACTIVITIES_DURATION_MSECS=0\n"
            "ACTIVITY_TYPES=\n"
            "ACTIVITIES_LOG_FILE=/tmp/trace.json",
        ),
        (
            Request(iterations=10, start=1000),
            "PROFILE_START_ITERATION=998\n"
            "PROFILE_START_ITERATION_ROUNDUP=1\n"
            "ACTIVITIES_WARMUP_ITERATIONS=0\n"
            "ACTIVITIES_ITERATIONS=10\n"
            "ACTIVITIES_DURATION_MSECS=0\n"
            "ACTIVITY_TYPES=\n"
            "ACTIVITIES_LOG_FILE=/tmp/trace.json",
        ),
        (
            Request(iterations=1, align=100, warmup=2),
            "PROFILE_START_ITERATION=0\n"
            "PROFILE_START_ITERATION_ROUNDUP=100\n"
            "ACTIVITIES_WARMUP_ITERATIONS=2\n"
            "ACTIVITIES_ITERATIONS=1\n"
            "ACTIVITIES_DURATION_MSECS=0\n"
            "ACTIVITY_TYPES=\n"
            "ACTIVITIES_LOG_FILE=/tmp/trace.json",
        ),
        (
            Request(
                iterations=1,
                activities=("kernel", "cpu_op", "kernel"),
                config={"PROFILE_WITH_STACK": "true", "B_2": "", "A": "x y ü"},
            ),
            "PROFILE_START_ITERATION=0\n"
            "PROFILE_START_ITERATION_ROUNDUP=1\n"
            "ACTIVITIES_WARMUP_ITERATIONS=0\n"
            "ACTIVITIES_ITERATIONS=1\n"
            "ACTIVITIES_DURATION_MSECS=0\n"
            "ACTIVITY_TYPES=kernel,cpu_op,user_annotation\n"
            "ACTIVITIES_LOG_FILE=/tmp/trace.json\n"
            "PROFILE_WITH_STACK=true\n"
            "B_2=\n"
            "A=x y ü",
        ),
    ],
    ids=["plain", "start", "align", "more"],
)
def test_the_configuration_is_this_text(request_: Request, configuration: str) -> None:
    assert request_.configuration(FILE) == configuration


@pytest.mark.parametrize(
    ("activities", "said"),
    [
        ([], ""),
        (["user_annotation"], "user_annotation"),
        (["user_annotation", "kernel"], "user_annotation,kernel"),
        (("kernel", "user_annotation", "cpu_op"), "kernel,user_annotation,cpu_op"),
        (("mtia_insight",), "mtia_insight,user_annotation"),
    ],
)
def test_what_iterations_are_counted_by_is_recorded_once(
    activities: list[str] | tuple[str, ...], said: str
) -> None:
    found = lines(Request(iterations=1, activities=activities))
    assert [line for line in found if line.startswith("ACTIVITY_TYPES=")] == [
        f"ACTIVITY_TYPES={said}"
    ]


def test_every_activity_can_be_asked_for() -> None:
    assert len(set(ACTIVITIES)) == len(ACTIVITIES)
    found = lines(Request(iterations=1, activities=ACTIVITIES))
    assert f"ACTIVITY_TYPES={','.join(ACTIVITIES)}" in found


@given(
    iterations=st.integers(1, 10**9),
    warmup=st.integers(0, 10**9),
    room=st.none() | st.integers(0, 10**8),
    align=st.none() | st.integers(1, MOST),
    activities=st.lists(st.sampled_from(ACTIVITIES), max_size=3),
    config=st.dictionaries(
        st.from_regex(r"X[A-Z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="#="), max_size=8),
        max_size=3,
    ),
)
def test_whatever_kineto_would_keep_is_said_each_time_on_a_line_of_its_own(
    iterations: int,
    warmup: int,
    room: int | None,
    align: int | None,
    activities: list[str],
    config: dict[str, str],
) -> None:
    start = None if room is None or align else warmup + 2 + room
    request = Request(
        iterations=iterations,
        start=start,
        align=align,
        warmup=warmup,
        activities=activities,
        config=config,
    )
    pairs = [line.partition("=") for line in lines(request)]
    assert [key for key, _, _ in pairs] == [*KEPT, *config]
    said = {key: value for key, _, value in pairs}
    assert int(said["ACTIVITIES_ITERATIONS"]) == iterations
    assert int(said["ACTIVITIES_WARMUP_ITERATIONS"]) == warmup
    assert int(said["PROFILE_START_ITERATION"]) == (start or 2) - 2
    assert int(said["PROFILE_START_ITERATION_ROUNDUP"]) == (align or 1)


@pytest.mark.parametrize(
    ("request_", "steps"),
    [
        (Request(iterations=10), "the next 10 steps"),
        (Request(iterations=10, warmup=3), "the next 10 steps"),
        (Request(iterations=10, start=1000), "steps 1000 to 1009"),
        (Request(iterations=10, align=100), "10 steps, the first two after a multiple of 100"),
    ],
)
def test_the_steps_can_be_said_in_words(request_: Request, steps: str) -> None:
    assert request_.steps == steps


def test_a_request_does_not_change() -> None:
    request = Request(iterations=10)
    for each in fields(Request):
        with pytest.raises(FrozenInstanceError):
            setattr(request, each.name, 1)
    with pytest.raises(FrozenInstanceError):
        del request.iterations
    assert request == Request(iterations=10)
    assert request != Request(iterations=11)
    assert Request(iterations=1).config is not Request(iterations=1).config


@pytest.mark.parametrize("bad", ["#", "=", "\n", "\t", '"', "\\", ".json"])
def test_a_path_that_kineto_cannot_read_is_refused(bad: str) -> None:
    path = Path("/tmp", f"a{bad}b")
    message = (
        f"output must be a path that Kineto can read, without {bad!r} in it; it is {str(path)!r}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_path("output", path)
    check_path("output", Path("/tmp/a b/ü'.jsn"))


def test_a_request_does_not_change_with_what_it_was_made_from() -> None:
    activities, config = ["kernel"], {"A": "1"}
    request = Request(iterations=1, activities=activities, config=config)
    before = lines(request)
    activities.append("unheard of\nA=2")
    config["ACTIVITIES_ITERATIONS"] = "1#"
    assert lines(request) == before


@pytest.mark.parametrize("value", [None, 3])
@pytest.mark.parametrize("name", ["activities", "config"])
def test_another_type_than_a_sequence_or_a_mapping_is_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be .*, not {value}$"):
        make(**{"iterations": 1, name: value})


def test_activities_that_can_be_gone_through_once_are_not_lost() -> None:
    try:
        request = make(iterations=1, activities=iter(["kernel"]))
    except TypeError as error:
        assert str(error).startswith("activities must be")  # noqa: PT017
    else:
        assert "ACTIVITY_TYPES=kernel,user_annotation" in lines(request)


@pytest.mark.parametrize("arguments", [{"start": MOST}, {"warmup": MOST}])
def test_a_last_step_that_kineto_cannot_count_to_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make(iterations=10, **arguments)
