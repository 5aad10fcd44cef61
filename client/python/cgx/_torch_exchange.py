"""One model's gradients on their way: DDP's buckets, copied into one arena region and submitted layer by layer."""

import ctypes

import torch
import torch.distributed as dist

from cgx._library import TensorOptions, ids_array, library
from cgx.communicator import OPS
from cgx.errors import check
from cgx.session import Block, dtype_number

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


class _Failure:
    """Stands for an error inside a future until a callback turns it into a real one."""

    def __init__(self, error):
        self.error = error


def _unwrap(future):
    """Raised inside then(), an error reaches C++ as an error; Future.set_exception would not (torch 1.13)."""
    value = future.value()
    if isinstance(value, _Failure):
        raise value.error
    return value


class Part:
    """What one bucket asks for: its memory, its layers, the future DDP waits for."""

    def __init__(self, bucket):
        self.buffer, self.is_last = bucket.buffer(), bucket.is_last()
        self.parameters = tuple(id(parameter) for parameter in bucket.parameters())
        self._bucket = bucket
        self._promise = torch.futures.Future()
        self.future = self._promise.then(_unwrap)
        self.ids = self.result = None

    def layers(self):
        """(parameter, elements, offset in the buffer) of each layer, in the bucket's order."""
        start, width = self.buffer.data_ptr(), self.buffer.element_size()
        return [(parameter, gradient.numel(), (gradient.data_ptr() - start) // width)
                for parameter, gradient in zip(self._bucket.parameters(), self._bucket.gradients())]

    def fulfil(self):
        self._set(self.result)

    def fail(self, error):
        self._set(_Failure(error))

    def _set(self, value):
        if not self._promise.done():
            self._promise.set_result(value)


class _Region:
    """Arena memory for all gradients of one dtype; every pass lays its buckets out from the start."""

    def __init__(self, session, dtype, elements):
        self.dtype, self.width, self.used = dtype, torch.empty((), dtype=dtype).element_size(), 0
        self.block = Block(session, max(elements, 1) * self.width)

    def take(self, elements):
        """The first element of the next piece."""
        first, self.used = self.used, self.used + elements
        return first

    def piece(self, first, elements):
        """A tensor with a storage of its own: DDP takes offsets into a result's storage, not into the result."""
        return torch.frombuffer(self.block.buffer(), dtype=self.dtype, count=elements, offset=first * self.width)


class _Layout:
    """Where a bucket lies in its region and which tensors it holds, as the library's call takes it."""

    def __init__(self, part, region, first, number_of):
        layers = part.layers()
        places = [region.block.address + (first + offset) * region.width for _, _, offset in layers]
        self.stage = region.piece(first, part.buffer.numel())
        self.ids = ids_array([number_of[id(parameter)] for parameter, _, _ in layers])
        self.places = (ctypes.c_void_p * len(places))(*places)


class Exchange:
    """A communicator of the model's ranks and its tensor table."""

    def __init__(self, session, name, group, timeout):
        self.session = session
        put, get = _rendezvous(group)
        self.communicator = session.communicator(name, dist.get_rank(group), dist.get_world_size(group), put, get,
                                                 timeout=timeout)
        self._regions, self._layouts, self._number_of = {}, {}, {}

    def register(self, parts, names):
        """All parameters of the first pass, in the model's order if it is known, else in the buckets'. Commits."""
        elements = {}
        for part in parts:
            if part.buffer.device.type != "cpu":
                raise NotImplementedError(f"gradients on {part.buffer.device}: cgx.torch takes those on the CPU so far")
            elements[part.buffer.dtype] = elements.get(part.buffer.dtype, 0) + part.buffer.numel()
        for dtype, count in elements.items():
            if dtype not in _DTYPES:
                raise ValueError(f"gradients of {dtype}: cgx.torch takes {', '.join(map(str, _DTYPES))}")
            self._regions[dtype] = _Region(self.session, dtype, count)
        found = []
        for part in parts:
            region = self._regions[part.buffer.dtype]
            first = region.take(part.buffer.numel())
            found += [(parameter, region.block.address + (first + offset) * region.width)
                      for parameter, _, offset in part.layers()]
        order = {key: place for place, key in enumerate(names)}
        found.sort(key=lambda entry: order.get(id(entry[0]), len(order)))
        for index, (parameter, home) in enumerate(found):
            name = names.get(id(parameter), f"parameter.{index}")
            self._number_of[id(parameter)] = self._register_one(name, parameter, home)
        self._parameters = [parameter for parameter, _ in found]  # their ids stay theirs
        self.communicator.commit()
        self.begin_pass()

    def _register_one(self, name, parameter, home):
        shape = (ctypes.c_uint64 * parameter.dim())(*parameter.shape)
        options = TensorOptions(name.encode(), dtype_number(_DTYPES[parameter.dtype]), OPS["avg"], parameter.dim(),
                                shape, home)
        number = ctypes.c_uint32()
        check(library.cgx_register(self.communicator.handle, ctypes.byref(options), ctypes.byref(number)))
        return number.value

    def begin_pass(self):
        for region in self._regions.values():
            region.used = 0

    def submit(self, step, part):
        buffer = part.buffer
        region = self._regions[buffer.dtype]
        first = region.take(buffer.numel())
        key = (part.parameters, first)  # stable from DDP's second pass on
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = _Layout(part, region, first, self._number_of)
        layout.stage.copy_(buffer)
        part.ids, part.result = layout.ids, layout.stage
        check(library.cgx_submit_inout(self.communicator.handle, step, layout.ids, layout.places, layout.places,
                                       len(layout.ids)))


def _rendezvous(group):
    """put and get over torch's own store; without one, over the group's object collectives."""
    store = getattr(dist.distributed_c10d, "_get_default_store", lambda: None)()
    if store is not None:
        return (lambda key, value: store.set(key, value.hex())), (lambda key: bytes.fromhex(store.get(key).decode()))
    return _collective_rendezvous(group)


def _collective_rendezvous(group):
    """Every rank puts all it has to say before it gets: the first get exchanges everything."""
    said, heard = {}, {}

    def get(key):
        if not heard:
            everybody = [None] * dist.get_world_size(group)
            dist.all_gather_object(everybody, said, group=group)
            for values in everybody:
                heard.update(values)
        return heard[key]

    return said.__setitem__, get
