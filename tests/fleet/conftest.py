"""What the tests of the fleet get, and what is checked after each. Imports PyTorch late."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from .stores import Job, Proxy


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("kineto-step-tracker fleet")]


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch asks for the name of who connects, five seconds long where nobody answers."""
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    from .stores import Proxy

    proxy = Proxy()
    yield proxy
    proxy.end()


@pytest.fixture
def job(caplog: pytest.LogCaptureFixture) -> Iterator[Job]:
    from .stores import Job

    caplog.set_level(logging.INFO, logger="kineto_step_tracker.fleet")
    job = Job(caplog)
    yield job
    job.close()


@pytest.fixture(params=["HashStore", "FileStore", "TCPStore"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Give each rank its way to one and the same store."""
    from torch._C._distributed_c10d import FileStore, HashStore

    from .stores import client, host

    if request.param == "FileStore":
        return partial(FileStore, str(tmp_path / "store"))
    if request.param == "HashStore":
        store = HashStore()
        return lambda: store
    # The host stays as long as what connects to it.
    there = host()
    return lambda: client(there.port)
