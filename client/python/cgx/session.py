"""Session: this process's connection to its machine's daemon, and the memory they share.

Arena memory stays mapped until the last array over it is gone, also after Session.close().
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import uuid
from typing import Any, Callable, List, Optional, Set, Tuple, Union

from cgx._arrays import DTYPES, NAMES, dtype_name, dtype_number, numpy, writable_view  # noqa: F401  dtype_number: for cgx.torch
from cgx._gpu import DeviceArray
from cgx._library import ArenaOptions, OpenOptions, library
from cgx._waiting import Beside, Calls, Seconds, in_slices, milliseconds
from cgx.errors import CgxError, ForkedError, UnimplementedError, call_all, check  # noqa: F401

_DEVICE = 1  # cgx_arena_kind
_SPIN_US_MAX = 1_000_000
_BYTES_MAX = 2**63 - 1
_NUMPY_NAMES = {**NAMES, "bf16": "uint16"}  # NumPy has no bf16: its arrays show the bits
_FORMATS = {"fp32": "f", "fp64": "d", "int8": "b", "uint8": "B", "int32": "i", "int64": "q", "bf16": "H", "fp16": "e"}


Device = Union[uuid.UUID, str]  # a GPU

_TYPE_STRINGS = {"fp32": "<f4", "fp64": "<f8", "int8": "|i1", "uint8": "|u1", "int32": "<i4", "int64": "<i8", "bf16": "<u2",
                 "fp16": "<f2"}


def _number(name: str, value: Any, most: int) -> int:
    """value, checked here: ctypes would make 4294967295 of -1."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} {value!r} must be a whole number, not {type(value).__name__}")
    number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} {number} must be 0 to {most}")
    return number


def device_id(device: Any) -> bytes:
    """Of the UUID of a GPU or of a part of one (MIG), or its text as nvidia-smi prints it."""
    if isinstance(device, uuid.UUID):
        return device.bytes
    if not isinstance(device, str):
        raise TypeError(f"device {device!r} must be the UUID of a GPU, as uuid.UUID, \"GPU-...\" or \"MIG-...\"")
    try:
        return uuid.UUID(device.removeprefix("GPU-").removeprefix("MIG-")).bytes
    except ValueError:
        raise ValueError(f"device {device!r} must be the UUID of a GPU; nvidia-smi -L prints them") from None


class Block:
    """One allocation in the arena; freed with its last user, its mapping kept until then.

    The library gives freed memory to nobody while a call or a step may still use it.
    """

    def __init__(self, session: "Session", size: int, alignment: int = 64, device: Optional[Device] = None):
        address, arena = ctypes.c_void_p(), ctypes.c_void_p()
        where = ArenaOptions(bytes=size, alignment=alignment)
        if device is not None:
            where.kind, where.device = _DEVICE, (ctypes.c_uint8 * 16)(*device_id(device))
        check(library.cgx_arena_alloc_at(session.handle, ctypes.byref(where), ctypes.byref(address)))
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


class Imported:
    """Memory of a GPU that is used where it lies until end(), or the end of a `with`. Keeps its array."""

    def __init__(self, session: "Session", view: Any, device: Device):
        where = ArenaOptions(bytes=view.size, kind=_DEVICE, device=(ctypes.c_uint8 * 16)(*device_id(device)))
        check(library.cgx_arena_import(session.handle, ctypes.byref(where), view.address))
        self._session, self._view = session, view
        session.imports.add(self)

    def end(self, timeout: Seconds = None) -> None:
        """Waits until nothing names the memory and the worker has closed it; then it may be freed."""
        if self._view is None:
            return
        address = self._view.address
        if self._session.is_open:
            check(in_slices(lambda ms: library.cgx_arena_end_import(self._session.handle, address, ms), milliseconds(timeout)))
        self._session.imports.discard(self)
        self._view = None

    def __enter__(self) -> "Imported":
        return self

    def __exit__(self, *error) -> None:
        self.end()


