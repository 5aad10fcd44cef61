"""The communication hook for torch's DistributedDataParallel.

    state = cgx.torch.register(model)

or, the same in torch's own words,

    state = cgx.torch.HookState(model=model)
    model.register_comm_hook(state, cgx.torch.comm_hook)       # a state of None works too

Each HookState has a communicator of its own, so several models never share a step. Parameters travel under their
module names, so policy rules apply per layer. A bucket is copied into the arena once; DDP reads the result from there.
On an accelerator (cuda, xpu, ...) the device copies it there and the result back, on a stream of the hook's own.
The hook never waits for the network: a poller thread completes the futures that DDP waits for at the end of backward.
Works with torch 1.13 and 2.x, gradients in fp32, fp16, bf16 or fp64 (and complex ones where torch makes pairs of
fp32 or fp64 of them), also inside torch's fp16 and bf16 wrappers. torch's profiler shows each bucket as cgx:all_reduce.
"""

import contextlib
import ctypes
import os
import warnings
import weakref

try:
    import torch  # the first of cgx.torch's modules that needs it
except ModuleNotFoundError as missing:
    raise ImportError("cgx.torch needs PyTorch, 1.13 or 2.x: install python3-torch, or torch with pip") from missing

from cgx._poller import poller_of
from cgx._report import report
from cgx._torch_device import check_device
from cgx._torch_ending import tell_others, when_this_process_ends
from cgx._torch_exchange import Exchange, Part, check_bucket
from cgx._torch_failure import (ENDS, MEETS_AGAIN, NO_UPDATE, RESTORE, advice_after, introduce, lost_pass, raise_others_failure,
                                tell_failure)
from cgx._torch_group import (attempt_at, count_attempt, drop_shared_session, give_back_name, given_name, group_of, is_lost,
                              lives, next_name, ranks_of, reference_to, shared_session)
from cgx._torch_model import (DistributedDataParallel, are_hidden, check_all_are_reduced, check_is_for_all,
                              check_those_of, divides_by_those_left, given_to_compile, in_shadow_of_join, models_of,
                              names_of, reduced_by, tensors_of)
from cgx._torch_states import StatesOfModels
from cgx._torch_told import Awaiting, SignalLossWarning, Telling
from cgx._waiting import milliseconds
from cgx.errors import (CancelledError, CgxError, DaemonLostError, MismatchError, RankLostError, StepLostError,
                        StepOrderError, TimedOutError, anew, call_all, named)

__all__ = ["HookState", "SignalLossWarning", "comm_hook", "last_error", "register", "shutdown", "typed_errors"]

_EPOCHS_KEPT = 4096
_states = weakref.WeakSet()


def register(model, **options):
    """Hooks a DistributedDataParallel model, over its process group; options as for HookState. Returns the state."""
    model = given_to_compile(model)
    if not isinstance(model, DistributedDataParallel):
        advice = "its gradients do not come in buckets" if hasattr(model, "register_comm_hook") else "wrap the model first"
        raise TypeError(f"register takes a DistributedDataParallel model, not {type(model).__name__}: {advice}")
    state = HookState(model=model, **options)
    model.register_comm_hook(state, comm_hook)
    return state


def comm_hook(state, bucket, *shard):
    """What register_comm_hook takes beside a HookState, or beside None for one made here."""
    if shard or isinstance(bucket, torch.Tensor):  # as FullyShardedDataParallel's
        raise TypeError("comm_hook takes buckets of DistributedDataParallel, not a Tensor")
    if isinstance(bucket, tuple):  # a gradient and its parameter: what a compiled DistributedDataParallel hands over
        raise TypeError("comm_hook takes buckets of DistributedDataParallel, not single gradients: set "
                        "torch._dynamo.config.optimize_ddp to another value than \"python_reducer\"")
    return (_made_here.state_of(bucket) if state is None else state).on_bucket(bucket)


