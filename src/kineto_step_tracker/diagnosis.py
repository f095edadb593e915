"""What the tracker stands on here, what that costs, and how to mend it: for the doctor.

It imports the standard library and the package's face. It never raises for what it finds, and
looks at PyTorch from a process of its own, so that a broken one, a crash included, is a finding.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypedDict

import kineto_step_tracker

_SECONDS_TO_IMPORT_TORCH = 120
_NO_EXTENSIONS = "KINETO_STEP_TRACKER_NO_EXTENSIONS"
_NAME = "kineto-step-tracker"
_REINSTALL = f"pip install --force-reinstall --no-deps --no-binary {_NAME} {_NAME}"


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Args:
        topic: what was looked at, one word.
        value: the answer for a program.
        meaning: the answer for a person, a sentence without its full stop.
        mend: where it costs the user something, the sentence that says how to mend it.
    """

    topic: str
    value: str | bool | None
    meaning: str
    mend: str | None = None


def diagnose() -> list[Finding]:
    """Look at everything that the tracker's use depends on. Takes as long as ``import torch``."""
    torch = _look_at_torch()
    there_is_torch = isinstance(torch, str) or torch["version"] is not None
    return [
        _version(),
        _backend(kineto_step_tracker.backend),
        _atomics(kineto_step_tracker.backend),
        _python(),
        *_gil(bool(sysconfig.get_config_var("Py_GIL_DISABLED"))),
        *_pytorch(torch),
        _daemon(os.environ.get("KINETO_USE_DAEMON"), there_is_torch),
        _installed(there_is_torch),
        _demo(),
    ]


def _version() -> Finding:
    version = _version_of(_NAME)
    folder = Path(kineto_step_tracker.__file__).parent
    return Finding("version", version, f"{_NAME} {version or 'unknown'} in {folder}")


def _backend(backend: str) -> Finding:
    if backend == "native":
        return Finding("backend", backend, "native: the compiled extension, C++ atomics")
    extensions = _extensions()
    if extensions:
        why = f"the extension beside it, {extensions[0].name}, was built for another Python"
        mend = f"build it for this Python: {_REINSTALL}"
    elif os.environ.get(_NO_EXTENSIONS, "0") not in ("", "0"):
        why = f"{_NO_EXTENSIONS} is set, which keeps the extension from being built"
        mend = f"unset {_NO_EXTENSIONS}, then {_REINSTALL}"
    elif _compiler() is None:
        why = "the extension was not built, and there is no C++ compiler"
        mend = f"install a C++ compiler, then {_REINSTALL}"
    else:
        why = f"the extension was not built, though there is a C++ compiler, {_compiler()}"
        mend = _REINSTALL
    cost = "portable, where an increment takes microseconds, not nanoseconds"
    return Finding("backend", backend, f"{cost}: {why}", mend)


def _extensions() -> list[Path]:
    folder = Path(kineto_step_tracker.__file__).parent
    return [path for path in folder.glob("_atomic.*") if path.suffix in (".so", ".pyd")]


def _compiler() -> str | None:
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    return shutil.which(command.split()[0])


def _atomics(backend: str) -> Finding:
    version = _version_of("atomics")
    use = "which the native backend does without" if backend == "native" else "in use"
    return Finding("atomics", version, f"atomics {version or 'not installed'}, {use}")


def _python() -> Finding:
    version = platform.python_version()
    implementation, machine = platform.python_implementation(), platform.machine()
    return Finding(
        "python", version, f"{implementation} {version} on {platform.system()} {machine}"
    )


def _gil(free_threaded: bool) -> list[Finding]:
    # Where the function is missing, there is nothing to switch.
    on: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    build = Finding(
        "build",
        "free-threaded" if free_threaded else "gil",
        "a free-threaded build" if free_threaded else "a build with the GIL, not free-threaded",
    )
    if on and free_threaded:
        return [
            build,
            Finding(
                "gil",
                on,
                "on, though this build can do without it: threads take turns",
                "start Python with PYTHON_GIL=0; if an extension module has switched the GIL on, "
                "a warning at its import names it",
            ),
        ]
    return [
        build,
        Finding("gil", on, "on: threads take turns" if on else "off: threads run at once"),
    ]


