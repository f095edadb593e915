"""The package as a whole: what it imports, which substrate it runs on, its doctests."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kineto_step_tracker
from kineto_step_tracker import backend, drop_in, on_demand, stress, textbook, tracker
from kineto_step_tracker.on_demand import request


def in_new_python(program: str) -> Any:
    """Run a program that prints JSON in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_the_backend_is_the_one_that_was_built() -> None:
    compiled = not Path(str(tracker.__file__)).name.endswith(".py")
    assert backend == ("native" if compiled else "portable")
    assert backend == os.environ.get("EXPECTED_BACKEND", backend)


def test_importing_loads_the_four_rooms_and_no_more() -> None:
    loaded = in_new_python(
        "import json, sys; bare = set(sys.modules); import kineto_step_tracker; "
        "print(json.dumps(sorted(set(sys.modules) - bare)))"
    )
    ours = {name for name in loaded if name.startswith("kineto_step_tracker")}
    assert ours == {
        "kineto_step_tracker",
        "kineto_step_tracker._atomic",
        "kineto_step_tracker.drop_in",
        "kineto_step_tracker.tracker",
    }
    assert "torch" not in loaded
    # typing would take twice as long to import as all that the compiled package needs.
    for module in ("atomics", "typing"):
        assert (module in loaded) == (backend == "portable")


def test_importing_leaves_the_gil_off_where_it_is_off() -> None:
    program = """
import json, sys
enabled = getattr(sys, "_is_gil_enabled", lambda: True)
before = enabled()
import contextlib, importlib, pkgutil, kineto_step_tracker
for module in pkgutil.walk_packages(kineto_step_tracker.__path__, "kineto_step_tracker."):
    with contextlib.suppress(ImportError):
        importlib.import_module(module.name)
print(json.dumps([before, enabled()]))
"""
    before, after = in_new_python(program)
    assert before == after


@pytest.mark.parametrize(
    "module", [kineto_step_tracker, tracker, drop_in, textbook, stress, on_demand, request]
)
def test_doctests(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    "thing",
    [
        kineto_step_tracker.StepTracker,
        kineto_step_tracker.Requester,
        kineto_step_tracker.KinetoStepTracker,
    ],
)
def test_every_public_name_is_documented_and_has_a_signature(thing: type) -> None:
    for name, member in inspect.getmembers(thing):
        if name.startswith("_"):
            continue
        assert inspect.getdoc(member), name
        if callable(member):
            assert "cls" not in inspect.signature(member).parameters, name
