"""Traces as a picture: the steps as bars, and when which optimizer stepped.

It imports matplotlib, so it is itself imported only where a picture is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kineto_step_tracker.drawing import INK, picture
from kineto_step_tracker.on_demand.trace_file import OPTIMIZER, Span, Trace

# For the optimizers, by class, in the order in which they first step.
COLOURS = ("#2f81f7", "#c2701a", "#1a7f37", "#bf3989", "#8a63d2", "#b08800", "#12908e", "#cf222e")
_MILLISECOND = 1e3
# So wide is an optimizer's step at least, as a share of the picture: else it could not be seen.
_LEAST = 0.002
_HEIGHT = 0.72
_MOST_KEYS = 23


def draw(traces: Sequence[tuple[str, Trace]], file: Path, title: str = "Traces on demand") -> None:
    """Draw trace files one below the other, each under its name and to its own scale.

    A trace has a row for the steps that the tracker marked in it, each from the end of the one
    before, and one for each thread, with what `torch.profiler.record_function` named there and
    the steps of its optimizers. Needs matplotlib, the extra ``bench``.

    Args:
        traces: the traces and what to call them, at least one.
        file: where to, an SVG or PNG by the ending of its name. What is there is overwritten.
        title: above it all.

    Raises:
        ValueError: there is no trace, or the name of ``file`` has another ending.
        OSError: ``file`` cannot be written.
    """
    if not traces:
        raise ValueError("traces must not be empty")
    rows = [len(_threads(trace)) + 1 for _, trace in traces]
    names = dict.fromkeys(span.name for _, trace in traces for span in trace.optimizers)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    footer = "Bars in grey: what torch.profiler.record_function named, and the tracker's steps."
    with picture(file, (12, 1.3 + 0.45 * sum(rows) + 0.8 * len(rows)), title, footer) as figure:
        axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[row + 1 for row in rows])
        for (name, trace), panel in zip(traces, axes.flat, strict=True):
            _draw(panel, name, trace, colours)
        keys = [Patch(color=colour, label=_label(name)) for name, colour in colours.items()]
        if len(keys) > _MOST_KEYS:
            keys[_MOST_KEYS:] = [Patch(alpha=0, label=f"and {len(keys) - _MOST_KEYS} more")]
        if keys:
            figure.legend(handles=keys, loc="outside upper right", ncols=4, frameon=False)


def _label(optimizer: str) -> str:
    return f"{optimizer.removeprefix(OPTIMIZER).removesuffix('.step')}.step()"


def _draw(panel: Axes, name: str, trace: Trace, colours: dict[str, str]) -> None:
    threads = _threads(trace)
    width = max(trace.duration, 1.0)
    for start, end, step in _steps(trace):
        _bar(panel, 0, start, end - start, str(step), width)
    for row, thread in enumerate(threads, start=1):
        mine = [span for span in trace.annotations if span.thread == thread]
        for span in _outermost(mine):
            _bar(panel, row, span.start, span.duration, span.name, width)
        for span in mine:
            if span.name in colours:
                left, length = span.start / _MILLISECOND, span.duration / _MILLISECOND
                least = width / _MILLISECOND * _LEAST
                panel.barh(row, max(length, least), left=left, height=0.4, color=colours[span.name])
    panel.set_yticks(range(len(threads) + 1), ["step", *(f"thread {tid}" for tid in threads)])
    panel.set_ylim(len(threads) + 0.5, -0.5)
    panel.set_xlim(0, width / _MILLISECOND)
    panel.set_xlabel("milliseconds")
    panel.set_title(name, loc="left", size=10)
    panel.tick_params(axis="y", length=0)


def _bar(panel: Axes, row: int, start: float, length: float, text: str, width: float) -> None:
    left = start / _MILLISECOND
    panel.barh(row, length / _MILLISECOND, left=left, height=_HEIGHT, color=INK, alpha=0.25)
    panel.barh(row, length / _MILLISECOND, left=left, height=_HEIGHT, fill=False, edgecolor=INK)
    # In a bar that is too short for it, a text would run into its neighbours.
    if length / width > 0.012 * len(text):
        middle = left + length / _MILLISECOND / 2
        panel.text(middle, row, text, ha="center", va="center", size=7, clip_on=True)


def _threads(trace: Trace) -> list[int]:
    return sorted({span.thread for span in trace.annotations})


def _steps(trace: Trace) -> list[tuple[float, float, int]]:
    times = pairwise((0.0, *trace.ends))
    return [(start, end, step) for (start, end), step in zip(times, trace.steps, strict=True)]


def _outermost(spans: Sequence[Span]) -> list[Span]:
    """Return those within no other; an optimizer's step has a colour of its own."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.duration)):
        inside = found and span.start < found[-1].start + found[-1].duration
        if not inside and not span.name.startswith("Optimizer."):
            found.append(span)
    return found
