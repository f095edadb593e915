# The native substrate's types, and the operations short enough to be compiled into their
# callers. `_atomic.py` says what each means.

from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic, memory_order_release
cimport cython

cdef extern from "Python.h" nogil:
    int64_t thread_ident "PyThread_get_thread_ident" ()


@cython.final
cdef class AtomicInt64:
    # Nothing that another thread writes may share a cache line with the value, or threads on
    # separate cells slow each other down. 128 bytes, as x86 fetches lines in pairs and big
    # aarch64 cores have lines of that length: 120 on either side keep the value's own 128
    # free wherever the allocator puts it.
    cdef char _before[120]
    cdef atomic[int64_t] _value
    cdef char _after[120]

    cdef inline int64_t load(self) noexcept nogil:
        return self._value.load()

    cdef inline void store(self, int64_t value) noexcept nogil:
        self._value.store(value)

    cdef inline void store_release(self, int64_t value) noexcept nogil:
        self._value.store(value, memory_order_release)

    cdef inline int64_t add(self, int64_t amount) noexcept nogil:
        return self._value.fetch_add(amount) + amount

    cdef inline bint compare_exchange(self, int64_t expected, int64_t desired) noexcept nogil:
        return self._value.compare_exchange_strong(expected, desired)


cdef extern from *:
    """
    // A new reference to the value, or to None. Cython's own dict.get() borrows the reference
    // first, which on free-threaded builds is a use after free when another thread erases.
    static CYTHON_INLINE PyObject *kst_dict_find(PyObject *dict, PyObject *key) {
        PyObject *value = NULL;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyDict_GetItemRef(dict, key, &value) < 0) return NULL;
        if (value != NULL) return value;
    #else
        value = PyDict_GetItemWithError(dict, key);
        if (value != NULL) { Py_INCREF(value); return value; }
        if (PyErr_Occurred()) return NULL;
    #endif
        Py_INCREF(Py_None);
        return Py_None;
    }

    // The value, or NULL. With the GIL nobody else runs before the caller is done with it, and
    // to borrow it saves a twentieth of a step.
    #ifdef Py_GIL_DISABLED
    static CYTHON_INLINE int kst_dict_hold(PyObject *dict, PyObject *key, PyObject **value) {
        return PyDict_GetItemRef(dict, key, value);
    }
    #define kst_let_go(value) Py_DECREF(value)
    #else
    static CYTHON_INLINE int kst_dict_hold(PyObject *dict, PyObject *key, PyObject **value) {
        *value = PyDict_GetItemWithError(dict, key);
        return *value == NULL && PyErr_Occurred() ? -1 : 0;
    }
    #define kst_let_go(value) ((void)(value))
    #endif
    """
    # The dict by pointer: for an object, Cython takes a reference during the call, and threads
    # that count in separate cells would meet at the dict's reference count.
    AtomicInt64 kst_dict_find(PyObject *cells, object name)
    int kst_dict_hold(PyObject *cells, PyObject *name, PyObject **cell) except -1
    void kst_let_go(PyObject *cell)


@cython.final
cdef class CellMap:
    cdef dict _cells

    cdef inline AtomicInt64 find(self, object name):
        return kst_dict_find(<PyObject *>self._cells, name)

    cdef inline int64_t add(self, object name, int64_t amount) except? -1:
        cdef PyObject *cell = NULL
        kst_dict_hold(<PyObject *>self._cells, <PyObject *>name, &cell)
        if cell is NULL:
            return 0
        amount = (<AtomicInt64>cell).add(amount)
        kst_let_go(cell)
        return amount

    cpdef AtomicInt64 find_or_add(self, str name, AtomicInt64 cell)
    cpdef int discard(self, str name, AtomicInt64 cell) except -1
    cpdef dict snapshot(self)
    cdef int free_dead_lock(self) except -1


cdef int defer_reference_counts(object shared) except -1
