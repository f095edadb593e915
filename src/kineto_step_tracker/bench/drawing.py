"""A report as a picture: what a step costs, and how that changes with requesters and threads.

It imports matplotlib, so it is itself imported only where a picture is wanted. Contenders differ
in marker and line as well as in colour.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import Key, Question, Report, Spread, human
from kineto_step_tracker.drawing import INK, picture

# A contender's answers to a question, by the number of requesters or threads.
_Line = dict[int, Spread]


class Look(NamedTuple):
    """What tells a contender from the others."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]] = "-"
    width: float = 1.6


_PERFECT = "perfect scaling"
LOOKS: dict[str, Look] = {
    Contender.HANDLE: Look("#1a7f37", "o"),
    Contender.NAME: Look("#12908e", "s"),
    Contender.DROP_IN: Look("#2f81f7", "^"),
    Contender.PORTABLE: Look("#8a63d2", "v", (0, (6, 2))),
    Contender.PYTORCH: Look("#cf222e", "X", "--"),
    Contender.TEXTBOOK: Look("#c2701a", "D", "-."),
    Contender.LOCKED: Look("#b08800", "P", ":"),
    Contender.CEREGGII: Look("#bf3989", "p", (0, (5, 1, 1, 1, 1, 1))),
    Contender.METHOD: Look(INK, "h", ":"),
    Contender.LOOK_UP: Look(INK, "d", ":"),
    _PERFECT: Look(INK, "", "-", 0.8),
}
_UNKNOWN = Look(INK, "*", ":")  # the report may be another version's

_MEANINGS = {
    Contender.PORTABLE: "ours, not compiled",
    Contender.TEXTBOOK: "PyTorch's algorithm in our own words",
    Contender.LOCKED: "PyTorch's algorithm behind a lock",
    Contender.CEREGGII: "by hand, on its integers",
}
# The more there is to do in a step, the fuller is its marker.
_COSTS = {
    Question.NO_RISE: ("none", "○ no rise"),
    Question.RISE: ("left", "◐ rise, C"),
    Question.RISE_PYTHON: ("full", "● rise, Python"),
}
_COLUMN = 68  # points
_LABEL = 0.06  # the height of a label, as a share of its panel's


def draw(report: Report, file: Path) -> None:
    """Draw a report into a file, as `picture` does; a panel that it has nothing for says so."""
    with picture(file, (12, 9), _title(report), _footer(report)) as figure:
        # Each row by itself, so that the table beside the costs takes no room from the threads.
        above, below = figure.subfigures(2, 1, squeeze=False).flat
        (costs, rises), (shared, own) = above.subplots(1, 2), below.subplots(1, 2)
        _draw_costs(costs, report)
        _draw_rises(rises, report)
        _draw_shared(shared, report)
        _draw_own(own, report)


def _title(report: Report) -> str:
    there = {key.contender for key in report.values}
    others = (Contender.PYTORCH, Contender.TEXTBOOK, Contender.LOCKED, Contender.CEREGGII)
    beside = ", ".join(name for name in others if name in there)
    ours = f"kineto-step-tracker ({report.backend} backend)"
    return f"{ours} beside {beside}" if beside else ours


def _footer(report: Report) -> str:
    there = {key.contender for key in report.values}
    notes = ["points: medians", "bars: quartiles"]
    notes += [f"{name}: {meaning}" for name, meaning in _MEANINGS.items() if name in there]
    ran_on = [f"{what} {which}" for what, which in report.environment.items()]
    ran_on += ["quick run"] if report.quick else []
    return "\n".join(fill(" · ".join(parts), 195) for parts in (notes, ran_on))


def _draw_costs(axes: Axes, report: Report) -> None:
    _head(axes, "What one step costs", "time a step, fastest first")
    columns: dict[Question, dict[str, Spread]] = {}
    for question in _COSTS:
        if lines := _lines(report, question):
            times = Counter(x for line in lines.values() for x in line)
            usual = min(times, key=lambda x: (-times[x], x))
            columns[question] = {name: line[usual] for name, line in lines.items() if usual in line}
            heading = f"{_COSTS[question][1]}\nrequesters: {usual}"
            _write(axes, len(columns), heading, 1.02, "axes fraction", "bottom")
    best: dict[str, float] = {}
    for column in columns.values():
        for name, spread in column.items():
            best[name] = min(spread.median, best.get(name, spread.median))
    rows = sorted(best, key=best.__getitem__)
    if not rows:
        _say(axes, "No step was timed by itself.")
        return
    for number, (question, column) in enumerate(columns.items(), start=1):
        for name, spread in column.items():
            row = rows.index(name)
            apart = 0.18 * (number - (len(columns) + 1) / 2)
            _plot(axes, {row + apart: spread}, _look(name), "x", _COSTS[question][0])
            _write(axes, number, human(spread.median, "s"), row, "data", "center")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    _scale(axes, "x", _limits(columns.values()), "s")
    axes.grid()


def _draw_rises(axes: Axes, report: Report) -> None:
    _head(axes, "A rise, by number of requesters", "time a step, empty C callback")
    lines = {name: line for name, line in _lines(report, Question.RISE).items() if len(line) > 1}
    missing = "No rise was timed with different numbers of requesters."
    _draw_lines(axes, lines, "s", "requesters", missing)


def _draw_shared(axes: Axes, report: Report) -> None:
    _head(axes, "Threads that share one requester", "steps a second of all, every step a rise")
    missing = "No threads were timed that share a requester."
    _draw_lines(axes, _lines(report, Question.SHARED), "", "threads", missing)


