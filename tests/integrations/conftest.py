"""PyTorch and the tracker as new for every test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.pytorch.conftest import as_new, kineto

__all__ = ["as_new", "kineto"]


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Keep what frameworks make when imported from being searched for garbage in every test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
