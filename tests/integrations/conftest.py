"""PyTorch and the tracker as new for every test."""

from tests.pytorch.conftest import as_new, kineto

__all__ = ["as_new", "kineto"]
