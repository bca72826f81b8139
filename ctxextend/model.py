"""A loaded transformers model, resized in place; torch is imported when a function is called."""

import copy
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ctxextend.configedits import config_changes
from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.architecture import Architecture
from ctxextend.families.lookup import find_architecture
from ctxextend.recipe import Resize
from ctxextend.tableplan import TablePlan, find_tables, plan_found
from ctxextend.tables.resizing import resize_behind

if TYPE_CHECKING:
    import torch

# What modules keep of a config, beside tensors and other modules.
PLAIN = (int, float, str, tuple)

ITSELF = "Pass the transformers model itself, not a wrapper around it; merge or unload adapters first."

__all__ = ["continue_text", "extend_model", "failure_at", "load_causal", "same_logits"]


def extend_model(
    model: "torch.nn.Module",
    to: int,
    method: str | None = None,
    *,
    keep_first: int = 0,
    drop_last: int = 0,
    scope: str | None = None,
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
        part: As in `plan_resize`.

    Raises:
        UnsupportedModelError: The model has no learned position table that is known here.
        CheckpointError: The model holds no such table, or its config disagrees with it.
        ResizeError: The length, the method or a flag cannot be served.
    """
    settings = Resize(to, method, keep_first, drop_last, scope, part)
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise CheckpointError(f"A {type(model).__name__} holds no transformers config.", ITSELF)
    stated = {**config.to_dict(), "model_type": config.model_type}
    architecture = find_architecture(stated)
    tables = _plan_model(model, architecture, settings)
    weights = {table.name: _resized(model.get_parameter(table.name), table, settings) for table in tables}
    edits = config_changes(stated, architecture, tables)
    holders = _holders(model, weights)
    # All that can fail comes first: the same models are built at both lengths, and what they then hold is compared.
    followed = list(_followed(model, holders, edits))
    _set_parameters(model, weights)
    for own in _configs(model, holders).values():
        _set_config(own, edits)
    for module, name, value in followed:
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
    import torch

    resized = resize_behind(_to_numpy(weight.detach()), table.offset, table.rows_after - table.offset, settings.options)
    return torch.from_numpy(resized.view(np.uint8)).view(weight.dtype).to(weight.device)


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


def _holders(model: "torch.nn.Module", tables: Collection[str]) -> list[str]:
    """Return the names of the transformers models that tables stand in, the outermost first."""
    above = {name.rpartition(".")[0] for name in tables}
    return [
        name
        for name, module in model.named_modules()
        if hasattr(module, "_init_weights") and (not name or any(f"{path}.".startswith(f"{name}.") for path in above))
    ]


def _configs(model: "torch.nn.Module", holders: list[str]) -> dict[str, Any]:
    """Return the configs of a model and of those of `holders` that have a copy of it, by name; some are one object."""
    configs = {name: getattr(model.get_submodule(name), "config", None) for name in ["", *holders]}
    return {name: config for name, config in configs.items() if type(config) is type(model.config)}


def _skeletons(
    model: "torch.nn.Module", holders: list[str], edits: Mapping[tuple[str, ...], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the outermost models in a model that can be built of their config alone, at the old and the new length.

    Yields:
        The model's name in the whole, and it as its class builds it, twice, on the meta device.
    """
    old: dict[str, Any] = copy.deepcopy({name: model.get_submodule(name).config for name in ["", *holders]})
    new = copy.deepcopy(old)
    for name in _configs(model, holders):
        _set_config(new[name], edits)
    built: list[str] = []
    for name in holders:
        if not any(name.startswith(f"{outer}." if outer else "") for outer in built):
            module = model.get_submodule(name)
            try:
                yield name, _built(module, old[name]), _built(module, new[name])
            except Exception:  # a class of the user's own may want more than a config; those inside it may not
                continue
            built.append(name)


def _built(module: "torch.nn.Module", config: Any) -> Any:
    import torch

    make: Any = type(module)
    with torch.device("meta"):
        return make(config)


def _set_config(config: Any, edits: Mapping[tuple[str, ...], Any]) -> None:
    for (*path, key), value in edits.items():
        holder = config
        for step in path:
            holder = holder[step] if isinstance(holder, dict) else getattr(holder, step)
        if isinstance(holder, dict):
            holder[key] = value
        else:
            setattr(holder, key, value)


def _set_parameters(model: "torch.nn.Module", weights: Mapping[str, "torch.Tensor"]) -> None:
    """Give every module that holds one of the old tables the new one: a table may be shared."""
    import torch

    made = {}
    for name, weight in weights.items():
        old = model.get_parameter(name)
        made[id(old)] = torch.nn.Parameter(weight, requires_grad=old.requires_grad)
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if id(parameter) in made:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, made[id(parameter)])


