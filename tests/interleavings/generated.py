"""Programs that nobody picked: all small ones up to symmetry, and random larger ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from random import Random

from .programs import CALLBACKS

# What is done before the threads start, to one requester and to two.
BEFORE = {
    "a": ["", "handle a", "handle a; erase a"],
    "ab": ["", "handle a; handle b", "handle a; handle b; step b"],
}


def _operations(requesters: str, before: str) -> list[str]:
    actions = ["increment", "init", "erase", *(["step"] if before else [])]
    return ["current", "counts", *(f"{action} {name}" for action in actions for name in requesters)]


def two_threads(requesters: str, before: str, most: int) -> Iterator[str]:
    """Every program of two threads with up to ``most`` operations each on all the requesters.

    Of programs that differ in the order of the threads, or in the names of requesters that
    ``before`` treats alike, one.
    """
    operations = _operations(requesters, before)
    rows = [row for length in range(1, most + 1) for row in product(operations, repeat=length)]
    alike = requesters == "ab" and before.count(" a") == before.count(" b")
    renamed = {row: tuple(map(_renamed, row)) for row in rows}
    for pair in combinations_with_replacement(rows, 2):
        text = " | ".join("; ".join(row) for row in pair)
        used = all(f" {name}" in text for name in requesters)
        if used and not (alike and sorted(renamed[row] for row in pair) < sorted(pair)):
            yield f"{before}: {text}"


def _renamed(operation: str) -> str:
    return re.sub(" [ab]$", lambda name: " b" if name[0] == " a" else " a", operation)


def sample(random: Random, shape: str) -> str:
    """A random program of a shape: ``3 | 2 ^ 1 /`` has up to 3, 2 and 1 operations, a callback."""
    requesters = random.choice(list(BEFORE))
    before = random.choice(BEFORE[requesters])
    operations = _operations(requesters, before)
    # What can go wrong takes an increment, nearly always.
    operations += [operation for operation in operations if operation.startswith(("inc", "step"))]

    def row(most: re.Match[str]) -> str:
        return "; ".join(random.choices(operations, k=random.randint(1, int(most[0]))))

    callback = random.choice(list(CALLBACKS)) if "/" in shape else ""
    return f"{before}: {re.sub('[0-9]', row, shape)} {callback}".strip()