def _draw_own(axes: Axes, report: Report) -> None:
    lines, which = _lines(report, Question.BEHIND), "no step a rise"
    if not lines and (separate := _lines(report, Question.SEPARATE)):
        lines, which = separate, "the first to get there rises"
    _head(axes, "Threads with a requester each", f"steps a second of all, {which}")
    alone = [line[1].median for line in lines.values() if 1 in line]
    most = max((x for line in lines.values() for x in line), default=1)
    if report.free_threaded and alone and most > 1:
        lines[_PERFECT] = {x: Spread.of([max(alone) * x]) for x in (1, most)}
    _draw_lines(axes, lines, "", "threads", "No threads were timed with a requester each.")


def _draw_lines(axes: Axes, lines: dict[str, _Line], unit: str, of: str, missing: str) -> None:
    """Draw a line for each contender, with its name and its last value beside the end."""
    if not lines:
        _say(axes, missing)
        return
    low, high = _limits(lines.values())
    ends = {name: (max(line), line[max(line)].median) for name, line in lines.items()}
    heights = [math.log(end / low) / math.log(high / low) for _, end in ends.values()]
    for (name, end), height in zip(ends.items(), keep_apart(heights, _LABEL, 0, 1), strict=True):
        colour = _look(name).colour
        _plot(axes, lines[name], _look(name), "y")
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "relpos": (0, 0.5)}
        axes.annotate(
            f"{name}  {human(end[1], unit)}",
            end,
            (1.06, height),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops={**leader, "shrinkA": 1, "shrinkB": 5},
        )
    xs = sorted({x for line in lines.values() for x in line})
    axes.set(xscale="log", xlim=(xs[0] / 1.15, xs[-1] * 1.15), xlabel=of)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(xs)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}".replace(",", " ")))
    _scale(axes, "y", (low, high), unit)
    axes.grid(axis="y")


def _lines(report: Report, question: Question) -> dict[str, _Line]:
    names = dict.fromkeys(key.contender for key in report.values if key.question is question)
    return {
        name: {x: report.spread(Key(question, name, x)) for x in report.xs(question, name)}
        for name in names
    }


def _look(name: str) -> Look:
    return LOOKS.get(name, _UNKNOWN)


def _plot(
    axes: Axes,
    points: Mapping[Any, Spread],
    look: Look,
    values: Literal["x", "y"],
    fullness: Any = "full",
) -> None:
    medians = [spread.median for spread in points.values()]
    below = [spread.median - spread.low for spread in points.values()]
    above = [spread.high - spread.median for spread in points.values()]
    where: dict[str, Any] = {"x": list(points), "y": list(points)}
    where |= {values: medians, f"{values}err": [below, above]}
    axes.errorbar(
        **where,
        color=look.colour,
        marker=look.marker,
        markersize=6,
        fillstyle=fullness,
        markerfacecoloralt="none",
        linestyle=look.line,
        linewidth=look.width,
        elinewidth=1.2,
    )


def _head(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(f"{title}\n", loc="left", size=11, weight="bold")
    axes.annotate(subtitle, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points")


def _write(axes: Axes, column: int, text: str, y: float, of: str, va: str) -> None:
    """Write into a column to the right of the panel."""
    place: dict[str, Any] = {"xycoords": ("axes fraction", of), "textcoords": "offset points"}
    style: dict[str, Any] = {"ha": "right", "va": va, "size": 8.5}
    offset = (_COLUMN * column - 10, 0)
    axes.annotate(text, (1, y), offset, **place, **style, annotation_clip=False)


def _say(axes: Axes, text: str) -> None:
    axes.text(0, 0.8, text, transform=axes.transAxes, style="italic")
    axes.set_axis_off()


def _limits(lines: Iterable[Mapping[Any, Spread]]) -> tuple[float, float]:
    """Return from where to where an axis goes: a power of ten at least, so that it has marks."""
    spreads = [spread for line in lines for spread in line.values()]
    low = min(spread.low for spread in spreads) / 1.4
    high = max(spread.high for spread in spreads) * 1.4
    wider = max(1, math.sqrt(10 * low / high))
    return low / wider, high * wider


def _scale(axes: Axes, which: Literal["x", "y"], limits: tuple[float, float], unit: str) -> None:
    axes.set(**{f"{which}scale": "log", f"{which}lim": limits})
    axis = axes.xaxis if which == "x" else axes.yaxis
    # Powers of ten alone, if they are marks enough.
    axis.set_major_locator(LogLocator(subs=(1,) if limits[1] / limits[0] > 200 else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: human(value, unit)))


def _thinned(xs: Sequence[int]) -> list[int]:
    """Return those that can be written side by side on a logarithmic axis."""
    apart = (xs[-1] / xs[0]) ** 0.12
    kept = [xs[-1]]
    kept += [x for x in reversed(xs[:-1]) if kept[-1] / x >= apart]
    return kept


def keep_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least ``gap`` apart, in the same order, the nearest to the wanted ones.

    Nearest is what makes the sum of squared distances least. If not all fit in between ``low``
    and ``high``, they begin at ``low`` and go beyond ``high``.

    >>> keep_apart([5.0, 1.0, 5.0], 2, 0, 10)
    [4.0, 1.0, 6.0]
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    # Without the gaps, places need only not fall. Neighbours that would fall share their mean.
    pools: list[tuple[float, int]] = []
    for number, index in enumerate(order):
        mean, size = wanted[index] - number * gap, 1
        while pools and pools[-1][0] >= mean:
            other, others = pools.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        pools.append((mean, size))
    highest = high - gap * (len(wanted) - 1)
    levels = [max(low, min(mean, highest)) for mean, size in pools for _ in range(size)]
    found = {index: levels[number] + number * gap for number, index in enumerate(order)}
    return [found[index] for index in range(len(wanted))]
