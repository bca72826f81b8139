"""Resize a loaded transformers model in place; torch is imported on first use."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - registers bfloat16 and float8 with numpy
import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import no_lm_head
from ctxextend.checkpoints.generation_limits import lowered_limits, stated_in
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.length_keys import generating_table
from ctxextend.families.lookup import Keys, find_architecture
from ctxextend.plan.edits import TablePlan, config_changes, plan_tables, with_length
from ctxextend.plan.find_tables import (
    FoundTable,
    TableShape,
    check_width,
    computed_shape,
    find_tables,
)
from ctxextend.plan.trained_length import state_trained_length, with_config_lengths
from ctxextend.recipe import CheckpointRef, Resize
from ctxextend.tables.apply import choose_method, resize_with_reserved

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
    trained_length: int | None = None,
    keep_first: int | None = None,
    drop_last: int = 0,
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
        keep_first, drop_last, part: See `Resize`.

    Raises:
        UnsupportedModelError: The model has no known position table.
        CheckpointError: The model does not contain its position table, or its config disagrees with
            it.
        ResizeError: The length, method or another setting is invalid for this model.
    """
    requested = Resize(to, method=method, keep_first=keep_first, drop_last=drop_last, part=part)
    model_config: Any = getattr(model, "config", None)
    if not hasattr(model_config, "to_dict"):
        raise CheckpointError(f"{type(model).__name__} has no transformers config.", WRAPPER_HINT)
    config = {**model_config.to_dict(), "model_type": model_config.model_type}
    architecture = find_architecture(config)
    ref = CheckpointRef(type(model).__name__, trained_length=trained_length)  # validates it
    if ref.trained_length is None:
        architecture = with_config_lengths(architecture)
    else:
        architecture = state_trained_length(architecture, ref.trained_length)
    state = model.state_dict(keep_vars=True)  # some tables are buffers
    shapes = {
        name: (len(value), value.shape[-1]) for name, value in state.items() if value.dim() == 2
    }
    try:
        found_tables = find_tables(architecture, shapes, f"This {type(model).__name__}")
    except CheckpointError as error:
        raise CheckpointError(error.message, WRAPPER_HINT) from error

    def describe(table: FoundTable) -> TableShape:
        location, name = table
        return (
            (shapes[name], str(state[name].dtype), "")
            if name in shapes
            else computed_shape(location)
        )

    requested = with_length(requested, found_tables, describe)
    tables = plan_tables(found_tables, requested, describe, {}, has_config=True)
    weights = {}
    for table in (table for table in tables if table.is_stored):
        check_width(table.location, table.hidden_size, table.name)
        weight = state[table.name]
        reserved = table.reserved_rows
        values = _to_numpy(weight.detach())
        positions = table.rows_after - reserved
        layout = table.location.layout
        chosen = choose_method(
            values[reserved:], positions, requested.choice, layout, no_lm_head(type(model).__name__)
        )
        resized = resize_with_reserved(values, reserved, positions, chosen)
        weights[table.name] = to_tensor(resized).to(weight.device)
    set_length(model, weights, config_changes(config, architecture, tables))
    generating = generating_table(found_tables)
    for table in tables:
        if generating is not None and table.name == generating.name and table.is_changed:
            _lower_generation_limits(model, table)


def _lower_generation_limits(model: Any, table: TablePlan) -> None:
    """Lower what would fail in a model's generation config, as `resize` does in its file."""
    generation_config = getattr(model, "generation_config", None)
    if generation_config is None:
        return
    stated = stated_in(generation_config)
    lowered = lowered_limits(stated, table.location, table.max_len_before, table.max_len_after)
    for key, tokens in lowered.items():
        setattr(generation_config, key, tokens)


def set_length(
    model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"], edits: Mapping[Keys, Any]
) -> None:
    """Replace a model's tables by ones on the same device, and set all that depends on their
    length, in place.
    """
    import torch

    # Building models below must not advance the caller's random number generator.
    with torch.random.fork_rng(devices=[]):
        changes = list(
            _length_attributes(model, edits)
        )  # before the first change, because it can fail
    parts = {
        path[:depth]: _value(model.config, path[:depth])
        for path in edits
        for depth in range(len(path))
    }
    for module in model.modules():
        config = getattr(module, "config", None)
        for start, part in parts.items():
            if type(config) is type(
                part
            ):  # some submodules have a copy of the config, or of a part of it
                set_config(
                    config,
                    {
                        path[len(start) :]: edits[path]
                        for path in edits
                        if path[: len(start)] == start
                    },
                )
    for module, name, value in changes:
        setattr(module, name, value)
    set_tables(model, weights)


