"""The page on the command shows what its commands print for ``--help``."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kineto_step_tracker.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command.md"


@pytest.mark.parametrize("name", get_command(app).commands)  # type: ignore[attr-defined]
def test_help_is_on_the_page(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], prog_name="kineto-step-tracker").output
    # Where lines are broken is up to the terminal.
    assert " ".join(shown.split()) in " ".join(PAGE.read_text().split())
