"""Resize a loaded transformers model in place; torch is imported on first use."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - registers bfloat16 and float8 with numpy
import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.checkpoint import no_lm_head
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.registry import Architecture, find_architecture
from ctxextend.limits.edits import config_changes, lowered_limit
from ctxextend.limits.statements import (
    GENERATION_KEYS,
    generating_table,
    lengths_in,
    with_trained_length,
)
from ctxextend.opening.unknown_models import refuse_without_table
from ctxextend.plan import change_positions, with_length
from ctxextend.positions.change import Change
from ctxextend.positions.positions import Keys, Positions, of_part
from ctxextend.settings import CheckpointRef, Resize

if TYPE_CHECKING:
    import torch

WRAPPER_HINT = (
    "Pass the transformers model itself, not a wrapper around it; merge or unload adapters first."
)


def extend_model(
    model: "torch.nn.Module",
    to: int | str,
    method: str | None = None,
    *,
    trained_length: int | str | None = None,
    keep_first: int | None = None,
    part: str | None = None,
) -> None:
    """Resize the position tables of a loaded model, or change its rotary settings, in place.

    Position tables, rotary frequencies, config, position buffers and other attributes that depend
    on the length change together or not at all, and the model can be used at the new length
    immediately. Limits of its generation config that would fail are lowered. The tables equal those
    of `resize` on the same checkpoint, bit for bit. Create optimizers afterwards, because existing
    ones refer to the old tables. Set the tokenizer's `model_max_length` yourself, unless outputs
    depend on the padding length, as in SigLIP. A config that is shared with another model changes
    for that model too.

    Args:
        model: A transformers model of a type in the registry, with or without a head, in any float
            dtype.
        to: The new context length in usable positions; see `resize`.
        method: See `resize`. ``"auto"`` chooses by the model's class: one without an LM head, such
            as BertModel, counts as such even if its checkpoint has one.
        trained_length: Of rotary positions: the length of the first training, in tokens, where the
            config misstates it.
        keep_first, part: See `Resize`.

    Raises:
        UnsupportedModelError: The model has no known position table.
        CheckpointError: The model does not contain its position table, or its config disagrees with
            it.
        ResizeError: The length, method or another setting is invalid for this model.
    """
    requested = Resize(
        to,
        method=method,
        keep_first=keep_first,
        part=part,
    )
    config = _config_values(model)
    architecture = _find_positions(model, config, trained_length)
    state = model.state_dict(keep_vars=True)  # some tables are buffers
    found = _find_tables(model, architecture, state)
    selected = of_part(found, part)
    requested = with_length(requested, selected)
    changes = change_positions(found, selected, requested, recorded={})
    weights = {}
    for change in changes:
        for tensor in change.tensors:
            weights[tensor.name] = to_tensor(tensor.compute()).to(state[tensor.name].device)
    edits = config_changes(config, architecture, changes, fix_limits=requested.fix_limits)
    set_length(model, weights, edits)
    generating = generating_table(found)
    for change in changes:
        if generating is not None and change.name == generating.name and change.is_changed:
            _lower_generation_limits(model, change)


def _config_values(model: "torch.nn.Module") -> dict[str, Any]:
    """Return the config of a model as it would be in config.json.

    Raises:
        CheckpointError: The model has no transformers config.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise CheckpointError(f"{type(model).__name__} has no transformers config.", WRAPPER_HINT)
    return {**config.to_dict(), "model_type": config.model_type}


def _find_positions(
    model: "torch.nn.Module", config: Mapping[str, Any], trained_length: int | str | None
) -> Architecture:
    """Return the positions of a model, which know the first trained length if the user states it.

    Raises:
        UnsupportedModelError: The model type is unknown, or has no positions to resize.
        MethodError: The user states the length, but nothing of the positions scales.
        ResizeError: The length is invalid.
    """
    architecture = find_architecture(config)
    locations = [replace(location, is_loaded=True) for location in architecture.locations]
    architecture = architecture._replace(locations=tuple(locations))
    stated: Any = trained_length
    ref = CheckpointRef(type(model).__name__, trained_length=stated)  # reads and validates it
    return with_trained_length(architecture, None, ref.trained_length)


