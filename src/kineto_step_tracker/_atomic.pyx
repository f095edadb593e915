# cython: language_level=3, binding=False, freethreading_compatible=True
"""What the algorithm stands on, native: C++ ``std::atomic``, on cache lines of its own.

The portable twin ``_atomic.py`` says what each name means and promises. Here an operation
runs no Python code and gives up neither the GIL nor, on free-threaded builds, its place in
the middle, so that neither a signal handler nor a fork ever sees half of one.
"""

import os

from cpython.object cimport PyObject

cdef extern from *:
    """
    // With the GIL, the two steps of CellMap.discard() are one already.
    #ifdef Py_GIL_DISABLED
    static PyMutex kst_discarding;
    static void kst_lock_discarding(void) { PyMutex_Lock(&kst_discarding); }
    static void kst_unlock_discarding(void) { PyMutex_Unlock(&kst_discarding); }
    #else
    static void kst_lock_discarding(void) {}
    static void kst_unlock_discarding(void) {}
    #endif

    // A thread that waited for an object's lock owns it before it wakes up. In the child of a
    // fork it never wakes up, and CPython does not take the lock from it.
    static void kst_free_dead_lock(PyObject *shared) {
    #ifdef Py_GIL_DISABLED
        shared->ob_mutex = (PyMutex){0};
    #else
        (void)shared;
    #endif
    }

    static void kst_defer_reference_counts(PyObject *shared) {
    #if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
        PyUnstable_Object_EnableDeferredRefcount(shared);
    #else
        (void)shared;
    #endif
    }

    // A count this high makes an object immortal: nobody counts its references again.
    static void kst_keep_for_ever(PyObject *shared) {
    #ifdef Py_GIL_DISABLED
        Py_SET_REFCNT(shared, PY_SSIZE_T_MAX);
    #else
        (void)shared;
    #endif
    }
    """
    void kst_lock_discarding()
    void kst_unlock_discarding()
    void kst_free_dead_lock(object shared)
    void kst_defer_reference_counts(object shared)
    void kst_keep_for_ever(object shared)
    object kst_dict_value "kst_dict_find" (PyObject *shared, object name)

backend = "native"


def _lock_discarding():
    kst_lock_discarding()


def _unlock_discarding():
    kst_unlock_discarding()


if hasattr(os, "register_at_fork"):
    # A thread may be put to sleep while it holds the mutex; a fork waits for it, so that the
    # child never finds it taken.
    os.register_at_fork(
        before=_lock_discarding,
        after_in_parent=_unlock_discarding,
        after_in_child=_unlock_discarding,
    )


cdef class AtomicInt64:
    def __cinit__(self, int64_t value):
        self._value.store(value)


cdef class CellMap:
    def __cinit__(self):
        self._cells = {}

    cpdef AtomicInt64 find_or_add(self, str name, AtomicInt64 cell):
        return <AtomicInt64>self._cells.setdefault(name, cell)

    cpdef int discard(self, str name, AtomicInt64 cell) except -1:
        kst_lock_discarding()
        try:
            if self.find(name) is cell:
                del self._cells[name]
        finally:
            kst_unlock_discarding()
        return 0

    cpdef dict snapshot(self):
        return self._cells.copy()

    cdef int free_dead_lock(self) except -1:
        kst_free_dead_lock(self._cells)
        return 0


cdef int defer_reference_counts(object shared) except -1:
    kst_defer_reference_counts(shared)
    return 0


def keep_for_ever(shared):
    kst_keep_for_ever(shared)
    return shared


def dict_get(shared, name):
    if type(shared) is not dict:
        return shared.get(name)
    # On free-threaded 3.13 the method get() locks the dict. The look-up in it does without, but
    # if it meets another string that this thread cannot take a reference to, it locks the dict
    # once more, and to wait for itself takes it 16 microseconds.
    return kst_dict_value(<PyObject *>shared, name)