class Session:
    """`with Session() as session:` connects to the daemon ($CGX_SOCKET, the user's, the machine's).

    job: tells apart jobs of one user; default $CGX_JOB. arena_bytes: size of the first arena, default 64 MiB; more are
    added on demand. connect_timeout: seconds or a timedelta, default 10 s. spin_us: spin before sleeping in waits, at
    most a second.
    """

    def __init__(self, socket: Optional[str] = None, job: Optional[str] = None, arena_bytes: int = 0,
                 connect_timeout: Seconds = 0, spin_us: int = 0):
        self._handle: Optional[ctypes.c_void_p] = None
        options = OpenOptions(socket=_bytes(socket), job=_bytes(job),
                              arena_bytes=_number("arena_bytes", arena_bytes, _BYTES_MAX),
                              connect_timeout_ms=milliseconds(connect_timeout or 0),
                              spin_us=_number("spin_us", spin_us, _SPIN_US_MAX))
        self._handle, self._pid = Beside(lambda call: _open(options, call)).wait(), os.getpid()
        self.communicators: Set[Any] = set()
        self.imports: Set[Imported] = set()  # their arrays live until the worker has closed them
        self._before_close: List[Callable[[], object]] = []
        self._joining = Calls()

    @property
    def handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise CgxError("the session is closed")
        return self._handle

    @property
    def is_open(self) -> bool:
        """False after close(), and in a forked child."""
        return self._handle is not None and self._pid == os.getpid()

    def empty(self, shape: Union[int, Tuple[int, ...]], dtype: Any = "fp32", device: Optional[Device] = None):
        """An uninitialised array in the arena: NumPy's if it is installed, else a memoryview.

        dtype: one of cgx.DTYPES, or NumPy's, torch's, JAX's or ml_dtypes' element type. "bf16" gives the bits as
        uint16, ml_dtypes.bfloat16 (jnp.bfloat16) an array of that type. device: the UUID of this thread's GPU; an object
        with __cuda_array_interface__ then, for a communicator that has the same device.
        """
        try:
            shape = (operator.index(shape),)
        except TypeError:
            shape = tuple(operator.index(extent) for extent in shape)
        name = dtype_name(dtype)
        count, bytes_each = math.prod(shape), DTYPES[name][1]
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape} must not have a negative extent")
        block = Block(self, max(count * bytes_each, 1), device=device)
        if device is not None:
            return DeviceArray(block, shape, _TYPE_STRINGS[name])
        buffer = block.buffer()
        if numpy is None:
            flat = memoryview(buffer)[:count * bytes_each].cast("B")
            return flat.cast(_FORMATS[name], shape) if count else flat
        return numpy.frombuffer(buffer, dtype=_numpy_dtype(dtype, name), count=count).reshape(shape)

    def import_(self, array: Any, device: Device) -> Imported:
        """Has an array of this thread's GPU, whose UUID is `device`, reduced where it lies, without copies.

        The array is the caller's: its memory is freed after Imported.end() or close(). Nobody may touch its first 8
        bytes meanwhile. UnimplementedError: its memory has no CUDA IPC handle (torch's expandable segments); hand the
        array over as it is, and it is copied.
        """
        view = writable_view(array)
        if view.gpu is None:
            raise ValueError("the array to import is not in the memory of a GPU")
        return Imported(self, view, device)

    def share(self, device: Device) -> bytes:
        """Makes the arena on a GPU, which takes this thread's context. Zeros: its memory cannot be shared."""
        try:
            Block(self, 1, device=device)
        except UnimplementedError:
            return bytes(16)
        return device_id(device)

    def owns(self, address: int) -> bool:
        """Whether an address lies in this session's arenas."""
        arena = ctypes.c_void_p()
        code = library.cgx_arena_retain(self.handle, address, ctypes.byref(arena))
        if code == 0:
            library.cgx_arena_release(arena)
        return code == 0

    def communicator(self, name: str, rank: int = 0, size: int = 1, put: Optional[Callable[[str, bytes], Any]] = None,
                     get: Optional[Callable[[str], bytes]] = None, first_step: int = 0, timeout: Seconds = 0,
                     meanwhile: Optional[Callable[[], object]] = None, device: Optional[Device] = None):
        """Joins `size` ranks; returns the Communicator when all of them are there.

        put(key, bytes) and get(key) -> bytes reach a store all ranks share; get returns None for a key that is not
        there yet, or waits for it (a TimeoutError, or what torch's stores raise then, counts); put replaces an earlier value. first_step is the
        same on all ranks. timeout, in seconds or a timedelta, bounds every wait of the communicator; 0 or None: as the
        daemon has it (timeouts.communicator_ms, 30 minutes by default). meanwhile() is called some times a second while ranks join, in the main thread: what it raises ends
        the wait. device is the UUID of this thread's GPU (a uuid.UUID, or "GPU-..." or "MIG-..." as nvidia-smi has it), where the
        daemon's worker then reduces the tensors: of fp32, fp16 and bf16, on all ranks of the machine.
        """
        from cgx.communicator import Communicator
        return Communicator(self, name, rank, size, put, get, first_step, timeout, meanwhile, device)

    def poll(self, seen: int = 0, timeout: Seconds = None) -> int:
        """Waits until the session's event count differs from `seen`; returns it. TimedOutError if it does not."""
        count = ctypes.c_uint64(seen)
        check(in_slices(lambda ms: library.cgx_poll(self.handle, ctypes.byref(count), ms), milliseconds(timeout)))
        return count.value

    def wake(self) -> None:
        """Adds one to the event count: a poll() in another thread returns."""
        check(library.cgx_wake(self.handle))

    def event_fd(self) -> int:
        """For event loops: readable after completions; poll(seen, 0) makes it unreadable."""
        descriptor = ctypes.c_int()
        check(library.cgx_event_fd(self.handle, ctypes.byref(descriptor)))
        return descriptor.value

    def before_close(self, action: Callable[[], object]) -> None:
        """Calls action() when the session is about to be closed: threads inside it must leave first."""
        self._before_close.append(action)

    def _join(self, call: Callable[[Beside], Any], meanwhile: Optional[Callable[[], Any]] = None) -> Any:
        """The result of a call that makes or ends a communicator, which may go on after an interrupt."""
        return self._joining.wait(call, meanwhile)

    def close(self) -> None:
        """Closes the communicators and ends the connection. Arrays of the arena stay valid.

        TimedOutError: a stream has not made its copies for 10 s; the session is over, its memory goes with the process.
        """
        if self._handle is None:
            return
        call_all([*(self._before_close if self.is_open else ()), self._close_communicators, self._end])

    def _close_communicators(self) -> None:
        call_all([communicator.close for communicator in list(self.communicators)])

    def _end(self) -> None:
        handle, self._handle = self._handle, None
        try:
            if not self._joining.under_way():  # else it goes with the process
                check(library.cgx_close(handle))
        finally:
            self.imports.clear()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def __del__(self):
        try:
            if getattr(self, "_handle", None) is not None:
                self.close()
        except (CgxError, ForkedError, TypeError):  # TypeError: the interpreter is going down
            pass


def _open(options: OpenOptions, call: Beside) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    check(library.cgx_open(ctypes.byref(options), ctypes.byref(handle)))
    if call.left:
        library.cgx_close(handle)
    return handle


def _numpy_dtype(dtype, name: str):
    """ml_dtypes.bfloat16 as itself; NumPy itself knows no such type."""
    if name != "bf16" or isinstance(dtype, str):
        return _NUMPY_NAMES[name]
    try:
        return numpy.dtype(dtype)
    except TypeError:  # torch.bfloat16
        return _NUMPY_NAMES[name]


def _bytes(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else os.fsencode(text)
