"""Traces on demand: ask training that is running for a trace of so many iterations.

This package plays the part of the daemon that Kineto asks, while training runs with
``KINETO_USE_DAEMON=1``, whether a trace is wanted. It needs Linux, as Kineto's protocol does, and
no PyTorch of its own. ``request`` holds what can be asked for, ``protocol`` the datagrams and
the socket, ``session`` who was told what and how far each is, ``trace_file`` what a trace holds,
``drawing`` its picture.

>>> Request(iterations=10, start=1000).steps
'steps 1000 to 1009'
"""

from kineto_step_tracker.on_demand.protocol import DaemonRunningError
from kineto_step_tracker.on_demand.request import ACTIVITIES, Request
from kineto_step_tracker.on_demand.session import Recording, Report, State, trace
from kineto_step_tracker.on_demand.trace_file import Span, Trace, read

__all__ = [
    "ACTIVITIES",
    "DaemonRunningError",
    "Recording",
    "Report",
    "Request",
    "Span",
    "State",
    "Trace",
    "read",
    "trace",
]
