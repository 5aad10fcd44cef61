"""The communication hook for torch's DistributedDataParallel.

    state = cgx.torch.HookState(model=model)
    model.register_comm_hook(state, cgx.torch.comm_hook)

Each HookState has a communicator of its own, so several models never share a step. Parameters travel under their
module names, so policy rules apply per layer. A bucket is copied into the arena once; DDP reads the result from there.
The hook never waits for the network: a poller thread completes the futures that DDP waits for at the end of backward.
Works with torch 1.13 and 2.x, gradients on the CPU in fp32, fp16, bf16 or fp64.
"""

import itertools
import os

import torch
import torch.distributed as dist

from cgx._poller import poller_of
from cgx._torch_exchange import Exchange, Part
from cgx.errors import DaemonLostError
from cgx.session import Session

__all__ = ["HookState", "comm_hook"]

_EPOCHS_KEPT = 4096
_ordinals = {}  # group name -> how many hook states it has had: the same on all its ranks
_sessions = {}  # by process: a forked child opens its own


def comm_hook(state, bucket):
    """What register_comm_hook takes beside a HookState."""
    return state.on_bucket(bucket)


def _job_name():
    """Tells apart jobs of one user on one machine: $CGX_JOB, else what the launcher calls this run."""
    environment = os.environ
    if environment.get("CGX_JOB"):
        return environment["CGX_JOB"]
    if environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return "torchrun-" + environment["TORCHELASTIC_RUN_ID"]
    if environment.get("SLURM_JOB_ID"):
        return "slurm-" + environment["SLURM_JOB_ID"]
    if environment.get("MASTER_PORT"):
        return f"torch-{environment.get('MASTER_ADDR', '')}-{environment['MASTER_PORT']}"
    return "default"


def _shared_session():
    session = _sessions.get(os.getpid())
    if session is None or not session.is_open:
        session = _sessions[os.getpid()] = Session(job=_job_name())
    return session


def _drop_shared_session():
    session = _sessions.pop(os.getpid(), None)
    if session is not None:
        session.close()


def _group_name(group):
    """torch's own name of a process group; private in 1.13, so the default is a fixed one."""
    c10d = dist.distributed_c10d
    group = group or c10d._get_default_group()
    names = getattr(c10d, "_pg_names", None) or getattr(getattr(c10d, "_world", None), "pg_names", {})
    return names.get(group) or "group"


class HookState:
    """What one model's hook remembers.

    process_group: the model's group, default the world. name: of the communicator, default one from the group and how
    many hook states it has had; every rank makes them in the same order. model (or named_parameters): where the
    parameters' names come from; without it they are called parameter.0, parameter.1, ... in the order of the first
    pass. session: default one per process. timeout: of the communicator, in seconds, default 30 minutes.
    gradient_unit: a function without arguments, asked before every pass: loss scale / learning rate of its gradients,
    e.g. lambda: scaler.get_scale() / optimizer.param_groups[0]["lr"]; for error feedback across a change of either.
    """

    def __init__(self, process_group=None, name=None, model=None, named_parameters=None, session=None, timeout=0,
                 gradient_unit=None):
        self.process_group, self.timeout, self.gradient_unit = process_group, timeout, gradient_unit
        group = _group_name(process_group)
        self.name = name or f"ddp-{group}-{next(_ordinals.setdefault(group, itertools.count()))}"
        self._session = session
        self._names = _names_of(model, named_parameters)
        self._exchange = None
        self._first_pass = []   # parts of the first pass, until all parameters are known
        self._pass_open = False
        self._unit_said = False  # of this pass
        self._failed = None     # why the pass failed: the next one is a redo
        self._step = 0
        self._epochs = {}

    # --- For users ------------------------------------------------------------------------------------

    def epoch_of(self, step):
        """The number of the plan that governed a pass (counted from 0); None while it is unknown."""
        return self._epochs.get(step)

    def drop_step(self):
        """Call after a finished backward whose update is skipped on all ranks (overflow), before the next one."""
        if self._exchange is not None and self._step > 0:
            self._exchange.communicator.wait(self._step - 1)
            self._exchange.communicator.step_done(self._step - 1, dropped=True)

    def close(self):
        """Leaves the communicator; every rank does. A later backward joins anew."""
        if self._exchange is not None:
            self._exchange.communicator.close()
        if isinstance(self._failed, DaemonLostError) and self._session is None:
            _drop_shared_session()
        self._exchange, self._pass_open, self._failed, self._step = None, False, None, 0
        self._first_pass = []

    # --- The hook -------------------------------------------------------------------------------------

    def on_bucket(self, bucket):
        part = Part(bucket)
        if not self._pass_open or bucket.index() == 0:
            self._begin_pass()
        try:
            if self._failed is not None:
                raise self._failed
            self._hand_over(part)
        except Exception as error:
            self._fail(error)
            part.fail(error)
        if part.is_last:
            self._pass_open = False
        return part.future

    def _begin_pass(self):
        """A pass still open is an abandoned backward: the next submit goes into it again, which tells all ranks."""
        self._pass_open, self._unit_said = True, False
        if self._exchange is None:
            self._first_pass, self._failed = [], None
            return
        self._exchange.begin_pass()
        if self._failed is None:
            return
        try:
            self._step = self._exchange.communicator.redo()
            self._failed = None
        except Exception as error:
            self._failed = error

    def _hand_over(self, part):
        if self._exchange is None:
            self._first_pass.append(part)
            if not part.is_last:
                return
            self._connect()
            parts, self._first_pass = self._first_pass, []
        else:
            parts = [part]
        if self.gradient_unit is not None and not self._unit_said:
            self._exchange.communicator.set_gradient_unit(self.gradient_unit())
            self._unit_said = True
        for each in parts:
            self._exchange.submit(self._step, each)
            self._watch(each)
        if part.is_last:
            self._exchange.communicator.step_end(self._step)
            self._step += 1

    def _watch(self, part):
        communicator, step = self._exchange.communicator, self._step

        def finished():
            epoch = communicator.step_info(step).epoch
            self._epochs[step] = epoch
            self._epochs.pop(step - _EPOCHS_KEPT, None)

        poller_of(communicator.session).watch(communicator, step, part, finished, self._fail)

    def _fail(self, error):
        if self._failed is None:
            self._failed = error
        for part in self._first_pass:
            part.fail(error)
        self._first_pass = []

    def _connect(self):
        session = self._session or _shared_session()
        exchange = Exchange(session, self.name, self.process_group, self.timeout)
        try:
            exchange.register(self._first_pass, self._names)
        except Exception:
            exchange.communicator.close()
            raise
        self._exchange = exchange

    # --- Pickling: configuration only; the copy joins anew, with the default group and session ------------

    def __getstate__(self):
        return {"name": self.name, "timeout": self.timeout}

    def __setstate__(self, state):
        self.__init__(name=state["name"], timeout=state["timeout"])


def _names_of(model, named_parameters):
    """{id of a parameter: its name in the module DDP wraps}; tied parameters keep their first name."""
    if model is not None:
        module = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        named_parameters = module.named_parameters()
    return {id(parameter): name for name, parameter in named_parameters or ()}
