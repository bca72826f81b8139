"""Convert checkpoints of nanoGPT's train.py to equivalent GPT-2 checkpoints of transformers.

Source: https://github.com/karpathy/nanoGPT, model.py; its `from_pretrained` converts in the other
direction.
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

# nanoGPT uses exact GELU since https://github.com/karpathy/nanoGPT/pull/274; it used the tanh
# approximation before.
NOTE = (
    "nanoGPT files do not state the activation; exact GELU is assumed. If nanoGPT trained the "
    "model "
    'before 14 June 2023, set "activation_function": "gelu_new" in config.json.'
)
HINT = (
    "Use a checkpoint of the original nanoGPT, or convert this one with the program that wrote it."
)

EMBEDDINGS, POSITIONS, HEAD = "transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"
MASK = re.compile(r"transformer\.h\.\d+\.attn\.bias")
# a block's weights in multiples of n_embd, (out, in) as in torch's Linear; each also has a bias
BLOCK = {
    **{"ln_1": (1,), "attn.c_attn": (3, 1), "attn.c_proj": (1, 1)},
    **{"ln_2": (1,), "mlp.c_fc": (4, 1), "mlp.c_proj": (1, 4)},
}
SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
END_OF_TEXT = 50256  # id of <|endoftext|> in GPT-2's vocabulary, which nanoGPT pads to 50,304
MAX_VOCABULARY = 4_000_000  # bytes; all characters of Unicode need less


class _PlainUnpickler(Unpickler):
    """Unpickle numbers, strings and collections; reject every class and function, so that no code
    is executed.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnpicklingError(f"it references {module}.{name}")


def read_characters(path: Path) -> dict[str, int]:
    """Read token ids by character from nanoGPT's ``meta.pkl``, as written by
    data/shakespeare_char/prepare.py.
    """
    try:
        with open_source(path) as file:
            content = file.read(MAX_VOCABULARY + 1)
        if len(content) > MAX_VOCABULARY:
            raise UnpicklingError(f"it is larger than {MAX_VOCABULARY:,} bytes")
        for opcode, number, _ in pickletools.genops(
            content
        ):  # the unpickler allocates a memo of that size
            if opcode.name.endswith("PUT") and (number or 0) > len(content):
                raise UnpicklingError(
                    f"its memo index {number:,} is too large for {len(content):,} bytes"
                )
        characters = dict(_PlainUnpickler(io.BytesIO(content)).load()["stoi"])
        if not characters or not all(
            type(key) is str and type(value) is int for key, value in characters.items()
        ):
            raise UnpicklingError("its stoi does not map characters to integers")
    except Exception as error:  # a damaged pickle can raise anything
        message = (
            f"{path} is not a character vocabulary: {type(error).__name__}: "
            f"{one_line(error).rstrip('.')}."
        )
        raise CheckpointError(
            message, "Pass the meta.pkl next to nanoGPT's training text."
        ) from error
    return characters


def is_nanogpt(content: Any) -> bool:
    """Whether a loaded pickle is a nanoGPT checkpoint."""
    arguments = content.get("model_args") if isinstance(content, dict) else None
    return (
        isinstance(arguments, dict)
        and "block_size" in arguments
        and isinstance(content.get("model"), dict)
    )


def from_nanogpt(content: Any, path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the equivalent GPT-2 config and tensors of transformers.

    Names, shapes and order are those of GPT2LMHeadModel: linear weights are (in, out) views,
    missing biases are zeros, and the LM head is included only if it is not tied. `NOTE` states the
    assumed activation.
    """
    sizes = _sizes(content["model_args"], path)
    stored = find_tensors(content["model"], path)
    tensors = {name: _convert(stored, name, shape, sizes, path) for name, shape in _shapes(sizes)}
    # nanoGPT ties them; other programs may save two tensors
    head = stored.get(HEAD)
    embeddings = tensors[EMBEDDINGS]
    is_tied = head is None or (head.dtype == embeddings.dtype and torch.equal(head, embeddings))
    if not is_tied:
        tensors[HEAD] = _convert(stored, HEAD, tuple(embeddings.shape), sizes, path)
    unexpected = next(
        (name for name in stored if name not in {*tensors, HEAD} and not MASK.fullmatch(name)), None
    )
    if unexpected:
        raise CheckpointError(
            f"{path} contains {unexpected!r:.200}, which nanoGPT's model does not have.", HINT
        )
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
    """Return nanoGPT's model_args with defaults; reject arguments of forks, which may change the
    computation.
    """
    # Older versions of nanoGPT lack these arguments and always have biases; dropout matters only in
    # training.
    sizes = {**dict.fromkeys(SIZES), "bias": True, "dropout": 0.0, **arguments}
    invalid = [name for name in sizes if name not in (*SIZES, "bias", "dropout")]
    invalid += [name for name in SIZES if type(sizes[name]) is not int or sizes[name] < 1]
    invalid += ["bias"] if type(sizes["bias"]) is not bool else []
    invalid += (
        ["dropout"]
        if type(sizes["dropout"]) not in (int, float) or not 0 <= sizes["dropout"] <= 1
        else []
    )
    if not invalid and sizes["n_embd"] % sizes["n_head"]:
        invalid = ["n_head"]
    if invalid:
        argument = f"{reprlib.repr(invalid[0])} = {reprlib.repr(sizes[invalid[0]])}"
        raise CheckpointError(
            f"{path}: model_args contains {argument}, which nanoGPT does not support.", HINT
        )
    return sizes


def _shapes(sizes: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor except the LM head in transformers' order, with its shape in nanoGPT."""
    width = sizes["n_embd"]
    yield EMBEDDINGS, (sizes["vocab_size"], width)
    yield POSITIONS, (sizes["block_size"], width)
    for layer in range(sizes["n_layer"]):
        for module, widths in BLOCK.items():
            shape = tuple(width * count for count in widths)
            yield f"transformer.h.{layer}.{module}.weight", shape
            yield f"transformer.h.{layer}.{module}.bias", shape[:1]
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)


def _convert(
    stored: Mapping[str, torch.Tensor],
    name: str,
    shape: tuple[int, ...],
    sizes: Mapping[str, Any],
    path: Path,
) -> torch.Tensor:
    is_unexpected = name.endswith(".bias") and not sizes["bias"]
    if is_unexpected and name not in stored:
        return torch.zeros(shape, dtype=stored[name.removesuffix("bias") + "weight"].dtype)
    if is_unexpected or name not in stored:
        contains = "contains" if is_unexpected else "does not contain"
        raise CheckpointError(f"{path} {contains} {name}, which contradicts its model_args.", HINT)
    tensor = stored[name]
    if tensor.shape != shape:
        raise CheckpointError(
            f"{path}: {name} has shape {tuple(tensor.shape)}, model_args require {shape}.", HINT
        )
    # transformers stores GPT-2's linear weights as (in, out), like the original TensorFlow code.
    return tensor.T if ".h." in name and len(shape) == 2 else tensor
