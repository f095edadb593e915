"""Folders for Kineto's sockets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(sockets: Path) -> Path:
    return sockets
