"""Checkpoints loaded in transformers and run; torch and transformers are imported when a function is called."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxextend.checkpoints.folder import LINKED, Checkpoint
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.checkpoints.source import IRREGULAR, OUTSIDE, dereference_hint
from ctxextend.errors import CheckpointError, one_line
from ctxextend.models.extend import to_tensor

if TYPE_CHECKING:
    import torch

# What a module may be given as a text, in the order of trying.
TEXTS = (("input_ids",), ("input_ids", "decoder_input_ids"), ("inputs",))

# Old checkpoints from TensorFlow call the scale and shift of a layer norm so.
OLD_NAMES = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class Loaded:
    """A model, ready to be read, and what transformers said when it was loaded."""

    model: Any
    missing: tuple[str, ...]  # tensors that the model has and the checkpoint has not
    unexpected: tuple[str, ...]  # tensors that the checkpoint has and the model has not
    mismatched: tuple[str, ...]  # tensors of another shape


def check_loadable(checkpoint: Checkpoint, hint: str | None = None) -> None:
    """Refuse what transformers cannot load alone, such as an adapter; `hint` says what to do instead."""
    for name, reason in checkpoint.omitted.items():
        if reason in (OUTSIDE, LINKED, IRREGULAR):
            then = "Move it away, or put a file there." if reason == IRREGULAR else dereference_hint(checkpoint.root)
            raise CheckpointError(f"{checkpoint.root / name} is {reason}, and transformers might open it.", then)
    if checkpoint.adapter_of or not checkpoint.has_config:
        what = "an adapter" if checkpoint.adapter_of else "a weights file without a config.json"
        raise CheckpointError(f"{checkpoint.root} is {what}, which transformers cannot load alone.", hint)


def load(checkpoint: Checkpoint, model_class: str | None, dtype: str = "float32") -> Loaded:
    """Load a checkpoint by the class that its config names, with weights of a dtype of torch.

    AutoModel takes the place of no class, and of one that is not public.
    """
    import torch
    import transformers

    # Some classes that configs name are no public ones; then the base model is what can be loaded.
    loader: Any = getattr(transformers, model_class or "", None) or transformers.AutoModel
    torch.manual_seed(0)  # what a checkpoint lacks is drawn at random, and then alike for every checkpoint
    flags: dict[str, Any] = {"output_loading_info": True, "dtype": getattr(torch, dtype), "variant": checkpoint.variant}
    flags["ignore_mismatched_sizes"] = True  # what does not fit is to be reported, and not only to fail
    flags["trust_remote_code"] = False  # left out, transformers asks, and a yes runs what the checkpoint holds
    folder: Path | None = checkpoint.root / checkpoint.model
    if checkpoint.config_file in checkpoint.generated:  # transformers cannot read nanoGPT's file
        flags["state_dict"] = {name: to_tensor(read_floats(file, name)) for name, file in checkpoint.names.items()}
        folder, flags["config"] = None, transformers.AutoConfig.for_model(**checkpoint.config)
    with quiet():
        try:
            model, info = loader.from_pretrained(folder, **flags)
        except Exception as error:  # whatever a class of transformers raises on a folder that it cannot load
            said = f"{type(error).__name__}: {one_line(error)}"
            raise CheckpointError(f"transformers cannot load {checkpoint.root}: {said}") from error
    mismatched = tuple(sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]))
    missing, unexpected = (tuple(sorted(info[kind])) for kind in ("missing_keys", "unexpected_keys"))
    return Loaded(model.train(False), missing, unexpected, mismatched)


def match_parameters(model: Any, checkpoint: Checkpoint, tables: Iterable[str]) -> dict[str, str]:
    """Return the parameter that holds each tensor of a checkpoint's files, by name; one must hold each of `tables`."""
    parameters = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    found: dict[str, str] = {}
    for name, entry in checkpoint.entries.items():
        stem, _, last = name.rpartition(".")
        for known in (name, f"{stem}.{OLD_NAMES.get(last, last)}"):
            # Models with and without a head name the rest differently.
            for candidate in (known, f"{prefix}{known}", known.removeprefix(prefix)):
                if parameters.get(candidate) == entry.shape:
                    found.setdefault(name, candidate)
    if missing := [table for table in tables if table not in found]:
        raise CheckpointError(f"The model in {checkpoint.root} holds no table of the shape of {missing[0]}.")
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' own bars and notes, which say again what `Loaded` holds."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def read_text(model: Any, table: str, length: int) -> "torch.Tensor | None":
    """Let the outermost part of a model around a table that a text alone will do for read one of `length` tokens.

    Returns its first float32 output with a place for every token, else its first; None where no such part runs on text
    alone. A text that is too long raises what the model does.
    """
    failure: Exception | None = None
    path = table.split(".")[:-1]
    for depth in range(len(path) + 1):
        module = model.get_submodule(".".join(path[:depth]))
        parameters = inspect.signature(module.forward).parameters
        for names in (names for names in TEXTS if {*names} <= parameters.keys()):
            with suppress(Exception):  # each class has its own way to miss what it was not given, even in a short text
                if _first_output(module, names, model.config, 2) is None:
                    continue
                try:
                    return _first_output(module, names, model.config, length)
                except (IndexError, RuntimeError, ValueError) as error:
                    # Around it there may be a table that is shorter; what holds this one alone fails only where it is.
                    failure = error
                    break
    if failure is not None:
        raise failure
    return None


def _first_output(module: Any, names: tuple[str, ...], config: Any, length: int) -> "torch.Tensor | None":
    """Run a module on a text; return its first float output that has a value for each token, else its first."""
    import torch

    vocab_size = int(getattr(config.get_text_config(), "vocab_size", None) or 32)
    # No text may hold padding: several families count positions over what is none.
    first = min(vocab_size // 2, 100)
    token_ids = first + torch.arange(length).unsqueeze(0) % max(vocab_size - first - 1, 1)
    with torch.no_grad():
        output = module(**dict.fromkeys(names, token_ids))
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
    floats = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return next((value for value in floats if value.dim() >= 3), floats[0] if floats else None)


def largest_difference(one: "torch.Tensor", other: "torch.Tensor") -> float:
    """Return the largest difference between two outputs of one shape; 0 means that they are equal, NaN included."""
    apart = (one - other).abs()
    apart[(one == other) | (one.isnan() & other.isnan())] = 0
    return float(apart.max())


def continue_text(model: Any, prompt: str, length: int, boundary: int) -> tuple[str, str, int]:
    """Let a causal language model, loaded with its tokenizer, go on with a text until it is `length` tokens long.

    Returns the text before the token position `boundary`, that behind it, and how many tokens there are.
    """
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path, trust_remote_code=False)
    end = tokenizer.eos_token_id
    flags = {"max_length": length, "suppress_tokens": [end], "pad_token_id": end, "do_sample": True, "temperature": 0.7}
    torch.manual_seed(0)
    ids = model.generate(**tokenizer(prompt, return_tensors="pt"), **flags)[0]
    return str(tokenizer.decode(ids[:boundary])), str(tokenizer.decode(ids[boundary:])), len(ids)
