"""What does docs/how-fast.md say? Its tables, from what ``bench --json`` has written.

python benchmarks/table.py docs/benchmarks/gil.json docs/benchmarks/free-threaded.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from kineto_step_tracker.bench import Key, Question, Report, Verdict, verdicts
from kineto_step_tracker.bench.contenders import Contender, Hook
from kineto_step_tracker.bench.report import human

COLUMNS = {
    "no rise": (Question.NO_RISE, 4),
    "rise, C callback": (Question.RISE, 1),
    "rise, Python callback": (Question.RISE_PYTHON, 1),
    "rise, 1 000 requesters": (Question.RISE, 1_000),
    "rise, 10 000 requesters": (Question.RISE, 10_000),
}
PARTS = {
    "`optimizer.step()`": (Question.OPTIMIZER, 1),
    "in the hook": (Question.HOOK, 1),
    "a backward with 300 optimizers": (Question.BACKWARD, 300),
    "in its hooks": (Question.HOOK, 300),
}


def tables(report: Report) -> Iterator[str]:
    yield f"### {report.environment['Python']}"
    yield ""
    yield from _rows(["target", "wanted", "measured", "quartiles", ""], map(_target, _here(report)))
    yield ""
    yield from _rows(["time a step", *COLUMNS], _medians(report, Contender, COLUMNS.values()))
    yield ""
    if report.xs(Question.HOOK, Hook.OURS):
        yield from _rows(
            ["time of a training step", *PARTS], _medians(report, Hook, PARTS.values())
        )
        yield ""
    ran_on = "; ".join(f"{what}: {which}" for what, which in report.environment.items())
    yield f"One run of {report.seconds:.0f} s. {ran_on}."


def _here(report: Report) -> list[Verdict]:
    return [verdict for verdict in verdicts(report) if verdict.measured is not None]


def _target(verdict: Verdict) -> list[str]:
    target, measured = verdict.target, verdict.measured
    assert measured is not None
    median, low, high = (
        target.shown(value) for value in (measured.median, measured.low, measured.high)
    )
    return [
        target.text,
        target.wanted,
        f"**{median}**",
        "" if low == high else f"{low} to {high}",
        "met" if verdict.met else "**missed**",
    ]


def _medians(
    report: Report, names: Iterable[str], columns: Iterable[tuple[Question, int]]
) -> Iterator[list[str]]:
    columns = list(columns)
    for name in names:
        keys = [Key(question, name, x) for question, x in columns]
        medians = [report.spread(key).median if key in report.values else None for key in keys]
        if any(medians):
            yield [name, *(human(median, "s") if median else "" for median in medians)]


def _rows(heads: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(row)} |".replace("  ", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path, nargs="+", help="what bench --json has written")
    for file in parser.parse_args().report:
        print("\n".join(tables(Report.from_json(file.read_text()))), end="\n\n")


if __name__ == "__main__":
    main()