def _find_tables(
    model: "torch.nn.Module", architecture: Architecture, state: Mapping[str, "torch.Tensor"]
) -> list[Positions]:
    """Return the positions of a model, with the tables in its state dict.

    Raises:
        CheckpointError: A table is missing.
    """
    matrices = {name: value for name, value in state.items() if value.dim() == 2}
    where = f"This {type(model).__name__}"
    named = architecture.match_names(matrices, where)
    if not named:
        refuse_without_table(architecture, where, hint=WRAPPER_HINT)
    why_no_lm = no_lm_head(type(model).__name__)
    found = list[Positions]()
    for positions in named:
        table = matrices.get(positions.name)
        if table is None:
            found.append(positions.as_computed())
            continue
        rows, hidden_size = table.shape
        found.append(
            replace(
                positions,
                rows=rows,
                hidden_size=hidden_size,
                dtype=str(table.dtype),
                read=partial(_to_numpy, table.detach()),
                no_lm=why_no_lm,
            )
        )
    return found


def _lower_generation_limits(model: Any, change: Change) -> None:
    """Lower what would fail in a model's generation config, as `resize` does in its file."""
    generation_config = getattr(model, "generation_config", None)
    if generation_config is None:
        return
    stated = lengths_in(vars(generation_config), GENERATION_KEYS)
    for key, tokens in stated.items():
        setattr(generation_config, key, lowered_limit(key, tokens, change))


def set_length(
    model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"], edits: Mapping[Keys, Any]
) -> None:
    """Replace tables, and set all that depends on the length, in place.

    Args:
        model: The model.
        weights: The new tables by tensor name, on the same devices.
        edits: The new values of the config, by path of keys.

    Raises:
        CheckpointError: The model is not of a transformers class; nothing has changed.
    """
    import torch

    # Building models must not advance the caller's random number generator. It can fail, so it
    # comes before the first change.
    with torch.random.fork_rng(devices=[]):
        changes = _length_attributes(model, edits)
    _set_configs(model, edits)
    for module, name, value in changes:
        setattr(module, name, value)
    _forget_long_frequencies(model)
    set_tables(model, weights)


def _forget_long_frequencies(model: "torch.nn.Module") -> None:
    """Delete what rotary modules of type ``longrope`` keep from the first long input on.

    Source: ``longrope_frequency_update`` of
    https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py.
    """
    for module in model.modules():
        kept = [name for name in vars(module) if name.endswith("long_inv_freq")]
        for name in kept:
            delattr(module, name)


def _set_configs(model: Any, edits: Mapping[Keys, Any]) -> None:
    """Set values in the config of a model, and in the copies that submodules have of its parts."""
    set_config(model.config, edits)
    for copied, path in _copied_configs(model):
        depth = len(path)
        inside = {keys[depth:]: value for keys, value in edits.items() if keys[:depth] == path}
        set_config(copied, inside)


def _copied_configs(model: Any) -> Iterator[tuple[Any, Keys]]:
    """Yield the configs of submodules that are copies, each with the path of what it is a copy of.

    A copy can differ from the config of its part in a few values, so it is found by its class. The
    configs of other parts may be of this class too, but are not copies.
    """
    configs = dict(_nested_configs(model.config))
    config_ids = {id(config) for config in configs.values()}
    for module in model.modules():
        copied = getattr(module, "config", None)
        if id(copied) in config_ids:
            continue
        for path, config in configs.items():
            if type(copied) is type(config):
                yield copied, path


