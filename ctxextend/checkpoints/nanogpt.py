"""Checkpoints that nanoGPT's train.py wrote, as the GPT-2 checkpoints of transformers that compute the same.

Source: https://github.com/karpathy/nanoGPT, model.py; its `from_pretrained` goes the other way.
"""

import io
import pickletools
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any, NoReturn

import torch

from ctxextend.checkpoints.copy import open_source
from ctxextend.checkpoints.pytorch_file import find_tensors
from ctxextend.errors import CheckpointError, one_line

# Exact since https://github.com/karpathy/nanoGPT/pull/274, whose merge changed what older files compute.
NOTE = (
    "The activation is taken to be nanoGPT's exact GELU, as the file does not say: where nanoGPT trained the model "
    'before 14 June 2023, write "activation_function": "gelu_new" into config.json.'
)
HINT = "Use a checkpoint of the original nanoGPT, or convert this one with the program that wrote it."

EMBEDDINGS, POSITIONS, HEAD = "transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"
MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")
# Shapes of a block's weights in widths, as torch's Linear keeps them: outputs first. Each has a bias as well.
BLOCK = {
    **{"ln_1": (1,), "attn.c_attn": (3, 1), "attn.c_proj": (1, 1)},
    **{"ln_2": (1,), "mlp.c_fc": (4, 1), "mlp.c_proj": (1, 4)},
}
LENGTHS = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
END_OF_TEXT = 50256  # the end of text in GPT-2's vocabulary, which nanoGPT pads to 50,304
MAX_VOCABULARY = 4_000_000  # bytes; more than all characters of Unicode need


class PlainUnpickler(Unpickler):
    """Reads numbers, texts and collections of them, and refuses whatever else a pickle names: nothing in it is run."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse any class or function."""
        raise UnpicklingError(f"it names {module}.{name}")


def read_characters(path: Path) -> dict[str, int]:
    """Return the ids of characters in a ``meta.pkl`` of nanoGPT, as its data/shakespeare_char/prepare.py writes it."""
    try:
        with open_source(path) as file:
            content = file.read(MAX_VOCABULARY + 1)
        if len(content) > MAX_VOCABULARY:
            raise UnpicklingError(f"it is larger than {MAX_VOCABULARY:,} bytes")
        for opcode, number, _ in pickletools.genops(content):  # the unpickler takes memory up to any such number
            if opcode.name.endswith("PUT") and (number or 0) > len(content):
                raise UnpicklingError(f"it asks for memory that {len(content):,} bytes cannot need")
        found = dict(PlainUnpickler(io.BytesIO(content)).load()["stoi"])
        if not found or not all(type(key) is str and type(value) is int for key, value in found.items()):
            raise UnpicklingError("its stoi has no number for each character")
    except Exception as error:  # a damaged pickle can raise anything
        what = f"{path} holds no vocabulary of characters: {type(error).__name__}: {one_line(error).rstrip('.')}."
        raise CheckpointError(what, "Name the meta.pkl beside the text that nanoGPT was trained on.") from error
    return found


def is_nanogpt(content: Any) -> bool:
    """Whether a loaded pickle is a checkpoint of nanoGPT."""
    match content:
        case {"model": dict(), "model_args": {"block_size": _}}:
            return True
    return False


def from_nanogpt(content: Any, path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a GPT-2 config and tensors for transformers that compute what nanoGPT's model computes.

    The tensors are named, shaped and ordered as GPT2LMHeadModel saves them, Linear weights as (in, out) views, missing
    biases as zeros; the head only where it is not the embeddings. `NOTE` says which activation is assumed.
    """
    sizes = _sizes(content["model_args"], path)
    found = find_tensors(content["model"], path)
    tensors = {name: _converted(found, name, shape, sizes, path) for name, shape in _shapes(sizes)}
    head, embeddings = found.get(HEAD), tensors[EMBEDDINGS]  # nanoGPT keeps one tensor; saving by hand may split it
    is_tied = head is None or (head.dtype == embeddings.dtype and torch.equal(head, embeddings))
    if not is_tied:
        tensors[HEAD] = _converted(found, HEAD, tuple(embeddings.shape), sizes, path)
    strange = next((name for name in found if name not in {*tensors, HEAD} and not MASK.fullmatch(name)), None)
    if strange:
        raise CheckpointError(f"{path} holds {strange!r:.200}, which nanoGPT's model has not.", HINT)
    end = END_OF_TEXT if sizes["vocab_size"] > END_OF_TEXT else None
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes["dropout"]),
        **{"bos_token_id": end, "eos_token_id": end},
        "dtype": str(embeddings.dtype).removeprefix("torch."),
        "layer_norm_epsilon": 1e-5,
        **{name: sizes[name] for name in ("n_embd", "n_head", "n_layer")},
        "n_positions": sizes["block_size"],
        "tie_word_embeddings": is_tied,
        "vocab_size": sizes["vocab_size"],
    }
    return config, tensors


def _sizes(arguments: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what nanoGPT calls model_args, checked: forks add arguments that change what the tensors compute."""
    # Before it had these arguments, nanoGPT always had biases, and dropout is of no matter but in training.
    sizes = {**dict.fromkeys(LENGTHS), "bias": True, "dropout": 0.0, **arguments}
    wrong = [name for name in sizes if name not in (*LENGTHS, "bias", "dropout")]
    wrong += [name for name in LENGTHS if type(sizes[name]) is not int or sizes[name] < 1]
    wrong += ["bias"] if type(sizes["bias"]) is not bool else []
    wrong += ["dropout"] if type(sizes["dropout"]) not in (int, float) or not 0 <= sizes["dropout"] <= 1 else []
    if not wrong and sizes["n_embd"] % sizes["n_head"]:
        wrong = ["n_head"]
    if wrong:
        said = f"{reprlib.repr(wrong[0])} = {reprlib.repr(sizes[wrong[0]])}"
        raise CheckpointError(f"{path}: model_args says {said}, which nanoGPT's model cannot have.", HINT)
    return sizes


def _shapes(sizes: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor but the head that transformers wants, in its order, with its shape in nanoGPT."""
    width = sizes["n_embd"]
    yield EMBEDDINGS, (sizes["vocab_size"], width)
    yield POSITIONS, (sizes["block_size"], width)
    for layer in range(sizes["n_layer"]):
        for part, widths in BLOCK.items():
            shape = tuple(width * count for count in widths)
            yield f"transformer.h.{layer}.{part}.weight", shape
            yield f"transformer.h.{layer}.{part}.bias", shape[:1]
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def _converted(
    found: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...], sizes: Mapping[str, Any], path: Path
) -> torch.Tensor:
    is_absent = name.endswith(".bias") and not sizes["bias"]
    if is_absent and name not in found:
        return torch.zeros(shape, dtype=found[name.removesuffix("bias") + "weight"].dtype)
    if is_absent or name not in found:
        has = f"holds {name}" if is_absent else f"holds no {name}"
        raise CheckpointError(f"{path} {has}, which is not nanoGPT's model by its model_args.", HINT)
    tensor = found[name]
    if tensor.shape != shape:
        raise CheckpointError(f"{path}: {name} is {tuple(tensor.shape)}; by model_args it should be {shape}.", HINT)
    # transformers keeps GPT-2's linear layers as TensorFlow did, inputs first.
    return tensor.T if ".h." in name and len(shape) == 2 else tensor
