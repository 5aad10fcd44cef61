"""Communicator: the ranks that reduce together; its tensors, steps and calls.

    weights = comm.register("weights", session.empty((4, 8)))
    comm.commit()
    comm.submit(step, [weights]); comm.step_end(step); comm.wait(step)
"""

from __future__ import annotations

import ctypes
import operator
import time
from sys import is_finalizing
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple
from weakref import WeakValueDictionary

from cgx._arrays import DTYPES, View, copy, dtype_number, dtype_of, view_of, writable_view
from cgx._gpu import stream_number
from cgx._library import (COLLECTIVES, GET, PUT, CommOptions, PostOptions, Rendezvous, StepReport, TensorOptions,
                          ids_array, library)
from cgx._waiting import SLICE_MS, Beside, Calls, Seconds, Uses, in_slices, milliseconds
from cgx.errors import BY_CODE, CgxError, check
from cgx.session import Block, Device, Session, device_id

OPS = {"sum": 0, "avg": 1}
_POST_CALL, _POST_TENSOR = 0, 1  # cgx_post_kind
_ON_GPU = 1  # cgx_memory
_STEPS_KEPT = 4  # by the library
PENDING, RESULT, FILLED, ABSENT, FAILED = range(5)
_NOT_FOUND, _TIMED_OUT = (next(code for code, kind in BY_CODE.items() if kind.status == status)
                          for status in ("NOT_FOUND", "TIMED_OUT"))

_RANKS_MAX = 2**31 - 1
_GRACE_MS = 5_000  # the daemon's time-out, which names the culprit, comes first
_CALLS_IN_FLIGHT = 4
_STEPS_UNFINISHED = 2  # at most
_ANSWERS_MAX = 8192  # CGX_COMPLETION_CAPACITY: of all communicators of a session
_LEAVE_S = 10.0  # for waits that have been told to end


class Tensor(NamedTuple):
    """A registered tensor: its number in the table, its name, its home in the arena or its array on a GPU."""
    id: int
    name: str
    array: Any


class StepInfo(NamedTuple):
    """What is known of a step: which plan (epoch) governed it, how many tensors are in which state."""
    step: int
    attempt: int
    finished: bool
    epoch: int
    policy_version: int
    results: int
    filled: int
    absent: int
    failed: int


def _op_number(op: str) -> int:
    if op not in OPS:
        raise ValueError(f"op {op!r} must be 'sum' or 'avg'")
    return OPS[op]


def _place(rank: Any, size: Any) -> Tuple[int, int]:
    """rank and size, checked here: ctypes would make 4294967295 of a rank of -1."""
    for name, value in (("rank", rank), ("size", size)):
        if not hasattr(value, "__index__"):
            raise TypeError(f"{name} {value!r} must be a whole number, not {type(value).__name__}")
    rank, size = operator.index(rank), operator.index(size)
    if not 1 <= size <= _RANKS_MAX:
        raise ValueError(f"size {size} must be 1 to {_RANKS_MAX}: how many ranks there are")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} must be 0 to {size - 1}, for a size of {size}")
    return rank, size


def _ids(tensors: Sequence[Tensor]) -> List[int]:
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{tensor!r} is no tensor; register() gives them")
    return [tensor.id for tensor in tensors]


def _check_step(step: int) -> None:
    """Here: ctypes would make 18446744073709551615 of -1."""
    if step < 0:
        raise ValueError(f"step {step} must not be negative")


def _timed_out(error: BaseException) -> bool:
    """Whether a store gave up waiting for a key: torch's stores raise a RuntimeError that says so."""
    return isinstance(error, TimeoutError) or (isinstance(error, RuntimeError) and "timeout" in str(error).lower())


class _Store:
    """put and get as C callbacks; keeps what they raise, because C cannot carry it."""

    def __init__(self, put, get, call: Beside):
        self.error: Optional[BaseException] = None
        self._put, self._get, self._call = put, get, call
        self.rendezvous = Rendezvous(PUT(self._call_put), GET(self._call_get), None) if put else Rendezvous()

    def _call_put(self, _, key, value, size):
        try:
            self._call.ask(self._put, key.decode(), ctypes.string_at(value, size))
            return 0
        except BaseException as error:  # all of them: it is raised again on the other side of C
            self.error = error
            return 1

    def _call_get(self, _, key, value, capacity, size):
        try:
            found = self._call.ask(self._get, key.decode())
            if found is None:
                return _NOT_FOUND
            found = bytes(found)
            size[0] = len(found)
            ctypes.memmove(value, found, min(len(found), capacity))
            return 0
        except BaseException as error:
            if _timed_out(error):
                return _TIMED_OUT  # the communicator's error says who is missing
            self.error = error
            return 1


