"""Gradients on an accelerator: copied into the arena and back in the order of its streams, as torch has them for every kind.

On a CUDA GPU the arena lies there where the daemon's worker can have it (`Shared`): copies stay on the device, the worker
waits for the stream and compresses there. Else it is the host's.


The device copies a bucket behind what is under way on it; `Later` hands the bucket over when it is there. The result is
copied back on the same stream of our own, and DDP's future orders what comes behind it. Nothing synchronises the device.
"""

import ctypes
import queue
import threading
import time
import uuid

import torch

from cgx._gpu import DeviceArray
from cgx._library import PostOptions, library
from cgx.errors import UnsupportedGradientError
from cgx.session import Block

_known = {}  # device -> its Accelerator, or None
_WITHOUT_MEMORY = ("meta",)
_TENSOR, _CUDA = 1, 1  # cgx_post_kind, cgx_memory
_COPIES_S, _LOOK_S = 10, 0.002  # as cgx_close
_kept = []  # memory of streams that got stuck


def keep_for_good(memory):
    _kept.append(memory)


def accelerator_of(device):
    """None for the CPU, and for what check_device() refuses."""
    if device.type == "cpu":
        return None
    if device not in _known:
        takes = device.type not in _WITHOUT_MEMORY and _is_known(device)
        _known[device] = Accelerator(device) if takes else None
    return _known[device]


def check_device(device):
    if device.type in _WITHOUT_MEMORY:
        raise UnsupportedGradientError(f"gradients on {device} have no memory: cgx.torch takes those on the CPU and on "
                                       "accelerators; do not register the hook for others")
    if device.type != "cpu" and not _is_known(device):
        raise UnsupportedGradientError(f"gradients on {device}: cgx.torch copies them with torch.{device.type}, which torch "
                                       f"{torch.__version__} does not have here; do not register the hook for them")


def pin(session, block, device):
    """So that copies need no host. Without it, and where there is no CUDA driver (ROCm), they are made all the same."""
    if device.type == "cuda":
        library.cgx_arena_pin(session.handle, block.address)


def _module_of(device):
    """torch.cuda, torch.xpu, ..."""
    find = getattr(torch, "get_device_module", None)  # torch 2.4
    return find(device) if find else getattr(torch, device.type)


def _is_known(device):
    try:
        return _module_of(device) is not None
    except (AttributeError, RuntimeError):  # of getattr, of get_device_module
        return False


def _copy(stream, target, source, buffer):
    """On the current stream, which is `stream`: torch's allocator must not give the device's buffer away before."""
    target.copy_(source, non_blocking=True)
    buffer.record_stream(stream)


def all_finite(tensor):
    """Whether there is no Inf and no NaN: a tensor beside it, which nobody has waited for."""
    if tensor.dtype == torch.float16 and tensor.device.type == "cpu":
        tensor = tensor.float()  # torch 1.13 has no aminmax of fp16 there
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def scale(result, factor):
    if factor != 1.0:
        result.mul_(factor)


