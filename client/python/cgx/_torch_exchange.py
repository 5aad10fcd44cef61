"""One model's gradients on their way: DDP's buckets, copied into one arena region and submitted layer by layer."""

import contextlib
import ctypes
import math
import threading
import time
import warnings

import torch
import torch.distributed as dist

from cgx._library import TensorOptions, ids_array, library
from cgx._report import report
from cgx._torch_device import Later, accelerator_of, all_finite, check_device, keep_for_good, pin, scale
from cgx._torch_group import rendezvous
from cgx.communicator import OPS
from cgx.errors import CgxError, StepOrderError, UnsupportedGradientError, anew, check
from cgx.session import Block, dtype_number

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
_DIMENSIONS_MAX = 8  # of what libcgx registers
_ALIGNED = 16  # elements: where buckets begin, so that a GPU reads and writes whole lines
_FIRST_PLAN = 1  # its epoch
_RANGE = "cgx:all_reduce"  # what torch's profiler shows from a bucket's arrival to its result


class _Failure:
    """Stands for an error inside a future until a callback turns it into a real one."""

    def __init__(self, error):
        self.error = error


def _unwrap(future):
    """Raised inside then(), an error reaches C++ as an error; Future.set_exception would not (torch 1.13)."""
    value = future.value()
    if isinstance(value, _Failure):
        raise anew(value.error)
    return value


def _profiled(future):
    """The future, with a profiler's range around the time until it is done."""
    if not torch.autograd._profiler_enabled():
        return future
    span = torch.autograd.profiler.record_function(_RANGE)
    span.__enter__()
    return span._call_end_callbacks_on_future(future)


def _reals(parameter):
    """How many elements of a bucket one of the parameter's has: buckets are real, as check_bucket() sees to."""
    return 2 if parameter.is_complex() else 1


def _shape_of(parameter):
    """As its gradient is registered: the last dimensions as one where there are too many."""
    shape = tuple(parameter.shape)
    if parameter.is_complex():
        shape = (*shape[:-1], 2 * shape[-1]) if shape else (2,)
    kept = _DIMENSIONS_MAX - 1
    return shape if len(shape) <= _DIMENSIONS_MAX else (*shape[:kept], math.prod(shape[kept:]))


class _Times:
    """Of one bucket's way: kept longer than the bucket, whose memory DDP would not get back."""

    def __init__(self):
        self.ids = self.handed_over = self.done = None