class Call:
    """An allreduce under way. Its memory is kept until it is finished, also when nobody holds the Call any more."""

    def __init__(self, communicator: "Communicator", number: int, result, buffers, stream: Optional[int] = None):
        self._communicator, self._number, self._stream = communicator, number, stream
        self._result, self._buffers = result, buffers
        self._finished = False
        self._error: Optional[CgxError] = None  # that it failed with
        communicator._calls[number] = self

    def done(self) -> bool:
        """Whether it is finished, without waiting; raises what it failed with."""
        if not self._finished:
            finished = ctypes.c_int()
            self._communicator._do(library.cgx_test_call, self._number, ctypes.byref(finished))
            return bool(finished.value)
        if self._error is not None:
            raise type(self._error)(*self._error.args)  # anew: what is raised holds frames, which hold this call
        return True

    def _learn(self) -> None:
        """How it ended, before the library forgets it."""
        try:
            self._finished = self.done()
        except CgxError as error:
            self._finished, self._error = True, error.with_traceback(None)

    def wait(self, timeout: Seconds = None, stream: Any = None):
        """The result: the array the call was made with, or `out`.

        timeout: in seconds or a timedelta; None: the communicator's own, 0: do not wait. Of an array on a GPU the
        result is ordered on `stream`, default the one that the call was made with: the host waits for the network only.
        """
        if self._stream is None and self._finished:
            self.done()
        elif self._stream is None:
            self._communicator._wait_call(self._number, timeout)
        else:
            number = stream_number(stream)
            self._communicator._wait_on_stream(self._number, self._stream if number is None else number, timeout)
        return self._result


