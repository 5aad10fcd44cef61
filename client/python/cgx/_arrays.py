"""Arrays of any library: where they lie, what they hold, whether they may be written to. Nothing is copied.

NumPy's arrays (ml_dtypes' element types included), whatever speaks DLPack on the CPU or a CUDA GPU (torch, JAX),
objects with __array_interface__ or __cuda_array_interface__, buffers. No library but ctypes is needed for any of them.
"""

from __future__ import annotations

import ctypes
import math
import sys
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint8, c_uint16, c_uint32, \
    c_uint64, c_void_p, py_object
from dataclasses import dataclass
from typing import Optional

from cgx._gpu import DLPACK_DEVICES, Ready, for_dlpack, ready_by_interface
from cgx._library import library

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
# What NumPy, torch, JAX and ml_dtypes call them.
NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", "int8": "int8",
         "uint8": "uint8", "int32": "int32", "int64": "int64"}
_BY_NAME = {name: dtype for dtype, name in NAMES.items()}
_FORMATS = {"f": "float32", "e": "float16", "d": "float64", "b": "int8", "B": "uint8", "i": "int32", "q": "int64",
            "h": "int16", "H": "uint16", "I": "uint32", "Q": "uint64", "l": f"int{8 * ctypes.sizeof(ctypes.c_long)}",
            "L": f"uint{8 * ctypes.sizeof(ctypes.c_long)}", "?": "bool"}
_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}  # of __array_interface__
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_TAKEN = "NumPy arrays, buffers, and arrays with DLPack (torch, JAX) or __cuda_array_interface__ (CuPy, Numba)"


@dataclass
class View:
    """An array as the library sees it. `owner` keeps the memory; `gpu`: None in the CPU's."""
    address: int
    shape: tuple
    element: str  # "float32", "uint16", ...
    width: int  # bytes of one element
    writable: bool
    owner: object
    gpu: Optional[Ready] = None

    @property
    def size(self):
        return math.prod(self.shape) * self.width


def dtype_name(dtype) -> str:
    """The library's name ("bf16") for one of its own, or for NumPy's, torch's, JAX's or ml_dtypes' element type."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    text = text if isinstance(text, str) else str(dtype).rpartition(".")[2]  # torch.bfloat16
    if text not in _BY_NAME:
        raise ValueError(f"dtype {text!r} must be one of {', '.join(DTYPES)}")
    return _BY_NAME[text]


def dtype_number(dtype) -> int:
    return DTYPES[dtype_name(dtype)][0]


def dtype_of(view: View, dtype=None) -> str:
    """The element type's name, or `dtype`, which says what 16-bit integers or bytes really hold."""
    if dtype is None:
        if view.element in _BY_NAME:
            return _BY_NAME[view.element]
        hint = '; dtype="bf16" says that 16-bit integers are bfloat16' if view.element in ("uint16", "int16") else ""
        raise ValueError(f"element type {view.element} must be one of {', '.join(NAMES.values())}{hint}")
    name = dtype_name(dtype)
    width = DTYPES[name][1]
    if width != view.width and not (view.element in ("uint8", "int8") and view.size % width == 0):
        raise ValueError(f"dtype {name!r} has {width} bytes, the array's elements ({view.element}) {view.width}")
    return name


def view_of(array, stream=None) -> View:
    """The view of an array that is contiguous; an error says what else is wrong. stream: of one on a GPU."""
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _of_numpy(array)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, stream)
    if hasattr(array, "__cuda_array_interface__"):
        about = array.__cuda_array_interface__
        return _of_interface(array, about, ready_by_interface(about, stream))
    if numpy is not None and isinstance(array, numpy.generic) or isinstance(array, (bool, int, float, complex)):
        raise TypeError(f"a {type(array).__name__} is no array: nothing can be written into it; wrap it, e.g. "
                        "numpy.array(value, dtype='float32')")
    if isinstance(array, (list, tuple)):
        raise TypeError(f"a {type(array).__name__} is no array: cgx takes {_TAKEN}; numpy.array(values, "
                        "dtype='float32') makes one")
    if hasattr(array, "__array_interface__"):
        return _of_interface(array, array.__array_interface__)
    try:
        return _of_buffer(memoryview(array))
    except TypeError:
        raise TypeError(f"cgx takes {_TAKEN}, not {type(array).__name__}") from None


def writable_view(array, what="the array", stream=None) -> View:
    """The same, for memory that results are written into."""
    view = view_of(array, stream)
    if not view.writable:
        raise ValueError(f"{what} is read-only, and the result would be written into it; pass out=, a writable array")
    return view


def copy(target: View, source: View) -> None:
    ctypes.memmove(target.address, source.address, source.size)


def _check_contiguous(contiguous):
    if not contiguous:
        raise ValueError("the array must be contiguous (C order)")


