"""What is read from a trace file, as libkineto writes it, and from what is none."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from kineto_step_tracker.on_demand import Span, Trace, read
from kineto_step_tracker.on_demand.trace_file import cut

BEGIN = 5294417653498.75
Event = dict[str, Any]


def instant(name: str, ts: float) -> Event:
    return {"ph": "i", "s": "g", "name": name, "pid": "Traces", "tid": "Trace", "ts": BEGIN + ts}


def span(
    name: str, ts: float, dur: float = 1.0, tid: int = 7, cat: str = "user_annotation"
) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 7,
        "tid": tid,
        "ts": BEGIN + ts,
        "dur": dur,
        "args": {"External id": 1, "Record function id": 0, "Ev Idx": 0},
    }


def mark(step: int, ts: float) -> Event:
    return span(f"KinetoStepTracker.step#{step}", ts, 0.5)


def step_of(optimizer: str, ts: float, tid: int = 7) -> Event:
    return span(f"Optimizer.step#{optimizer}.step", ts, tid=tid)


START = instant("Iteration Start: PyTorch Profiler", 0)
END = instant("Record Window End", 1000)
# What Kineto writes besides, which is of no interest.
REST: list[Event] = [
    span("aten::ones", 1.5, cat="cpu_op"),
    {"ph": "s", "id": 3, "pid": 7, "tid": 7, "ts": BEGIN, "cat": "fwdbwd", "name": "fwdbwd"},
    {
        **span("PyTorch Profiler (0)", 0, 1000, cat="Trace"),
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "args": {"Op count": 0},
    },
    {"ph": "M", "name": "thread_name", "ts": BEGIN, "pid": 7, "tid": 7, "args": {"name": "python"}},
    {"ph": "M", "name": "process_sort_index", "ts": BEGIN, "pid": "Spans", "tid": 0, "args": {}},
]


def text(*events: object) -> str:
    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "host_name": "vm",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1790857026000000000,
            "traceEvents": [*events],
            "traceName": "/tmp/trace.json",
        },
        indent=2,
    )


def written(folder: Path, *events: object) -> Path:
    file = folder / "trace.json"
    file.write_text(text(*events), encoding="utf-8")
    return file


def refused(file: Path) -> None:
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(file))} is no whole trace of Kineto's: "
    ):
        read(file)


def test_it_finds_the_steps_and_what_ran_in_them_in_the_order_of_time(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        *(mark(11, 300), step_of("SGD", 295, tid=8), span("forward", 100, 50.25), *REST),
        *(mark(10, 200), END, START, step_of("SGD", 190), span("iteration#9", 99, 120)),
    )
    assert read(file) == Trace(
        file=file,
        size=len(file.read_bytes()),
        duration=1000.0,
        steps=(10, 11),
        ends=(200.0, 300.0),
        annotations=(
            Span("iteration#9", 7, 99.0, 120),
            Span("forward", 7, 100.0, 50.25),
            Span("Optimizer.step#SGD.step", 7, 190.0, 1.0),
            Span("Optimizer.step#SGD.step", 8, 295.0, 1.0),
        ),
    )


def test_a_trace_in_which_nothing_ran_is_whole(tmp_path: Path) -> None:
    file = written(tmp_path, START, END)
    found = read(file)
    assert found == Trace(file, file.stat().st_size, 1000.0, (), (), ())
    assert found.iterations == 0
    assert found.optimizers == ()


def test_the_file_may_be_named_by_a_text(tmp_path: Path) -> None:
    file = written(tmp_path, START, END)
    assert read(str(file)) == read(file)


def test_marks_that_come_together_keep_their_order(tmp_path: Path) -> None:
    found = read(written(tmp_path, START, mark(10, 5), mark(11, 5), mark(12, 5), END))
    assert found.steps == (10, 11, 12)
    assert found.ends == (5.0, 5.0, 5.0)


def test_iterations_are_the_marks_whatever_the_optimizers_did(tmp_path: Path) -> None:
    steps = [step_of("SGD", ts) for ts in range(9)]
    found = read(written(tmp_path, START, *steps, mark(3, 20), mark(4, 30), END))
    assert found.iterations == 2
    assert len(found.optimizers) == 9


@pytest.mark.parametrize(
    ("events", "iterations"),
    [
        ([span("forward", 1), span("Optimizer.zero_grad#SGD.zero_grad", 2)], 0),
        ([step_of("SGD", 1)], 1),
        ([step_of("SGD", 1), step_of("Adam", 2)], 1),
        ([step_of("SGD", 1, tid=1), step_of("SGD", 2, tid=2)], 1),
        ([step_of("SGD", 1), step_of("SGD", 2), step_of("Adam", 3)], 2),
        ([step_of("Adam", 1, tid=1), *(step_of("Adam", ts, tid=2) for ts in range(3))], 3),
    ],
)
def test_without_marks_they_are_what_one_optimizer_did_on_one_thread(
    tmp_path: Path, events: list[Event], iterations: int
) -> None:
    assert read(written(tmp_path, START, *events, END)).iterations == iterations


def test_optimizers_are_those_annotations_that_are_their_steps(tmp_path: Path) -> None:
    events = [
        *(step_of("SGD", 1, tid=1), step_of("Adam", 2, tid=2), step_of("SGD", 3, tid=2)),
        *(span("Optimizer.zero_grad#SGD.zero_grad", 4), span("my Optimizer.step#SGD.step", 5)),
        span("Optimizer.step#SGD.step", 6, cat="cpu_op"),
    ]
    found = read(written(tmp_path, START, *events, END))
    assert [(each.name, each.thread) for each in found.optimizers] == [
        ("Optimizer.step#SGD.step", 1),
        ("Optimizer.step#Adam.step", 2),
        ("Optimizer.step#SGD.step", 2),
    ]
    assert len(found.annotations) == 5


def test_a_mark_of_another_category_is_none(tmp_path: Path) -> None:
    other = {**mark(4, 1), "cat": "gpu_user_annotation"}
    assert read(written(tmp_path, START, other, mark(5, 2), END)).steps == (5,)


def test_what_is_not_utf8_is_read_all_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, START, span("f?rward", 1), span("größe", 2), END)
    file.write_bytes(file.read_bytes().replace(b"f?rward", b"f\xffrward"))
    assert [each.name for each in read(file).annotations] == ["f\ufffdrward", "größe"]
    file.write_bytes(file.read_bytes().replace(rb"gr\u00f6\u00dfe", "größe".encode()))
    assert read(file).annotations[1].name == "größe"


def test_a_file_that_ends_early_is_refused_wherever_it_does(tmp_path: Path) -> None:
    file = written(tmp_path, START, mark(5, 1), END)
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        refused(file)
    file.write_bytes(whole + b"}")
    refused(file)


@pytest.mark.parametrize(
    "content",
    [
        *("", " \n", "\0" * 100, "no JSON", "null", "5", '"traceEvents"', "[]", "{}", "[{}]"),
        *('{"traceevents": []}', '{"other": {"traceEvents": []}}', '{"traceEvents": []}'),
        *('{"traceEvents": null}', '{"traceEvents": 5}', '{"traceEvents": {}}'),
        *('{"traceEvents": "events"}', '{"traceEvents": [5]}', '{"traceEvents": ["event"]}'),
        *('{"traceEvents": [[]]}', '{"traceEvents": {"traceEvents": []}}'),
        '{"traceEvents": [' + "9" * 5000 + "]}",
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(content)
    refused(file)


@pytest.mark.parametrize(
    "events",
    [
        [START],
        [END],
        [START, START, END],
        [START, END, END],
        [{**START, "ts": "0"}, END],
        [START, {**END, "ts": None}],
        [{key: value for key, value in START.items() if key != "ts"}, END],
        [START, {key: value for key, value in END.items() if key != "ts"}],
    ],
    ids=["no end", "no begin", "two begins", "two ends", "text", "null", "no ts", "no ts of end"],
)
def test_a_trace_without_one_begin_and_one_end_is_refused(
    tmp_path: Path, events: list[Event]
) -> None:
    refused(written(tmp_path, *events, mark(5, 1)))


@pytest.mark.parametrize("key", ["name", "tid", "ts", "dur"])
def test_an_annotation_that_lacks_something_is_refused(tmp_path: Path, key: str) -> None:
    event = {name: value for name, value in span("forward", 1).items() if name != key}
    refused(written(tmp_path, START, event, END))
    # Of the others it is not looked at.
    read(written(tmp_path, START, {**event, "cat": "cpu_op"}, END))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("name", 5), ("name", None), ("name", ["forward"])),
        *(("ts", "5"), ("ts", None), ("ts", [5])),
        *(("name", "KinetoStepTracker.step#"), ("name", "KinetoStepTracker.step#x")),
        *(("name", "KinetoStepTracker.step#1.5"), ("name", "KinetoStepTracker.step#5 ü")),
    ],
)
def test_an_annotation_of_wrong_types_is_refused(tmp_path: Path, key: str, value: object) -> None:
    refused(written(tmp_path, START, span("forward", 1), {**span("forward", 2), key: value}, END))


@pytest.mark.parametrize(
    ("key", "value"), [("dur", "1"), ("dur", None), ("tid", "7"), ("tid", None), ("tid", [7])]
)
def test_a_duration_or_thread_of_wrong_type_is_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    refused(written(tmp_path, START, {**span("forward", 2), key: value}, END))


def test_what_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text("[" * 100_000)
    refused(file)


def test_a_file_that_cannot_be_read_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(tmp_path / "missing.json")
    assert caught.value.filename == str(tmp_path / "missing.json")
    with pytest.raises(OSError, match=re.escape(tmp_path.name)):
        read(tmp_path)


def test_what_is_of_no_interest_is_dropped_while_it_is_read(tmp_path: Path) -> None:
    few = written(tmp_path, START, mark(5, 1), END).stat().st_size
    file = written(tmp_path, START, *REST * 2000, mark(5, 1), *REST * 2000, END)
    size = file.stat().st_size
    assert size > 1000 * few
    tracemalloc.start()
    try:
        assert read(file).steps == (5,)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Read whole, its events take more than its text does twice, as which it is there meanwhile.
    assert peak < 2.5 * size


def test_what_was_read_does_not_change(tmp_path: Path) -> None:
    found = read(written(tmp_path, START, span("forward", 1), END))
    with pytest.raises(FrozenInstanceError):
        found.duration = 1.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        found.annotations[0].name = "backward"  # type: ignore[misc]


def too_long(folder: Path) -> Path:
    """Steps 5 and 6, and then one more and the begin of another, on two threads."""
    flow = {"ph": "f", "id": 3, "pid": 7, "tid": 8, "ts": BEGIN + 320, "name": "fwdbwd", "bp": "e"}
    return written(
        folder,
        START,
        *REST,
        *(step_of("SGD", 90), mark(5, 100), step_of("SGD", 195), mark(6, 200)),
        span("across the end", 190, 50, tid=8),
        *(span("aten::add_", 201, cat="cpu_op"), flow, step_of("SGD", 290), mark(7, 300)),
        {"ph": "M", "name": "thread_name", "ts": BEGIN + 900, "pid": 7, "tid": 8, "args": {}},
        END,
    )


def test_what_comes_after_the_steps_asked_for_is_cut(tmp_path: Path) -> None:
    file = too_long(tmp_path)
    file.chmod(0o640)
    before = json.loads(file.read_text())
    left = cut(read(file), 2)
    assert left == read(file)
    assert (left.steps, left.iterations, left.duration) == ((5, 6), 2, 200.5)
    assert [span.name for span in left.annotations if span.thread == 8] == ["across the end"]
    assert file.stat().st_mode & 0o777 == 0o640
    after = json.loads(file.read_text())
    assert {**after, "traceEvents": []} == {**before, "traceEvents": []}
    kept = [event["name"] for event in after["traceEvents"]]
    assert kept.count("thread_name") == 2  # metadata, whatever its time
    assert "aten::add_" not in kept
    (whole,) = [e for e in after["traceEvents"] if e["name"] == "PyTorch Profiler (0)"]
    assert whole["dur"] == 200.5
    assert list(tmp_path.iterdir()) == [file]


def test_a_step_that_is_there_twice_is_cut_after_the_right_one(tmp_path: Path) -> None:
    file = written(tmp_path, START, mark(5, 100), mark(6, 200), mark(5, 300), mark(6, 400), END)
    assert cut(read(file), 3).steps == (5, 6, 5)


def test_a_file_that_cannot_be_replaced_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = too_long(tmp_path)
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PermissionError):
        cut(read(file), 2)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
