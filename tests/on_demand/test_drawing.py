"""The picture of traces: what is in it, that it can be read, and that it comes out the same."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kineto_step_tracker.on_demand import Span, Trace

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")

from kineto_step_tracker.drawing import FORMATS, INK  # noqa: E402
from kineto_step_tracker.on_demand import drawing  # noqa: E402
from tests.bench.test_drawing import PAGES, SVG, contrast  # noqa: E402


def trace(
    *annotations: Span,
    steps: Sequence[int] = (),
    ends: Sequence[float] = (),
    duration: float = 100_000.0,
) -> Trace:
    return Trace(Path("trace.json"), 1, duration, tuple(steps), tuple(ends), annotations)


def optimizer(name: str, start: float = 0.0, thread: int = 17) -> Span:
    return Span(f"Optimizer.step#{name}.step", thread, start, 3_000.0)


FULL = trace(
    Span("iteration", 17, 0.0, 50_000.0),
    Span("inner", 17, 1_000.0, 40_000.0),
    optimizer("SGD", 41_000.0),
    Span("Optimizer.zero_grad#SGD.zero_grad", 17, 45_000.0, 4_000.0),
    Span("<loading> & $x$", 18, 20_000.0, 60_000.0),
    Span("too short for its name", 18, 90_000.0, 10.0),
    optimizer("Adam", 85_000.0, 18),
    steps=(1000, 1001),
    ends=(45_000.0, 95_000.0),
)
BARE = trace(optimizer("SGD", 5_000.0, 4), duration=10_000.0)


def texts(traces: Sequence[tuple[str, Trace]], folder: Path, title: str = "Traces") -> list[str]:
    drawing.draw(traces, folder / "drawn.svg", title)
    root = ElementTree.parse(folder / "drawn.svg").getroot()
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def colours(folder: Path) -> set[str]:
    return set(re.findall(r"#[0-9a-f]{6}\b", (folder / "drawn.svg").read_text("utf-8")))


def test_it_names_steps_threads_traces_and_optimizers(tmp_path: Path) -> None:
    found = texts([("rank 0", FULL), ("rank 1", BARE)], tmp_path, "Two <ranks> & $one$ picture")
    for once in (
        *("1000", "1001", "thread 17", "thread 18", "thread 4", "rank 0", "rank 1"),
        *("SGD.step()", "Adam.step()", "iteration", "<loading> & $x$"),
        "Two <ranks> & $one$ picture",
        "Bars in grey: what torch.profiler.record_function named, and the tracker's steps.",
    ):
        assert found.count(once) == 1, once
    assert found.count("step") == found.count("milliseconds") == 2
    # Within another one; too short; no step of an optimizer.
    assert not {"inner", "too short for its name"} & set(found)
    assert not [text for text in found if "zero_grad" in text]


def test_without_optimizers_there_is_no_legend(tmp_path: Path) -> None:
    found = texts([("rank 0", trace(Span("forward", 1, 0.0, 90_000.0)))], tmp_path)
    assert "forward" in found
    assert not [text for text in found if text.endswith("()")]


def test_the_title_has_a_usual_text(tmp_path: Path) -> None:
    drawing.draw([("rank 0", BARE)], tmp_path / "drawn.svg")
    assert ">Traces on demand<" in (tmp_path / "drawn.svg").read_text("utf-8")


def test_an_optimizer_has_the_same_colour_in_every_trace(tmp_path: Path) -> None:
    first, second = drawing.COLOURS[:2]
    other = trace(optimizer("Adam"), optimizer("SGD"))
    drawing.draw([("rank 0", BARE)], tmp_path / "drawn.svg")
    assert colours(tmp_path) == {INK, first}
    for traces in ([FULL, other], [BARE, other], [other]):
        drawing.draw([("rank", each) for each in traces], tmp_path / "drawn.svg")
        assert colours(tmp_path) == {INK, first, second}


@pytest.mark.parametrize("page", PAGES)
def test_every_colour_can_be_told_from_a_light_page_and_a_dark_one(page: str) -> None:
    assert len(set(drawing.COLOURS)) == len(drawing.COLOURS)
    for colour in drawing.COLOURS:
        assert contrast(colour, page) >= 3


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_traces_give_the_same_bytes_whatever_the_settings(
    tmp_path: Path, ending: str
) -> None:
    first, second = tmp_path / f"first.{ending}", tmp_path / f"second.{ending.upper()}"
    drawing.draw([("rank 0", FULL), ("rank 1", BARE)], first)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 20}):
        drawing.draw((("rank 0", FULL), ("rank 1", BARE)), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_png_has_a_transparent_background(tmp_path: Path) -> None:
    drawing.draw([("rank 0", FULL)], tmp_path / "drawn.png")
    signature, channels = struct.unpack("8s17xB", (tmp_path / "drawn.png").read_bytes()[:26])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert channels == 6  # red, green, blue and alpha


def test_no_traces_are_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^traces must not be empty$"):
        drawing.draw([], tmp_path / "drawn.svg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["drawn.pdf", "drawn"])
def test_another_ending_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"^file must end in \.svg or \.png"):
        drawing.draw([("rank 0", FULL)], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "odd",
    [
        trace(),
        trace(duration=0.0),
        trace(Span("forward", 1, 0.0, 0.0), steps=(5,), ends=(0.0,), duration=0.0),
        trace(steps=(5, 6), ends=(1.0, 1.0)),
        trace(Span("begun before", 1, -500.0, 90_000.0), steps=(5,), ends=(-1.0,)),
        trace(Span("", 1, 0.0, 90_000.0), Span("two\nlines", 2, 0.0, 90_000.0)),
        trace(optimizer("_Private")),
    ],
    ids=["empty", "instant", "nothing long", "steps at once", "before", "names", "underscore"],
)
@pytest.mark.parametrize("ending", FORMATS)
def test_an_odd_trace_is_drawn(tmp_path: Path, odd: Trace, ending: str) -> None:
    drawing.draw([("", odd)], tmp_path / f"drawn.{ending}")
    assert (tmp_path / f"drawn.{ending}").stat().st_size > 1000


def test_a_hundred_threads_have_a_row_each(tmp_path: Path) -> None:
    threads = range(140_000, 140_100)
    many = trace(*(Span("work", thread, 10.0 * thread % 999, 5_000.0) for thread in threads))
    found = texts([("rank 0", many)], tmp_path)
    assert [text for text in found if text.startswith("thread ")] == [
        f"thread {thread}" for thread in threads
    ]


def test_with_more_optimizers_than_colours_each_is_named(tmp_path: Path) -> None:
    names = [f"Optimizer{number}" for number in range(2 * len(drawing.COLOURS) + 1)]
    many = trace(*(optimizer(name, 1_000.0 * start) for start, name in enumerate(names)))
    found = texts([("rank 0", many)], tmp_path)
    assert [text for text in found if text.endswith("()")] == [f"{name}.step()" for name in names]
    assert colours(tmp_path) == {INK, *drawing.COLOURS}
    drawn = (tmp_path / "drawn.svg").read_text("utf-8")
    first, *others = [drawn.count(colour) for colour in drawing.COLOURS]
    # They begin again with the first one.
    assert len(set(others)) == 1
    assert 2 * first == 3 * others[0]


def test_with_very_many_optimizers_the_legend_leaves_room_for_the_trace(tmp_path: Path) -> None:
    many = trace(*(optimizer(f"Optimizer{number}") for number in range(60)))
    drawing.draw([("rank 0", many)], tmp_path / "drawn.svg")


def test_a_name_in_another_script_is_drawn(tmp_path: Path) -> None:
    drawing.draw([("rank 0", trace(Span("前向", 1, 0.0, 90_000.0)))], tmp_path / "drawn.svg")
