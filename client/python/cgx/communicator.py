"""Communicator: the ranks that reduce together, their tensors and steps."""

import ctypes
import weakref

import numpy as np

from ._library import GET, PUT, CommOptions, Rendezvous, StepReport, TensorOptions, byref, library

PENDING, RESULT, FILLED, ABSENT, FAILED = range(5)
_OPS = {"sum": 0, "avg": 1}


def _op(op):
    if op not in _OPS:
        raise ValueError(f"op {op!r} is not 'sum' or 'avg'")
    return _OPS[op]


def _milliseconds(timeout):
    return -1 if timeout is None else int(1000 * timeout)


class Tensor:
    """A registered tensor: its `id`, `name` and home `array`, where its result arrives."""

    def __init__(self, number, name, array, dtype):
        self.id, self.name, self.array, self.dtype = number, name, array, dtype


class _Rendezvous:
    """Wraps put(key, bytes) and get(key) -> bytes for C; an exception of theirs is raised by the caller."""

    def __init__(self, put, get):
        self.error = None
        self.c = Rendezvous(put=PUT(self._put) if put else PUT(), get=GET(self._get) if get else GET())
        self.put, self.get = put, get

    def _put(self, _, key, value, size):
        try:
            self.put(key.decode(), ctypes.string_at(value, size))
            return 0
        except BaseException as error:  # it must not unwind through C
            self.error = error
            return -1

    def _get(self, _, key, value, capacity, size):
        try:
            found = bytes(self.get(key.decode()))
            ctypes.memmove(value, found, min(len(found), capacity))
            size[0] = len(found)
            return 0
        except BaseException as error:
            self.error = error
            return -1


class Communicator:
    """Collective: all `size` ranks create it. put(key, bytes) and get(key) -> bytes reach a store all of them share."""

    def __init__(self, session, name, rank, size, put=None, get=None, first_step=0, timeout=0):
        self.session, self.name, self.rank, self.size = session, name, rank, size
        rendezvous = _Rendezvous(put, get)
        options = CommOptions(name=name.encode(), rank=rank, size=size, first_step=first_step,
                              timeout_ms=int(1000 * timeout), rendezvous=rendezvous.c)
        handle = ctypes.c_void_p()
        status = library.try_comm_create(session.handle, byref(options), byref(handle))
        if rendezvous.error is not None:
            raise rendezvous.error
        if status:
            raise library.error(status)
        self.handle = handle
        self.tensors = []
        self._staging = {}
        self._close = weakref.finalize(self, _close, session._close, handle)

    def close(self):
        self._close()

    # --- Tensors ------------------------------------------------------------------------------------

    def register(self, name, shape, dtype=np.float32, op="sum", home=None):
        """All ranks register the same tensors in the same order. `home`: an array of Session.empty, else a new one."""
        from .session import dtype_name
        kind = dtype_name(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        array = self.session.empty(shape, kind) if home is None else home
        dims = (ctypes.c_uint64 * max(1, len(shape)))(*shape)
        options = TensorOptions(name=name.encode(), dtype=library.dtypes[kind][0], op=_op(op), dims=len(shape),
                                shape=dims, home=array.ctypes.data)
        number = ctypes.c_uint32()
        library.register(self.handle, byref(options), byref(number))
        tensor = Tensor(number.value, name, array, kind)
        self.tensors.append(tensor)
        return tensor

    def commit(self):
        """Collective, between steps: compares the tables of all ranks and prepares the plan."""
        library.commit(self.handle)

    # --- Steps --------------------------------------------------------------------------------------

    def submit(self, step, tensors):
        """Hands tensors over, in place at home."""
        library.submit(self.handle, step, *_ids(tensors))

    def submit_at(self, step, tensors, inputs, outputs=None):
        """Reads and writes elsewhere in the arena: addresses, one per tensor (outputs may be the inputs)."""
        ids, count = _ids(tensors)
        sources = (ctypes.c_void_p * count)(*inputs)
        targets = sources if outputs is None else (ctypes.c_void_p * count)(*outputs)
        library.submit_inout(self.handle, step, ids, sources, targets, count)

    def absent(self, step, tensors):
        """Says early that this rank will not submit these."""
        library.absent(self.handle, step, *_ids(tensors))

    def step_end(self, step):
        library.step_end(self.handle, step)

    def step_done(self, step, dropped=False):
        """dropped=True: the update was skipped, compression errors of the step are forgotten too."""
        library.step_done(self.handle, step, int(dropped))

    def step_redo(self):
        """After a failed step, on every rank: the number to submit again."""
        step = ctypes.c_uint64()
        library.step_redo(self.handle, byref(step))
        return step.value

    def wait(self, step, timeout=None):
        library.wait(self.handle, step, _milliseconds(timeout))

    def test(self, step, tensors=None):
        """(unfinished count, states) without waiting; raises the failure if one failed."""
        ids, count = _ids(self.tensors if tensors is None else tensors)
        states, pending = (ctypes.c_uint8 * max(1, count))(), ctypes.c_size_t()
        library.test(self.handle, step, ids, count, states, byref(pending))
        return pending.value, list(states[:count])

    def info(self, step):
        """StepReport of one of the last four steps: epoch, policy_version, results, filled, absent, failed."""
        report = StepReport()
        library.step_info(self.handle, step, byref(report))
        return report

    # --- Calls outside steps ------------------------------------------------------------------------

    def allreduce(self, array, op="sum"):
        """The reduced copy of any NumPy array; same order on all ranks. Raw, never compressed."""
        from .session import dtype_name
        array = np.ascontiguousarray(array)
        name = dtype_name(array.dtype)
        staged = self._staged(array.nbytes)
        view = staged[:array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(view, array)
        library.allreduce(self.handle, staged.ctypes.data, staged.ctypes.data, array.size, library.dtypes[name][0],
                          _op(op))
        return view.copy()

    def allreduce_inplace(self, array, op="sum", dtype=None):
        """`array` is of Session.empty: no copy. Give dtype='bf16' for bf16 bits held as uint16."""
        from .session import dtype_name
        kind = library.dtypes[dtype or dtype_name(array.dtype)][0]
        library.allreduce(self.handle, array.ctypes.data, array.ctypes.data, array.size, kind, _op(op))
        return array

    def _staged(self, nbytes):
        room = 1 << max(12, (max(1, nbytes) - 1).bit_length())
        if room not in self._staging:
            self._staging[room] = self.session.empty(room, np.uint8)
        return self._staging[room]


def _ids(tensors):
    numbers = [tensor.id if isinstance(tensor, Tensor) else tensor for tensor in tensors]
    return (ctypes.c_uint32 * max(1, len(numbers)))(*numbers), len(numbers)


def _close(session_close, handle):
    if session_close.alive:  # closing a session has closed its communicators
        library.try_comm_close(handle)