def _of_numpy(array):
    _check_contiguous(array.flags.c_contiguous)
    if not array.dtype.isnative:
        raise ValueError(f"the array's elements ({array.dtype}) have another byte order than this machine")
    return View(array.ctypes.data, array.shape, array.dtype.name, array.itemsize, array.flags.writeable, array)


# Buffers


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int),
                ("ndim", c_int), ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p),
                ("suboffsets", c_void_p), ("internal", c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes, _get_buffer.restype = (py_object, POINTER(_PyBuffer), c_int), c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = (POINTER(_PyBuffer),), None
_PYBUF_FULL_RO = 0x11C


def _of_buffer(view):
    _check_contiguous(view.c_contiguous)
    raw = _PyBuffer()
    _get_buffer(view, ctypes.byref(raw), _PYBUF_FULL_RO)
    address = raw.buf or 0
    _release_buffer(ctypes.byref(raw))  # the memoryview keeps the memory
    order, letter = view.format[0], view.format.lstrip("@=<>!")
    if order in "<>!" and (order == "<") != (sys.byteorder == "little"):
        raise ValueError(f"the array's elements ({view.format}) have another byte order than this machine")
    return View(address, tuple(view.shape), _FORMATS.get(letter, view.format), view.itemsize, not view.readonly, view)


def _of_interface(array, about, gpu=None):
    address, readonly = about["data"]
    order, kind, width = about["typestr"][0], about["typestr"][1], int(about["typestr"][2:])
    shape = tuple(about["shape"])
    strides = about.get("strides")
    _check_contiguous(strides is None or _are_contiguous(shape, [s / width for s in strides]))
    if width > 1 and order in "<>" and (order == "<") != (sys.byteorder == "little"):
        raise ValueError(f"the array's elements ({about['typestr']}) have another byte order than this machine")
    element = f"{_KINDS[kind]}{8 * width}" if kind in _KINDS else about["typestr"]
    return View(address, shape, element, width, not readonly, (array, about), gpu)


def _are_contiguous(shape, strides):
    expected = 1
    if 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


# DLPack


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("offset", c_uint64)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", _DLTensor)]


_READ_ONLY = 1
_JAX = ("jax", "jaxlib")
_CPU_DEVICES = (1, 3, 11)  # CPU, and pinned host memory of CUDA and ROCm
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.argtypes, _capsule_is.restype = (py_object, c_char_p), c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (py_object, c_char_p), c_void_p


def _of_dlpack(array, stream=None):
    device = tuple(array.__dlpack_device__())
    on_gpu = int(device[0]) in DLPACK_DEVICES
    if not on_gpu and int(device[0]) not in _CPU_DEVICES:
        raise NotImplementedError(f"the array lies on device {device} of DLPack; cgx takes those in the memory of the CPU "
                                  "and of CUDA GPUs")
    where = {"stream": for_dlpack(stream)} if on_gpu else {}
    capsule = _capsule_of(array, where)  # not consumed: it frees what it holds when it goes
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise NotImplementedError(f"the array speaks DLPack {managed.major}.{managed.minor}; cgx knows version 1")
        tensor, writable = managed.tensor, not managed.flags & _READ_ONLY
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        writable = True  # the old form cannot say
    writable = writable and not _immutable(array, on_gpu)
    shape = tuple(tensor.shape[:tensor.ndim]) if tensor.ndim else ()
    if tensor.ndim and tensor.strides:
        _check_contiguous(_are_contiguous(shape, tensor.strides[:tensor.ndim]))
    kind = _DLPACK_KINDS.get(tensor.code, f"type {tensor.code} of DLPack, ")
    element = f"{kind}{tensor.bits}" + (f" x {tensor.lanes}" if tensor.lanes != 1 else "")
    return View((tensor.data or 0) + tensor.offset, shape, element, tensor.bits * tensor.lanes // 8, writable,
                (array, capsule), Ready(0 if stream is None else for_dlpack(stream)) if on_gpu else None)


def _capsule_of(array, where):
    try:
        return array.__dlpack__(max_version=(1, 1), **where)
    except TypeError:  # older than DLPack 1
        return array.__dlpack__(**where)


def _immutable(array, on_gpu):
    """JAX hands out the old form, which has no read-only flag, for arrays that must never change: ask its buffer.

    On a GPU its name has to do: JAX and others would copy the array to the host, and wait for that.
    """
    if on_gpu:
        return type(array).__module__.partition(".")[0] in _JAX
    try:
        return memoryview(array).readonly
    except Exception:  # no buffer, or an element type that buffers cannot name
        pass
    if numpy is None or not hasattr(array, "__array__"):
        return False
    try:
        return not numpy.asarray(array).flags.writeable
    except Exception:  # torch's bfloat16, for instance: NumPy cannot see it
        return False
