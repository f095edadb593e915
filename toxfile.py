"""Shows tox the Pythons that pyenv keeps. tox itself sees only those on PATH."""

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
    if "PYENV_ROOT" in os.environ:
        versions = Path(os.environ["PYENV_ROOT"], "versions")
        state.conf.options.discover += sorted(map(str, versions.glob("3.*/bin/python")))
