"""What a trace file of Kineto's holds: which steps, and what ran in them.

It imports the standard library and the drop-in's name for its marks only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kineto_step_tracker.drop_in import MARK

OPTIMIZER = "Optimizer.step#"
_BEGIN, _END, _SPAN = (
    "Iteration Start: PyTorch Profiler",
    "Record Window End",
    "PyTorch Profiler (0)",
)
_COUNTED = "user_annotation"


@dataclass(frozen=True)
class Span:
    """Something that ran: from when, in microseconds from the trace's begin, and how long."""

    name: str
    thread: int
    start: float
    duration: float


@dataclass(frozen=True)
class Trace:
    """What `read` found. ``duration`` is in microseconds, ``size`` in bytes.

    ``steps`` are the numbers of the steps that end in it, in the order in which they do, and
    ``ends`` when; without any, the tracker was not installed. ``annotations`` is all that
    `torch.profiler.record_function` named, the optimizers' steps among it.
    """

    file: Path
    size: int
    duration: float
    steps: tuple[int, ...]
    ends: tuple[float, ...]
    annotations: tuple[Span, ...]

    @property
    def optimizers(self) -> tuple[Span, ...]:
        """The steps of the optimizers."""
        return tuple(span for span in self.annotations if span.name.startswith(OPTIMIZER))

    @property
    def iterations(self) -> int:
        """How many iterations of the training it holds.

        The steps that end in it. Without the tracker's marks, how often the optimizers stepped
        whose class stepped most in one thread: if it has several of that class, that is too many.
        """
        if self.steps:
            return len(self.steps)
        return max(
            Counter((span.name, span.thread) for span in self.optimizers).values(), default=0
        )


def read(file: str | os.PathLike[str]) -> Trace:
    """Read a trace file. It takes twice the memory of its text.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no whole trace.
    """
    file = Path(file)
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            content = json.load(text, object_hook=_only_what_counts)
        found = [event for event in content["traceEvents"] if event is not None]
        (begin,) = (event["ts"] for event in found if event["name"] == _BEGIN)
        (end,) = (event["ts"] for event in found if event["name"] == _END)
        spans = sorted(
            (
                Span(event["name"], event["tid"] + 0, event["ts"] - begin, event["dur"] + 0.0)
                for event in found
                if event.get("cat") == _COUNTED
            ),
            key=lambda span: span.start,
        )
        marks = [span for span in spans if span.name.startswith(MARK)]
        return Trace(
            file=file,
            size=file.stat().st_size,
            duration=end - begin,
            steps=tuple(int(mark.name.removeprefix(MARK)) for mark in marks),
            ends=tuple(mark.start for mark in marks),
            annotations=tuple(span for span in spans if not span.name.startswith(MARK)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is no whole trace of Kineto's: {error!r}") from error


def cut(trace: Trace, iterations: int) -> Trace:
    """Take what comes after the end of so many steps out of a trace file, and return what is left.

    Kineto ends a trace from another thread, and by then quick training is some steps further on.
    What had begun stays. It takes some ten times the memory of the text.

    Raises:
        OSError: the file cannot be read or replaced. It is as it was.
    """
    with trace.file.open(encoding="utf-8", errors="surrogateescape") as text:
        content = json.load(text)
    events = content["traceEvents"]
    # Not by the step's number: a step that was set back by hand has it twice.
    marks = sorted(
        (event["ts"], event["dur"]) for event in events if event.get("name", "").startswith(MARK)
    )
    end = sum(marks[iterations - 1])
    for event in events:
        if event.get("name") == _END:
            event["ts"] = end
        elif event.get("name") == _SPAN:
            event["dur"] = end - event["ts"]
    content["traceEvents"] = [
        event for event in events if event.get("ph") == "M" or event["ts"] <= end
    ]
    rest = trace.file.with_name(f"{trace.file.name}.cut")
    try:
        with rest.open("w", encoding="utf-8", errors="surrogateescape") as text:
            json.dump(content, text)
        rest.chmod(trace.file.stat().st_mode & 0o777)
        rest.replace(trace.file)
    finally:
        rest.unlink(missing_ok=True)
    return read(trace.file)


def _only_what_counts(event: dict[str, Any]) -> dict[str, Any] | None:
    """Drop most events while they are read: a trace may have millions."""
    if "traceEvents" in event or event.get("cat") == _COUNTED:
        return event
    return event if event.get("name") in (_BEGIN, _END) else None