class _Torch(TypedDict):
    """What a process of its own has found out about PyTorch."""

    version: str | None
    kineto: bool
    misfit: str | None


def _look_at_torch() -> _Torch | str:
    """Return what was found, or why PyTorch cannot be imported."""
    look = "import kineto_step_tracker.diagnosis as d; d._print_what_torch_is()"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", look],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS_TO_IMPORT_TORCH,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode < 0:
        return f"it ends the process: {signal.strsignal(-done.returncode)}"
    last_line = (done.stderr if done.returncode else done.stdout).strip().rpartition("\n")[2]
    if done.returncode and last_line:
        return last_line
    try:
        found: _Torch = json.loads(last_line)
    except ValueError:
        return f"it ends the process with status {done.returncode}"
    return found


def _print_what_torch_is() -> None:
    found = _Torch(version=None, kineto=False, misfit=None)
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    else:
        found["version"] = str(torch.__version__)
        found["kineto"] = torch.autograd.kineto_available()  # type: ignore[attr-defined]
        try:
            from kineto_step_tracker import pytorch

            with pytorch.installed(kineto=False):
                pass
        except Exception as error:
            found["misfit"] = str(error)
    print(json.dumps(found))


def _pytorch(torch: _Torch | str) -> list[Finding]:
    if isinstance(torch, str):
        return [
            Finding(
                "torch",
                _version_of("torch"),
                f"PyTorch cannot be imported: {torch}",
                "pip install --force-reinstall torch",
            ),
            Finding("kineto", None, "unknown, since PyTorch cannot be imported"),
            Finding("hook", None, "unknown, since PyTorch cannot be imported"),
        ]
    if torch["version"] is None:
        return [
            Finding(
                "torch",
                None,
                "PyTorch is not installed: steps are counted, and no profiler hears of them",
                "pip install 'kineto-step-tracker[torch]'",
            ),
            Finding("kineto", None, "comes with PyTorch"),
            Finding("hook", None, "needs PyTorch"),
        ]
    kineto, misfit = torch["kineto"], torch["misfit"]
    return [
        Finding("torch", torch["version"], f"PyTorch {torch['version']}"),
        Finding("kineto", True, "built into this PyTorch")
        if kineto
        else Finding(
            "kineto",
            False,
            "not built into this PyTorch: steps are counted, and no profiler hears of them",
            "install one of the builds from https://pytorch.org/get-started",
        ),
        Finding("hook", True, "kineto_step_tracker.pytorch.install() works with this PyTorch")
        if misfit is None
        else Finding(
            "hook",
            False,
            f"kineto_step_tracker.pytorch.install() fails: {misfit}",
            "pip install --upgrade kineto-step-tracker torch",
        ),
    ]


def _daemon(setting: str | None, there_is_torch: bool) -> Finding:
    meaning, mend = f"KINETO_USE_DAEMON={setting}: Kineto is told of every step", None
    if not setting:
        meaning = (
            "KINETO_USE_DAEMON is not set: Kineto is not told of steps, and traces by iterations "
            "cannot be asked for"
        )
        mend = "for such traces, set KINETO_USE_DAEMON=1 before the training program starts"
    elif setting == "0":
        meaning = "KINETO_USE_DAEMON=0 means on: PyTorch only asks whether it is set"
        mend = "if it is meant to be off, unset KINETO_USE_DAEMON"
    return Finding("daemon", setting, meaning, mend if there_is_torch else None)


def _installed(there_is_torch: bool) -> Finding:
    pytorch = sys.modules.get("kineto_step_tracker.pytorch")
    if pytorch is not None and pytorch.is_installed():
        return Finding("installed", True, "the tracker is in the PyTorch of this process")
    return Finding(
        "installed",
        False,
        "whether the tracker is installed cannot be seen from here: your training program is "
        "another process",
        "there, kineto_step_tracker.pytorch.is_installed() tells; if it is False, call install()"
        if there_is_torch
        else None,
    )


def _demo() -> Finding:
    versions = {name: _version_of(name) for name in ("numpy", "scikit-learn")}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding(
            "demo",
            False,
            f"the demo cannot run without {' and '.join(missing)}",
            "pip install 'kineto-step-tracker[demo]'",
        )
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding("demo", True, f"the demo can run: {found}")


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
