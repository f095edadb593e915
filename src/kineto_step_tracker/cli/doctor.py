"""``kineto-step-tracker doctor``: what the tracker runs on here, for a person or a program.

It imports Typer and `kineto_step_tracker.diagnosis`.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kineto_step_tracker.cli.terminal import console, say
from kineto_step_tracker.diagnosis import diagnose

_MEANING_AT = 11


def doctor(
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object to standard output and nothing else."),
    ] = False,
) -> None:
    """Say what the tracker runs on here, and how to mend what is missing.

    Whatever costs you something is followed by a line that says how to mend it.
    """
    if as_json:
        found = {
            finding.topic: {
                "value": finding.value,
                "meaning": finding.meaning,
                "mend": finding.mend,
            }
            for finding in diagnose()
        }
        print(json.dumps(found, indent=2))
        return
    out = console()
    with out.status("Looking at PyTorch..."):
        findings = diagnose()
    for finding in findings:
        say(out, f"{finding.topic:<{_MEANING_AT}}{finding.meaning}", indent=_MEANING_AT)
        if finding.mend is not None:
            say(out, f"{'':<{_MEANING_AT}}To mend it: {finding.mend}", "yellow", _MEANING_AT)
