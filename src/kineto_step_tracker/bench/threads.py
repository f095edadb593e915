"""How many steps a second threads reach together.

It imports the clocks, the contenders and the report.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

from kineto_step_tracker.bench.clocks import throughput
from kineto_step_tracker.bench.contenders import Contender, is_there, stage
from kineto_step_tracker.bench.report import Key, Question

QUESTIONS = (Question.SHARED, Question.SEPARATE, Question.BEHIND)
# The portable tracker is some hundred times slower than all others, with any number of threads.
_CONTENDERS = (
    Contender.HANDLE,
    Contender.NAME,
    Contender.DROP_IN,
    Contender.PYTORCH,
    Contender.TEXTBOOK,
    Contender.LOCKED,
    Contender.CEREGGII,
    Contender.METHOD,
)


def measure(
    numbers: Sequence[int], turns: int, seconds: float, watch: Callable[[float], object]
) -> dict[Key, list[float]]:
    """Return the steps a second, for these numbers of threads, each for so many seconds a turn."""
    keys = [
        Key(question, contender, number)
        for question in QUESTIONS
        for number in numbers
        # One after another, so that what is compared is of the same moment.
        for contender in filter(is_there, _CONTENDERS)
        if not _is_needless(question, contender)
    ]
    found: dict[Key, list[float]] = {key: [] for key in keys}
    with warnings.catch_warnings():
        # PyTorch's class warns when it finds, as with threads it does, that it skipped a step.
        warnings.simplefilter("ignore")
        for turn in range(turns):
            for number, key in enumerate(keys):
                found[key].append(_steps_a_second(key, seconds))
                watch((turn * len(keys) + number + 1) / (turns * len(keys)))
    return found


def _is_needless(question: Question, contender: Contender) -> bool:
    if contender is Contender.TEXTBOOK:
        return is_there(Contender.PYTORCH)
    # An empty method shows how the machine itself scales.
    return contender is Contender.METHOD and question is not Question.BEHIND


def _steps_a_second(key: Key, seconds: float) -> float:
    requesters = [f"r{0 if key.question is Question.SHARED else i}" for i in range(key.x)]
    rising = key.question is not Question.BEHIND
    staged = stage(Contender(key.contender), sorted(set(requesters)), rising)
    with staged.around():
        return throughput([partial(staged.work, name) for name in requesters], seconds)
