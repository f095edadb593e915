"""The sdist and the wheel: what they hold, what is installed from them, and which types it shows.

Each test builds in an environment of its own, which takes a while, and what comes out does not
depend on the Python that asks. So these run once, by ``tox run -e package``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).parent.parent
READABLE = {
    f"kineto_step_tracker/{name}"
    for name in (
        *("_atomic.py", "_atomic.pyx", "_atomic.pxd"),
        *("tracker.py", "tracker.pxd", "drop_in.py"),
        "py.typed",
    )
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, as git has it, so that builds leave nothing in the working tree."""
    copy = tmp_path_factory.mktemp("build") / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


def build(sources: Path, kind: str, **environment: str) -> Path:
    """Build an sdist or a wheel."""
    target = sources.parent / "".join([kind, *environment])
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--outdir", str(target), str(sources)],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    (archive,) = target.iterdir()
    return archive


@pytest.fixture(scope="module")
def sdist(sources: Path) -> Path:
    return build(sources, "sdist")


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    return build(sources, "wheel")


def files(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_sdist_holds_sources_only(sdist: Path) -> None:
    with tarfile.open(sdist) as tar:
        names = {name.partition("/src/")[2] for name in tar.getnames()}
    assert names >= READABLE
    assert not [name for name in names if name.endswith((".cpp", ".so"))]


def test_the_wheel_brings_what_a_reader_needs_and_no_generated_code(wheel: Path) -> None:
    names = files(wheel)
    assert names >= READABLE
    assert [name for name in names if name.endswith(".so")]
    assert not [name for name in names if name.endswith(".cpp")]


def test_the_description_on_pypi_has_no_link_that_leads_nowhere_there(wheel: Path) -> None:
    (metadata,) = [name for name in files(wheel) if name.endswith("/METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "KinetoStepTracker" in text
    assert re.findall(r"\]\((?!https://).*", text) == []


def test_with_extensions_switched_off_the_wheel_has_none(sources: Path) -> None:
    names = files(build(sources, "wheel", KINETO_STEP_TRACKER_NO_EXTENSIONS="1"))
    assert names >= READABLE
    assert not [name for name in names if name.endswith(".so")]


class Environment:
    """A virtual environment into which an archive has been installed, with the command."""

    def __init__(self, folder: Path, archive: Path, **environment: str) -> None:
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"
        subprocess.run(
            [self.python, "-m", "pip", "install", f"{archive}[cli]"],
            check=True,
            capture_output=True,
            env={**os.environ, **environment},
        )

    def doctor(self) -> dict[str, dict[str, Any]]:
        command = self.python.with_name("kineto-step-tracker")
        done = subprocess.run([command, "doctor", "--json"], check=True, capture_output=True)
        found: dict[str, dict[str, Any]] = json.loads(done.stdout)
        return found


def test_the_sdist_installs_without_a_compiler(sdist: Path, tmp_path: Path) -> None:
    found = Environment(tmp_path, sdist, CC="no-such-compiler", CXX="no-such-compiler").doctor()
    assert found["backend"]["value"] == "portable"
    assert "the extension was not built" in found["backend"]["meaning"]


def test_the_wheel_installs_and_shows_its_types_to_editors(wheel: Path, tmp_path: Path) -> None:
    installed = Environment(tmp_path, wheel)
    found = installed.doctor()
    assert (found["backend"]["value"], found["backend"]["mend"]) == ("native", None)
    # Away from the sources, so that what Pyright sees is what was installed, compiled modules too.
    program = tmp_path / "types_shown.py"
    program.write_bytes((ROOT / "tests" / "types_shown.py").read_bytes())
    seen = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", str(installed.python), str(program)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "0 errors, 0 warnings" in seen.stdout, seen.stdout + seen.stderr
