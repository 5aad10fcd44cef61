"""Communicator: the ranks that reduce together; its tensors, steps and calls.

    weights = comm.register("weights", session.empty((4, 8)))
    comm.commit()
    comm.submit(step, [weights]); comm.step_end(step); comm.wait(step)
"""

import ctypes
from collections import namedtuple

from cgx._library import GET, PUT, CommOptions, Rendezvous, StepReport, TensorOptions, ids_array, library
from cgx.errors import CgxError, check
from cgx.session import DTYPES, dtype_number, dtype_of, numpy

OPS = {"sum": 0, "avg": 1}
PENDING, RESULT, FILLED, ABSENT, FAILED = range(5)

Tensor = namedtuple("Tensor", "id name array")
StepInfo = namedtuple("StepInfo", "step attempt finished epoch policy_version results filled absent failed")


def _milliseconds(timeout):
    return -1 if timeout is None else int(timeout * 1000)


def _op_number(op):
    if op not in OPS:
        raise ValueError(f"op {op!r} must be 'sum' or 'avg'")
    return OPS[op]


def _foreign(array):
    """NumPy's view of another library's array, which stays the owner; writable, which NumPy's own import is not."""
    seen = numpy.from_dlpack(array)
    if not seen.flags.c_contiguous:
        raise ValueError("the array must be contiguous")
    memory = (ctypes.c_uint8 * seen.nbytes).from_address(seen.ctypes.data)
    memory.owner = seen
    return numpy.ndarray(seen.shape, seen.dtype, buffer=memory)


def address_of(array):
    """Where a contiguous array (NumPy's, a buffer's, or any with DLPack on the CPU) begins, and its bytes."""
    if numpy is not None and not isinstance(array, numpy.ndarray) and hasattr(array, "__dlpack__"):
        array = _foreign(array)
    if numpy is not None and isinstance(array, numpy.ndarray):
        if not array.flags.c_contiguous:
            raise ValueError("the array must be contiguous")
        return array.ctypes.data, array.nbytes
    view = memoryview(array)
    if not view.c_contiguous:
        raise ValueError("the array must be contiguous")
    if view.nbytes == 0:
        return 0, 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B"))), view.nbytes


def _view(array):
    """What has a shape and an element type, over the caller's own memory."""
    if numpy is None:
        return memoryview(array)
    if isinstance(array, numpy.ndarray):
        return array
    return _foreign(array) if hasattr(array, "__dlpack__") else numpy.asarray(memoryview(array))


def _copy(target, source):
    if numpy is not None:
        target[...] = source
    elif source.nbytes:
        target.cast("B")[:] = source.cast("B")


class _Store:
    """put and get as C callbacks; keeps what they raise, because C cannot carry it."""

    def __init__(self, put, get):
        self.error = None
        self._put, self._get = put, get
        self.rendezvous = Rendezvous(PUT(self._call_put), GET(self._call_get), None) if put else Rendezvous()

    def _call_put(self, _, key, value, size):
        try:
            self._put(key.decode(), ctypes.string_at(value, size))
            return 0
        except BaseException as error:  # all of them: it is raised again on the other side of C
            self.error = error
            return 1

    def _call_get(self, _, key, value, capacity, size):
        try:
            found = bytes(self._get(key.decode()))
            size[0] = len(found)
            ctypes.memmove(value, found, min(len(found), capacity))
            return 0
        except BaseException as error:
            self.error = error
            return 1


class Call:
    """An allreduce under way. Keeps its buffers until it is waited for."""

    def __init__(self, communicator, number, result, buffers):
        self._communicator, self._number = communicator, number
        self._result, self._buffers = result, buffers

    def done(self):
        finished = ctypes.c_int()
        check(library.cgx_test_call(self._communicator.handle, self._number, ctypes.byref(finished)))
        return bool(finished.value)

    def wait(self, timeout=None):
        """The result: the array the call was made with, or `out`."""
        check(library.cgx_wait_call(self._communicator.handle, self._number, _milliseconds(timeout)))
        return self._result