class Communicator:
    """The ranks that reduce together. Made by Session.communicator(); every method may be called from any thread."""

    def __init__(self, session: Session, name: str, rank: int, size: int, put: Optional[Callable[[str, bytes], Any]],
                 get: Optional[Callable[[str], bytes]], first_step: int, timeout: Seconds,
                 meanwhile: Optional[Callable[[], object]] = None, device: Optional[Device] = None):
        timeout_ms = milliseconds(timeout or 0)
        rank, size = _place(rank, size)
        if (put is None) != (get is None):
            raise TypeError(f"put and get come together: {'get' if get is None else 'put'} is missing")
        if device is not None:
            session.share(device)  # here: the library makes it in a thread without the GPU's context
        place = device_id(device) if device is not None else bytes(16)
        self._handle: Optional[ctypes.c_void_p] = None
        self._last_call = -1
        self._calls: WeakValueDictionary[int, Call] = WeakValueDictionary()  # that somebody holds
        self._asking, self._uses = Calls(), Uses()

        def create(call: Beside) -> ctypes.c_void_p:
            store = _Store(put, get, call)
            options = CommOptions(name=name.encode(), rank=rank, ranks=size, first_step=first_step,
                                  timeout_ms=timeout_ms, rendezvous=store.rendezvous,
                                  device=(ctypes.c_uint8 * 16)(*place))
            handle = ctypes.c_void_p()
            code = library.cgx_comm_create(session.handle, ctypes.byref(options), ctypes.byref(handle))
            if store.error is not None:
                raise store.error
            check(code)
            return handle

        self._handle = session._join(create, meanwhile)
        limit = ctypes.c_uint64()
        check(library.cgx_comm_timeout(self._handle, ctypes.byref(limit)))
        self._limit_ms = limit.value + _GRACE_MS
        self.session, self.name, self.rank, self.size = session, name, rank, size
        self.tensors: List[Tensor] = []
        self.answers_max = _CALLS_IN_FLIGHT + _STEPS_UNFINISHED  # that the daemon may owe at once
        self.answers_of_step = 2  # its end's, and one more where it is abandoned
        self._begun = self._over = first_step - 1  # the last step that is under way, and the last known to be finished
        self._on_gpu: Set[int] = set()  # tensors without a home of the caller's
        self._posted: Dict[int, Tuple[int, List[Any]]] = {}  # step -> its GPU's stream, what must live until the result
        session.communicators.add(self)

    @property
    def handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise CgxError(f"communicator {self.name} is closed")
        return self._handle

    # Tensors

    def register(self, name: str, array, op: str = "avg", dtype=None, shape: Optional[Sequence[int]] = None) -> Tensor:
        """Registers an array of the arena as the tensor's home; all ranks register the same ones in the same order.

        An array on a GPU is what submit() takes the tensor from and writes it to; some ranks may have theirs there.
        dtype, shape: if not the array's own, e.g. dtype="bf16" for bits in uint16. Both have to fit the array.
        """
        view = writable_view(array, f"the home of tensor {name}")
        element = dtype_of(view, dtype)
        width = DTYPES[element][1]
        shape = _shape_of(view, width) if shape is None else tuple(shape)
        dims = (ctypes.c_uint64 * len(shape))(*shape)
        size = width
        for extent in shape:
            size *= extent
        if size != view.size:
            raise ValueError(f"tensor {name}: shape {shape} of {element} has {size} bytes, its array {view.size}")
        options = TensorOptions(name=name.encode(), dtype=dtype_number(element), op=_op_number(op), dims=len(shape),
                                shape=dims, home=None if view.gpu else view.address)
        number = ctypes.c_uint32()
        self._do(library.cgx_register, ctypes.byref(options), ctypes.byref(number))
        tensor = Tensor(number.value, name, array)
        self.tensors.append(tensor)
        self.answers_max += _STEPS_UNFINISHED
        self.answers_of_step += 1
        if view.gpu:
            self._on_gpu.add(tensor.id)
        return tensor

    def commit(self) -> None:
        """Collective, between steps: all ranks have registered the same tensors."""
        self._ask(lambda _: check(library.cgx_commit(self.handle)))

    # Steps

    def submit(self, step: int, tensors: Sequence[Tensor], stream: Any = None) -> None:
        """Hands over tensors at home: read there, and the results written there. The first submit opens the step.

        stream: that those on a GPU are ready on; default their own, else CUDA's default stream.
        """
        _check_step(step)
        numbers = _ids(tensors)
        for tensor in tensors:
            if tensor.id in self._on_gpu:
                self.post(step, tensor, tensor.array, stream=stream)
        ids = ids_array([number for number in numbers if number not in self._on_gpu])
        if len(ids) > 0 or not tensors:
            self._hand_over(lambda: check(library.cgx_submit(self.handle, step, ids, len(ids))), step)

    def post(self, step: int, tensor: Tensor, array=None, out=None, indices: Any = None,
             ready: Optional[Tuple[int, int]] = None, stream: Any = None) -> None:
        """Hands over one tensor of a step: at home, or read from `array` and written to `out` (default: there, too).

        Both in the arena, or both on the GPU whose context is current: then `array` is ready on `stream` (default its
        own, else CUDA's default stream), nobody waits, and wait() orders the result on it. Not built yet
        (UnimplementedError): indices, the numbers of the rows that `array` has; ready, (address of a timeline word, the
        value at which the array may be read).
        """
        options = PostOptions(kind=_POST_TENSOR, step=step, tensor=tensor.id)
        if array is not None:
            source, target, _ = _pair(array, out, None, stream)
            options.in_, options.out = source.address, target.address
            _name_stream(options, source)
        if indices is not None:
            rows = view_of(indices)
            options.indices, options.rows = rows.address, rows.size // rows.width
            options.indices_dtype = dtype_number(dtype_of(rows, None))
        if array is None or not source.gpu:
            self._hand_over(lambda: self._post(options, ready), step)
            return
        self._post(options, ready)  # in the thread with the GPU's context
        self._posted.pop(step - _STEPS_KEPT, None)
        self._posted.setdefault(step, (source.gpu.stream, []))[1].extend((source, target))

    def absent(self, step: int, tensors: Sequence[Tensor]) -> None:
        """Says early that this rank will not submit these tensors in this step."""
        _check_step(step)
        ids = ids_array(_ids(tensors))
        self._hand_over(lambda: check(library.cgx_absent(self.handle, step, ids, len(ids))), step)

    def step_end(self, step: int) -> None:
        """The rest is absent. Only after it may the step be waited for."""
        _check_step(step)
        self._hand_over(lambda: check(library.cgx_step_end(self.handle, step)), step)

    def wait(self, step: int, timeout: Seconds = None, stream: Any = None) -> None:
        """Waits until the step is finished; raises what it failed with.

        timeout: in seconds or a timedelta; None: the communicator's own, 0: do not wait. Results on a GPU are ordered
        on `stream`, default the one that the step's first tensor was handed over on: the host waits for the network only.
        """
        _check_step(step)
        timeout_ms, posted = self._timeout_ms(timeout), self._posted.get(step)
        if posted is None:
            check(self._wait(lambda handle, ms: library.cgx_wait(handle, step, ms), timeout_ms))
            return
        number = posted[0] if stream is None else stream_number(stream)
        check(self._wait(lambda handle, ms: library.cgx_stream_wait(handle, step, number, ms), timeout_ms))
        self._posted.pop(step, None)

    def set_gradient_unit(self, unit: float) -> None:
        """Loss scale / learning rate of the steps that open from now on: error feedback converts what it kept."""
        self._do(library.cgx_set_gradient_unit, unit)

    def step_done(self, step: int, dropped: bool = False) -> None:
        """Says whether the step's update is applied, before the next one begins; without it, it is.

        dropped: the update is skipped (overflow) on all ranks, so error feedback forgets the step too.
        """
        self._do(library.cgx_step_done, step, int(dropped))

    def redo(self) -> int:
        """After a failed step, by every rank: the number to submit again, with the arrays filled anew."""
        step = ctypes.c_uint64()
        self._ask(lambda _: check(library.cgx_step_redo(self.handle, ctypes.byref(step))))
        self._begun = self._over = step.value - 1
        return step.value

    def states(self, step: int, tensors: Sequence[Tensor]) -> List[int]:
        """PENDING, RESULT, FILLED, ABSENT or FAILED of each tensor, without waiting."""
        ids, states, pending = ids_array(_ids(tensors)), (ctypes.c_uint8 * len(tensors))(), ctypes.c_size_t()
        self._do(library.cgx_test, step, ids, len(ids), states, ctypes.byref(pending))
        return list(states)

    def step_info(self, step: int) -> StepInfo:
        """About one of the last four steps."""
        report = StepReport()
        self._do(library.cgx_step_info, step, ctypes.byref(report))
        return StepInfo(*(getattr(report, name) for name in StepInfo._fields))._replace(finished=bool(report.finished))

    # Calls outside steps

    def allreduce(self, array, op: str = "sum", out=None, timeout: Seconds = None, dtype=None, stream: Any = None):
        """Reduces an array over all ranks, into `out` or in place; returns it. Arrays outside the arena are copied.

        Takes NumPy arrays (with ml_dtypes' element types), buffers, what speaks DLPack (torch, JAX), and
        __cuda_array_interface__ (CuPy, Numba). On a GPU, whose context is current, the array is ready on `stream`
        (default its own, else CUDA's default stream) and the result is ordered on it: the device is not synchronised.
        Read-only and immutable arrays need an `out`. dtype: what the elements really are, e.g. "bf16" for uint16.
        timeout: in seconds or a timedelta, default the communicator's own; after a time-out the result is undefined.
        """
        source, target, element = _pair(array, out, dtype, stream)
        op_number, result = _op_number(op), array if out is None else out
        if source.gpu:
            return self._call_from_gpu(source, target, element, op_number, result).wait(timeout)
        if self._in_arena(source) and self._in_arena(target):
            self._wait_call(self._begin(source.address, target.address, source.size, element, op_number), timeout)
            return result
        block = Block(self.session, max(source.size, 1))
        staged = View(block.address, source.shape, source.element, source.width, True, block)
        copy(staged, source)
        self._wait_call(self._begin(block.address, block.address, source.size, element, op_number), timeout)
        copy(target, staged)
        return result

    def allreduce_async(self, array, op: str = "sum", out=None, dtype=None, stream: Any = None) -> Call:
        """The same for arrays of the arena or on a GPU, without waiting: returns a Call. A fifth in flight waits.

        On a GPU the result of one of the last 64 calls can be waited for.
        """
        source, target, element = _pair(array, out, dtype, stream)
        result = array if out is None else out
        if source.gpu:
            return self._call_from_gpu(source, target, element, _op_number(op), result)
        number = self._begin(source.address, target.address, source.size, element, _op_number(op))
        return Call(self, number, result, (source, target))

    def call(self, collective: str, array, op: str = "sum", out=None, dtype=None, root: int = 0, peer: int = 0,
             tag: int = 0, ready: Optional[Tuple[int, int]] = None, stream: Any = None) -> Call:
        """Begins one of cgx.communicator.COLLECTIVES on arrays of the arena or on a GPU; returns a Call.

        Not built yet (UnimplementedError, by name): all but "allreduce"; root, peer and tag; ready, as for post().
        """
        if collective not in COLLECTIVES:
            raise ValueError(f"collective {collective!r} must be one of {', '.join(COLLECTIVES)}")
        source, target, element = _pair(array, out, dtype, stream)
        self._wait_for_room()
        options = PostOptions(
            kind=_POST_CALL, collective=COLLECTIVES.index(collective), in_=source.address, out=target.address,
            count=source.size // DTYPES[element][1], dtype=dtype_number(element), op=_op_number(op), root=root,
            peer=peer, tag=tag)
        _name_stream(options, source)
        number = self._post(options, ready)
        self._last_call = max(self._last_call, number)
        gpu = source.gpu and source.gpu.stream
        return Call(self, number, array if out is None else out, (source, target), gpu)

    def _call_from_gpu(self, source: View, target: View, element: str, op: int, result) -> Call:
        self._wait_for_room()
        options = PostOptions(kind=_POST_CALL, in_=source.address, out=target.address, op=op, dtype=dtype_number(element),
                              count=source.size // DTYPES[element][1])
        _name_stream(options, source)
        number = self._post(options, None)
        self._last_call = max(self._last_call, number)
        return Call(self, number, result, (source, target), source.gpu.stream)

    def _post(self, options: PostOptions, ready: Optional[Tuple[int, int]]) -> int:
        number = ctypes.c_uint64()
        if ready is not None:
            options.word, options.word_value = ready
        self._do(library.cgx_post, ctypes.byref(options), ctypes.byref(number))
        return number.value

    def _begin(self, source: int, target: int, size: int, dtype: str, op: int) -> int:
        self._wait_for_room()
        number = ctypes.c_uint64()
        self._hand_over(lambda: check(library.cgx_allreduce_async(
            self.handle, source, target, size // DTYPES[dtype][1], dtype_number(dtype), op, ctypes.byref(number))))
        self._last_call = max(self._last_call, number.value)
        return number.value

    def _wait_for_room(self) -> None:
        """Where Ctrl-C is noticed; how the oldest call ends is for whoever waits for that one."""
        oldest = self._last_call + 1 - _CALLS_IN_FLIGHT
        if oldest >= 0:
            self._wait(lambda handle, ms: library.cgx_wait_call(handle, oldest, ms), self._limit_ms)
            for number, call in list(self._calls.items()):
                if number <= oldest and not call._finished:
                    call._learn()

    def _hand_over(self, call: Callable[[], Any], step: int = -1) -> None:
        """call(), in which the library may wait for room for its answers; Ctrl-C is noticed where it may."""
        self._begun = max(self._begun, step)
        communicators = list(self.session.communicators)
        if (sum(each.answers_max for each in communicators) <= _ANSWERS_MAX
                or sum(each._owed_max(step if each is self else -1) for each in communicators) <= _ANSWERS_MAX):
            with self._uses:
                call()
        else:
            self._ask(lambda _: call())

    def _owed_max(self, step: int) -> int:
        """How many answers the daemon may owe once something of `step` is handed over; -1: of no step."""
        self._over = max(self._over, self._begun - _STEPS_UNFINISHED)
        while self._over < self._begun and self._over + 1 != step and self._is_finished(self._over + 1):
            self._over += 1
        return _CALLS_IN_FLIGHT + (self._begun - self._over) * self.answers_of_step

    def _is_finished(self, step: int) -> bool:
        try:
            return self.step_info(step).finished
        except CgxError:  # or it has failed, as whoever waits for it hears
            return False

    def _wait_call(self, number: int, timeout: Seconds) -> None:
        check(self._wait(lambda handle, ms: library.cgx_wait_call(handle, number, ms), self._timeout_ms(timeout)))

    def _wait_on_stream(self, number: int, stream: int, timeout: Seconds) -> None:
        check(self._wait(lambda handle, ms: library.cgx_stream_wait_call(handle, number, stream, ms),
                         self._timeout_ms(timeout)))

    def _wait(self, wait: Callable[[ctypes.c_void_p, int], int], timeout_ms: int) -> int:
        with self._uses:
            return in_slices(lambda ms: wait(self.handle, ms), timeout_ms)

    def _do(self, function: Callable[..., int], *arguments) -> None:
        """What a function of the library answers is raised. It does not wait for other ranks."""
        with self._uses:
            check(function(self.handle, *arguments))

    def _inside(self) -> Uses:
        """A context in which close() of another thread does not free what the handle names, and waits."""
        return self._uses

    def _end_calls(self, handle: ctypes.c_void_p) -> None:
        """Interrupted ones, and those of other threads, which may not wait yet when they are told."""
        deadline = time.monotonic() + _LEAVE_S
        for call in self._asking.under_way():
            call.leave()  # one that has not begun does not: its thread may wait for this one
            library.cgx_comm_cancel(handle)
            while self.session.is_open and not is_finalizing() and time.monotonic() < deadline:
                if call.join(SLICE_MS / 1000):
                    break
                library.cgx_comm_cancel(handle)

    def _end_waits(self, handle: ctypes.c_void_p) -> None:
        """Of other threads. The library knows of those inside it, but not of one between two slices."""
        if not self.session.is_open or is_finalizing():  # those threads are not here, or run no more
            return
        deadline, pause = time.monotonic() + _LEAVE_S, 0.0
        while not self._uses.others_left(pause) and time.monotonic() < deadline:
            library.cgx_comm_cancel(handle)
            pause = SLICE_MS / 1000

    def _timeout_ms(self, timeout: Seconds) -> int:
        return self._limit_ms if timeout is None else min(milliseconds(timeout), self._limit_ms)

    def _in_arena(self, view: View) -> bool:
        return view.size == 0 or self.session.owns(view.address)

    def close(self) -> None:
        """Leaves the communicator; what is unfinished fails.

        Returns when the daemon has let go of this process's memory; TimedOutError if it does not, or if a stream has not
        made a copy from the GPU by then. That memory is used for nothing else then while the session is open.
        """
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self.session.communicators.discard(self)
        self._end_calls(handle)
        self._end_waits(handle)

        def leave(_):
            check(library.cgx_comm_close(handle))

        if is_finalizing():  # no thread can be begun any more
            leave(None)
        else:
            self.session._join(leave)

    def _ask(self, call: Callable[[Beside], Any]) -> Any:
        """The result of a call that waits for other ranks, which may go on after an interrupt."""
        return self._asking.wait(call)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *error) -> None:
        self.close()


def _shape_of(view: View, width: int) -> Tuple[int, ...]:
    """An array of bytes has its shape in bytes: as elements it is flat."""
    return view.shape if width == view.width else (view.size // width,)


def _name_stream(options: PostOptions, source: View) -> None:
    if source.gpu:
        options.memory, options.stream = _ON_GPU, source.gpu.stream


def _pair(array, out, dtype, stream: Any = None) -> Tuple[View, View, str]:
    """Input and output of a call, which have the same size and element type, before anybody takes part."""
    if out is None or out is array:
        view = writable_view(array, stream=stream)
        return view, view, dtype_of(view, dtype)
    source, target = view_of(array, stream), writable_view(out, "out", stream)
    element = dtype_of(source, dtype)
    if bool(source.gpu) != bool(target.gpu):
        raise ValueError("the array and out must both be in the CPU's memory, or both on a GPU")
    if target.size != source.size:
        raise ValueError(f"out has {target.size} bytes, the array {source.size}")
    if target.element != source.element and dtype is None:
        raise ValueError(f"out has elements of type {target.element}, the array of {source.element}")
    return source, target, element
