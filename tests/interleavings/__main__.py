"""``python -m tests.interleavings PROGRAM [SEED]``: explore a program, or replay one schedule.

How a program is written is in programs.py; a failing schedule prints its seed.
"""

from __future__ import annotations

import sys

from .programs import examine, replay

match sys.argv[1:]:
    case [program, seed]:
        print(replay(program, seed))
    case [program] if not program.startswith("-"):
        outcome = examine(program)
        print(outcome.failure or f"as specified under all {outcome.schedules} schedules")
        sys.exit(bool(outcome.failure))
    case _:
        sys.exit(__doc__)