def _followed(
    model: "torch.nn.Module", holders: list[str], edits: Mapping[tuple[str, ...], Any]
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    """Yield what a model's modules must hold at the new length: the module, the name in it, and the value."""
    import torch

    # Initialising a skeleton must not change the numbers that the caller's program draws.
    with torch.random.fork_rng(devices=[]):
        for outer, old, new in _skeletons(model, holders, edits):
            modules, before = dict(model.get_submodule(outer).named_modules()), dict(old.named_modules())
            for name, after in new.named_modules():
                inner = _innermost(new, name)
                is_ours = ".".join(filter(None, (outer, inner))) in holders
                if is_ours and name in modules and name in before and type(modules[name]) is type(after):
                    yield from _values(modules[name], before[name], after)
                    yield from _buffers(modules[name], before[name], after, new.get_submodule(inner))


def _innermost(skeleton: Any, name: str) -> str:
    """Return the name of the innermost transformers model that a module stands in."""
    path = name.split(".") if name else []
    names = (".".join(path[:depth]) for depth in range(len(path), -1, -1))
    return next(name for name in names if hasattr(skeleton.get_submodule(name), "_init_weights"))


def _values(
    module: "torch.nn.Module", before: "torch.nn.Module", after: "torch.nn.Module"
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    for name, value in vars(after).items():
        if isinstance(value, PLAIN) and vars(before).get(name) != value:
            yield module, name, value


def _buffers(
    module: "torch.nn.Module", before: "torch.nn.Module", after: "torch.nn.Module", initializer: Any
) -> Iterator[tuple["torch.nn.Module", str, Any]]:
    import torch

    held, old = dict(module.named_buffers(recurse=False)), dict(before.named_buffers(recurse=False))
    new = after.named_buffers(recurse=False)
    changed = [name for name, buffer in new if name in held and name in old and buffer.shape != old[name].shape]
    made = [_initialized(after, initializer, changed, filling) for filling in (0, 1)] if changed else []
    for name in changed:
        if not torch.equal(made[0][name], made[1][name]):
            raise ResizeError(
                f"The buffer {name} of a {type(module).__name__} follows the length, and its class's _init_weights "
                "does not make it.",
                "Make it there, as transformers' own models do, or resize the checkpoint and load that.",
            )
        yield module, name, made[0][name].to(held[name].device, held[name].dtype)


def _initialized(module: "torch.nn.Module", initializer: Any, names: list[str], filling: int) -> dict[str, Any]:
    """Return buffers as from_pretrained makes those that files do not hold: on the meta device, then by this method."""
    module.to_empty(device="cpu", recurse=False)
    for name in names:
        getattr(module, name).fill_(filling)
    initializer._init_weights(module)
    return {name: getattr(module, name).clone() for name in names}


def load_causal(folder: Path) -> Any:
    """Load a checkpoint's causal language model for reading, without transformers' own bars and notes."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return AutoModelForCausalLM.from_pretrained(folder).train(False)


def continue_text(model: Any, prompt: str, length: int, boundary: int, seed: int = 0) -> tuple[str, str, int]:
    """Let a causal language model write until a text is `length` tokens long, sampling with a fixed seed.

    Args:
        model: From `load_causal`, of a folder that holds its tokenizer too.
        prompt: How the text begins; fewer than `boundary` tokens.
        length: Tokens wanted, the prompt's included.
        boundary: The token position at which the text is parted in two.
        seed: Of torch's generator.

    Returns:
        The text before the boundary, the text behind it, and how many tokens there are.
    """
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    prompt_ids = tokenizer(prompt, return_tensors="pt")
    torch.manual_seed(seed)
    ids = model.generate(
        **prompt_ids,
        max_new_tokens=length - prompt_ids["input_ids"].shape[1],
        suppress_tokens=[tokenizer.eos_token_id],
        do_sample=True,
        temperature=0.7,
        pad_token_id=tokenizer.eos_token_id,
    )[0]
    return str(tokenizer.decode(ids[:boundary])), str(tokenizer.decode(ids[boundary:])), len(ids)


def failure_at(model: Any, length: int) -> str | None:
    """Return what transformers says when a causal language model reads `length` tokens; None where it can."""
    import torch

    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, length, dtype=torch.long))
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def same_logits(one: Any, other: Any, length: int) -> bool:
    """Whether two causal language models give equal logits, bit for bit, for the same `length` tokens."""
    import torch

    tokens = torch.arange(length).unsqueeze(0) % one.config.vocab_size
    with torch.no_grad():
        return torch.equal(one(input_ids=tokens).logits, other(input_ids=tokens).logits)
