"""What one step costs on one thread: no rise, a rise, and a rise among many requesters.

It imports the clocks, the contenders and the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kineto_step_tracker.bench.clocks import Work, in_turns
from kineto_step_tracker.bench.contenders import Callback, Contender, is_there, stage
from kineto_step_tracker.bench.report import Key, Question

_STEPPED = "r0"
# With the one that is far ahead, four.
_BEHIND = (_STEPPED, "r1", "r2")
_MANY = (10, 100, 1_000, 10_000)
# Who is set up anew for each measurement, or takes half a second to set up 10 000.
_NOT_MANY = (Contender.DROP_IN, Contender.PORTABLE)


def measure(turns: int, watch: Callable[[float], object]) -> dict[Key, list[float]]:
    """Return the seconds a step takes, for each contender that is here."""
    return in_turns({key: make() for key, make in works().items()}, turns, watch)


def works() -> dict[Key, Callable[[], Work]]:
    """Return what makes a step of each contender that is here, ready to be timed."""
    found: dict[Key, Callable[[], Work]] = {}
    for contender in filter(is_there, Contender):
        found[Key(Question.NO_RISE, contender, len(_BEHIND) + 1)] = partial(
            _work, contender, _BEHIND, rising=False
        )
        if contender in (Contender.METHOD, Contender.LOOK_UP):
            continue  # there for scale, and nothing rises
        for question, callback in (
            (Question.RISE, Callback.C),
            (Question.RISE_PYTHON, Callback.PYTHON),
        ):
            found[Key(question, contender, 1)] = partial(
                _work, contender, [_STEPPED], callback=callback
            )
        if contender not in _NOT_MANY:
            for number in _MANY:
                names = [f"r{i}" for i in range(number)]
                found[Key(Question.RISE, contender, number)] = partial(_work, contender, names)
    return found


def _work(
    contender: Contender,
    requesters: Sequence[str],
    rising: bool = True,
    callback: Callback = Callback.C,
) -> Work:
    return stage(contender, requesters, rising, callback).work(_STEPPED)
