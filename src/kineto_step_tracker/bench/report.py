"""What was measured, in one run, and how it reads back.

It imports the standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import quantiles
from typing import NamedTuple, Self

# Who answers the questions about the package itself.
PACKAGE = "kineto_step_tracker"


class Question(StrEnum):
    """What is asked of several contenders at once.

    ``x`` of a `Key` counts threads in ``SHARED``, ``SEPARATE`` and ``BEHIND``, optimizers in
    ``OPTIMIZER``, ``BACKWARD`` and ``HOOK``, and requesters in ``NO_RISE``, ``RISE``,
    ``RISE_PYTHON`` and ``MEMORY``.
    """

    NO_RISE = "a step that is no rise"
    RISE = "a rise, empty C callback"
    RISE_PYTHON = "a rise, empty Python callback"
    SHARED = "threads that share one requester, every step a rise"
    SEPARATE = "threads with a requester each, the first to get there rises"
    BEHIND = "threads with a requester each, no rise"
    OPTIMIZER = "optimizer.step() of a small model"
    BACKWARD = "a backward in which an optimizer a parameter steps"
    HOOK = "what a hook takes of either"
    IMPORT = "the import of the package"
    NEEDLESS = "imports of PyTorch, or of atomics where that is not used"
    MEMORY = "memory a requester"

    @property
    def unit(self) -> str:
        """The unit of its values, which is seconds, steps a second, or bytes."""
        if self in (Question.SHARED, Question.SEPARATE, Question.BEHIND):
            return "1/s"
        return {Question.MEMORY: "B", Question.NEEDLESS: ""}.get(self, "s")


class Key(NamedTuple):
    """What was measured: a question, who answers it, and for how many.

    ``contender`` is how the report calls it, such as "by name", or the package's name. ``x`` counts
    requesters, threads or optimizers, as the question says; 0 where there is nothing to count.
    """

    question: Question
    contender: str
    x: int


@dataclass(frozen=True)
class Spread:
    """The median of some values, and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        values = list(values)
        low, middle, high = quantiles(values * (1 + (len(values) == 1)), n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Report:
    """One run.

    Args:
        environment: what it ran on, such as "Python": "3.11.7, with the GIL".
        backend: of the tracker, "native" or "portable".
        free_threaded: whether threads ran at once, without the GIL.
        quick: whether it took fewer turns.
        seconds: how long all of it took.
        values: turn by turn, in the question's unit. Values of the same turn were measured one
            after another, so that a ratio of them is of the same moment.
    """

    environment: dict[str, str]
    backend: str
    free_threaded: bool
    quick: bool
    seconds: float
    values: dict[Key, list[float]] = field(repr=False)

    def spread(self, key: Key) -> Spread:
        """Return the median and the quartiles of what was measured."""
        return Spread.of(self.values[key])

    def xs(self, question: Question, contender: str) -> list[int]:
        """Return for what numbers of requesters, threads or optimizers there is an answer."""
        return sorted(key.x for key in self.values if key[:2] == (question, contender))

    def to_json(self) -> str:
        """Return it as JSON text, which `from_json` reads."""
        values = [
            {
                "question": key.question,
                "contender": key.contender,
                "x": key.x,
                "unit": key.question.unit,
                "median": self.spread(key).median,
                "values": values,
            }
            for key, values in self.values.items()
        ]
        found = {**vars(self), "values": values}
        return json.dumps(found, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written.

        Raises:
            ValueError: ``text`` is something else.
        """
        try:
            found = json.loads(text)
            found["values"] = {
                Key(Question(row["question"]), row["contender"], row["x"]): row["values"]
                for row in found["values"]
            }
            return cls(**found)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"text must be what to_json() has written: {error!r}") from error


def ran_on(environment: Mapping[str, str]) -> str:
    """Return one line that says what a run was on.

    >>> ran_on({"Python": "3.11.7, with the GIL", "backend": "native"})
    'Python 3.11.7, with the GIL, backend native'
    """
    return ", ".join(f"{what} {which}" for what, which in environment.items())


def in_words(key: Key, values: Iterable[float]) -> str:
    """Return one line that says what was measured: the median and the quartiles.

    >>> in_words(Key(Question.NO_RISE, "by name", 4), [22e-9, 24e-9, 26e-9])
    'a step that is no rise, 4: by name 24 ns (23 ns to 25 ns)'
    """
    spread, unit = Spread.of(values), key.question.unit.removeprefix("1")
    median, low, high = (human(value, unit) for value in (spread.median, spread.low, spread.high))
    return f"{key.question}, {key.x}: {key.contender} {median} ({low} to {high})"


def human(value: float, unit: str) -> str:
    """Return two or three digits of a value, with a prefix: 8.3 µs, 23 ns, 20 M.

    What is below 0, as the difference of two times can be, is none.

    >>> human(2.31e-8, "s"), human(20_300_000, "")
    ('23 ns', '20 M')
    """
    if value <= 0:
        return f"0 {unit}".rstrip()
    value = float(f"{value:.3g}")
    power = max(-4, min(math.floor(math.log10(value) / 3), 4))
    number = value / 1000.0**power
    text = f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:.0f}"
    return f"{text} {('p', 'n', 'µ', 'm', '', 'k', 'M', 'G', 'T')[power + 4]}{unit}".rstrip()
