"""Builds the extension modules, all of them or none. Used by setuptools, never at run time.

An algorithm compiled against a substrate that is not, or the other way round, would not even
import. So where one module cannot be built, or ``KINETO_STEP_TRACKER_NO_EXTENSIONS`` asks for
it, there is none, and the package runs on its portable substrate.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools.command.build_ext import build_ext

SWITCH = "KINETO_STEP_TRACKER_NO_EXTENSIONS"


class BuildAllOrNone(build_ext):
    def run(self) -> None:
        if os.environ.get(SWITCH, "0") not in ("", "0"):
            self.extensions = []
        super().run()
        built = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if not all(path.exists() for path in built):
            self.warn("no extension module: the portable substrate, right but slow, is used")
            for path in built:
                path.unlink(missing_ok=True)
            self.extensions = []
