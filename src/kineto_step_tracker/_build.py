"""Builds the extension modules, all of them or none. Used by setuptools, never at run time.

An algorithm compiled against a substrate that is not, or the other way round, would not even
import. So where one module cannot be built, or ``KINETO_STEP_TRACKER_NO_EXTENSIONS`` asks for
it, there is none, and the package runs on its portable substrate.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

SWITCH = "KINETO_STEP_TRACKER_NO_EXTENSIONS"


class BuildAllOrNone(build_ext):
    extensions: list[Extension]

    def run(self) -> None:
        modules: list[Path] = [
            Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions
        ]
        # What an earlier build left here must not be taken for the result of this one.
        for module in modules:
            module.unlink(missing_ok=True)
        if os.environ.get(SWITCH, "0") in ("", "0"):
            super().run()
        if not all(module.exists() for module in modules):
            self.warn("no extension modules: the package will run on its slower portable substrate")
            for module in modules:
                module.unlink(missing_ok=True)
            self.extensions = []