class Accelerator:
    """One device. Kinds without streams (mps) copy in the order in which they are told, and the host waits for it."""

    def __init__(self, device):
        self.device = device
        self._torch = _module_of(device)
        self._side = self._torch.Stream(device=device) if hasattr(self._torch, "Stream") else None
        self._orders_futures = self._side is not None and self._futures_know_it()

    def _futures_know_it(self):
        try:
            torch.futures.Future(devices=[self.device])
            return True
        except (RuntimeError, ValueError, TypeError):
            return False

    def future(self):
        return torch.futures.Future(devices=[self.device]) if self._orders_futures else torch.futures.Future()

    def fetch(self, stage, buffer):
        """Copies a bucket into the arena, behind what is under way on the device. Returns a wait, or None: it is there."""
        if self._side is None:
            stage.copy_(buffer)
            return None
        self._side.wait_stream(self._torch.current_stream(self.device))
        with self._torch.stream(self._side):
            _copy(self._side, stage, buffer, buffer)
            event = self._event()
            event.record(self._side)
        return event.synchronize

    def _event(self):
        try:
            return self._torch.Event(blocking=True)  # whoever waits for CUDA's others keeps a core busy
        except TypeError:
            return self._torch.Event()

    def share(self, session):
        """The arena on this device, if its UUID is known and the daemon's worker can have it; None: the host's."""
        if self.device.type != "cuda" or torch.version.cuda is None or self._side is None:
            return None
        name = getattr(self._torch.get_device_properties(self.device), "uuid", None)  # torch 2.4
        if name is None:
            return None
        number = uuid.UUID(str(name))
        self._torch.empty_cache()  # what torch keeps for itself is what the arena and the worker need
        with self._torch.device(self.device):
            return Shared(self, number) if any(session.share(number)) else None

    def fill(self, stage, buffer):
        """Copies a bucket into the arena on this device, behind what is under way there; returns the stream."""
        self._side.wait_stream(self._torch.current_stream(self.device))
        with self._torch.stream(self._side):
            _copy(self._side, stage, buffer, buffer)
        return self._side

    def keep(self, memory):
        """Until our stream has done what it holds; while the process lives where that takes too long."""
        end = time.monotonic() + _COPIES_S
        while not self._is_done():
            if time.monotonic() > end:
                return keep_for_good(memory)
            time.sleep(_LOOK_S)

    def _is_done(self):
        try:
            return self._side.query()
        except RuntimeError:  # the device has failed, and its streams do nothing more
            return True

    def here(self):
        """A context in which the device is the thread's."""
        return self._torch.device(self.device)

    def deliver(self, buffer, stage, factor, settle, looks):
        """Copies a result, times the factor, to the device, then settle(look), whose future is ordered behind it.

        looks: the stage is on the device, and look() says whether it is finite, and waits for nothing that comes later;
        else look is None.
        """
        if self._side is None:
            scale(stage, factor)
            buffer.copy_(stage)
            return settle(None)
        with self._torch.stream(self._side):  # where the stage is on the device, it is scaled there before it is copied
            scale(stage, factor)
            _copy(self._side, buffer, stage, buffer)
            look = self._look(stage) if looks else None
            if not self._orders_futures:
                self._side.synchronize()
            settle(look)

    def _look(self, stage):
        """On our stream, where nothing is changed any more. The host neither waits nor reads before look() is called."""
        if stage.numel() == 0:
            return lambda: True
        told = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=self.device.type == "cuda")
        told.copy_(all_finite(stage), non_blocking=True)
        event = self._event()
        event.record(self._side)

        def look():
            event.synchronize()
            return bool(told)

        return look


class Shared:
    """Arena memory on one GPU, which the daemon's worker has, too."""

    def __init__(self, accelerator, number):
        self._accelerator, self.device = accelerator, number

    def block(self, session, size):
        with self._accelerator.here():
            return Block(session, size, device=self.device)

    def tensor(self, block, dtype):
        return torch.as_tensor(DeviceArray(block, (block.size,), "|u1"), device=self._accelerator.device).view(dtype)

    def hand_over(self, communicator, step, ids, places, stream):
        """The worker waits for what the stream holds; this thread for nothing."""
        with self._accelerator.here():
            for number, place in zip(ids, places):
                options = PostOptions(kind=_TENSOR, step=step, tensor=number, in_=place, out=place, memory=_CUDA,
                                      stream=stream.cuda_stream)
                communicator._do(library.cgx_post, ctypes.byref(options), None)

    def sum_of(self, communicator, session, value):
        """One number of each rank, added. Waits for them."""
        with self._accelerator.here():
            number = self.tensor(self.block(session, 4), torch.float32).fill_(value)
            return float(communicator.allreduce(number, out=number)[0])


class Later:
    """What is to be done when a copy is over, in the order in which it was said; at once where nothing is under way."""

    def __init__(self):
        self._entries: queue.SimpleQueue = queue.SimpleQueue()
        self._idle, self._count = threading.Condition(), 0
        self._thread = None

    def put(self, over, act, failed):
        """over(): waits for the copy; None: there is none. What it or act() raises goes to failed()."""
        with self._idle:
            now = over is None and self._count == 0
            self._count += not now
        if now:
            act()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cgx-copies", daemon=True)
            self._thread.start()
        self._entries.put((over, act, failed))

    def drain(self):
        with self._idle:
            self._idle.wait_for(lambda: self._count == 0)

    def stop(self):
        """Behind all that was said. False: a copy got stuck on its stream, and its thread still waits for it."""
        if self._thread is not None:
            self._entries.put(None)
            if self._thread is not threading.current_thread():  # it may drop a state's last reference, which closes
                self._thread.join(_COPIES_S)
                if self._thread.is_alive():
                    return False
            self._thread = None
        return True

    def _run(self):
        while (entry := self._entries.get()) is not None:
            self._do(*entry)
            entry = None  # it holds the model's state, which would live until the next one

    def _do(self, over, act, failed):
        try:
            if over is not None:
                over()
            act()
        except Exception as error:
            failed(error)
        with self._idle:
            self._count -= 1
            self._idle.notify_all()
