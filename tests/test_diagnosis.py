"""The doctor's findings, with PyTorch whole, broken and missing; nothing that is found raises."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import kineto_step_tracker
from kineto_step_tracker import diagnosis
from kineto_step_tracker.diagnosis import Finding, diagnose

MISSING = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'

OLD = """
import types
print("hello from torch")
__version__ = "1.0"
autograd = types.SimpleNamespace(kineto_available=lambda: False)
"""


@pytest.fixture
def torch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that new processes import as torch."""
    package = tmp_path / "torch"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "__init__.py"


def findings() -> dict[str, Finding]:
    return {finding.topic: finding for finding in diagnose()}


def test_every_topic_is_found_once_and_can_be_written_as_json(torch_is: Path) -> None:
    torch_is.write_text(MISSING)
    found = diagnose()
    assert [finding.topic for finding in found] == [
        *("version", "backend", "atomics", "python", "build", "gil"),
        *("torch", "kineto", "hook", "daemon", "installed", "demo"),
    ]
    for finding in found:
        assert json.loads(json.dumps(finding.value)) == finding.value
        assert finding.meaning
        assert not finding.meaning.endswith(".")


def test_the_values_are_those_of_this_process(torch_is: Path) -> None:
    torch_is.write_text(MISSING)
    found = findings()
    assert found["version"].value == metadata.version("kineto-step-tracker")
    assert found["backend"].value == kineto_step_tracker.backend
    assert found["python"].value == platform.python_version()
    assert found["gil"].value == getattr(sys, "_is_gil_enabled", lambda: True)()


def test_pytorch_as_it_is_installed() -> None:
    torch = pytest.importorskip("torch", reason="looks at PyTorch as it is installed")
    found = findings()
    assert found["torch"].value == torch.__version__
    assert found["kineto"].value == torch.autograd.kineto_available()
    assert found["hook"] == Finding(
        "hook", True, "kineto_step_tracker.pytorch.install() works with this PyTorch"
    )


def test_pytorch_missing(torch_is: Path) -> None:
    torch_is.write_text(MISSING)
    found = findings()
    assert found["torch"].value is None
    assert found["torch"].mend == "pip install 'kineto-step-tracker[torch]'"
    assert (found["kineto"].value, found["hook"].value) == (None, None)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise OSError('libtorch_cpu.so: cannot open')", "OSError: libtorch_cpu.so: cannot open"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import os; os.kill(os.getpid(), 11)", "it ends the process: Segmentation fault"),
        ("import os; os._exit(3)", "it ends the process with status 3"),
        ("import os; os._exit(0)", "it ends the process with status 0"),
    ],
)
def test_pytorch_that_cannot_be_imported(torch_is: Path, source: str, why: str) -> None:
    torch_is.write_text(source)
    found = findings()
    assert found["torch"].meaning == f"PyTorch cannot be imported: {why}"
    assert found["torch"].mend == "pip install --force-reinstall torch"
    assert (found["kineto"].value, found["hook"].value) == (None, None)


