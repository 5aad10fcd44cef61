"""A communication hook for torch's DistributedDataParallel: gradients go through cgxd, layer by layer.

    state = cgx.torch.HookState(model=model)
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(state, cgx.torch.comm_hook)

The first backward pass registers every parameter by name, so policy rules can speak of layers. A bucket is copied
into the arena once, and DDP copies the result back once. Nothing waits in the hook: a thread completes the futures,
and a failure is raised by backward() with cgxd's text. Use one state per DDP object.
"""

import itertools
import threading

import torch
import torch.distributed as dist

from ._library import CgxError
from .session import Session

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
_ordinals = {}  # per group of ranks: how many hook states it has made
_POLL_SECONDS = 1.0  # a lost daemon shows no event: look this often


class HookState:
    """Names come from `model` (the module given to DDP, or DDP itself); without it parameters are called by position.

    All ranks of `process_group` make their states in the same order. `session` may be shared between states.
    """

    def __init__(self, model=None, process_group=None, name=None, session=None, timeout=0):
        self.process_group, self.name, self.timeout = process_group, name, timeout
        self._given_session = session
        self._names = {} if model is None else {
            id(p): n[len("module."):] if isinstance(model, torch.nn.parallel.DistributedDataParallel) else n
            for n, p in model.named_parameters()}
        self._start_afresh()

    def _start_afresh(self):
        self._exchange = None
        self._step = 0
        self._pass = []  # buckets of the first pass, kept until all are known

    # Pickled with a model it comes back unconnected.
    def __getstate__(self):
        return {"process_group": None, "name": self.name, "timeout": self.timeout}

    def __setstate__(self, state):
        self.__dict__.update(state, _given_session=None, _names={})
        self._start_afresh()

    def epoch_of(self, step):
        """Which plan governed a recent pass (counted from 0): changes where a policy took effect."""
        return self._exchange.communicator.info(step).epoch

    def close(self):
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


def comm_hook(state, bucket):
    """Averages the bucket over all ranks."""
    if state._exchange is None:
        return _first_pass(state, bucket)
    future = state._exchange.submit(state._step, bucket)
    if bucket.is_last():
        state._exchange.end(state._step)
        state._step += 1
    return future


# The table must be known before anything is submitted: buckets wait for the last one.
def _first_pass(state, bucket):
    promise = torch.futures.Future()
    state._pass.append((bucket, bucket.buffer(), _parameters(bucket), promise))
    if not bucket.is_last():
        return _checked(promise)
    waiting, state._pass = state._pass, []
    exchange = _Exchange(state, [parameters for _, _, parameters, _ in waiting])
    for _, buffer, parameters, waiter in waiting:
        exchange.submit_buffer(0, buffer, parameters, waiter)
    exchange.end(0)
    state._exchange, state._step = exchange, 1
    return _checked(promise)


def _parameters(bucket):
    """(parameter, first element, elements) of each gradient in the bucket."""
    buffer = bucket.buffer()
    start, width = buffer.data_ptr(), buffer.element_size()
    views = zip(bucket.parameters(), bucket.gradients())
    return [(p, (g.data_ptr() - start) // width, g.numel(), tuple(g.shape)) for p, g in views]


# A Python exception set on a future reaches C++ as a value; raised in a callback it becomes a true error.
def _checked(promise):
    def look(future):
        value = future.value()
        if isinstance(value, _Failure):
            raise RuntimeError(f"cgxd: {value.text}")
        return value
    return promise.then(look)


class _Failure:
    def __init__(self, text):
        self.text = text


class _Region:
    """One bucket's place in the arena, as bytes and as the tensor DDP gets back."""

    def __init__(self, session, buffer):
        self.array = session.empty(buffer.numel() * buffer.element_size(), "uint8")
        self.tensor = torch.from_numpy(self.array).view(buffer.dtype)
        self.address = self.array.ctypes.data


class _Exchange:
    """Communicator, arena regions and the thread that completes futures. Submits come from autograd's thread."""

    def __init__(self, state, buckets):
        self.session = state._given_session or Session()
        self._owns_session = state._given_session is None
        self.communicator = _communicator(self.session, state)
        self._ids, self._regions = {}, {}
        for parameter, _, _, shape in itertools.chain.from_iterable(buckets):
            name = state._names.get(id(parameter), f"parameter.{len(self._ids)}")
            if parameter.dtype not in _DTYPES:
                raise TypeError(f"parameter {name} is {parameter.dtype}; cgxd averages {', '.join(_DTYPES.values())}")
            self._ids[id(parameter)] = self.communicator.register(name, shape or (1,), _DTYPES[parameter.dtype],
                                                                  "avg").id
        self.communicator.commit()
        self._pending = []  # (step, ids, result tensor, promise)
        self._lock = threading.Condition()
        self._closed = False
        self._poller = threading.Thread(target=self._complete_for_ever, name="cgx-hook", daemon=True)
        self._poller.start()

    def submit(self, step, bucket):
        promise = torch.futures.Future()
        self.submit_buffer(step, bucket.buffer(), _parameters(bucket), promise)
        return _checked(promise)

    def submit_buffer(self, step, buffer, parameters, promise):
        key = (buffer.data_ptr(), buffer.numel())
        region = self._regions.get(key)
        if region is None:
            region = self._regions[key] = _Region(self.session, buffer)
        region.tensor.copy_(buffer)
        width = buffer.element_size()
        ids = [self._ids[id(p)] for p, _, _, _ in parameters]
        places = [region.address + width * first for _, first, _, _ in parameters]
        with self._lock:
            self._pending.append((step, ids, region.tensor, promise))
            self._lock.notify()
        self.communicator.submit_at(step, ids, places)

    def end(self, step):
        self.communicator.step_end(step)

    def close(self):
        with self._lock:
            self._closed = True
            self._lock.notify()
        self.communicator.close()
        if self._owns_session:
            self.session.close()

    def _complete_for_ever(self):
        seen = 0
        while True:
            with self._lock:
                while not self._pending and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
            try:
                seen = self.session.poll(seen, _POLL_SECONDS) or seen
            except CgxError:
                pass  # the test below says it to each waiter
            self._complete_what_is_done()

    def _complete_what_is_done(self):
        with self._lock:
            pending = list(self._pending)
        for entry in pending:
            step, ids, result, promise = entry
            try:
                if self.communicator.test(step, ids)[0]:
                    continue
            except CgxError as error:
                result = _Failure(f"{error.name}: {error}")
            with self._lock:
                self._pending.remove(entry)
            promise.set_result(result)


def _communicator(session, state):
    group = state.process_group or dist.group.WORLD
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    members = "world" if state.process_group is None else "-".join(str(r) for r in _global_ranks(group, size))
    ordinal = _ordinals.setdefault(members, itertools.count())
    name = state.name or "ddp"
    name = f"{name}/{members}/{next(ordinal)}"
    store = dist.PrefixStore(f"cgx/{name}", dist.distributed_c10d._get_default_store())
    return session.communicator(name, rank, size, put=store.set, get=store.get, timeout=state.timeout)


def _global_ranks(group, size):
    if hasattr(dist, "get_global_rank"):
        return [dist.get_global_rank(group, r) for r in range(size)]
    return [dist.distributed_c10d._get_global_rank(group, r) for r in range(size)]
