"""The sdist and the wheels: what they hold, and that they can be built without a compiler.

Each test builds in an environment of its own, which takes a while, and what comes out does not
depend on the Python that asks. So these run once, by ``tox run -e package``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).parent.parent


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


def build(sources: Path, kind: str, **environment: str) -> set[str]:
    """Build an sdist or a wheel, and return the names in it."""
    target = sources.parent / "".join([kind, *environment])
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--outdir", str(target), str(sources)],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    (archive,) = target.iterdir()
    if kind == "wheel":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as tar:
        return {name.partition("/src/")[2] for name in tar.getnames()}


READABLE = {
    f"kineto_step_tracker/{name}"
    for name in (
        *("_atomic.py", "_atomic.pyx", "_atomic.pxd"),
        *("tracker.py", "tracker.pxd", "drop_in.py"),
        "py.typed",
    )
}


def test_the_sdist_holds_sources_only(sources: Path) -> None:
    names = build(sources, "sdist")
    assert names >= READABLE
    assert not [name for name in names if name.endswith((".cpp", ".so"))]


def test_the_wheel_brings_what_a_reader_needs_and_no_generated_code(sources: Path) -> None:
    names = build(sources, "wheel")
    assert names >= READABLE
    assert not [name for name in names if name.endswith(".cpp")]


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"KINETO_STEP_TRACKER_NO_EXTENSIONS": "1"}, id="switched off"),
        pytest.param({"CC": "false", "CXX": "false"}, id="no compiler"),
    ],
)
def test_without_extensions_the_wheel_is_still_built(
    sources: Path, environment: dict[str, str]
) -> None:
    names = build(sources, "wheel", **environment)
    assert names >= READABLE
    assert not [name for name in names if name.endswith(".so")]
