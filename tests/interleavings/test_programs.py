"""The shipped tracker under every interleaving of many small programs.

A quick selection runs with all tests. ``pytest -m explore tests/interleavings -n 2`` runs the
whole, in about six minutes of two free cores. With ``EXPLORE_EFFORT=10`` in the environment it
runs ten times as many random programs, and ten times as many schedules before it cuts one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

import pytest

from .generated import sample, two_threads

Passes = Callable[[Iterable[str], int], None]

EFFORT = int(os.environ.get("EXPLORE_EFFORT", "1"))

# Each shape of random programs, and how many schedules of one are run before it is cut.
SHAPES = {
    "3 | 3": 100,
    "3 | 3 | 3": 100,
    "2 | 2 /": 100,
    "1 | 1 | 1 /": 100,
    "3 ^ 2": 100,
    "2 ^ 2 | 2": 100,
    "2 ^ 1 | 1 /": 100,
}


@pytest.mark.parametrize(
    "program",
    [
        # An erase that helped too late let these happen before their time.
        "handle a: increment a | erase a | increment a",
        "handle a: increment a | erase a | erase a; current",
        # Two registrations of a name, and one erased in between.
        "increment a; erase a | increment a; erase a",
        "increment a | erase a; erase a",
        "increment a | handle a | erase a",
        # Overlapping first increments may both reach the same step.
        "increment a | increment b",
        "handle a: step a; step a | step a; step a",
        "handle a: step a; erase a | step a; counts",
        "handle a; handle b: step a; init b | step b; init a",
        "handle a: try a; try a | erase a; increment a; current",
        "handle a: try a | init a | try a",
        "handle a: step a | step a / plain",
        "handle a: try a | erase a / plain",
        "handle a: step a | step a | current / plain",
        "handle a: step a | init a / plain",
        "handle a: step a | erase a / plain",
        "handle a: step a | counts / plain",
        "handle a: step a | count a / plain",
        "handle a: step a | step a / reenters",
        "handle a: step a | step a / reenters to erase",
        "handle a: step a | step a / raises",
        "handle a: step a | step a / interrupts",
        "handle a: step a | step a / raises, interrupts",
        "handle a: step a ^ step a / plain",
        "handle a: step a; step a ^ increment a; erase a / reenters",
        "handle a: step a ^ step a | step a / plain",
        "increment a ^ increment a | erase a",
        "handle a: erase a ^ init a | step a",
        "handle a: step a; step a ^ step a; step a / raises, interrupts",
    ],
)
def test_a_picked_program(passes: Passes, program: str) -> None:
    passes([program], 500)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_few_random_programs(passes: Passes, shape: str, number: int) -> None:
    random = Random(f"{shape} {number}")
    passes((sample(random, shape) for _ in range(5)), SHAPES[shape])


@pytest.mark.explore
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize(
    ("requesters", "before", "most", "limit"),
    [
        ("a", "", 2, 50),
        ("a", "handle a", 2, 50),
        ("a", "handle a; erase a", 2, 50),
        ("ab", "", 2, 50),
        ("ab", "handle a; handle b", 2, 50),
        ("a", "", 3, 5),
        ("a", "handle a", 3, 5),
    ],
)
def test_every_program_of_two_threads(
    passes: Passes, requesters: str, before: str, most: int, limit: int, part: int
) -> None:
    passes(islice(two_threads(requesters, before, most), part, None, 16), limit * EFFORT)


@pytest.mark.explore
@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize("shape", SHAPES)
def test_many_random_programs(passes: Passes, shape: str, number: int) -> None:
    random = Random(f"many {shape} {number}")
    passes((sample(random, shape) for _ in range(20 * EFFORT)), SHAPES[shape] * EFFORT)
