"""The states that comm_hook makes itself, where it was registered with None: one for each model."""

import contextlib
import gc
import os
import weakref

import torch

from cgx._torch_model import are_hidden, models_of
from cgx.errors import CgxError


class StatesOfModels:
    """Known by their models' parameters, for as long as those live. make(model): a new state."""

    def __init__(self, make):
        self._make = make
        self._of_parameters = {}  # id of a parameter -> (weak reference to it, state)
        os.register_at_fork(after_in_child=self.clear)  # the parent's communicators are not the child's

    def clear(self):
        self._of_parameters.clear()

    def state_of(self, bucket):
        """The state of the model a bucket is of."""
        parameters = bucket.parameters()
        state = self._known(parameters[0])
        if state is not None and state.model() is not None and state.is_in_pass_of(map(id, parameters)):
            return state
        first = _first_bucket(bucket)
        if state is None or state.model() is None or state.begins_with != first:
            state = self._state_now(parameters, state)
        state.begins_with = first
        return state

    def _known(self, parameter):
        reference, state = self._of_parameters.get(id(parameter), (None, None))
        return state if reference is not None and reference() is parameter else None

    def _state_now(self, parameters, before):
        """`before`, if it is of the model that is in use; else that model's, made here."""
        models = models_of(parameters)
        if not models:
            hidden = ", as gc.freeze() hides models that were made before" if are_hidden() else ""
            raise ValueError("comm_hook was registered without a state and finds no DistributedDataParallel with the "
                             f"bucket's parameters{hidden}: use cgx.torch.register(model)")
        self._check_sharing(models)
        if before is not None:
            if before.is_of_one_in(models) or any(before.adopts(model) for model in models):
                return before
            with contextlib.suppress(CgxError):  # it may be of ranks that have gone
                before.close()
        return self._remember(next((model for model in models if before is None or not before.is_of(model)), models[0]))

    def _remember(self, model):
        state = self._make(model)
        for parameter in model.module.parameters():
            key = id(parameter)
            of_parameters = self._of_parameters
            of_parameters[key] = (weakref.ref(parameter, lambda _, key=key: of_parameters.pop(key, None)), state)
        return state

    def _check_sharing(self, models):
        """A bucket of layers that two models have does not say which of them it is of."""
        if len(self._modules_of(models)) > 1:
            gc.collect()  # on all ranks alike: garbage must not decide
        if len(self._modules_of(models)) > 1:
            raise ValueError("two models wrapped by DistributedDataParallel have layers in common, and comm_hook was "
                             "registered without a state: use cgx.torch.register(model) for each of them")

    def _modules_of(self, models):
        """The ids of the wrapped modules of these models, and of those that have a state for one of their parameters."""
        states = [self._known(parameter) for parameter in models[0].module.parameters()]
        beside = [state.model() for state in states if state is not None]
        return {id(model.module) for model in (*models, *beside) if model is not None}


def _first_bucket(bucket):
    """What changes where another DistributedDataParallel has been made of the module, while the one before lives: memory.

    Looking for it anew in each pass would take too long. Wrappers of other types copy buckets: only layers count then.
    """
    buffer, parameters = bucket.buffer(), bucket.parameters()
    own = buffer.layout == torch.strided and buffer.dtype == parameters[0].dtype
    return tuple(map(id, parameters)), buffer.data_ptr() if own else None
