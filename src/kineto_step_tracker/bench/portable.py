"""The portable tracker, from its ``.py`` files, whatever was built.

It imports the standard library only. Where the extension is in use, this is the one way to the
portable tracker in the same process, for a comparison and for tests.
"""

from __future__ import annotations

import builtins
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_SOURCES = Path(__file__).parents[1]


def load_portable(atomics: ModuleType) -> tuple[ModuleType, ModuleType]:
    """Return the portable substrate, on this ``atomics`` package, and the tracker on it."""
    substrate, tracker = ModuleType("portable_atomic"), ModuleType("portable_tracker")
    instead = {
        "atomics": atomics,
        "kineto_step_tracker": SimpleNamespace(_atomic=substrate),
        "kineto_step_tracker._atomic": substrate,
    }

    def import_(name: str, *how: Any) -> Any:
        return instead[name] if name in instead else builtins.__import__(name, *how)

    for module, file in ((substrate, "_atomic.py"), (tracker, "tracker.py")):
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_}
        source = (_SOURCES / file).read_text(encoding="utf-8")
        exec(compile(source, str(_SOURCES / file), "exec"), vars(module))
    return substrate, tracker
