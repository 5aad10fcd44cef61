"""libcgx through ctypes: finds the library, declares every function once, turns codes into exceptions."""

import ctypes
import glob
import os

from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_uint8, c_void_p

PUT = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
GET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t))


class OpenOptions(ctypes.Structure):
    _fields_ = [("socket", c_char_p), ("job", c_char_p), ("arena_bytes", c_uint64),
                ("connect_timeout_ms", c_uint32), ("spin_us", c_uint32)]


class Rendezvous(ctypes.Structure):
    _fields_ = [("put", PUT), ("get", GET), ("user", c_void_p)]


class CommOptions(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("rank", c_uint32), ("size", c_uint32), ("first_step", c_uint64),
                ("timeout_ms", c_uint64), ("rendezvous", Rendezvous)]


class TensorOptions(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("op", c_int), ("dims", c_uint32),
                ("shape", POINTER(c_uint64)), ("home", c_void_p)]


class StepReport(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("attempt", c_uint32), ("finished", c_uint32), ("epoch", c_uint64),
                ("policy_version", c_uint64), ("results", c_uint32), ("filled", c_uint32), ("absent", c_uint32),
                ("failed", c_uint32)]


# name: (result, arguments). A result of None means a status that is checked.
_FUNCTIONS = {
    "version": (c_char_p, []),
    "status_name": (c_char_p, [c_int]),
    "status_meaning": (c_char_p, [c_int]),
    "dtype_name": (c_char_p, [c_int]),
    "dtype_bytes": (c_size_t, [c_int]),
    "last_error": (c_char_p, []),
    "open": (None, [POINTER(OpenOptions), POINTER(c_void_p)]),
    "close": (None, [c_void_p]),
    "arena_alloc": (None, [c_void_p, c_size_t, c_size_t, POINTER(c_void_p)]),
    "arena_free": (None, [c_void_p, c_void_p]),
    "arena_retain": (None, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "arena_release": (ctypes.c_int, [c_void_p]),  # void; the value is never looked at
    "comm_create": (None, [c_void_p, POINTER(CommOptions), POINTER(c_void_p)]),
    "comm_close": (None, [c_void_p]),
    "register": (None, [c_void_p, POINTER(TensorOptions), POINTER(c_uint32)]),
    "tensor_home": (None, [c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_size_t)]),
    "commit": (None, [c_void_p]),
    "submit": (None, [c_void_p, c_uint64, POINTER(c_uint32), c_size_t]),
    "submit_inout": (None, [c_void_p, c_uint64, POINTER(c_uint32), POINTER(c_void_p), POINTER(c_void_p), c_size_t]),
    "absent": (None, [c_void_p, c_uint64, POINTER(c_uint32), c_size_t]),
    "step_end": (None, [c_void_p, c_uint64]),
    "step_done": (None, [c_void_p, c_uint64, c_int]),
    "step_redo": (None, [c_void_p, POINTER(c_uint64)]),
    "wait": (None, [c_void_p, c_uint64, c_int64]),
    "test": (None, [c_void_p, c_uint64, POINTER(c_uint32), c_size_t, POINTER(c_uint8), POINTER(c_size_t)]),
    "step_info": (None, [c_void_p, c_uint64, POINTER(StepReport)]),
    "allreduce": (None, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int]),
    "allreduce_async": (None, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, POINTER(c_uint64)]),
    "wait_call": (None, [c_void_p, c_uint64, c_int64]),
    "test_call": (None, [c_void_p, c_uint64, POINTER(c_int)]),
    "poll": (None, [c_void_p, POINTER(c_uint64), c_int64]),
    "wake": (None, [c_void_p]),
    "event_fd": (None, [c_void_p, POINTER(c_int)]),
}


def _candidates():
    if "CGX_LIBRARY" in os.environ:
        return [os.environ["CGX_LIBRARY"]]
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    built = sorted(glob.glob(os.path.join(tree, "build", "*", "lib", "libcgx.so")),
                   key=lambda path: ("release" not in path, path))
    return [os.path.join(here, "libcgx.so"), *built, "libcgx.so.0"]


def _load():
    tried = _candidates()
    for path in tried:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            last = error
    raise ImportError(f"libcgx was not found (tried {', '.join(tried)}; last: {last}). "
                      "Build it, or set CGX_LIBRARY to its path.")


class CgxError(RuntimeError):
    """What a call of libcgx answered: `code`, `name` (STEP_OPEN) and the text."""

    code, name = None, None


class Library:
    """The functions of libcgx without their prefix; failing ones raise the exception of their status."""

    def __init__(self):
        self._cdll = _load()  # releases the GIL during calls
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._cdll, "cgx_" + name)
            function.restype, function.argtypes = c_int if result is None else result, arguments
            if result is None:
                setattr(self, "try_" + name, function)
                function = self._checked(function)
            setattr(self, name, function)
        self.errors = dict(self._exceptions())
        self.dtypes = dict(self._dtypes())

    def _checked(self, function):
        def call(*arguments):
            status = function(*arguments)
            if status:
                raise self.error(status)
        return call

    def error(self, status):
        """The exception of a status, with this thread's last text."""
        text = self.last_error().decode(errors="replace")
        return self.errors.get(status, CgxError)(text or f"status {status}")

    # The library's own list: STEP_OPEN becomes StepOpen.
    def _exceptions(self):
        for code in range(1, 256):
            name = self.status_name(code).decode()
            if name == "UNKNOWN":
                continue
            yield code, type(name.title().replace("_", ""), (CgxError,),
                             {"code": code, "name": name, "__doc__": self.status_meaning(code).decode(),
                              "__module__": "cgx"})

    def _dtypes(self):
        for number in range(64):
            size = self.dtype_bytes(number)
            if size:
                yield self.dtype_name(number).decode(), (number, size)


library = Library()

__all__ = ["CgxError", "CommOptions", "GET", "OpenOptions", "PUT", "Rendezvous", "StepReport", "TensorOptions",
           "byref", "library"]
