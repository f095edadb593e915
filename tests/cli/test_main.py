"""What all commands share: help, the version, errors, a missing extra, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kineto_step_tracker.cli import main, needing

from .running import RUN, command


def test_help_names_every_command_and_every_option() -> None:
    helped = command("--help")
    assert helped.returncode == 0
    for name in ("bench", "demo", "doctor", "fleet", "stress", "trace", "--version", "--help"):
        assert f"  {name}" in helped.stdout or f", {name}" in helped.stdout


def test_the_version() -> None:
    asked = command("--version")
    assert (asked.returncode, asked.stdout) == (
        0,
        f"kineto-step-tracker {version('kineto-step-tracker')}\n",
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_in_one_line_what_to_install(missing: str) -> None:
    refused = command("demo", without=(missing,))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert missing in refused.stderr
    assert refused.stderr.endswith("; pip install 'kineto-step-tracker[cli]'\n")


def test_an_import_that_fails_in_the_package_itself_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ImportError), needing("demo"):
        from kineto_step_tracker import no_such_thing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("libtorch_cpu.so: no such file"), "libtorch_cpu.so: no such file"),
        (ImportError("\n\nIMPORTANT: read this\nand that\n"), "IMPORTANT: read this"),
        (ImportError(), "ImportError"),
    ],
)
def test_a_broken_extra_is_one_line_too(error: Exception, line: str) -> None:
    with pytest.raises(SystemExit) as stopped, needing("torch"):
        raise error
    assert stopped.value.code == (
        f"kineto-step-tracker: {line}; pip install 'kineto-step-tracker[torch]'"
    )


def test_ctrl_c_in_an_import_comes_at_its_end() -> None:
    """PyTorch's C++ loses it, or dies of it."""
    before = signal.getsignal(signal.SIGINT)
    imported = []

    def import_() -> None:
        signal.raise_signal(signal.SIGINT)
        imported.append("torch")

    with pytest.raises(KeyboardInterrupt), needing("torch"):
        import_()
    assert imported == ["torch"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_the_command_is_still_being_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(extra: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kineto_step_tracker.cli.needing", interrupt)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "Invalid value for '--threads': '0' is not a whole number from 1 to"),
        (["--threads", "257"], "Invalid value for '--threads': '257' is not a whole number from 1"),
        (["--threads", "two"], "Invalid value for '--threads': 'two' is not a whole number from"),
        (["--iterations", "0"], "Invalid value for '--iterations': '0' is not a whole number fro"),
        (["--iterations", "1.5"], "Invalid value for '--iterations': '1.5' is not a whole number"),
        (["--seed", "-1"], "Invalid value for '--seed': '-1' is not a whole number from 0 up"),
        (["--iteration", "5"], "--iteration"),
    ],
)
def test_a_bad_option_is_named_with_what_came_and_what_was_expected(
    arguments: list[str], message: str
) -> None:
    refused = command("demo", *arguments)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_named_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", RUN, "doctor"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "kineto-step-tracker: the output cannot be written: No space left on device\n"
    )
