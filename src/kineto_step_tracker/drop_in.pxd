# Types for drop_in.py, compiled on the native substrate. Types only.

from kineto_step_tracker.tracker cimport StepTracker

cdef StepTracker _tracker


cdef class _ClassMethods:
    pass