def last_error(state=None):
    """Why the last pass failed: the exception of cgx.errors that torch makes a RuntimeError of; None if it did not.

    Of a HookState or a model it hooks; without either, of any in this process.
    """
    for known in [state] if isinstance(state, HookState) else list(_states):
        if known.error is not None and (state is None or known is state or known.is_of(state)):
            return known.error
    return None


@contextlib.contextmanager
def typed_errors(state=None):
    """Around backward(): what the hook failed with is raised as itself, e.g. cgx.errors.RankLostError."""
    try:
        yield
    except RuntimeError as error:
        own = last_error(state)
        if own is None or str(own) not in str(error):
            raise
        raise own.with_traceback(None) from error


def shutdown():
    """Leaves every communicator and closes this process's session; every rank does. A later backward joins anew.

    By that the ranks say that their parameters are the same: after StepLostError load a checkpoint on all of them first.
    """
    call_all([*(state.close for state in list(_states)), _made_here.clear, drop_shared_session])


def _tell_ends():
    tell_others(list(_states))


class HookState:
    """What one model's hook remembers.

    process_group: default that of model=, else the world. name: of the communicator, default one from the group and how
    many hook states it has had; every rank makes them in the same order. Models of one group need names of their own; a
    group that is not the world appends what tells it apart by its ranks. model (or named_parameters): where the
    parameters' names come from, default the model DDP calls the hook for. session: default one per process, opened
    here. timeout: of the communicator, in seconds or a timedelta, default the daemon's (timeouts.communicator_ms, 30
    minutes unless it is set); ranks that do not meet within it are named. gradient_unit: a function without arguments, asked before every pass: loss scale / learning rate of its
    gradients, for error feedback across a change of either. None, on all ranks, where the learning rate is 0, as in the
    first step of a warm-up: error feedback forgets a pass that changes nothing. E.g.

        rate = optimizer.param_groups[0]["lr"]
        return scaler.get_scale() / rate if rate > 0 else None

    announce: whether rank 0 says on standard error what joined, and warns (SignalLossWarning) of layers of which little is
    sent, and whether of the ranks that have come the lowest says after 5 s who has not; default yes, unless $CGX_QUIET is 1.

    A pass whose results hold an Inf or NaN counts as dropped on all ranks, where a layer has error feedback: whoever scales
    losses skips its update.
    """

    def __init__(self, process_group=None, name=None, model=None, named_parameters=None, session=None, timeout=0,
                 gradient_unit=None, announce=None):
        milliseconds(timeout)  # what is wrong here must not wait for the first pass: a hook can be registered once only
        if gradient_unit is not None and not callable(gradient_unit):
            raise TypeError(f"gradient_unit {gradient_unit!r} must be a function without arguments")
        model = given_to_compile(model)
        wrapped = isinstance(model, DistributedDataParallel)
        check_all_are_reduced(model)
        if process_group is None and wrapped:
            process_group = model.process_group
        self.process_group, self.gradient_unit = process_group, gradient_unit
        self._group = reference_to(process_group)
        self.timeout = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
        self.announce = announce
        self._session = session
        self._model = weakref.ref(model) if wrapped else None
        self._reduced = reduced_by(model) if wrapped else None  # now: whoever freezes layers later changes nothing in DDP
        self._names = names_of(model, named_parameters)
        self.name = given_name(process_group, name) if name else next_name(process_group)
        self._named_by_order = not name
        self._prepare()
        try:
            with self._telling_others():
                for parameter in model.parameters() if wrapped else ():
                    check_device(parameter.device)
                if session is None:
                    shared_session()  # without a daemon this is the place to say so
        except Exception:
            count_attempt(self.process_group, self.name)
            if self._named_by_order:
                give_back_name(self.process_group)
            raise

    def _prepare(self):
        self._ranks = ()        # of a pickled state's group, until it is used
        self._exchange = None
        self._used = None       # the session it joined in, or tried to
        self._first_pass = []   # parts of the first pass, until all parameters are known
        self._parts = []        # of the pass under way, or of the last one
        self._seen = set()      # parameters of those parts, by id
        self._pass_open = False
        self._introduced = False  # what has to be said before this pass's first submit is said
        self._factor = 1.0      # of this pass's results
        self._changes_nothing = False  # this pass: its gradient unit is None
        self._failed = None     # why the pass failed: the next one is a redo
        self.error = None       # the same, for users
        self._telling = Telling(self.announce)
        self.begins_with = None  # the first bucket of its passes, where comm_hook has to find the state
        self._left = None       # why the communicator before this one was left
        self._step = 0          # of the next pass: as many were completed before, unless one has failed here alone
        self._passes = 0        # of which all results came, since close(): where the ranks meet again these are the same
        self._passes_before = 0
        self._lost = None       # why this state goes on only after close()
        self._is_refused = False  # the failed step cannot be redone in this communicator
        self._dropped = None    # the last step that was
        self._epochs = {}
        self._made_in = os.getpid()  # a forked child's copy is another process's rank
        _states.add(self)
        when_this_process_ends(_tell_ends)

    # For users

    def epoch_of(self, step):
        """The number of the plan that governed a pass (counted from 0); None while it is unknown."""
        return self._epochs.get(step)

    def report(self):
        """A cgx.Report: per layer codec, bytes, sent share, time; print it. None before the first pass."""
        if self._exchange is None:
            return None
        times = self._exchange.seconds()
        known = report(self._exchange.communicator)
        layers = [layer._replace(seconds=times.get(layer.name)) for layer in known.layers]
        return known._replace(layers=layers)

    def drop_step(self):
        """Call after a finished backward whose update is skipped on all ranks, before the next one.

        Not needed for overflow: results that are not finite are noticed.
        """
        if self._exchange is not None and self._step > self._exchange.first_step and self._dropped != self._step - 1:
            self._exchange.drain()
            self._exchange.communicator.wait(self._step - 1)
            self._exchange.communicator.step_done(self._step - 1, dropped=True)
            self._dropped = self._step - 1

    def awaited_in(self):
        """The group and the attempt in which others may wait for this process's first pass; else None: the daemon tells them."""
        has_joined = self._exchange is not None or self._left is not None or self._passes + self._passes_before > 0
        if has_joined or self._ranks != () or self._made_in != os.getpid():
            return None
        return self.process_group, self._attempt

    def is_of(self, model):
        """Whether this state's hook is the model's."""
        return self.model() is not None and self.model() is given_to_compile(model)

    def model(self):
        """None where it is not known, or is gone."""
        return None if self._model is None else self._model()

    def adopts(self, model):
        """Takes the model, another wrapper, for its own if that has the ranks and layers of the one before. Whether it does.

        Behind a pass that was not completed the ranks, all of which have made the other one, meet anew instead of redoing it.
        """
        same = self._group is not None and self._group() is model.process_group and self._reduced == reduced_by(model)
        if same:
            self._model = weakref.ref(model)
            if self._pass_open or self._failed is not None:
                self._count_pass(self._parts)
                self._left, self._pass_open = self._failed, False
                with contextlib.suppress(CgxError):  # it may be of ranks that have gone
                    self._leave()
        return same

    def is_of_one_in(self, models):
        """Also of several, where they reduce the same parameters: DDP does not say which of them is in use."""
        own = [model for model in models if self.is_of(model)]
        return bool(own) and (len(models) == 1 or self._reduced == reduced_by(own[0]))

    def close(self):
        """Leaves the communicator; every rank does, with the same parameters. A later backward joins anew."""
        self._count_pass(self._parts)
        try:
            self._leave()
        finally:
            self._passes_before += self._passes
            self._passes, self._lost, self._pass_open = 0, None, False

    def _leave(self):
        try:
            call_all([self._close_exchange, self._drop_lost_session])
        finally:
            self._exchange, self._failed, self._dropped, self._is_refused = None, None, None, False
            self._first_pass, self._parts, self._seen = [], [], set()

    def _close_exchange(self):
        if self._exchange is not None:
            self._exchange.close()

    def _count_pass(self, parts):
        """With a part of its results backward() fails, and the parameters are those of before."""
        if parts and not self._pass_open and all(part.has_result for part in parts):
            self._passes += 1

    def _drop_lost_session(self):
        """It is of no use to any model. While ranks join, the daemon that was lost may be another rank's."""
        if self._used is not None and isinstance(self._failed, DaemonLostError):
            if self._exchange is not None or is_lost(self._used):
                drop_shared_session(self._used)

    def __del__(self):
        try:
            if self._exchange is not None and self._exchange.session.is_open:
                self._exchange.close()
        except Exception:  # the interpreter may be going down
            pass

    # The hook

    def on_bucket(self, bucket):
        part = Part(bucket)
        try:
            if not self.is_in_pass_of(part.parameters):
                self._begin_pass()
            self._parts.append(part)
            self._seen.update(part.parameters)
            part.is_last = self._is_last(part)
            if self._failed is None:
                self._hand_over(part)
            else:
                part.fail(self._fail_pass(self._failed))
        except Exception as error:
            part.fail(self._fail_pass(error))
        if part.is_last:
            self._pass_open = False
        return part.future

    def is_in_pass_of(self, parameters):
        """Whether a bucket of these, given by id, is one more of the pass under way: a pass has each parameter once."""
        return self._pass_open and self._seen.isdisjoint(parameters)

    def _is_last(self, part):
        """DDP says of every bucket of a static graph's first pass that it is the first one, and so of none but an only
        one that it is the last."""
        if part.is_last or part.index > 0 or len(self._parts) == 1:
            return part.is_last
        if self._failed is None and self._reduced is None:
            self._find_static_model(part.tensors)
        model = self.model()
        if model is not None:
            return len(self._seen) == tensors_of(model)
        return self._reduced is not None and self._reduced <= self._seen

    def _begin_pass(self):
        """A pass still open is an abandoned backward: the next submit goes into it again, which tells all ranks."""
        last, self._parts, self._seen = self._parts, [], set()
        self._count_pass(last)
        was_open, self._pass_open, self._introduced = self._pass_open, True, False
        self.error = self._lost and anew(self._lost)
        if self.error is not None:
            self._failed = self.error
            return
        if self._exchange is not None and not self._exchange.session.is_open:
            self._leave()
        if self._exchange is None:
            self._drop_lost_session()
            self._first_pass, self._failed = [], None
            return
        self._exchange.begin_pass()
        if self._failed is not None:
            self._recover()
        elif not was_open:
            self._keep_or_drop(last)
        if self._exchange is not None:  # last: a warning may be an error
            self._telling.pass_begins(self._exchange.communicator)

    def _recover(self):
        """The failed step again, or, where a daemon or its worker has gone, another communicator."""
        try:
            self._step = self._exchange.redo()
        except StepOrderError:  # this rank failed before it had begun a step, or behind its end
            pass
        except Exception as error:
            if not isinstance(self._failed, MEETS_AGAIN):
                self._is_refused = not isinstance(error, (*MEETS_AGAIN, CancelledError, TimedOutError))
                self._failed = self.error = self._advised(error)
                return
            self._left = self._failed
            self._leave()
            return
        self._is_refused = False
        if self._step == self._passes:
            self._failed = None
        else:
            self._lose_pass()

    def _lose_pass(self):
        """The other ranks count the pass otherwise. They hear that this one has left."""
        lost = StepLostError(f"STEP_LOST: the other ranks go on with pass {self._step} (counted from 0), this one with "
                             f"{self._passes}, so their parameters differ unless {NO_UPDATE}; {RESTORE} (a pass failed here: "
                             f"{self._failed})")
        self.error = self._lost = lost
        self._leave()
        self._failed = lost

    def _keep_or_drop(self, parts):
        """Results are the same on all ranks, and so are units, so this is too."""
        if self._changes_nothing or not all([part.is_finite() for part in parts]):
            self.drop_step()

    def _hand_over(self, part):
        if self._exchange is None:
            if self._model is None and not self._first_pass:
                self._check_those_of(part.tensors)
            self._first_pass.append(part)
            if not part.is_last:
                return
            self._connect()
            parts, self._first_pass = self._first_pass, []
        else:
            parts = [part]
        if not self._introduced:
            self._introduce()
        for each in parts:
            each.factor = self._factor
            self._exchange.submit(self._step, each, self._watcher(each), self._fail_pass)
        if part.is_last:
            self._exchange.end(self._step, self._fail_pass)
            self._step += 1

    def _introduce(self):
        self._introduced = True
        if self.gradient_unit is not None:
            self._say_unit()
        self._factor = 1.0
        if divides_by_those_left(self.model()):
            self._factor = self._exchange.ranks / max(self._exchange.count(not in_shadow_of_join()), 1)

    def _say_unit(self):
        with named("the hook's gradient_unit"):
            unit = self.gradient_unit()
        self._changes_nothing = unit is None
        if unit is not None:
            with named("the hook's gradient_unit", (TypeError, ValueError, ctypes.ArgumentError)):
                self._exchange.communicator.set_gradient_unit(unit)

    def _watcher(self, part):
        """Begins to wait for the part's result."""
        exchange, communicator, step, before = self._exchange, self._exchange.communicator, self._step, self._passes_before
        parts = self._parts

        def finished():
            epoch = communicator.step_info(step).epoch
            part.matters = exchange.dropping_matters(epoch)
            self._epochs[before + step] = epoch
            self._epochs.pop(before + step - _EPOCHS_KEPT, None)

        def failed(error):  # of a pass of before it comes too late
            return self._fail(error) if parts is self._parts else error

        return lambda: poller_of(communicator.session).watch(communicator, step, part, finished, failed)

    def _fail_pass(self, error):
        """What could not be handed over will not be answered, and DDP waits for every part of the pass."""
        error, self._first_pass = self._fail(error), []
        for part in self._parts:
            part.fail(error)
        return error

    def _fail(self, error):
        """Remembers the pass's first error and returns it."""
        if self._failed is None:
            self._failed = self.error = self._advised(error)
        return self._failed

    def _advised(self, error):
        """The same error with what the library cannot know."""
        advice = advice_after(error, self._is_refused)
        if isinstance(error, TimedOutError) and self._exchange is None and self._named_by_order:
            advice = ("; hook states are told apart by the order they are made in: every rank makes the same ones, or "
                      "names them")
        if self._exchange is None and self._left is not None:
            advice += f"; this rank joins anew after {self._left}"
        return type(error)(f"{error}{advice}") if advice else error

    @contextlib.contextmanager
    def _telling_others(self):
        """What keeps this rank from joining is an error on all ranks that wait for it."""
        try:
            yield
        except Exception as error:
            tell_failure(self.process_group, self._attempt, error)
            raise

    def _connect(self):
        if self._ranks != ():
            self.process_group, self._ranks = group_of(self._ranks), ()
            self._group = reference_to(self.process_group)
        try:
            introduce(self.process_group, self._attempt, self._passes)
            with self._telling_others():
                names = self._names_of_layers()
                check_is_for_all(self.name, self.process_group, self.model())
                for part in self._first_pass:
                    check_bucket(part)
                self._leave_those_before()  # first: one of them may close the session that is shared now
                self._used = self._session or shared_session()
            exchange = self._join(self._used)
            self._register(exchange, names)
        finally:
            count_attempt(self.process_group, self.name)
        self._exchange, self._left, self._step = exchange, None, self._passes
        self._telling.joined(exchange.communicator)

    def _names_of_layers(self):
        parameters = [parameter for part in self._first_pass for parameter in part.tensors]
        self._find_model(parameters)
        if self._model is None and not self._names and are_hidden():
            warnings.warn(f"cgx.torch finds no model of hook state {self.name}, as gc.freeze() hides those made before: layers are "
                          "named parameter.0, ..., so no policy is for them by name. Give HookState its model", stacklevel=3)
        if self._model is not None and not all(id(parameter) in self._names for parameter in parameters):
            return names_of(self._model())
        return self._names

    def _check_those_of(self, parameters):
        with self._not_joining():
            check_those_of(parameters)

    def _find_static_model(self, parameters):
        with self._not_joining():
            self._find_model(parameters)
            if self._reduced is None:
                hidden = ", as gc.freeze() hides those made before" if are_hidden() else ""
                raise ValueError(f"hook state {self.name} finds no model{hidden}, and only that says which bucket of a static "
                                 "graph's first pass is the last: give HookState its model")

    @contextlib.contextmanager
    def _not_joining(self):
        """What is raised within, the others hear: they are about to join."""
        try:
            with self._telling_others():
                yield
        except Exception:
            count_attempt(self.process_group, self.name)
            raise

    def _find_model(self, parameters):
        """Where none was given, and what DDP reduces of it."""
        if self._model is None:
            models = models_of(parameters)
            self._model = weakref.ref(models[0]) if models else None
        if self._reduced is None and self.model() is not None:
            self._reduced = reduced_by(self.model())

    def _leave_those_before(self):
        """Whoever meets again under a name has left it: a model of before may be held by a traceback or a cycle."""
        for other in list(_states):
            if other is not self and other.name == self.name and other._is_over():
                other.close()

    def _is_over(self):
        return self._is_refused or isinstance(self._failed, ENDS) or not lives(self._group)

    def _join(self, session):
        attempt = self._attempt
        awaiting = Awaiting(self.process_group, attempt, self.name, self._telling.announce)
        try:
            return Exchange(session, self.name, self.process_group, self.timeout, awaiting.look,
                            {part.accelerator for part in self._first_pass}, self._passes)
        except CgxError as error:
            if isinstance(error, MismatchError):
                error = lost_pass(self.process_group, attempt, error)
            hosts = tell_failure(self.process_group, attempt, error)
            raise type(error)(f"{error}{hosts}") from None
        except Exception as error:  # no thread, a device that has failed: the others must not wait for this rank
            tell_failure(self.process_group, attempt, error)
            raise

    def _register(self, exchange, names):
        """What fails on this rank alone is told before it leaves: the others wait in their commit, and hear that it left."""
        leave = exchange.communicator.close
        try:
            exchange.register(self._first_pass, names)
        except RankLostError:
            leave()
            raise_others_failure(self.process_group, self._attempt)
            raise
        except Exception as error:
            try:
                tell_failure(self.process_group, self._attempt, error, leave)
            finally:
                leave()
            raise

    @property
    def _attempt(self):
        """To join: the same on all ranks, which make them together."""
        return attempt_at(self.process_group, self.name)

    # Copies: what the state is, not how far it has come: the copy joins anew

    def __getstate__(self):
        if self._session is not None:
            raise TypeError(f"hook state {self.name} has a session of its own, which cannot be pickled")
        return self._described()

    def __deepcopy__(self, _):
        """In the same session, with the same gradient_unit: a copied model has its state's copy, and no hook."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self._described())
        copied._session = self._session
        return copied

    def _described(self):
        ranks = self._ranks if self._ranks != () else ranks_of(self.process_group)
        return {"name": self.name, "timeout": self.timeout, "ranks": ranks, "gradient_unit": self.gradient_unit,
                "announce": self.announce, "named_by_order": self._named_by_order}

    def __setstate__(self, state):
        self.name, self.timeout, self.gradient_unit = state["name"], state["timeout"], state["gradient_unit"]
        self.process_group, self._session, self._model, self._reduced, self._names = None, None, None, None, {}
        self._group = None  # known when it is used
        self._named_by_order, self.announce = state["named_by_order"], state.get("announce")
        self._prepare()
        self._ranks = state["ranks"]


_made_here = StatesOfModels(lambda model: HookState(model=model))  # by comm_hook, where it was registered with None