class Part:
    """What one bucket asks for: its memory, its layers, the future DDP waits for.

    The bucket's own element type counts, not its parameters': wrappers and mixed precision change it.
    """

    def __init__(self, bucket):
        self.buffer, self.index, self.is_last, self._sparse = bucket.buffer(), bucket.index(), bucket.is_last(), None
        self.tensors = bucket.parameters()
        self.parameters = tuple(map(id, self.tensors))
        self._bucket = bucket
        if self.buffer.layout != torch.strided:
            self._sparse = (self.buffer.shape, self.buffer.sparse_dim())
            self.buffer = self.buffer.to_dense().flatten()
        self.accelerator = accelerator_of(self.buffer.device)
        self._promise = self.accelerator.future() if self.accelerator else torch.futures.Future()
        self.future = _profiled(self._promise.then(_unwrap))
        self.ids = self.result = self._target = None
        self.factor = 1.0  # of the result
        self.is_shared = False  # with a GPU's worker, so that the result is on the device
        self.matters = True  # whether its result is finite
        self.has_result = False  # DDP has it: it did not fail
        self._look, self._finite, self._looking = None, None, threading.Lock()
        self._settling = threading.Lock()  # the poller may have the result while its pass fails
        self.times = _Times()

    @property
    def is_sparse(self):
        return self._sparse is not None

    def layers(self):
        """(parameter, elements, offset in the buffer) of each layer, in the bucket's order."""
        if self.is_sparse:  # such a bucket has one parameter
            return [(self.tensors[0], self.buffer.numel(), 0)]
        start, width = self.buffer.data_ptr(), self.buffer.element_size()
        layers = []
        for parameter, gradient in zip(self.tensors, self._bucket.gradients()):
            each = _reals(parameter)  # DDP lays complex gradients out as pairs, and counts pairs
            layers.append((parameter, each * gradient.numel(), each * (gradient.data_ptr() - start) // width))
        found = sum(elements for _, elements, _ in layers)
        if found != self.buffer.numel():
            raise UnsupportedGradientError(f"a bucket has {self.buffer.numel()} elements, its layers {found}: cgx.torch does "
                                           f"not know how torch {torch.__version__} lays them out; do not register the "
                                           "hook for this model")
        return layers

    def let_go(self):
        """Of DDP's memory: what it says is in the arena, or on its way; on an accelerator the result goes there."""
        self._target = self.buffer if self.accelerator else None
        self.buffer = self.tensors = self._bucket = None

    def fulfil(self):
        self._settle_once(self._deliver)

    def _settle_once(self, act):
        """The first one settles it. Nobody waits for another: a handler of signals that has interrupted that one may wait
        for this thread."""
        if self._settling.acquire(blocking=False):
            try:
                if not self._promise.done():  # else it failed, and DDP's memory is no more ours
                    act()
            finally:
                self._settling.release()

    def _deliver(self):
        self.times.done = time.monotonic()
        if self.accelerator:
            self.accelerator.deliver(self._target, self.result, self.factor, self._settle,
                                     self.is_shared and self.matters)
            self._target = None
        else:
            scale(self.result, self.factor)
            self._set_result(self.result)

    def _settle(self, look):
        self._look = look
        self._set_result(self._target)

    def _set_result(self, result):
        if self.is_sparse:
            shape, dimensions = self._sparse
            self._set(result.view(shape).to_sparse(dimensions))
        else:
            self._set(result)

    def fail(self, error):
        self._settle_once(lambda: self._set(_Failure(error)))

    def is_finite(self):
        """Whether the result has no Inf and no NaN: the same on all ranks, as the result is. True while there is none, and
        where it does not matter."""
        with self._looking:
            self._find_out()
            return self._finite is not False

    def look_early(self):
        """By the poller, when it has nothing better to do, so that the next pass finds the answer. It does not wait for
        whoever looks already: a handler of signals that has interrupted that one may wait for the poller."""
        if self._looking.acquire(blocking=False):
            try:
                self._find_out()
            finally:
                self._looking.release()

    def _find_out(self):
        if self.matters and self._finite is None and self.result is not None and self._promise.done():
            self._finite = self._has_no_inf()

    def _has_no_inf(self):
        if self._look is not None:
            try:
                return self._look()
            except RuntimeError:  # the device has failed, as whoever uses it next is told
                return True
        return self.result.numel() == 0 or bool(all_finite(self.result))

    def _set(self, value):
        if not self._promise.done():
            self.has_result = not isinstance(value, _Failure)  # first: DDP goes on at once
            self._promise.set_result(value)


class _Region:
    """Arena memory for all gradients of one dtype; every pass lays its buckets out from the start."""

    def __init__(self, session, dtype, elements, shared):
        self.dtype, self.width, self.used = dtype, torch.empty((), dtype=dtype).element_size(), 0
        self.elements = max(elements, 1)
        size = self.elements * self.width
        self.block = shared.block(session, size) if shared else Block(session, size)
        self._all = shared.tensor(self.block, dtype) if shared else None

    def take(self, elements):
        """The first element of the next piece."""
        first, self.used = self.used, self.used + -(-elements // _ALIGNED) * _ALIGNED
        if self.used > self.elements:
            raise ValueError(f"this pass has more gradients of {self.dtype} than the first, which had {self.elements}")
        return first

    def piece(self, first, elements):
        """A tensor with a storage of its own: DDP takes offsets into a result's storage, not into the result.

        On a device it never sees this one: results are copied into its buckets.
        """
        if self._all is not None:
            return self._all[first:first + elements]
        if elements == 0:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(self.block.buffer(), dtype=self.dtype, count=elements, offset=first * self.width)


class _Layout:
    """Where a bucket lies in its region and which tensors it holds, as the library's call takes it."""

    def __init__(self, part, region, first, number_of):
        layers = part.layers()
        places = [region.block.address + (first + offset) * region.width for _, _, offset in layers]
        self.stage = region.piece(first, part.buffer.numel())
        self.ids = ids_array([number_of(parameter, region.dtype) for parameter, _, _ in layers])
        self.places = (ctypes.c_void_p * len(places))(*places)


class Exchange:
    """A communicator of the model's ranks and its tensor table."""

    def __init__(self, session, name, group, timeout, meanwhile, accelerators, first_step):
        """accelerators: where the gradients are; None stands for the CPU."""
        self.session, self.first_step = session, first_step
        self.ranks = dist.get_world_size(group)
        only = next(iter(accelerators)) if len(accelerators) == 1 else None
        self._shared = only.share(session) if only is not None else None
        self._accelerator = only
        self._later = Later()
        put, get = rendezvous(group)
        self.communicator = self.session.communicator(name, dist.get_rank(group), self.ranks, put, get, first_step,
                                                      timeout, meanwhile, device=self._shared and self._shared.device)
        self._regions, self._layouts, self._numbers = {}, {}, {}
        self._begun = None  # (step, tensors handed over last) until its end
        self._broken = None  # the step of which a bucket could not be handed over after submit() had returned
        self._without_feedback = False  # no layer has error feedback under the first plan
        self._names, self._last = {}, {}  # by a tensor's number; by layout: the times of the part that used it last

    def register(self, parts, names):
        """All parameters of the first pass, in the model's order if it is known, else in the buckets'. Commits."""
        elements = {}
        for part in parts:  # buckets may have other borders later
            room = part.buffer.numel() + len(part.layers()) * (_ALIGNED - 1)
            elements[part.buffer.dtype] = elements.get(part.buffer.dtype, 0) + room
        for dtype, count in elements.items():
            self._regions[dtype] = _Region(self.session, dtype, count, self._shared)
        for part in parts if self._shared is None else ():
            pin(self.session, self._regions[part.buffer.dtype].block, part.buffer.device)
        found = []
        for part in parts:
            region = self._regions[part.buffer.dtype]
            first = region.take(part.buffer.numel())
            found += [(parameter, region, region.block.address + (first + offset) * region.width)
                      for parameter, _, offset in part.layers()]
        order = {key: place for place, key in enumerate(names)}
        found.sort(key=lambda entry: order.get(id(entry[0]), len(order)))
        for index, (parameter, region, home) in enumerate(found):
            name = names.get(id(parameter), f"parameter.{index}")
            self._numbers[id(parameter)] = (self._register_one(name, parameter, region.dtype, home), region.dtype)
        self.communicator.commit()
        self._without_feedback = self.count(self._finds_no_feedback()) == self.ranks
        self.begin_pass()

    def _finds_no_feedback(self):
        try:
            known = report(self.communicator)
        except Exception:  # the daemon will say so elsewhere; until then results are looked at
            return False
        return known.epoch == _FIRST_PLAN and not known.feedback_begins and not any(layer.feedback for layer in known.layers)

    def dropping_matters(self, epoch):
        """Of a step that this plan governed: only error feedback tells a dropped step from others. The same on all ranks."""
        return epoch != _FIRST_PLAN or not self._without_feedback

    def _register_one(self, name, parameter, dtype, home):
        shape = _shape_of(parameter)
        options = TensorOptions(name=name.encode(), dtype=dtype_number(_DTYPES[dtype]), op=OPS["avg"],
                                dims=len(shape), shape=(ctypes.c_uint64 * len(shape))(*shape), home=home)
        number = ctypes.c_uint32()
        self.communicator._do(library.cgx_register, ctypes.byref(options), ctypes.byref(number))
        self._names[number.value] = name
        self.communicator.answers_max += 1  # a pass begins when the one before is over
        self.communicator.answers_of_step += 1
        return number.value

    def _number_of(self, parameter, dtype):
        number, registered = self._numbers.get(id(parameter), (None, None))
        if number is None:
            raise ValueError(f"a parameter of shape {tuple(parameter.shape)} was not in the first pass: a HookState is "
                             "for one model")
        if registered != dtype:
            raise ValueError(f"gradients of a parameter of shape {tuple(parameter.shape)} came as {dtype}, in the "
                             f"first pass as {registered}: close() the HookState on all ranks to change that")
        return number

    def begin_pass(self):
        for region in self._regions.values():
            region.used = 0

    def submit(self, step, part, submitted, failed):
        """submitted(): when the daemon has it. What goes wrong after this returned is told to failed()."""
        buffer = part.buffer
        region = self._regions.get(buffer.dtype)
        if region is None:
            check_bucket(part)
            self._number_of(part.tensors[0], buffer.dtype)
        first = region.take(buffer.numel())
        key = (buffer.dtype, part.parameters, first)  # stable from DDP's second pass on
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = _Layout(part, region, first, self._number_of)
            layout.key = key
        over = stream = None
        if self._shared is not None:
            stream = part.accelerator.fill(layout.stage, buffer)
        elif part.accelerator:
            over = part.accelerator.fetch(layout.stage, buffer)
        else:
            layout.stage.copy_(buffer)
        part.ids, part.result, part.is_shared = layout.ids, layout.stage, self._shared is not None
        part.times.ids, part.times.handed_over = layout.ids, time.monotonic()
        self._last[layout.key] = part.times

        def hand_over():
            if self._broken is not None:
                return None
            if self._shared is not None:
                self._shared.hand_over(self.communicator, step, layout.ids, layout.places, stream)
            else:
                self.communicator._hand_over(lambda: check(library.cgx_submit_inout(
                    self.communicator.handle, step, layout.ids, layout.places, layout.places, len(layout.ids))), step)
            self._begun = step, layout.ids
            return submitted()

        def lost(error):
            self._broken = step
            failed(error)

        part.let_go()
        self._later.put(over, hand_over, lost)

    def end(self, step, failed):
        """A step that lacks one of this rank's buckets stays open: the others would get averages without it."""
        def hand_over():
            if self._broken is None:
                self.communicator.step_end(step)
                self._begun = None

        self._later.put(None, hand_over, failed)

    def redo(self):
        """The step to submit again. One that only this rank has given up is abandoned first: all ranks hear of it."""
        self.drain()
        begun, self._begun = self._begun, None
        broken, self._broken = self._broken, None
        if begun is not None:
            with contextlib.suppress(CgxError):  # what the step failed with
                self.communicator._do(library.cgx_submit, *begun, 1)
        elif broken is not None:
            with contextlib.suppress(StepOrderError):  # nobody has heard of it from this rank, unless the communicator ended
                return self.communicator.redo()
            return broken
        return self.communicator.redo()

    def drain(self):
        """Until everything that was submitted has been handed over."""
        self._later.drain()

    def close(self):
        """Buckets may have been copied to the arena on the device although nobody took them any more."""
        try:
            self.communicator.close()
        finally:
            over = self._later.stop()
            if self._shared is not None:
                self._accelerator.keep(self._regions)
            elif not over:
                keep_for_good(self._regions)

    def seconds(self):
        """{layer: seconds from handing its bucket over to its result}, of the last pass with that bucket."""
        return {self._names[number]: times.done - times.handed_over
                for times in self._last.values() if times.done is not None for number in times.ids}

    def count(self, yes):
        """On how many ranks `yes` holds. Waits for them."""
        if self._shared is not None:
            return round(self._shared.sum_of(self.communicator, self.session, float(yes)))
        votes = self.session.empty((1,))
        votes[0] = float(yes)
        return round(float(self.communicator.allreduce(votes)[0]))


def check_bucket(part):
    buffer = part.buffer
    check_device(buffer.device)
    if buffer.dtype not in _DTYPES:
        raise UnsupportedGradientError(f"gradients of {buffer.dtype}: cgx.torch takes {', '.join(map(str, _DTYPES))}; "
                                       "convert the model, or leave its hook away")
    if part.is_sparse:
        warnings.warn("cgx.torch reduces sparse gradients as dense ones; results are sparse again", stacklevel=2)
