"""libcgx through ctypes: finding it, its types, its functions with their signatures set once, errors raised.

Nothing else in the package touches ctypes functions' signatures. The library is loaded with CDLL, so every call
releases the GIL.
"""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p


class OpenOptions(ctypes.Structure):
    _fields_ = [("socket", c_char_p), ("job", c_char_p), ("arena_bytes", c_uint64),
                ("connect_timeout_ms", c_uint32), ("spin_us", c_uint32)]


PUT = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
GET = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, POINTER(c_size_t))


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


IDS = POINTER(c_uint32)
PLACES = POINTER(c_void_p)
SIGNATURES = {
    "cgx_open": (POINTER(OpenOptions), POINTER(c_void_p)),
    "cgx_close": (c_void_p,),
    "cgx_arena_alloc": (c_void_p, c_size_t, c_size_t, POINTER(c_void_p)),
    "cgx_arena_free": (c_void_p, c_void_p),
    "cgx_arena_retain": (c_void_p, c_void_p, POINTER(c_void_p)),
    "cgx_comm_create": (c_void_p, POINTER(CommOptions), POINTER(c_void_p)),
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


library = _load()
for _name, _arguments in SIGNATURES.items():
    getattr(library, _name).argtypes = _arguments
    getattr(library, _name).restype = c_int
library.cgx_arena_release.argtypes = (c_void_p,)
library.cgx_arena_release.restype = None
for _name in ("cgx_version", "cgx_last_error", "cgx_status_name", "cgx_status_meaning", "cgx_dtype_name"):
    getattr(library, _name).restype = c_char_p
library.cgx_dtype_bytes.restype = c_size_t


def ids_array(ids):
    return (c_uint32 * len(ids))(*ids)
