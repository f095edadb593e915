"""What this project aims at, as ratios within one run, and how a report meets it.

It imports the contenders and the report.
"""

from __future__ import annotations

from dataclasses import dataclass

from kineto_step_tracker.bench.contenders import Contender, Hook
from kineto_step_tracker.bench.report import PACKAGE, Key, Question, Report, Spread, human


@dataclass(frozen=True)
class Target:
    """One line of the table.

    Args:
        text: what is compared.
        bound: the ratio that is aimed at, or the value where there is nothing to divide by.
        at_least: whether more is better; if not, the bound is the most.
        over: whose values are divided.
        by: by whose, turn by turn; None for a value that is a target by itself.
        slack: by what factor it may be missed before that is a gross loss.
    """

    text: str
    bound: float
    at_least: bool
    over: Key
    by: Key | None = None
    slack: float = 2

    def shown(self, value: float) -> str:
        """Return a ratio, or a value in its unit, as the table has it."""
        if self.by is not None:
            return f"{value:.0f} x" if value >= 100 else f"{value:.3g} x"
        match self.over.question.unit:
            case "s":
                return human(value, "s")
            case unit:
                return f"{value:.0f} {unit}".rstrip()

    @property
    def wanted(self) -> str:
        """The bound, in words."""
        return f"at {'least' if self.at_least else 'most'} {self.shown(self.bound)}"


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured for it, and whether that meets it; None if nothing was."""

    target: Target
    measured: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether the median is on the right side of the bound."""
        return self._within(1)

    @property
    def grossly_missed(self) -> bool:
        """Whether it is off by more than its slack, which no noise explains."""
        return self._within(self.target.slack) is False

    def __str__(self) -> str:
        if self.measured is None:
            return f"{self.target.text}: not measured"
        median = self.target.shown(self.measured.median)
        word = "met" if self.met else "missed"
        return f"{self.target.text}: {median}, wanted {self.target.wanted}: {word}"

    def _within(self, slack: float) -> bool | None:
        if self.measured is None:
            return None
        if self.target.at_least:
            return self.measured.median >= self.target.bound / slack
        return self.measured.median <= self.target.bound * slack


def verdicts(report: Report) -> list[Verdict]:
    """Return the targets of the build that the report is from, and how it meets them."""
    has_pytorch = bool(report.xs(Question.NO_RISE, Contender.PYTORCH))
    if report.free_threaded:
        targets = _of_free_threading()
    else:
        targets = _of_the_gil(Contender.PYTORCH if has_pytorch else Contender.TEXTBOOK)
    if has_pytorch:
        targets += _of_the_textbook()
    targets += _of_both()
    return [Verdict(target, _measured(report, target)) for target in targets]


def _measured(report: Report, target: Target) -> Spread | None:
    over = report.values.get(target.over)
    if target.by is None or over is None:
        return None if over is None else Spread.of(over)
    by = report.values.get(target.by)
    # The difference of two times may be none, or less, where the clock is coarse.
    if by is None or min(*over, *by) <= 0:
        return None
    return Spread.of(mine / other for mine, other in zip(over, by, strict=True))


def _of_the_gil(stock: Contender) -> list[Target]:
    name, no_rise, rise = Contender.NAME, Question.NO_RISE, Question.RISE
    return [
        _at_least(
            10,
            f"no rise, by name: faster than {stock}, 4 requesters",
            Key(no_rise, stock, 4),
            Key(no_rise, name, 4),
        ),
        _at_most(
            1.5,
            "no rise, by handle: time of an empty builtin method",
            Key(no_rise, Contender.HANDLE, 4),
            Key(no_rise, Contender.METHOD, 4),
        ),
        _at_least(
            4.5,
            f"no rise, drop-in class: faster than {stock}, 4 requesters",
            Key(no_rise, stock, 4),
            Key(no_rise, Contender.DROP_IN, 4),
        ),
        _at_least(
            3,
            f"rise, drop-in class: faster than {stock}, 1 requester",
            Key(rise, stock, 1),
            Key(rise, Contender.DROP_IN, 1),
        ),
        _at_least(
            6,
            f"rise, by name: faster than {stock}, 1 requester",
            Key(rise, stock, 1),
            Key(rise, name, 1),
        ),
        _at_least(
            150,
            f"rise, by name: faster than {stock}, 1 000 requesters",
            Key(rise, stock, 1_000),
            Key(rise, name, 1_000),
        ),
        _at_most(
            1.2,
            "rise, by name: time with 1 000 requesters, of that with 1",
            Key(rise, name, 1_000),
            Key(rise, name, 1),
        ),
        Target(
            "4 threads share a requester: throughput of the locked class",
            bound=25,
            at_least=True,
            over=Key(Question.SHARED, name, 4),
            by=Key(Question.SHARED, Contender.LOCKED, 4),
            # The locked class has two speeds, three times apart, as the GIL happens to be handed
            # over. Twice a target between them would be too near the better one.
            slack=4,
        ),
    ]


def _of_the_textbook() -> list[Target]:
    """What stands in for PyTorch's class, where that is not there, must not flatter us."""
    return [
        _at_most(
            1.25,
            f"check: textbook's time of PyTorch's class, {what}",
            Key(question, Contender.TEXTBOOK, requesters),
            Key(question, Contender.PYTORCH, requesters),
        )
        for what, question, requesters in (
            ("no rise", Question.NO_RISE, 4),
            ("rise", Question.RISE, 1),
        )
    ]


def _of_free_threading() -> list[Target]:
    scaling = [
        _at_least(
            bound,
            f"no rise, {how}: throughput of 2 threads, of that of 1",
            Key(Question.BEHIND, how, 2),
            Key(Question.BEHIND, how, 1),
        )
        for how, bound in ((Contender.HANDLE, 1.85), (Contender.DROP_IN, 1.8))
    ]
    rising = Key(Question.SEPARATE, Contender.NAME, 2)
    return [
        *scaling,
        _at_least(
            0.9,
            "rises, a requester each: throughput of 2 threads, of that of 1",
            rising,
            rising._replace(x=1),
        ),
        _at_least(
            8,
            "rises, a requester each: 2 threads' throughput of the locked class",
            rising,
            rising._replace(contender=Contender.LOCKED),
        ),
    ]


def _of_both() -> list[Target]:
    return [
        Target(
            "300 optimizers in a backward: time in our hook, of that in stock's",
            bound=1 / 3,
            at_least=False,
            over=Key(Question.HOOK, Hook.OURS, 300),
            by=Key(Question.HOOK, Hook.STOCK, 300),
            # How much memory is waited for depends on who else uses the outer cache. To take
            # as long as stock's would be a loss.
            slack=3,
        ),
        _at_most(
            1,
            "one optimizer's step(): time in our hook, of that in stock's",
            Key(Question.HOOK, Hook.OURS, 1),
            Key(Question.HOOK, Hook.STOCK, 1),
        ),
        _at_most(512, "memory a requester", Key(Question.MEMORY, Contender.NAME, 10_000)),
        _at_most(0.005, "import, over bare Python", Key(Question.IMPORT, PACKAGE, 0)),
        _at_most(0, "imports of what is not needed", Key(Question.NEEDLESS, PACKAGE, 0)),
    ]


def _at_least(bound: float, text: str, over: Key, by: Key | None = None) -> Target:
    return Target(text, bound, True, over, by)


def _at_most(bound: float, text: str, over: Key, by: Key | None = None) -> Target:
    return Target(text, bound, False, over, by)
