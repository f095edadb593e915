"""Shows tox the Pythons of pyenv and of .ci/free-threaded-python. It sees those on PATH itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tox.plugin import impl

if TYPE_CHECKING:
    from tox.config.sets import ConfigSet
    from tox.session.state import State


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    discover = state.conf.options.discover
    if "PYENV_ROOT" in os.environ:
        versions = Path(os.environ["PYENV_ROOT"], "versions")
        discover += sorted(map(str, versions.glob("3.*/bin/python")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    free_threaded = cache / "kineto-step-tracker" / "python3.13t"
    # Without the marker it is half installed.
    if (free_threaded / "installed").exists():
        discover.append(str(free_threaded / "bin" / "python3.13t"))