def _nested_configs(config: Any, path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield a transformers config and those of its parts, at any depth, by path of keys."""
    from transformers import PreTrainedConfig

    yield path, config
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _nested_configs(value, (*path, key))


def _length_attributes(model: Any, edits: Mapping[Keys, Any]) -> list[tuple[Any, str, Any]]:
    """Return what differs between models with the old and the edited config.

    Modules that the user removed or replaced are left out.

    Returns:
        Modules of the model, each with the name of an attribute or buffer, and its new value.

    Raises:
        CheckpointError: The model is not of a transformers class.
    """
    import torch

    if not type(model).__module__.startswith("transformers."):
        found = f"{type(model).__name__} is not a transformers class"
        message = f"{found}, so its length-dependent attributes are unknown."
        raise CheckpointError(message, "Resize the checkpoint instead, and load the result.")
    new_config = copy.deepcopy(model.config)
    set_config(new_config, edits)
    with torch.device("meta"):
        old_model = type(model)(copy.deepcopy(model.config))
        new_model = type(model)(new_config)
    modules = dict(model.named_modules())
    old_modules = dict(old_model.named_modules())
    initializers: dict[str, Any] = {}  # the nearest module around each that can initialise it
    changes = []
    for path, new in new_model.named_modules():
        initializers[path] = new
        if not hasattr(new, "_init_weights"):
            initializers[path] = initializers[path.rpartition(".")[0]]
        module = modules.get(path)
        if type(module) is not type(new):
            continue
        old = old_modules[path]
        values = _new_attributes(module, old, new)
        values |= _new_buffers(module, old, new, initializers[path])
        for name, value in values.items():
            changes.append((module, name, value))
    return changes


def _frequency_buffers(module: Any) -> list[str]:
    """Return the names of a module's rotary frequencies; a module that has any is rotary."""
    return [name for name in module._non_persistent_buffers_set if name.endswith("inv_freq")]


def _new_attributes(module: Any, old: Any, new: Any) -> dict[str, Any]:
    """Return the plain attributes of a module that get another value.

    A rotary module gets all of them but the mode: it changes some while it runs, so the module of
    the model may differ from that with the old config. With several types of layers, ``rope_type``
    is a dict of texts, and while it runs, the module gets a cached length for each type.
    """
    attributes = dict[str, Any]()
    for name, value in vars(new).items():
        if isinstance(value, int | float | str | tuple) or name == "rope_type":
            attributes[name] = value
    if not _frequency_buffers(new):
        before = vars(old)
        return {name: value for name, value in attributes.items() if before.get(name) != value}
    attributes.pop("training", None)  # the mode is the user's
    for name in vars(module):
        if name.endswith("max_seq_len_cached"):
            attributes[name] = new.max_seq_len_cached
    return attributes


def _new_buffers(module: Any, old: Any, new: Any, initializer: Any) -> "dict[str, torch.Tensor]":
    """Return the buffers of a module that get another shape, and all rotary frequencies.

    To compute them, `new` gets values.
    """
    frequencies = _frequency_buffers(new)
    changed = list[str]()
    for name, buffer in new.named_buffers(recurse=False):
        if name in frequencies or buffer.shape != old.get_buffer(name).shape:
            changed.append(name)
    if not changed:
        return {}
    new.to_empty(device="cpu", recurse=False)
    initializer._init_weights(new)
    buffers: dict[str, torch.Tensor] = {}
    for name in changed:
        current = module.get_buffer(name)
        buffers[name] = new.get_buffer(name).clone().to(current.device, current.dtype)
    return buffers


def set_config(config: Any, edits: Mapping[Keys, Any]) -> None:
    """Set values by path of keys in a config of transformers, or in a dict with its values.

    Each step of a path may lead to either of these.
    """
    for (*path, key), value in edits.items():
        parent = config
        for step in path:
            parent = parent[step] if isinstance(parent, dict) else getattr(parent, step)
        parent.update({key: value})  # both have this method


def to_tensor(table: NDArray[Any]) -> "torch.Tensor":
    """Convert a table of any numpy or ml_dtypes float dtype to a tensor, bit for bit."""
    import torch

    values = torch.from_numpy(np.ascontiguousarray(table).view(np.uint8))
    return values.view(getattr(torch, table.dtype.name))


def _to_numpy(tensor: "torch.Tensor") -> NDArray[Any]:
    import torch

    if not tensor.is_floating_point():
        message = f"A position table of {tensor.dtype} cannot be resized."
        raise ResizeError(message, "Convert it to floats first.")
    if tensor.is_meta:
        message = "The model is on the meta device, without values."
        raise ResizeError(message, "Load its weights first.")
    values = tensor.cpu().contiguous().view(torch.uint8).numpy()
    return values.view(str(tensor.dtype).removeprefix("torch."))


def set_tables(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"]) -> None:
    """Replace tables or weights, by tensor name, in every module that uses them.

    They may be tied, or buffers.
    """
    import torch

    state = model.state_dict(keep_vars=True)
    new = dict[int, torch.Tensor]()
    for name, weight in weights.items():
        old = state[name]
        if isinstance(old, torch.nn.Parameter):
            weight = torch.nn.Parameter(weight, old.requires_grad)
        new[id(old)] = weight
    for module in model.modules():
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            if id(value) in new:
                setattr(module, name, new[id(value)])
