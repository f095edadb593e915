"""Each file of benchmarks/ runs, here with as few measurements as there can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# As one of the processes that pyperf would start for each row: once each, all in this one.
ONCE = ["--worker", "--loops", "1", "--values", "1", "--warmups", "0"]

# By file: what it takes besides this package, and options that make it short.
SHORT = {
    "increments.py": ("pyperf", ONCE),
    "requesters.py": ("pyperf", ONCE),
    "start_up.py": ("pyperf", ["--debug-single-value", "--quiet"]),
    "threads.py": ("rich", ["--turns", "1", "--seconds", "0.001", "--threads", "1", "2"]),
    "memory.py": ("", []),
    "optimizers.py": ("torch", ["--turns", "1"]),
    "hook_parts.py": ("torch", ["--turns", "1"]),
    "fleet.py": ("torch", ["--quick", "--ranks", "20"]),
    "fleet_increment.py": ("torch", ["--turns", "1", "--seconds", "0.01"]),
    "kineto.py": ("torch", ["--turns", "1"]),
    "table.py": ("", [str(BENCHMARKS.parent / "docs" / "benchmarks" / "gil.json")]),
}


@pytest.mark.parametrize("name", SHORT)
def test_it_runs(name: str) -> None:
    needed, options = SHORT[name]
    if needed:
        pytest.importorskip(needed, reason=f"{name} needs {needed}, not installed here")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


def test_none_is_left_out() -> None:
    """But the guard, which tox runs, and the traces, which the tests of on_demand do."""
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*SHORT, "guard.py", "traces.py"}
