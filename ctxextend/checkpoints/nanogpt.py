"""Checkpoints that nanoGPT's train.py wrote, as the GPT-2 checkpoints of transformers that compute the same.

Source: https://github.com/karpathy/nanoGPT, model.py; its `from_pretrained` goes the other way.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from ctxextend.checkpoints.pytorch_file import Unpickled, find_tensors
from ctxextend.errors import CheckpointError

# Exact since https://github.com/karpathy/nanoGPT/pull/274, whose merge changed what older files compute.
NOTE = (
    "The activation is taken to be nanoGPT's exact GELU, as the file does not say: where nanoGPT trained the model "
    'before 14 June 2023, write "activation_function": "gelu_new" into config.json.'
)

EMBEDDINGS, POSITIONS, HEAD = "transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"

# Shapes in widths, as torch's Linear keeps them: outputs first. Each part but the embeddings has a bias as well.
BLOCK: Mapping[str, tuple[int, ...]] = {
    "ln_1": (1,),
    "attn.c_attn": (3, 1),
    "attn.c_proj": (1, 1),
    "ln_2": (1,),
    "mlp.c_fc": (4, 1),
    "mlp.c_proj": (1, 4),
}

LENGTHS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")

MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")

# The end of text in GPT-2's vocabulary, which nanoGPT pads to 50,304.
END_OF_TEXT = 50256

HINT = "Use a checkpoint of the original nanoGPT, or convert this one with the program that wrote it."


@dataclass(frozen=True)
class _Sizes:
    """What nanoGPT calls model_args, checked."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    bias: bool
    dropout: float


def is_nanogpt(content: Any) -> bool:
    """Return whether a loaded pickle is a checkpoint of nanoGPT."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        return False
    arguments = content.get("model_args")
    return isinstance(arguments, dict) and "block_size" in arguments


def from_nanogpt(unpickled: Unpickled) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a GPT-2 config and tensors for transformers that compute what nanoGPT's model computes.

    The file does not say which activation the model was trained with: `NOTE` says what is assumed.

    Args:
        unpickled: From `unpickle`, and `is_nanogpt` knows its content.

    Returns:
        The content of config.json; and the tensors named, shaped and ordered as GPT2LMHeadModel saves them, Linear
        weights as (in, out) views, missing biases as zeros; the head only where it is not the embeddings.

    Raises:
        CheckpointError: An argument is missing or makes no sense, or the tensors are not those of such a model.
    """
    content, path = unpickled.content, unpickled.path
    sizes = _sizes(content["model_args"], path)
    found = find_tensors(content["model"], path)
    head, embeddings = found.get(HEAD), found.get(EMBEDDINGS)
    # Saving by hand may have split what nanoGPT keeps as one tensor.
    is_tied = head is None or (
        embeddings is not None
        and (head.dtype, head.shape) == (embeddings.dtype, embeddings.shape)
        and torch.equal(head, embeddings)
    )
    tensors = {name: _converted(found, name, shape, sizes, path) for name, shape in _shapes(sizes, is_tied)}
    known = {*tensors, HEAD}
    strange = next((name for name in found if name not in known and not MASK.fullmatch(name)), None)
    if strange:
        raise CheckpointError(f"{path} holds {strange!r:.200}, which nanoGPT's model has not.", HINT)
    dtype = str(tensors[EMBEDDINGS].dtype).removeprefix("torch.")
    return _config(sizes, is_tied, dtype), tensors


def _sizes(arguments: Mapping[str, Any], path: Path) -> _Sizes:
    strange = next((name for name in arguments if name not in _Sizes.__dataclass_fields__), None)
    if strange is not None:
        # Forks add arguments that change what the same tensors compute.
        raise CheckpointError(f"{path}: model_args holds {reprlib.repr(strange)}, which nanoGPT does not know.", HINT)
    # Before it had these arguments, nanoGPT always had biases, and dropout is of no matter but in training.
    sizes = _Sizes(**{"bias": True, "dropout": 0.0, **dict.fromkeys(LENGTHS), **arguments})
    for name in LENGTHS:
        if type(value := getattr(sizes, name)) is not int or value < 1:
            raise _wrong(path, name, value, "not a whole number above 0")
    if sizes.n_embd % sizes.n_head:
        raise _wrong(path, "n_embd", sizes.n_embd, f"not a multiple of n_head, {sizes.n_head}")
    if type(sizes.bias) is not bool:
        raise _wrong(path, "bias", sizes.bias, "neither True nor False")
    if type(sizes.dropout) not in (int, float) or not 0 <= sizes.dropout <= 1:
        raise _wrong(path, "dropout", sizes.dropout, "not a share from 0 to 1")
    return sizes


def _wrong(path: Path, name: str, value: Any, what: str) -> CheckpointError:
    return CheckpointError(f"{path}: model_args says {name} = {reprlib.repr(value)}, which is {what}.", HINT)


def _shapes(sizes: _Sizes, is_tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor that transformers wants, in its order, with its shape in nanoGPT."""
    yield EMBEDDINGS, (sizes.vocab_size, sizes.n_embd)
    yield POSITIONS, (sizes.block_size, sizes.n_embd)
    parts = ((f"h.{layer}.{part}", shape) for layer in range(sizes.n_layer) for part, shape in BLOCK.items())
    for part, widths in chain(parts, [("ln_f", (1,))]):
        shape = tuple(width * sizes.n_embd for width in widths)
        yield f"transformer.{part}.weight", shape
        yield f"transformer.{part}.bias", shape[:1]
    if not is_tied:
        yield HEAD, (sizes.vocab_size, sizes.n_embd)


def _converted(
    found: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], sizes: _Sizes, path: Path
) -> torch.Tensor:
    if name.endswith(".bias") and not sizes.bias:
        if name in found:
            raise CheckpointError(f"{path} holds {name}, but its model_args says bias = False.", HINT)
        return torch.zeros(shape, dtype=found[name.removesuffix("bias") + "weight"].dtype)
    if name not in found:
        raise CheckpointError(f"{path} holds no {name}, which nanoGPT's model has.", HINT)
    tensor = found[name]
    if tensor.shape != shape:
        raise CheckpointError(f"{path}: {name} is {tuple(tensor.shape)}; by model_args it should be {shape}.", HINT)
    # transformers keeps GPT-2's linear layers as TensorFlow did, inputs first.
    return tensor.T if ".h." in name and len(shape) == 2 else tensor


def _config(sizes: _Sizes, is_tied: bool, dtype: str) -> dict[str, Any]:
    end = END_OF_TEXT if sizes.vocab_size > END_OF_TEXT else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu",
        **{"resid_pdrop": sizes.dropout, "embd_pdrop": sizes.dropout, "attn_pdrop": sizes.dropout},
        **{"bos_token_id": end, "eos_token_id": end},
        "dtype": dtype,
        "layer_norm_epsilon": 1e-5,
        **{"n_embd": sizes.n_embd, "n_head": sizes.n_head, "n_layer": sizes.n_layer},
        "n_positions": sizes.block_size,
        "tie_word_embeddings": is_tied,
        "vocab_size": sizes.vocab_size,
    }
