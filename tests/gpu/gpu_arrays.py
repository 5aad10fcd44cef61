"""Arrays in the memory of a GPU, for tests: the driver through ctypes, __cuda_array_interface__ and DLPack."""

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint16, c_uint64, c_uint8, c_void_p

import numpy

_KINDS = {"i": 0, "u": 1, "f": 2}  # of DLPack
_NON_BLOCKING = 1


class Cuda:
    """The driver, one device and its primary context, current in this thread."""

    def __init__(self, device=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", c_uint(0))
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), c_int(device))
        self.use()

    def use(self, context=True):
        self.call("cuCtxSetCurrent", self.context if context else c_void_p())

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def order(self, words):
        """Of the stand-in (driver/README.md)."""
        say = self.driver.cgx_standin_set
        say.restype = c_char_p
        answer = say(words.encode())
        if answer:
            raise ValueError(answer.decode())

    @property
    def counts(self):
        """Whether it counts calls, as the stand-in does."""
        return hasattr(self.driver, "cgx_standin_calls")

    def count(self, name):
        """How often a function was called, where that is counted."""
        if not self.counts:
            return 0
        self.driver.cgx_standin_calls.restype = c_uint64
        return self.driver.cgx_standin_calls(name.encode())

    def stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), c_uint(_NON_BLOCKING))
        return stream.value

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", c_void_p(stream))

    def destroy(self, stream):
        self.call("cuStreamDestroy_v2", c_void_p(stream))

    def array(self, values, stream=None):
        """A copy of a NumPy array, there when this returns."""
        array = Array(self, values.shape, values.dtype, stream)
        self.call("cuMemcpyHtoD_v2", c_uint64(array.address), values.ctypes.data_as(c_void_p), c_size_t(values.nbytes))
        self.synchronize(None)  # the call returns when the values have been read; our streams do not wait for the default one
        return array

    def copy(self, to, source, stream):
        """Enqueued, not done."""
        self.call("cuMemcpyDtoDAsync_v2", c_uint64(to.address), c_uint64(source.address), c_size_t(source.size),
                  c_void_p(stream))


class Array:
    """With __cuda_array_interface__, as CuPy's and Numba's arrays have it."""

    def __init__(self, cuda, shape, dtype, stream=None):
        self.cuda, self.shape, self.dtype, self.stream = cuda, tuple(shape), numpy.dtype(dtype), stream
        self.size = int(numpy.prod(shape)) * self.dtype.itemsize
        memory = c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(memory), c_size_t(max(self.size, 1)))
        self.address = memory.value

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3,
                "strides": None, "stream": self.stream}

    def numpy(self):
        values = numpy.empty(self.shape, self.dtype)
        self.cuda.call("cuMemcpyDtoH_v2", values.ctypes.data_as(c_void_p), c_uint64(self.address), c_size_t(self.size))
        return values

    def free(self):
        self.cuda.call("cuMemFree_v2", c_uint64(self.address))


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("device", c_int)]


class _Created(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", _Location), ("nothing", c_void_p), ("flags", c_uint64)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class Pooled(Array):
    """In pieces of 2 MiB that are mapped side by side, as torch's expandable segments are; begins shortly before a border."""

    PIECE, BEFORE = 2 << 20, 4096

    def __init__(self, cuda, shape, dtype, stream=None):
        self.cuda, self.shape, self.dtype, self.stream = cuda, tuple(shape), numpy.dtype(dtype), stream
        self.size = int(numpy.prod(shape)) * self.dtype.itemsize
        device = _Location(1, 0)
        pieces = 1 + (self.size + self.PIECE - 1) // self.PIECE
        self._base, self._bytes, self._handles = c_uint64(), pieces * self.PIECE, []
        cuda.call("cuMemAddressReserve", ctypes.byref(self._base), c_size_t(self._bytes), c_size_t(0), c_uint64(0), c_uint64(0))
        for number in range(pieces):
            handle, place = c_uint64(), c_uint64(self._base.value + number * self.PIECE)
            cuda.call("cuMemCreate", ctypes.byref(handle), c_size_t(self.PIECE), ctypes.byref(_Created(1, 0, device, None, 0)), c_uint64(0))
            cuda.call("cuMemMap", place, c_size_t(self.PIECE), c_size_t(0), handle, c_uint64(0))
            cuda.call("cuMemSetAccess", place, c_size_t(self.PIECE), ctypes.byref(_Access(device, 3)), c_size_t(1))
            self._handles.append((place, handle))
        self.address = self._base.value + self.PIECE - self.BEFORE

    def free(self):
        for place, handle in self._handles:
            self.cuda.call("cuMemUnmap", place, c_size_t(self.PIECE))
            self.cuda.call("cuMemRelease", handle)
        self.cuda.call("cuMemAddressFree", self._base, c_size_t(self._bytes))


class _Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", c_void_p),
                ("offset", c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes, _capsule.restype = (c_void_p, c_char_p, c_void_p), ctypes.py_object


class DlpackArray:
    """The same memory as DLPack shows it; notes the streams that it was asked to be ready on."""

    def __init__(self, array, device_type=2):
        self.array, self.device_type, self.asked = array, device_type, []

    def __dlpack_device__(self):
        return (self.device_type, 0)

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        of = self.array
        self._shape = (c_int64 * len(of.shape))(*of.shape)
        self._managed = _Managed(_Tensor(of.address, self.device_type, 0, len(of.shape), _KINDS[of.dtype.kind],
                                         8 * of.dtype.itemsize, 1, self._shape, None, 0), None, None)
        return _capsule(ctypes.addressof(self._managed), b"dltensor", None)