def test_pytorch_whose_import_hangs(torch_is: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_is.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(diagnosis, "_SECONDS_TO_IMPORT_TORCH", 0.5)
    assert "timed out after 0.5 seconds" in findings()["torch"].meaning


def test_pytorch_that_is_talkative_has_no_kineto_and_does_not_fit(torch_is: Path) -> None:
    torch_is.write_text(OLD)
    found = findings()
    assert found["torch"] == Finding("torch", "1.0", "PyTorch 1.0")
    assert found["kineto"].value is False
    assert found["kineto"].mend is not None
    assert found["hook"].value is False
    assert found["hook"].meaning.startswith("kineto_step_tracker.pytorch.install() fails: ")
    assert found["hook"].mend is not None


@pytest.mark.parametrize(
    ("setting", "mended"), [(None, True), ("", True), ("0", True), ("1", False), ("yes", False)]
)
def test_kineto_use_daemon(
    torch_is: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, mended: bool
) -> None:
    torch_is.write_text(OLD)
    monkeypatch.delenv("KINETO_USE_DAEMON", raising=False)
    if setting is not None:
        monkeypatch.setenv("KINETO_USE_DAEMON", setting)
    found = findings()["daemon"]
    assert found.value == setting
    assert (found.mend is not None) == mended


def test_without_pytorch_only_pytorch_itself_is_to_be_mended(
    torch_is: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_is.write_text(MISSING)
    monkeypatch.delenv("KINETO_USE_DAEMON", raising=False)
    found = findings()
    assert {
        topic for topic in ("torch", "kineto", "hook", "daemon", "installed") if found[topic].mend
    } == {"torch"}


def test_whether_the_tracker_is_in_the_pytorch_of_this_process(torch_is: Path) -> None:
    pytest.importorskip("torch", reason="installs into PyTorch")
    from kineto_step_tracker import pytorch

    torch_is.write_text(OLD)
    with pytorch.installed():
        inside = findings()["installed"]
    assert (inside.value, inside.mend) == (True, None)
    outside = findings()["installed"]
    assert outside.value is False
    assert outside.mend is not None
    assert "kineto_step_tracker.pytorch.is_installed() tells" in outside.mend


@pytest.mark.parametrize(
    ("files", "environment", "why", "mend"),
    [
        (
            ["_atomic.cpython-30-x86_64-linux-gnu.so"],
            {},
            "the extension beside it, _atomic.cpython-30-x86_64-linux-gnu.so, was built for",
            "build it for this Python: pip install",
        ),
        (
            [],
            {"KINETO_STEP_TRACKER_NO_EXTENSIONS": "1"},
            "KINETO_STEP_TRACKER_NO_EXTENSIONS is set",
            "unset KINETO_STEP_TRACKER_NO_EXTENSIONS, then pip install",
        ),
        ([], {"CXX": "no-such-compiler"}, "there is no C++ compiler", "install a C++ compiler"),
        ([], {"CXX": sys.executable}, f"there is a C++ compiler, {sys.executable}", "pip install"),
    ],
)
def test_why_the_backend_is_portable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    environment: dict[str, str],
    why: str,
    mend: str,
) -> None:
    monkeypatch.setattr(kineto_step_tracker, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(kineto_step_tracker, "backend", "portable")
    monkeypatch.delenv("KINETO_STEP_TRACKER_NO_EXTENSIONS", raising=False)
    for name, setting in environment.items():
        monkeypatch.setenv(name, setting)
    for name in (*files, "_atomic.py", "_atomic.pyx"):
        (tmp_path / name).touch()
    found = diagnosis._backend("portable")
    assert found.value == "portable"
    assert "microseconds" in found.meaning
    assert why in found.meaning
    assert found.mend is not None
    assert found.mend.startswith(mend)


def test_a_gil_that_is_on_in_a_free_threaded_build_is_to_be_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    build, gil = diagnosis._gil(free_threaded=True)
    assert (build.value, gil.value) == ("free-threaded", True)
    assert gil.mend is not None
    assert "PYTHON_GIL=0" in gil.mend


@pytest.mark.parametrize(("free_threaded", "on"), [(True, False), (False, True)])
def test_a_gil_as_it_is_meant_to_be_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, free_threaded: bool, on: bool
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: on, raising=False)
    build, gil = diagnosis._gil(free_threaded)
    assert build.value == ("free-threaded" if free_threaded else "gil")
    assert (gil.value, gil.mend) == (on, None)


def test_packages_that_are_missing_are_findings(
    torch_is: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(distribution: str) -> str:
        raise metadata.PackageNotFoundError(distribution)

    torch_is.write_text(MISSING)
    monkeypatch.setattr(metadata, "version", missing)
    found = findings()
    assert (found["version"].value, found["atomics"].value) == (None, None)
    assert found["demo"].value is False
    assert found["demo"].meaning == "the demo cannot run without numpy and scikit-learn"
    assert found["demo"].mend == "pip install 'kineto-step-tracker[demo]'"


def test_it_imports_neither_pytorch_nor_the_extras(torch_is: Path) -> None:
    """PyTorch, broken, would take the doctor with it; what is not installed cannot be imported."""
    torch_is.write_text(MISSING)
    program = """
import sys
from kineto_step_tracker.diagnosis import diagnose
diagnose()
print(sorted({"torch", "numpy", "sklearn", "typer", "rich"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.stdout == "[]\n"