def _length_attributes(
    model: Any, edits: Mapping[Keys, Any]
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    """Yield module, name and new value of all that differs between models with the old and the
    edited config.
    """
    import torch

    if not type(model).__module__.startswith("transformers."):
        message = (
            f"{type(model).__name__} is not a transformers class, so its length-dependent "
            "attributes are unknown."
        )
        raise CheckpointError(message, "Resize the checkpoint instead, and load the result.")
    new_config = copy.deepcopy(model.config)
    set_config(new_config, edits)
    with torch.device("meta"):
        before, after = type(model)(copy.deepcopy(model.config)), type(model)(new_config)
    modules, old_modules = dict(model.named_modules()), dict(before.named_modules())
    initializers: dict[str, Any] = {}
    for path, new in after.named_modules():
        initializers[path] = (
            new if hasattr(new, "_init_weights") else initializers[path.rpartition(".")[0]]
        )
        if path not in modules or type(modules[path]) is not type(
            new
        ):  # removed or replaced by the user
            continue
        module, old = modules[path], old_modules[path]
        # Rotary modules are set completely, because some change while they run.
        rotary = [name for name in new._non_persistent_buffers_set if name.endswith("inv_freq")]
        for name, value in vars(new).items():
            is_plain = isinstance(value, int | float | str | tuple) or name == "rope_type"
            if is_plain and (vars(old).get(name) != value or (rotary and name != "training")):
                yield module, name, value
        if rotary:
            lengths = [name for name in vars(module) if name.endswith("max_seq_len_cached")]
            yield from ((module, name, new.max_seq_len_cached) for name in lengths)
        for name, buffer in list(new.named_buffers(recurse=False)):
            if buffer.shape != old.get_buffer(name).shape or name in rotary:
                new.to_empty(device="cpu", recurse=False)
                initializers[path]._init_weights(new)
                current = module.get_buffer(name)
                yield module, name, new.get_buffer(name).clone().to(current.device, current.dtype)


def set_config(config: Any, edits: Mapping[Keys, Any]) -> None:
    """Set values in a config, or in its plain values, and in nested configs, by path of keys."""
    for (*path, key), value in edits.items():
        _value(config, path).update({key: value})


def _value(config: Any, path: Sequence[str]) -> Any:
    for step in path:
        config = config[step] if isinstance(config, dict) else getattr(config, step)
    return config


def to_tensor(table: NDArray[Any]) -> "torch.Tensor":
    """Convert a table of any numpy or ml_dtypes float dtype to a tensor, bit for bit."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(table).view(np.uint8)).view(
        getattr(torch, table.dtype.name)
    )


def _to_numpy(tensor: "torch.Tensor") -> NDArray[Any]:
    import torch

    if not tensor.is_floating_point():
        raise ResizeError(
            f"A position table of {tensor.dtype} cannot be resized.", "Convert it to floats first."
        )
    if tensor.is_meta:
        raise ResizeError(
            "The model is on the meta device, without values.", "Load its weights first."
        )
    return (
        tensor.cpu()
        .contiguous()
        .view(torch.uint8)
        .numpy()
        .view(str(tensor.dtype).removeprefix("torch."))
    )


def set_tables(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"]) -> None:
    """Replace tables, by tensor name, in every module that uses them; tables may be tied, or
    buffers.
    """
    import torch

    state, new = model.state_dict(keep_vars=True), dict[int, torch.Tensor]()
    for name, weight in weights.items():
        old = state[name]
        new[id(old)] = (
            torch.nn.Parameter(weight, old.requires_grad)
            if isinstance(old, torch.nn.Parameter)
            else weight
        )
    for module in model.modules():
        for name, value in [*module._parameters.items(), *module._buffers.items()]:
            if id(value) in new:
                setattr(module, name, new[id(value)])
