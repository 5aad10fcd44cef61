"""PyTorch's own tests of DistributedDataParallel, made to run on the CPU over gloo, with a hook in every model.

They ship in the wheel (torch/testing/_internal/distributed) and are written for GPUs: here a rank's device is the CPU,
conditions on GPUs hold, and ranks are forks of a process that has imported torch. Import this before them.
"""

import functools
import os
import tempfile

os.environ.update(BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=tempfile.mkdtemp(prefix="cgx-torch-suite-"),
                  OMP_NUM_THREADS="1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "150")

import torch  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

hook = None  # a function of a DistributedDataParallel model that has none yet

_CONDITIONS = ("skip_if_lt_x_gpu", "skip_if_no_gpu", "require_n_gpus_for_nccl_backend", "nccl_skip_if_lt_x_gpu",
               "skip_if_odd_worldsize", "skip_if_rocm_multiprocess", "requires_nccl")


def _holds(*arguments):
    """Stands for a decorator with or without arguments."""
    def decorate(test):
        return functools.wraps(test)(lambda *given, **named: test(*given, **named))
    return decorate(arguments[0]) if len(arguments) == 1 and callable(arguments[0]) else decorate


def _on_cpu(device):
    """What a test calls a device: a rank's number, "cuda:1", cuda's device of that number, all the CPU here."""
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int) or (isinstance(device, str) and device.startswith("cuda")):
        return "cpu"
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("cpu")
    return device


class _EverythingOnTheCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "to" and len(args) > 1 and not isinstance(args[1], torch.Tensor):
            args = (args[0], _on_cpu(args[1]), *args[2:])
        return function(*args, **kwargs)


def _patch_models():
    module_to = torch.nn.Module.to
    torch.nn.Module.cuda = lambda self, *_: self
    torch.nn.Module.to = lambda self, *args, **kwargs: module_to(
        self, *map(_on_cpu, args), **{name: _on_cpu(value) for name, value in kwargs.items()})
    make, forward, join_hook = (getattr(DistributedDataParallel, name) for name in ("__init__", "forward", "join_hook"))

    def make_on_cpu(self, module, device_ids=None, output_device=None, *args, **kwargs):
        make(self, module, None, None, *args, **kwargs)

    def hooked(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            if not self._lazy_init_ran:
                self._lazy_init()  # may register a hook of torch's
            if hook is not None and not self._comm_hooks:
                hook(self)
            return method(self, *args, **kwargs)
        return call

    DistributedDataParallel.__init__ = functools.wraps(make)(make_on_cpu)
    DistributedDataParallel.forward = hooked(forward)
    DistributedDataParallel.join_hook = hooked(join_hook)


class _Stream:
    """Streams and events of a device that does everything at once."""

    def __init__(self, *_, **__):
        self.device = torch.device("cpu")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self, *_, **__):
        return self

    wait = wait_stream = wait_event = record_event = synchronize = record


def _patch_cuda():
    torch.Stream = torch.Event = torch.cuda.Stream = torch.cuda.Event = _Stream
    torch.cuda.set_device = lambda *_, **__: None  # each a function of its own: torch.compile has a table of them
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.current_device = lambda: 0
    torch.cuda.stream = lambda *_, **__: _Stream()
    torch.cuda.current_stream = lambda *_, **__: _Stream()
    torch.accelerator.current_stream = lambda *_, **__: _Stream()


for _name in _CONDITIONS:
    if hasattr(common_distributed, _name):
        setattr(common_distributed, _name, _holds)
common_distributed.init_multigpu_helper = lambda size, _: {rank: [rank] for rank in range(size)}
_patch_models()
_patch_cuda()

from torch.testing._internal.distributed import distributed_test  # noqa: E402

_events = distributed_test.get_profiling_event


def _exchange_events(name, *args, **kwargs):
    """With the hook it is cgx that exchanges; tests are shown its events under the name they know."""
    found = _events(name.replace("gloo:all_reduce", "cgx:all_reduce") if hook else name, *args, **kwargs)
    for event in found:
        event.name = event.name.replace("cgx:", "gloo:")
    return found


distributed_test.get_profiling_event = _exchange_events


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args, **kwargs):
        torch.set_num_threads(1)
        with _EverythingOnTheCpu():
            super()._run(*args, **kwargs)
