"""Data races in the compiled code, as ThreadSanitizer sees them: none, and it would see them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kineto_step_tracker.stress import Scenario

from .reports import is_ours, run

if "--with-thread-sanitizer" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
    pytest.skip("this Python has no ThreadSanitizer; tox -e tsan has", allow_module_level=True)

ROOT = Path(__file__).parents[2]
HAMMER = """
import sys
from kineto_step_tracker.stress import Plan, Scenario
from kineto_step_tracker.stress.hammer import hammer

outcome = hammer(Plan(seconds=float(sys.argv[2]), scenario=Scenario(sys.argv[1])))
print(outcome)
sys.exit(bool(outcome.violations))
"""


def assert_none_is_ours(status: int, found: list[str]) -> None:
    assert status == 0
    ours = [report for report in found if is_ours(report)]
    print(f"{len(found)} reports, {len(ours)} of them with a frame of ours")
    assert not ours, ours[0]


@pytest.mark.parametrize("scenario", Scenario)
def test_under_stress(scenario: Scenario, tmp_path: Path) -> None:
    assert_none_is_ours(*run(tmp_path, "-c", HAMMER, scenario, "10"))


@pytest.mark.parametrize("tests", ["tracker/test_threads.py", "test_drop_in.py"])
def test_while_our_tests_run(tests: str, tmp_path: Path) -> None:
    assert_none_is_ours(*run(tmp_path, "-m", "pytest", str(ROOT / "tests" / tests)))


@pytest.mark.timeout(900)  # compiles on an interpreter that is some ten times slower
def test_a_race_is_seen(tmp_path: Path) -> None:
    right = "return self._value.fetch_add(amount) + amount"
    wrong = "(<int64_t *> &self._value)[0] += amount; return self._value.load()"
    sources, installed = tmp_path / "sources", tmp_path / "installed"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.so", "*.cpp"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    substrate = sources / "src" / "kineto_step_tracker" / "_atomic.pxd"
    text = substrate.read_text()
    assert text.count(right) == 1
    substrate.write_text(text.replace(right, wrong))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"),
            *("--target", str(installed), str(sources)),
        ],
        check=True,
    )
    _, found = run(tmp_path, "-c", HAMMER, "churn", "5", PYTHONPATH=str(installed))
    assert any(is_ours(report) for report in found)
