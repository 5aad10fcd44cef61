"""libcgx through ctypes: finding it, its types, its functions with their signatures set once, errors raised.

Nothing else in the package touches ctypes functions' signatures. The library is loaded with CDLL, so every call
releases the GIL.
"""

import ctypes
import itertools
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p


ABI = 2  # CGX_ABI of the cgx.h that the structs below repeat


class Options(ctypes.Structure):
    """A struct that begins with its size, as all option structs of cgx.h do; the fields are given by name."""
    _fields_ = [("size", c_size_t)]

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(self), **fields)


class OpenOptions(Options):
    _fields_ = [("socket", c_char_p), ("job", c_char_p), ("arena_bytes", c_uint64),
                ("connect_timeout_ms", c_uint32), ("spin_us", c_uint32)]


PUT = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
GET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t))


class Rendezvous(ctypes.Structure):
    _fields_ = [("put", PUT), ("get", GET), ("user", c_void_p)]


class ArenaOptions(Options):
    _fields_ = [("bytes", c_size_t), ("alignment", c_size_t), ("kind", c_int), ("reserved", c_uint32),
                ("device", c_uint8 * 16)]


class CommOptions(Options):
    _fields_ = [("name", c_char_p), ("rank", c_uint32), ("ranks", c_uint32), ("first_step", c_uint64),
                ("timeout_ms", c_uint64), ("rendezvous", Rendezvous), ("device", c_uint8 * 16)]


class TensorOptions(Options):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("op", c_int), ("kind", c_int), ("dims", c_uint32),
                ("shape", POINTER(c_uint64)), ("home", c_void_p)]


class PostOptions(Options):
    _fields_ = [("kind", c_int), ("collective", c_int), ("in_", c_void_p), ("out", c_void_p), ("count", c_uint64),
                ("dtype", c_int), ("op", c_int), ("step", c_uint64), ("tensor", c_uint32), ("root", c_uint32),
                ("peer", c_uint32), ("tag", c_uint32), ("indices", c_void_p), ("rows", c_uint64),
                ("indices_dtype", c_int), ("word_value", c_uint32), ("word", c_void_p), ("stream", c_void_p),
                ("memory", c_int), ("reserved", c_uint32)]


class StepReport(Options):
    _fields_ = [("step", c_uint64), ("attempt", c_uint32), ("finished", c_uint32), ("epoch", c_uint64),
                ("policy_version", c_uint64), ("results", c_uint32), ("filled", c_uint32), ("absent", c_uint32),
                ("failed", c_uint32)]


IDS = POINTER(c_uint32)
PLACES = POINTER(c_void_p)
SIGNATURES = {
    "cgx_open": (POINTER(OpenOptions), POINTER(c_void_p)),
    "cgx_close": (c_void_p,),
    "cgx_arena_alloc": (c_void_p, c_size_t, c_size_t, POINTER(c_void_p)),
    "cgx_arena_alloc_at": (c_void_p, POINTER(ArenaOptions), POINTER(c_void_p)),
    "cgx_arena_import": (c_void_p, POINTER(ArenaOptions), c_void_p),
    "cgx_arena_end_import": (c_void_p, c_void_p, c_int64),
    "cgx_arena_free": (c_void_p, c_void_p),
    "cgx_arena_retain": (c_void_p, c_void_p, POINTER(c_void_p)),
    "cgx_arena_pin": (c_void_p, c_void_p),
    "cgx_comm_create": (c_void_p, POINTER(CommOptions), POINTER(c_void_p)),
    "cgx_comm_timeout": (c_void_p, POINTER(c_uint64)),
    "cgx_comm_cancel": (c_void_p,),
    "cgx_comm_close": (c_void_p,),
    "cgx_register": (c_void_p, POINTER(TensorOptions), IDS),
    "cgx_commit": (c_void_p,),
    "cgx_submit": (c_void_p, c_uint64, IDS, c_size_t),
    "cgx_submit_inout": (c_void_p, c_uint64, IDS, PLACES, PLACES, c_size_t),
    "cgx_absent": (c_void_p, c_uint64, IDS, c_size_t),
    "cgx_step_end": (c_void_p, c_uint64),
    "cgx_set_gradient_unit": (c_void_p, c_double),
    "cgx_step_done": (c_void_p, c_uint64, c_int),
    "cgx_step_redo": (c_void_p, POINTER(c_uint64)),
    "cgx_wait": (c_void_p, c_uint64, c_int64),
    "cgx_test": (c_void_p, c_uint64, IDS, c_size_t, POINTER(c_uint8), POINTER(c_size_t)),
    "cgx_step_info": (c_void_p, c_uint64, POINTER(StepReport)),
    "cgx_allreduce_async": (c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, POINTER(c_uint64)),
    "cgx_wait_call": (c_void_p, c_uint64, c_int64),
    "cgx_test_call": (c_void_p, c_uint64, POINTER(c_int)),
    "cgx_post": (c_void_p, POINTER(PostOptions), POINTER(c_uint64)),
    "cgx_stream_wait": (c_void_p, c_uint64, c_void_p, c_int64),
    "cgx_stream_wait_call": (c_void_p, c_uint64, c_void_p, c_int64),
    "cgx_poll": (c_void_p, POINTER(c_uint64), c_int64),
    "cgx_wake": (c_void_p,),
    "cgx_report": (c_void_p, c_uint32, c_char_p, POINTER(c_uint32)),
    "cgx_event_fd": (c_void_p, POINTER(c_int)),
}


def _candidates():
    named = os.environ.get("CGX_LIBRARY")
    if named:
        return [named]
    package = os.path.dirname(os.path.abspath(__file__))
    above = os.path.dirname(os.path.dirname(os.path.dirname(package)))
    if os.path.exists(os.path.join(above, "client", "include", "cgx", "cgx.h")):  # a source tree
        places = [os.path.join(above, "build", preset, "lib", "libcgx.so") for preset in ("release", "dev")]
    else:  # a wheel; PREFIX/lib, with the package in PREFIX/lib/python3/dist-packages
        places = [os.path.join(package, "libcgx.so"), os.path.join(above, "libcgx.so.0")]
    return places + ["libcgx.so.0"]


def _load():
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise ImportError("libcgx was not found; set CGX_LIBRARY to libcgx.so. Tried: " + "; ".join(tried))


def _check_abi(loaded):
    """The structs above are those of one header; another library would read something else in them."""
    try:
        abi = ctypes.c_uint32(loaded.cgx_abi()).value
    except AttributeError:  # before it was numbered
        abi = 1
    if abi != ABI:
        raise ImportError(f"{loaded._name} has ABI {abi}, this package needs {ABI}; set CGX_LIBRARY to the libcgx.so it "
                          "belongs to")
    return loaded


library = _check_abi(_load())
for _name, _arguments in SIGNATURES.items():
    getattr(library, _name).argtypes = _arguments
    getattr(library, _name).restype = c_int
library.cgx_arena_release.argtypes = (c_void_p,)
library.cgx_arena_release.restype = None
for _name in ("cgx_version", "cgx_last_error", "cgx_status_name", "cgx_status_meaning", "cgx_dtype_name",
              "cgx_collective_name"):
    getattr(library, _name).restype = c_char_p
library.cgx_dtype_bytes.restype = c_size_t


def _names(name_of):
    """What the library calls 0, 1, ... until it knows no more."""
    return tuple(itertools.takewhile(lambda name: name != "unknown", (name_of(n).decode() for n in itertools.count())))


COLLECTIVES = _names(library.cgx_collective_name)


def ids_array(ids):
    return (c_uint32 * len(ids))(*ids)
