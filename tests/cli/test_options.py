"""Kinds of option values: what the commands' own tests do not reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from kineto_step_tracker.cli.options import new_file


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_that_may_not_be_written_is_refused(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    path.write_text("") if exists else None
    # To root, as which these tests may run, nothing is forbidden.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(typer.BadParameter, match="cannot be written: permission denied"):
        new_file(str(path))


def test_a_file_is_not_touched_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    assert new_file(str(path)) == path
    assert not path.exists()
