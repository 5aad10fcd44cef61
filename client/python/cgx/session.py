"""Session: the connection to the local daemon and the memory shared with it."""

import ctypes
import weakref

import numpy as np

from ._library import OpenOptions, byref, library
from .communicator import Communicator

_NUMPY = {"fp32": np.float32, "fp16": np.float16, "fp64": np.float64, "int8": np.int8, "uint8": np.uint8,
          "int32": np.int32, "int64": np.int64}
_NAMES = {np.dtype(kind): name for name, kind in _NUMPY.items()}


def dtype_name(dtype):
    """fp32, bf16, ... from such a name or a NumPy type. NumPy has no bf16: its bits are uint16 there."""
    if isinstance(dtype, str) and dtype in library.dtypes:
        return dtype
    try:
        return _NAMES[np.dtype(dtype)]
    except (TypeError, KeyError):
        raise TypeError(f"dtype {dtype!r} is not one of {', '.join(library.dtypes)}") from None


class Session:
    """One per process is usual. Closing it ends its communicators; arrays stay valid as long as somebody holds them."""

    def __init__(self, job=None, socket=None, arena_bytes=0, connect_timeout=10.0, spin_us=0):
        options = OpenOptions(socket=socket and socket.encode(), job=job and job.encode(), arena_bytes=arena_bytes,
                              connect_timeout_ms=int(1000 * connect_timeout), spin_us=spin_us)
        handle = ctypes.c_void_p()
        library.open(byref(options), byref(handle))
        self.handle = handle
        self._communicators = weakref.WeakSet()
        self._close = weakref.finalize(self, library.try_close, handle)

    def close(self):
        """Wakes waiters with Cancelled, says goodbye to the daemon. Closing twice is allowed."""
        for communicator in list(self._communicators):
            communicator.close()
        self._close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def empty(self, shape, dtype=np.float32):
        """A new array in the arena. Freed when the last view of it has gone."""
        name = dtype_name(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        elements = int(np.prod(shape, dtype=np.int64))
        memory = ctypes.c_void_p()
        library.arena_alloc(self.handle, max(1, elements * library.dtypes[name][1]), 0, byref(memory))
        return self._array(memory, shape, name, owned=True)

    def communicator(self, name="world", rank=0, size=1, **options):
        """See Communicator. Collective."""
        communicator = Communicator(self, name, rank, size, **options)
        self._communicators.add(communicator)
        return communicator

    def poll(self, seen=0, timeout=None):
        """Waits until something finished since event `seen`; the new event number, or None at the time-out."""
        count = ctypes.c_uint64(seen)
        status = library.try_poll(self.handle, byref(count), -1 if timeout is None else int(1000 * timeout))
        if status == 0:
            return count.value
        error = library.error(status)
        if error.name == "TIMED_OUT":
            return None
        raise error

    def event_fd(self):
        """A descriptor for event loops; it belongs to the session."""
        descriptor = ctypes.c_int()
        library.event_fd(self.handle, byref(descriptor))
        return descriptor.value

    def wake(self):
        """Lets a poll in another thread return."""
        library.wake(self.handle)

    # The array keeps the mapping alive: buffer -> _Memory -> retained arena.
    def _array(self, memory, shape, name, owned):
        elements = int(np.prod(shape, dtype=np.int64))
        nbytes = elements * library.dtypes[name][1]
        arena = ctypes.c_void_p()
        library.arena_retain(self.handle, memory, byref(arena))
        kind = type("_Memory", (ctypes.c_char * max(1, nbytes),), {})
        block = kind.from_address(memory.value)
        weakref.finalize(block, _release, self._close, self.handle, memory.value if owned else None, arena)
        flat = np.frombuffer(block, dtype=np.uint8, count=nbytes)
        return flat.view(_NUMPY.get(name, np.uint16)).reshape(shape)


def _release(close, session, memory, arena):
    if memory is not None and close.alive:  # the session is open
        library.try_arena_free(session, memory)
    library.arena_release(arena)
