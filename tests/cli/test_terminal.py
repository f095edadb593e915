"""Output fits what it is printed on, known or not."""

from __future__ import annotations

import pytest

from kineto_step_tracker.cli.terminal import console


def test_no_width_is_taken_for_an_unknown_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert console().width == 80
    monkeypatch.setenv("COLUMNS", "44")
    assert console().width == 44
