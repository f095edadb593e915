# Types for tracker.py, compiled on the native substrate. Types only.

from libc.stdint cimport int64_t
cimport cython

from kineto_step_tracker cimport _atomic
from kineto_step_tracker._atomic cimport AtomicInt64, CellMap

cdef int64_t _FRESH
cdef int64_t _RETIRED
cdef int64_t _NOBODY


@cython.final
cdef class StepTracker:
    cdef object __weakref__
    cdef object _on_step
    cdef CellMap _cells
    cdef AtomicInt64 _global_max
    cdef AtomicInt64 _dispatched
    cdef AtomicInt64 _baton

    @cython.locals(count=int64_t)
    cpdef int64_t increment_step(self, object requester) except -1
    @cython.locals(cell=AtomicInt64, count=int64_t, step=int64_t)
    cpdef object init_step_count(self, object requester)
    @cython.locals(cell=AtomicInt64, count=int64_t)
    cpdef bint erase_step_count(self, object requester) except -1
    cpdef int64_t current_step(self) except -1
    @cython.locals(cell=AtomicInt64, count=int64_t)
    cpdef Requester requester(self, object name)
    @cython.locals(cell=AtomicInt64, count=int64_t)
    cpdef dict step_counts(self)
    @cython.locals(cell=AtomicInt64)
    cpdef object reset(self, object step=*)

    @cython.locals(cell=AtomicInt64, before=int64_t)
    cpdef object _assign(self, object requester, object count, bint known=*)
    @cython.locals(cell=AtomicInt64, count=int64_t)
    cpdef object _assign_step(self, object step)

    @cython.locals(step=int64_t)
    cdef int64_t _reach(self, int64_t count) except -1
    cdef int64_t _raise_to(self, int64_t count, int64_t step) except -1
    @cython.locals(cell=AtomicInt64)
    cdef AtomicInt64 _cell_of(self, str name)
    @cython.locals(cell=AtomicInt64, count=int64_t, first=int64_t)
    cdef int64_t _count_afresh(self, str name) except -1
    @cython.locals(current=AtomicInt64, count=int64_t)
    cdef object _count_of(self, str name, AtomicInt64 cell)
    @cython.locals(me=int64_t, errors=list)
    cdef int _dispatch(self) except -1
    @cython.locals(step=int64_t)
    cdef list _run_callbacks(self, list errors)
    cdef int _free_baton(self, int64_t me) except -1
    cdef int _free_what_the_dead_hold(self) except -1


@cython.final
cdef class Requester:
    cdef StepTracker _tracker
    cdef str _name
    cdef AtomicInt64 _cell

    @cython.locals(count=int64_t)
    cpdef int64_t increment(self) except -1
    @cython.locals(count=int64_t)
    cpdef bint _count_if_registered(self) except -1
    cpdef bint erase(self) except -1


@cython.locals(handle=Requester)
cdef Requester _make_requester(StepTracker tracker, str name, AtomicInt64 cell)
@cython.locals(tracker=StepTracker)
cdef object _free_what_the_dead_hold()
