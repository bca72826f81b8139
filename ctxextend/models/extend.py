"""A loaded transformers model, resized in place; torch is imported when a function is called."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lookup import Architecture, find_architecture
from ctxextend.models.skeletons import configs_of, followed, holders_of, set_config
from ctxextend.plan.configedits import config_changes
from ctxextend.plan.find_tables import find_tables
from ctxextend.plan.tableplan import TablePlan, plan_found
from ctxextend.recipe import Resize
from ctxextend.tables.apply import resize_behind

if TYPE_CHECKING:
    import torch


ITSELF = "Pass the transformers model itself, not a wrapper around it; merge or unload adapters first."

__all__ = ["extend_model", "lengthen", "set_tables", "to_tensor"]


def extend_model(
    model: "torch.nn.Module",
    to: int,
    method: str | None = None,
    *,
    keep_first: int | None = None,
    drop_last: int = 0,
    scope: str | None = None,
    alpha: float | None = None,
    seed: int | None = None,
    sigma: float | None = None,
    repeat: tuple[int, int] | None = None,
    gain: float | None = None,
    part: str | None = None,
) -> None:
    """Give a loaded transformers model another context length, in place.

    The position tables, the config's lengths, the position buffers and whatever else a module keeps of the length
    change together or not at all; the model runs at the new length at once. The tables equal those of `resize` on the
    same checkpoint, bit for bit. An optimizer that was made before holds the old tables: make it anew. A tokenizer
    keeps its own limit: set its `model_max_length`. A config that another model shares changes for that one too.

    Args:
        model: A model of a family in the registry, with or without a head, in any float dtype, on any device.
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: As in `plan_resize`.
        keep_first: As in `plan_resize`.
        drop_last: As in `plan_resize`.
        scope: As in `plan_resize`.
        alpha: As in `plan_resize`.
        seed: As in `plan_resize`.
        sigma: As in `plan_resize`.
        repeat: As in `plan_resize`.
        gain: As in `plan_resize`.
        part: As in `plan_resize`.

    Raises:
        UnsupportedModelError: The model has no learned position table that is known here.
        CheckpointError: The model holds no such table, or its config disagrees with it.
        ResizeError: The length, the method or a flag cannot be served.
    """
    settings = Resize(to, method, keep_first, drop_last, scope, alpha, seed, sigma, repeat, gain, part)
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise CheckpointError(f"A {type(model).__name__} holds no transformers config.", ITSELF)
    stated = {**config.to_dict(), "model_type": config.model_type}
    architecture = find_architecture(stated)
    tables = _plan_model(model, architecture, settings)
    weights = {table.name: _resized(model.get_parameter(table.name), table, settings) for table in tables}
    lengthen(model, weights, config_changes(stated, architecture, tables))


def lengthen(
    model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"], edits: Mapping[tuple[str, ...], Any]
) -> None:
    """Give a model tables of another length, and let its configs and modules follow, in place.

    Args:
        model: A transformers model.
        weights: The new tables by the parameters' names, each of shape (rows, d), on its device and in its dtype.
        edits: What its config must then say, from `config_changes`.

    Raises:
        ResizeError: A buffer follows the length, and nothing says what it holds.
    """
    holders = holders_of(model, weights)
    # All that can fail comes first: the same models are built at both lengths, and what they then hold is compared.
    changes = list(followed(model, holders, edits))
    set_tables(model, weights)
    for own in configs_of(model, holders).values():
        set_config(own, edits)
    for module, name, value in changes:
        setattr(module, name, value)


def _plan_model(model: "torch.nn.Module", architecture: Architecture, settings: Resize) -> tuple[TablePlan, ...]:
    """Plan the tables of a loaded model as those of a checkpoint are planned, with nothing changed yet."""
    parameters = model.named_parameters(remove_duplicate=False)
    shapes = {name: (len(value), value.shape[-1]) for name, value in parameters if value.dim() == 2}
    try:
        found = find_tables(architecture, shapes, f"This {type(model).__name__}")
    except CheckpointError as error:
        raise CheckpointError(error.message, ITSELF) from error
    return plan_found(found, settings, lambda name: (shapes[name], str(model.get_parameter(name).dtype), ""))


def _resized(weight: "torch.Tensor", table: TablePlan, settings: Resize) -> "torch.Tensor":
    resized = resize_behind(_to_numpy(weight.detach()), table.offset, table.rows_after - table.offset, settings.options)
    return to_tensor(resized).to(weight.device)


def to_tensor(table: NDArray[Any]) -> "torch.Tensor":
    """Return a table as the tensor with the same bits, whatever float dtype of numpy's or ml_dtypes' it has."""
    import torch

    dtype: torch.dtype = getattr(torch, table.dtype.name)
    return torch.from_numpy(np.ascontiguousarray(table).view(np.uint8)).view(dtype)


def _to_numpy(tensor: "torch.Tensor") -> NDArray[Any]:
    """Return a float tensor's bits as the numpy array of the same dtype.

    Raises:
        ResizeError: numpy and ml_dtypes have no such dtype.
    """
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    dtype = getattr(ml_dtypes, name, None) or getattr(np, name, None)
    if dtype is None or not tensor.is_floating_point():
        raise ResizeError(
            f"A position table of {tensor.dtype} cannot be resized.", "Convert the model to floats first."
        )
    if tensor.is_meta:
        raise ResizeError("The model is on the meta device and has no values.", "Load its weights first.")
    return tensor.cpu().contiguous().view(torch.uint8).numpy().view(dtype)


def set_tables(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"]) -> None:
    """Give every module that holds one of the old tables the new one: a table may be shared.

    Args:
        model: The model.
        weights: The new tables by the parameters' names, on the model's device and in its dtype.
    """
    import torch

    made = {}
    for name, weight in weights.items():
        old = model.get_parameter(name)
        made[id(old)] = torch.nn.Parameter(weight, requires_grad=old.requires_grad)
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if id(parameter) in made:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, made[id(parameter)])
