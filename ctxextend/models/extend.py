"""A loaded transformers model, resized in place; torch is imported when a function is called."""

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - lets numpy know the dtypes that are not its own
import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lookup import find_architecture
from ctxextend.plan.edits import config_changes, plan_tables, with_length
from ctxextend.plan.find_tables import TableShape, find_tables
from ctxextend.recipe import Resize, accepts_settings
from ctxextend.tables.apply import resize_with_reserved

if TYPE_CHECKING:
    import torch

ITSELF = "Pass the transformers model itself, not a wrapper around it; merge or unload adapters first."


@accepts_settings(Resize, without=("fix_limits", "copy_code"))
def extend_model(model: "torch.nn.Module", to: int | str, method: str | None = None, **settings: Any) -> None:
    """Give a loaded transformers model another context length, in place.

    The position tables, the config's lengths, the position buffers and whatever else a module keeps of the length
    change together or not at all; the model runs at the new length at once. The tables equal those of `resize` on the
    same checkpoint, bit for bit. An optimizer that was made before holds the old tables: make it anew. A tokenizer
    keeps its own limit: set its `model_max_length`. A config that another model shares changes for that one too.

    Args:
        model: A model of one of transformers' own classes, of a family in the registry, with or without a head, in any
            float dtype, on any device.
        to: Usable token positions wanted, ≥ 1; reserved rows come on top.
        method: As in `plan_resize`.
        settings: The method's flags and `part`, as in `plan_resize`, by their names.

    Raises:
        UnsupportedModelError: The model has no learned position table that is known here.
        CheckpointError: The model holds no such table, or its config disagrees with it.
        ResizeError: The length, the method or a flag cannot be served.
    """
    asked = Resize(to, method=method, **settings)
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise CheckpointError(f"A {type(model).__name__} holds no transformers config.", ITSELF)
    stated = {**config.to_dict(), "model_type": config.model_type}
    architecture = find_architecture(stated)
    parameters = model.named_parameters(remove_duplicate=False)
    shapes = {name: (len(value), value.shape[-1]) for name, value in parameters if value.dim() == 2}
    try:
        found = find_tables(architecture, shapes, f"This {type(model).__name__}")
    except CheckpointError as error:
        raise CheckpointError(error.message, ITSELF) from error

    def describe(name: str) -> TableShape:
        return shapes[name], str(model.get_parameter(name).dtype), ""

    asked = with_length(asked, found, describe)
    tables = plan_tables(found, asked, describe)
    weights = {}
    for table in tables:
        weight = model.get_parameter(table.name)
        positions = table.rows_after - table.reserved_rows
        resized = resize_with_reserved(_to_numpy(weight.detach()), table.reserved_rows, positions, asked)
        weights[table.name] = to_tensor(resized).to(weight.device)
    lengthen(model, weights, config_changes(stated, architecture, tables))


def lengthen(
    model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"], edits: Mapping[tuple[str, ...], Any]
) -> None:
    """Give a model tables of another length, each on its device and in its dtype, and let all else follow, in place.

    `edits`, from `config_changes`, is what its config must then say.
    """
    import torch

    # Building a model must not change the random numbers that the caller's program draws.
    with torch.random.fork_rng(devices=[]):
        changes = list(_length_attributes(model, edits))  # all that can fail comes before the first change
    set_tables(model, weights)
    for module in model.modules():
        config = getattr(module, "config", None)
        if type(config) is type(model.config):  # some models inside it have a copy of their own
            _set_config(config, edits)
    for module, name, value in changes:
        setattr(module, name, value)


def _length_attributes(
    model: Any, edits: Mapping[tuple[str, ...], Any]
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    """Yield each module, attribute and new value that the edits of the config change.

    Models are built without values by the config before and after: where they differ, an attribute or a buffer follows
    the length. Buffers get their values as in from_pretrained, by the class's own `_init_weights`.
    """
    import torch

    if not type(model).__module__.startswith("transformers."):
        what = f"{type(model).__name__} is no class of transformers: what in it follows the length is not known."
        raise CheckpointError(what, "Resize the checkpoint and load that.")
    longer = copy.deepcopy(model.config)
    _set_config(longer, edits)
    with torch.device("meta"):
        before, after = type(model)(copy.deepcopy(model.config)), type(model)(longer)
    modules, old_modules = dict(model.named_modules()), dict(before.named_modules())
    initializers: dict[str, Any] = {}
    for path, new in after.named_modules():
        initializers[path] = new if hasattr(new, "_init_weights") else initializers[path.rpartition(".")[0]]
        if path not in modules or type(modules[path]) is not type(new):  # the user took it out or replaced it
            continue
        module, old = modules[path], old_modules[path]
        for name, value in vars(new).items():
            if isinstance(value, int | float | str | tuple) and vars(old).get(name) != value:
                yield module, name, value
        for name, buffer in list(new.named_buffers(recurse=False)):
            if buffer.shape != old.get_buffer(name).shape:
                new.to_empty(device="cpu", recurse=False)
                initializers[path]._init_weights(new)
                held = module.get_buffer(name)
                yield module, name, new.get_buffer(name).clone().to(held.device, held.dtype)


def _set_config(config: Any, edits: Mapping[tuple[str, ...], Any]) -> None:
    """Set values in a config and in those inside it, by paths of keys; in place."""
    for (*path, key), value in edits.items():
        holder = config
        for step in path:
            holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
        holder.update({key: value})


def to_tensor(table: NDArray[Any]) -> "torch.Tensor":
    """Return a table as the tensor with the same bits, whatever float dtype of numpy's or ml_dtypes' it has."""
    import torch

    dtype: torch.dtype = getattr(torch, table.dtype.name)
    return torch.from_numpy(np.ascontiguousarray(table).view(np.uint8)).view(dtype)


def _to_numpy(tensor: "torch.Tensor") -> NDArray[Any]:
    """Return a float tensor's bits as the numpy array of the same dtype."""
    import torch

    if not tensor.is_floating_point():
        raise ResizeError(f"A position table of {tensor.dtype} cannot be resized.", "Convert it to floats first.")
    if tensor.is_meta:
        raise ResizeError("The model is on the meta device and has no values.", "Load its weights first.")
    return tensor.cpu().contiguous().view(torch.uint8).numpy().view(str(tensor.dtype).removeprefix("torch."))


def set_tables(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"]) -> None:
    """Give every module that holds one of the old tables the new one: a table may be shared."""
    import torch

    old = {name: model.get_parameter(name) for name in weights}
    new = {id(old[name]): torch.nn.Parameter(weights[name], old[name].requires_grad) for name in weights}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in new:
                setattr(module, name, new[id(parameter)])
