# cython: language_level=3, boundscheck=False, wraparound=False
"""Threads of C that do nothing but fdatasync.

A thread of Python's wants the interpreter's lock three times for one flush: to begin, when the disk is done, and to
tell the loop; each time the event loop may have to wait for it. These threads never want it.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

import os


cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *signals)
    int SIG_SETMASK

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *condition, void *attributes)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_broadcast(pthread_cond_t *condition)
    int pthread_cond_destroy(pthread_cond_t *condition)
    int pthread_sigmask(int how, const sigset_t *signals, sigset_t *before)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)
    ssize_t write(int descriptor, const void *data, size_t size)


cdef struct Sync:
    int descriptor
    int error
    PyObject *token
    Sync *next

cdef struct Queue:
    Sync *first
    Sync *last

cdef struct Shared:
    pthread_mutex_t lock
    pthread_cond_t asked_or_closing
    Queue asked
    Queue ended
    int asked_count
    int idle_threads
    bint is_closing
    int wake_descriptor


cdef void put(Queue *queue, Sync *sync) noexcept nogil:
    sync.next = NULL
    if queue.first == NULL:
        queue.first = sync
    else:
        queue.last.next = sync
    queue.last = sync


cdef void *work(void *argument) noexcept nogil:
    cdef Shared *shared = <Shared *> argument
    cdef sigset_t every_signal
    cdef Sync *sync
    cdef bint was_empty
    cdef uint64_t one = 1
    sigfillset(&every_signal)  # they are the main thread's
    pthread_sigmask(SIG_SETMASK, &every_signal, NULL)
    pthread_mutex_lock(&shared.lock)
    while True:
        while shared.asked.first == NULL and not shared.is_closing:
            shared.idle_threads += 1
            pthread_cond_wait(&shared.asked_or_closing, &shared.lock)
            shared.idle_threads -= 1
        sync = shared.asked.first
        if sync == NULL:
            break
        shared.asked.first = sync.next
        shared.asked_count -= 1
        pthread_mutex_unlock(&shared.lock)
        sync.error = errno if fdatasync(sync.descriptor) else 0
        pthread_mutex_lock(&shared.lock)
        was_empty = shared.ended.first == NULL
        put(&shared.ended, sync)
        if was_empty:
            write(shared.wake_descriptor, &one, sizeof(one))
    pthread_mutex_unlock(&shared.lock)
    return NULL


cdef class SyncThreads:
    """At most so many flushes at once; the others queue. Everything but the flushes is for one thread."""

    cdef Shared *_shared
    cdef pthread_t *_threads
    cdef int _max_threads
    cdef int _started
    cdef readonly int wake_descriptor

    def __cinit__(self, int max_threads):
        self._max_threads = max_threads
        self._threads = <pthread_t *> calloc(max_threads, sizeof(pthread_t))
        self._shared = <Shared *> calloc(1, sizeof(Shared))
        if self._threads == NULL or self._shared == NULL:
            raise MemoryError
        self.wake_descriptor = self._shared.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        pthread_mutex_init(&self._shared.lock, NULL)
        pthread_cond_init(&self._shared.asked_or_closing, NULL)

    def start(self, int descriptor, token):
        """Flushes the descriptor, which stays open until `ended` returns the token."""
        cdef Sync *sync = <Sync *> calloc(1, sizeof(Sync))
        cdef bint needs_thread
        if sync == NULL:
            raise MemoryError
        sync.descriptor = descriptor
        sync.token = <PyObject *> token
        Py_INCREF(token)
        with nogil:
            pthread_mutex_lock(&self._shared.lock)
            put(&self._shared.asked, sync)
            self._shared.asked_count += 1
            needs_thread = self._shared.asked_count > self._shared.idle_threads
            pthread_cond_signal(&self._shared.asked_or_closing)
            pthread_mutex_unlock(&self._shared.lock)
        if needs_thread and self._started < self._max_threads:
            self._start_thread()

    cdef _start_thread(self):
        cdef int error = pthread_create(&self._threads[self._started], NULL, work, self._shared)
        if error == 0:
            self._started += 1
        elif self._started == 0:
            raise OSError(error, os.strerror(error))

    def ended(self):
        """What has ended since the last call: tokens, each with 0 or the number of its error."""
        cdef Sync *sync
        cdef Sync *following
        try:
            os.eventfd_read(self.wake_descriptor)
        except BlockingIOError:
            pass
        with nogil:
            pthread_mutex_lock(&self._shared.lock)
            sync = self._shared.ended.first
            self._shared.ended.first = NULL
            pthread_mutex_unlock(&self._shared.lock)
        found = []
        while sync != NULL:
            following = sync.next
            token = <object> sync.token
            Py_DECREF(token)
            found.append((token, sync.error))
            free(sync)
            sync = following
        return found

    def close(self):
        """Waits for what is under way, and for what was asked for."""
        cdef int number
        with nogil:
            pthread_mutex_lock(&self._shared.lock)
            self._shared.is_closing = True
            pthread_cond_broadcast(&self._shared.asked_or_closing)
            pthread_mutex_unlock(&self._shared.lock)
            for number in range(self._started):
                pthread_join(self._threads[number], NULL)
        self._started = 0
        if self.wake_descriptor >= 0:
            os.close(self.wake_descriptor)
            self.wake_descriptor = -1

    def __dealloc__(self):
        if self._shared != NULL and self._started == 0:  # otherwise the threads still use it
            pthread_mutex_destroy(&self._shared.lock)
            pthread_cond_destroy(&self._shared.asked_or_closing)
            free(self._shared)
            free(self._threads)
