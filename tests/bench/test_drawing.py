"""The picture of a report: what is in it, that it can be read, and that it comes out the same."""

from __future__ import annotations

import re
import struct
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import Key, Question, Report

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")

from kineto_step_tracker.bench import drawing  # noqa: E402
from kineto_step_tracker.drawing import FORMATS, INK  # noqa: E402

PAGES = ("#ffffff", "#0d1117")
SVG = "{http://www.w3.org/2000/svg}"
NO_COSTS = "No step was timed by itself."
NO_RISES = "No rise was timed with different numbers of requesters."
NO_SHARED = "No threads were timed that share a requester."
NO_OWN = "No threads were timed with a requester each."


def report(values: dict[Key, list[float]], free_threaded: bool = False) -> Report:
    environment = {"Python": "3.11.7, with the GIL", "CPU": "<some> & $other$"}
    return Report(environment, "native", free_threaded, False, 1.0, values)


def full(free_threaded: bool = False) -> Report:
    """Every contender answers every question that is drawn, some of them nearly alike."""
    values: dict[Key, list[float]] = {}
    for number, contender in enumerate(Contender):
        seconds = 16e-9 * (1.1 if number < 5 else 3) ** number
        for question in (Question.NO_RISE, Question.RISE, Question.RISE_PYTHON):
            for x in (1, 100, 10_000):
                values[Key(question, contender, x)] = [seconds, seconds * 1.1, seconds * x**0.5]
        for question in (Question.SHARED, Question.BEHIND):
            for x in (1, 2, 4):
                values[Key(question, contender, x)] = [x / seconds, x / seconds * 0.8]
    return report(values, free_threaded)


def texts(found: Report, folder: Path) -> list[str]:
    drawing.draw(found, folder / "drawn.svg")
    root = ElementTree.parse(folder / "drawn.svg").getroot()
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_it_names_every_contender_in_every_panel_and_says_what_it_ran_on(tmp_path: Path) -> None:
    found = texts(full(), tmp_path)
    for contender in Contender:
        assert found.count(contender) == 1
        assert len([text for text in found if text.startswith(f"{contender}  ")]) == 3
    assert any("Python 3.11.7, with the GIL · CPU <some> & $other$" in text for text in found)
    assert not any(text.startswith("No ") for text in found)


def test_costs_are_ordered_from_the_fastest_and_written_with_units(tmp_path: Path) -> None:
    question = Question.NO_RISE
    found = texts(
        report(
            {
                Key(question, "slow", 1): [8.3e-6],
                Key(question, "fast", 1): [23.4e-9],
                Key(question, "middle", 1): [999.9e-9],
                Key(question, "other number", 7): [1.0],
            }
        ),
        tmp_path,
    )
    assert [name for name in found if name in ("slow", "middle", "fast", "other number")] == [
        "fast",
        "middle",
        "slow",
    ]
    assert {"23 ns", "1 µs", "8.3 µs", "requesters: 1"} <= set(found)


@pytest.mark.parametrize(
    ("question", "x", "missing"),
    [
        (Question.NO_RISE, 1, {NO_RISES, NO_SHARED, NO_OWN}),
        (Question.RISE, 4, {NO_RISES, NO_SHARED, NO_OWN}),
        (Question.SHARED, 1, {NO_COSTS, NO_RISES, NO_OWN}),
        (Question.SEPARATE, 2, {NO_COSTS, NO_RISES, NO_SHARED}),
        (Question.BEHIND, 1, {NO_COSTS, NO_RISES, NO_SHARED}),
        (Question.IMPORT, 1, {NO_COSTS, NO_RISES, NO_SHARED, NO_OWN}),
    ],
)
def test_a_panel_says_what_it_has_no_data_for(
    tmp_path: Path, question: Question, x: int, missing: set[str]
) -> None:
    found = texts(report({Key(question, Contender.NAME, x): [2e-8]}, True), tmp_path)
    assert {text for text in found if text.startswith("No ")} == missing


def test_an_empty_report_says_so_four_times(tmp_path: Path) -> None:
    assert {NO_COSTS, NO_RISES, NO_SHARED, NO_OWN} <= set(texts(report({}), tmp_path))