class Communicator:
    def __init__(self, session, name, rank, size, put, get, first_step, timeout):
        store = _Store(put, get)
        options = CommOptions(name.encode(), rank, size, first_step, int(timeout * 1000), store.rendezvous)
        handle = ctypes.c_void_p()
        code = library.cgx_comm_create(session.handle, ctypes.byref(options), ctypes.byref(handle))
        if store.error is not None:
            raise store.error
        check(code)
        self.session, self.name, self.rank, self.size = session, name, rank, size
        self._handle, self.tensors = handle, []
        session.communicators.add(self)

    @property
    def handle(self):
        if self._handle is None:
            raise CgxError(f"communicator {self.name} is closed")
        return self._handle

    # --- Tensors --------------------------------------------------------------------------------------

    def register(self, name, array, op="avg", dtype=None, shape=None):
        """Registers an array of the arena as the tensor's home. `dtype`, `shape`: if not the array's own."""
        view = _view(array)
        dtype = dtype or dtype_of(view)
        shape = view.shape if shape is None else shape
        address, _ = address_of(array)
        dims = (ctypes.c_uint64 * len(shape))(*shape)
        options = TensorOptions(name.encode(), dtype_number(dtype), _op_number(op), len(shape), dims, address)
        number = ctypes.c_uint32()
        check(library.cgx_register(self.handle, ctypes.byref(options), ctypes.byref(number)))
        tensor = Tensor(number.value, name, array)
        self.tensors.append(tensor)
        return tensor

    def commit(self):
        """Collective: all ranks have registered the same tensors."""
        check(library.cgx_commit(self.handle))

    # --- Steps ----------------------------------------------------------------------------------------

    def submit(self, step, tensors):
        ids = ids_array([t.id for t in tensors])
        check(library.cgx_submit(self.handle, step, ids, len(ids)))

    def absent(self, step, tensors):
        ids = ids_array([t.id for t in tensors])
        check(library.cgx_absent(self.handle, step, ids, len(ids)))

    def step_end(self, step):
        check(library.cgx_step_end(self.handle, step))

    def wait(self, step, timeout=None):
        check(library.cgx_wait(self.handle, step, _milliseconds(timeout)))

    def set_gradient_unit(self, unit):
        """Loss scale / learning rate of the steps that open from now on: error feedback converts what it kept."""
        check(library.cgx_set_gradient_unit(self.handle, unit))

    def step_done(self, step, dropped=False):
        check(library.cgx_step_done(self.handle, step, int(dropped)))

    def redo(self):
        """After a failed step: the number to submit again."""
        step = ctypes.c_uint64()
        check(library.cgx_step_redo(self.handle, ctypes.byref(step)))
        return step.value

    def states(self, step, tensors):
        """PENDING, RESULT, FILLED, ABSENT or FAILED of each tensor, without waiting."""
        ids, states, pending = ids_array([t.id for t in tensors]), (ctypes.c_uint8 * len(tensors))(), ctypes.c_size_t()
        check(library.cgx_test(self.handle, step, ids, len(ids), states, ctypes.byref(pending)))
        return list(states)

    def step_info(self, step):
        report = StepReport()
        check(library.cgx_step_info(self.handle, step, ctypes.byref(report)))
        return StepInfo(*(getattr(report, name) for name in StepInfo._fields))._replace(finished=bool(report.finished))

    # --- Calls outside steps --------------------------------------------------------------------------

    def allreduce(self, array, op="sum", out=None, timeout=None):
        """Reduces an array over all ranks, into `out` or in place; returns it. Arrays outside the arena are copied.

        Takes NumPy arrays, buffers, and what speaks DLPack on the CPU; immutable arrays need an `out`.
        """
        result = array if out is None else out
        if self._in_arena(array) and self._in_arena(result):
            return self.allreduce_async(array, op, out).wait(timeout)
        source = _view(array)
        staged = self.session.empty(source.shape, dtype_of(source))
        _copy(staged, source)
        self.allreduce_async(staged, op).wait(timeout)
        _copy(_view(result), staged)
        return result

    def allreduce_async(self, array, op="sum", out=None, dtype=None):
        """The same for arrays of the arena, without waiting: returns a Call."""
        result = array if out is None else out
        (source, size), (target, target_size) = address_of(array), address_of(result)
        if size != target_size:
            raise ValueError(f"out has {target_size} bytes, the array {size}")
        dtype = dtype or dtype_of(_view(array))
        number = ctypes.c_uint64()
        check(library.cgx_allreduce_async(self.handle, source, target, size // DTYPES[dtype][1], dtype_number(dtype),
                                          _op_number(op), ctypes.byref(number)))
        return Call(self, number.value, result, (array, result))

    def _in_arena(self, array):
        address, size = address_of(array)
        return size == 0 or self.session.owns(address)

    def close(self):
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self.session.communicators.discard(self)
        check(library.cgx_comm_close(handle))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
