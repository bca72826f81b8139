"""A loaded transformers model, resized in place; torch is imported when a function is called."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ctxextend.errors import CheckpointError, ResizeError
from ctxextend.families.lookup import find_family
from ctxextend.families.schema import Family, Table
from ctxextend.recipe import Resize
from ctxextend.tableplan import check_length, check_rows
from ctxextend.tables.resizing import resize_behind

if TYPE_CHECKING:
    import torch

ITSELF = "Pass the transformers model itself, not a wrapper around it."

__all__ = ["continue_text", "extend_model", "failure_at", "load_causal", "same_logits"]


def extend_model(
    model: "torch.nn.Module",
    to: int,
    method: str | None = None,
    *,
    keep_first: int = 0,
    drop_last: int = 0,
    scope: str | None = None,
) -> None:
    """Give a loaded transformers model another context length, in place.

    The position table and its `num_embeddings`, the config's lengths, and the position buffers change together
    or not at all; the model runs at the new length at once. The table equals that of `resize` on the same
    checkpoint, bit for bit. An optimizer that was made before holds the old table: make it anew. A tokenizer
    keeps its own limit: set its `model_max_length`.

    Args:
        model: A model of a family in the registry, with or without a head, in any float dtype, on any device.
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: As in `plan_resize`.
        keep_first: As in `plan_resize`.
        drop_last: As in `plan_resize`.
        scope: As in `plan_resize`.

    Raises:
        UnsupportedModelError: The model has no learned position table that is known here.
        CheckpointError: The model holds no such table, or its config disagrees with it.
        ResizeError: The length, the method or a flag cannot be served.
    """
    settings = Resize(to, method, keep_first, drop_last, scope)
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        raise CheckpointError(f"A {type(model).__name__} holds no transformers config.", ITSELF)
    stated = {**config.to_dict(), "model_type": config.model_type}
    family = find_family(stated)
    changes = [(table, *_plan_change(model, stated, family, table, settings)) for table in family.tables]
    for table, module, weight in changes:
        _set_table(module, weight)
        length = table.stated_length(to, family.offset_rows(table, stated))
        for key in table.length_keys(stated):
            setattr(config, key, length)
        _set_buffers(model, family, len(weight))


def _plan_change(
    model: "torch.nn.Module", stated: Mapping[str, Any], family: Family, table: Table, settings: Resize
) -> tuple["torch.nn.Embedding", "torch.Tensor"]:
    """Return the table's module and its new weight, with nothing changed yet."""
    name, module = _find_module(model, family, table)
    rows, offset = len(module.weight), family.offset_rows(table, stated)
    check_rows(stated, family, table, rows, name)
    check_length(settings, rows - offset, name)
    return module, _resized(module.weight, offset, settings)


def _find_module(model: "torch.nn.Module", family: Family, table: Table) -> tuple[str, "torch.nn.Embedding"]:
    modules = dict(model.named_modules())
    names = [name for name in family.table_names(table) if name.removesuffix(".weight") in modules]
    if len(names) != 1:
        wanted = " or ".join(family.table_names(table))
        raise CheckpointError(
            f"This {type(model).__name__} holds {len(names)} tables named {wanted}, and one is needed.",
            ITSELF,
        )
    module: Any = modules[names[0].removesuffix(".weight")]
    return names[0], module


def _resized(weight: "torch.Tensor", offset: int, settings: Resize) -> "torch.Tensor":
    import torch

    resized = resize_behind(_to_numpy(weight.detach()), offset, settings.to, settings.options)
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


def _set_table(module: "torch.nn.Embedding", weight: "torch.Tensor") -> None:
    import torch

    module.weight = torch.nn.Parameter(weight, requires_grad=module.weight.requires_grad)
    module.num_embeddings = len(weight)


def _set_buffers(model: "torch.nn.Module", family: Family, rows: int) -> None:
    import torch

    for owner, name, content, old in list(_buffers(model, family)):
        new = torch.arange(rows) if content == "arange" else torch.zeros(rows)
        setattr(owner, name, new.to(old.device, old.dtype).expand(1, -1))


def _buffers(model: "torch.nn.Module", family: Family) -> Iterator[tuple[Any, str, str, Any]]:
    for name, old in model.named_buffers():
        buffer = family.buffer(name)
        if buffer and buffer.content in ("arange", "zeros"):
            owner, _, own_name = name.rpartition(".")
            yield model.get_submodule(owner), own_name, buffer.content, old


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
