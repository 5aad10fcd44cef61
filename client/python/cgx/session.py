"""Session: this process's connection to its machine's daemon, and the memory they share.

Arena memory stays mapped until the last array over it is gone, also after Session.close().
"""

import ctypes
import math
import os

from cgx._library import OpenOptions, library
from cgx.errors import CgxError, ForkedError, check

try:
    import numpy
except ImportError:
    numpy = None


def _dtypes():
    """{"fp32": (0, 4), ...} from the library's own list."""
    known = {}
    while (bytes_each := library.cgx_dtype_bytes(len(known))) != 0:
        known[library.cgx_dtype_name(len(known)).decode()] = (len(known), bytes_each)
    return known


DTYPES = _dtypes()
# NumPy has no bf16: its arrays show the bits as uint16.
_NUMPY_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "uint16", "fp64": "float64", "int8": "int8",
                "uint8": "uint8", "int32": "int32", "int64": "int64"}
_FORMATS = {"fp32": "f", "fp64": "d", "int8": "b", "uint8": "B", "int32": "i", "int64": "q", "bf16": "H", "fp16": "e"}
_BY_NUMPY = {numpy_name: name for name, numpy_name in _NUMPY_NAMES.items() if name != "bf16"}
_BY_FORMAT = {letter: name for name, letter in _FORMATS.items() if name != "bf16"}


def dtype_number(dtype):
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    return DTYPES[dtype][0]


def dtype_of(array):
    """The library's name for an array's element type; that uint16 means bf16 is for the caller to say."""
    known, given = (_BY_NUMPY, array.dtype.name) if hasattr(array, "dtype") else (_BY_FORMAT, array.format)
    if given not in known:
        raise ValueError(f"element type {given} must be one of {', '.join(known)}")
    return known[given]


class Block:
    """One allocation in the arena; freed with its last user, its mapping kept until then."""

    def __init__(self, session, size, alignment=64):
        address, arena = ctypes.c_void_p(), ctypes.c_void_p()
        check(library.cgx_arena_alloc(session.handle, size, alignment, ctypes.byref(address)))
        check(library.cgx_arena_retain(session.handle, address, ctypes.byref(arena)))
        self.address, self.size = address.value, size
        self._session, self._arena = session, arena

    def buffer(self):
        """A ctypes array over the block, which it keeps alive: what numpy and torch take views of."""
        view = (ctypes.c_uint8 * self.size).from_address(self.address)
        view.block = self
        return view

    def __del__(self):
        if getattr(self, "_arena", None) is None:
            return
        if self._session.is_open:
            library.cgx_arena_free(self._session.handle, self.address)
        library.cgx_arena_release(self._arena)


class Session:
    """`with Session() as session:` connects to the daemon ($CGX_SOCKET, the user's, the machine's)."""

    def __init__(self, socket=None, job=None, arena_bytes=0, connect_timeout=0, spin_us=0):
        options = OpenOptions(_bytes(socket), _bytes(job), arena_bytes, int(connect_timeout * 1000), spin_us)
        handle = ctypes.c_void_p()
        check(library.cgx_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle, self._pid = handle, os.getpid()
        self.communicators = set()
        self._before_close = []

    @property
    def handle(self):
        if self._handle is None:
            raise CgxError("the session is closed")
        return self._handle

    @property
    def is_open(self):
        return self._handle is not None and self._pid == os.getpid()

    def empty(self, shape, dtype="fp32"):
        """An uninitialised array in the arena: NumPy's if it is installed, else a memoryview."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype_number(dtype)
        count, bytes_each = math.prod(shape), DTYPES[dtype][1]
        buffer = Block(self, max(count * bytes_each, 1)).buffer()
        if numpy is None:
            flat = memoryview(buffer)[:count * bytes_each].cast("B")
            return flat.cast(_FORMATS[dtype], shape) if count else flat
        return numpy.frombuffer(buffer, dtype=_NUMPY_NAMES[dtype], count=count).reshape(shape)

    def owns(self, address):
        """Whether an address lies in this session's arenas."""
        arena = ctypes.c_void_p()
        code = library.cgx_arena_retain(self.handle, address, ctypes.byref(arena))
        if code == 0:
            library.cgx_arena_release(arena)
        return code == 0

    def communicator(self, name, rank=0, size=1, put=None, get=None, first_step=0, timeout=0):
        """Joins `size` ranks. put(key, bytes) and get(key) -> bytes reach a store all ranks share; get waits."""
        from cgx.communicator import Communicator
        return Communicator(self, name, rank, size, put, get, first_step, timeout)

    def poll(self, seen=0, timeout=None):
        """Waits until the session's event count differs from `seen`; returns it. TimedOutError if it does not."""
        count = ctypes.c_uint64(seen)
        check(library.cgx_poll(self.handle, ctypes.byref(count), -1 if timeout is None else int(timeout * 1000)))
        return count.value

    def wake(self):
        check(library.cgx_wake(self.handle))

    def event_fd(self):
        """For event loops: readable after completions; poll(seen, 0) makes it unreadable."""
        descriptor = ctypes.c_int()
        check(library.cgx_event_fd(self.handle, ctypes.byref(descriptor)))
        return descriptor.value

    def before_close(self, action):
        """Calls action() when the session is about to be closed: threads inside it must leave first."""
        self._before_close.append(action)

    def close(self):
        if self._handle is None:
            return
        for action in self._before_close if self.is_open else ():
            action()
        for communicator in list(self.communicators):
            communicator.close()
        handle, self._handle = self._handle, None
        check(library.cgx_close(handle))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        try:
            if getattr(self, "_handle", None) is not None:
                self.close()
        except (CgxError, ForkedError, TypeError):  # TypeError: the interpreter is going down
            pass


def _bytes(text):
    return None if text is None else os.fsencode(text)