def test_perfect_scaling_is_shown_only_where_threads_run_at_once(tmp_path: Path) -> None:
    # Four times the fastest alone, whose median is 0.9 / 16 ns.
    assert [text for text in texts(full(True), tmp_path) if "perfect" in text] == [
        "perfect scaling  225 M"
    ]
    assert [text for text in texts(full(False), tmp_path) if "perfect" in text] == []


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_report_gives_the_same_bytes_whatever_the_settings(
    tmp_path: Path, ending: str
) -> None:
    first, second = tmp_path / f"first.{ending}", tmp_path / f"second.{ending.upper()}"
    drawing.draw(full(), first)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 20}):
        before = dict(matplotlib.rcParams)
        drawing.draw(Report.from_json(full().to_json()), second)
        assert dict(matplotlib.rcParams) == before
    assert first.read_bytes() == second.read_bytes()


def test_a_png_has_a_transparent_background(tmp_path: Path) -> None:
    drawing.draw(full(), tmp_path / "drawn.png")
    drawn = (tmp_path / "drawn.png").read_bytes()
    signature, colours = struct.unpack("8s17xB", drawn[:26])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert colours == 6  # red, green, blue and alpha
    image = pytest.importorskip("matplotlib.image", reason="matplotlib reads it back")
    pixels = image.imread(tmp_path / "drawn.png")
    assert pixels[0, 0, 3] == 0
    assert pixels[..., 3].max() == 1


@pytest.mark.parametrize("name", ["drawn.pdf", "drawn", "svg", "drawn.svg.gz"])
def test_another_ending_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    expected = f"file must end in .svg or .png, not be {name!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        drawing.draw(full(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return sum(map(float.__mul__, linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("page", PAGES)
def test_every_colour_can_be_told_from_a_light_page_and_a_dark_one(page: str) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(INK, page) >= 4.2
    for look in drawing.LOOKS.values():
        assert contrast(look.colour, page) >= 3


def test_it_draws_in_no_other_colours(tmp_path: Path) -> None:
    drawing.draw(full(True), tmp_path / "drawn.svg")
    used = set(re.findall(r"#[0-9a-f]{6}\b", (tmp_path / "drawn.svg").read_text("utf-8")))
    assert used == {INK, *(look.colour for look in drawing.LOOKS.values())}


def test_every_contender_can_be_told_from_the_others_without_colour() -> None:
    assert set(Contender) < set(drawing.LOOKS)
    for one, other in combinations(drawing.LOOKS.values(), 2):
        assert one.marker != other.marker


places = st.floats(-2, 3)


@given(wanted=st.lists(places, max_size=12), gap=st.floats(0.01, 0.5))
def test_labels_keep_their_order_and_their_distance(wanted: list[float], gap: float) -> None:
    kept = drawing.keep_apart(wanted, gap, 0, 1)
    ordered = sorted(zip(wanted, kept, strict=True))
    assert [place for _, place in ordered] == sorted(kept)
    for one, other in pairwise(sorted(kept)):
        assert other - one >= gap - 1e-9
    if kept:
        assert min(kept) >= 0
        assert max(kept) <= max(1, gap * (len(kept) - 1)) + 1e-9


@given(wanted=st.lists(places, max_size=12), gap=st.floats(0.01, 0.5))
def test_labels_stay_as_near_as_they_can(wanted: list[float], gap: float) -> None:
    kept = drawing.keep_apart(wanted, gap, -100, 100)
    pairs = sorted(zip(kept, wanted, strict=True))
    runs: list[list[float]] = []
    for number, (place, want) in enumerate(pairs):
        if not number or place - pairs[number - 1][0] > gap + 1e-9:
            runs.append([])
        runs[-1].append(place - want)
    # Labels that touch push each other as much up as down, and no part of them is better apart.
    for run in runs:
        assert sum(run) == pytest.approx(0, abs=1e-6)
        for end in range(1, len(run)):
            assert sum(run[:end]) <= 1e-6


def test_labels_in_the_picture_do_not_overlap(tmp_path: Path) -> None:
    drawing.draw(full(True), tmp_path / "drawn.svg")
    root = ElementTree.parse(tmp_path / "drawn.svg").getroot()
    columns: dict[tuple[str, bool], list[float]] = {}
    for element in root.iter(f"{SVG}text"):
        if "  " in (element.text or ""):
            x, y = element.attrib["x"], float(element.attrib["y"])
            columns.setdefault((x, y < 324), []).append(y)
    assert [len(ys) for ys in columns.values()] == [10, 10, 11]
    for ys in columns.values():
        assert all(lower - upper > 11 for upper, lower in pairwise(sorted(ys)))
