"""What a hook finds out about the model its buckets belong to: DDP shows a hook only buckets."""

import gc
import sys
import weakref

from torch.nn.parallel import DistributedDataParallel

from cgx._torch_group import lives, ranks_of, world_size

_COMPILED = "_orig_mod"  # where torch.compile has put a module
_JOINED_FRAMES = 8  # how far above the hook DDP's shadow of a backward may be


def given_to_compile(model):
    """What torch.compile was given, where the model is what it made; else the model. A wrapper may show attributes of what
    is in it."""
    return model if isinstance(model, DistributedDataParallel) else getattr(model, _COMPILED, model)


def names_of(model, named_parameters=None):
    """{id of a parameter: its name in the module DDP wraps}; tied parameters keep their first name.

    The same whether the module, or a part of it, is compiled or not: policies and kept plans go by names.
    """
    if named_parameters is not None or model is None:
        return {id(parameter): name for name, parameter in named_parameters or ()}
    module = model.module if isinstance(model, DistributedDataParallel) else model
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    uncompiled = {key: ".".join(part for part in name.split(".") if part != _COMPILED) for key, name in names.items()}
    return uncompiled if len(set(uncompiled.values())) == len(names) else names


def reduced_by(model):
    """The ids of the parameters that a DistributedDataParallel made now would reduce: their gradients come to its hook."""
    ignored = getattr(model, "parameters_to_ignore", ())
    return {id(parameter) for place, module in model.module.named_modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and f"{place}.{name}" not in ignored}


def tensors_of(model):
    """How many gradients DDP hands over in a pass, by its own count, as layers may have been unfrozen since. Inside a hook DDP
    answers nothing for which it takes its lock, e.g. _get_ddp_logging_data()."""
    return len(model.reducer.get_backward_stats())


def models_of(parameters):
    """The DistributedDataParallel models that these parameters belong to: none, or some of one group that lives.

    Several wrapped around one module, one after the other, are as good as each other, if they reduce the same ones.
    """
    wanted = {id(parameter) for parameter in parameters}
    found = _living(wanted)
    if len(found) > 1:
        del found
        gc.collect()  # on all ranks alike: garbage must not decide
        found = _living(wanted)
    if len({id(model.process_group) for model in found}) > 1:
        raise ValueError("the model is wrapped by DistributedDataParallel for several process groups: use "
                         "cgx.torch.register(model) or give the HookState its process_group")
    return found


def _leaves_out(model):
    return getattr(model, "skip_all_reduce_unused_params", False)


def check_all_are_reduced(model):
    """Else DDP leaves out buckets that have no gradients, the last one, too: nothing would say that a pass has ended."""
    if _leaves_out(model):
        raise ValueError("cgx.torch takes no DistributedDataParallel with skip_all_reduce_unused_params=True, which hands over a "
                         "part of the buckets only: leave it out, find_unused_parameters=True alone works")


def check_those_of(parameters):
    """The same, where a model has still to be found: if all that it may be are such."""
    wanted = {id(parameter) for parameter in parameters}
    if any(map(_leaves_out, _living(wanted))):
        gc.collect()  # on all ranks alike: garbage must not decide
        found = _living(wanted)
        if found and all(map(_leaves_out, found)):
            check_all_are_reduced(found[0])


def check_is_for_all(state, group, model):
    """Of a hook state that was named and made for the world (group None) before its model was found."""
    known = group is None and model is not None and lives(weakref.ref(model.process_group))
    ranks = ranks_of(model.process_group) if known else None
    if ranks is not None and len(ranks) < world_size():
        raise ValueError(f"hook state {state} is for all ranks, and its model's process group has ranks {ranks} only: "
                         "give HookState the model or its process_group")


def are_hidden():
    """Whether models_of() may find nothing because the collector does not show what gc.freeze() has set aside."""
    return gc.get_freeze_count() > 0


def _living(wanted):
    found = [thing for thing in gc.get_objects()
             if issubclass(type(thing), DistributedDataParallel) and "module" in thing.__dict__.get("_modules", {})
             and wanted <= {id(parameter) for parameter in thing.module.parameters()}]
    return [model for model in found if lives(weakref.ref(model.process_group))] or found


def divides_by_those_left(model):
    """Whether the model is in DDP.join(divide_by_initial_world_size=False)."""
    if model is None or getattr(model, "_divide_by_initial_world_size", True):
        return False
    return getattr(getattr(model, "_join_config", None), "enable", False)


def in_shadow_of_join():
    """Whether this rank has run out of inputs and only plays along with the others' backward."""
    shadow = getattr(DistributedDataParallel, "_match_all_reduce_for_bwd_pass", None)
    frame = sys._getframe(1)
    for _ in range(_JOINED_FRAMES):
        if frame is None:
            return False
        if shadow is not None and frame.f_code is shadow.__code__:
            return True
        frame = frame.f_back
    return False
