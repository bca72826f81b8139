"""Convert checkpoints of nanoGPT's train.py to equivalent GPT-2 checkpoints of transformers.

Source: https://github.com/karpathy/nanoGPT, model.py; its `from_pretrained` converts in the other
direction.
"""

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch

from ctxextend.checkpoint.pytorch_file import find_tensors
from ctxextend.errors import CheckpointError, one_line
from ctxextend.notes import Code, Level, Note

# nanoGPT uses exact GELU since https://github.com/karpathy/nanoGPT/pull/274; it used the tanh
# approximation before.
ASSUMED_ACTIVATION = Note(
    Code.SOURCE,
    Level.NOTE,
    "nanoGPT files do not state the activation; exact GELU is assumed. If nanoGPT trained the "
    'model before 14 June 2023, set "activation_function": "gelu_new" in config.json.',
)
HINT = (
    "Use a checkpoint of the original nanoGPT, or convert this one with the program that wrote it."
)

EMBEDDINGS = "transformer.wte.weight"
POSITIONS = "transformer.wpe.weight"
HEAD = "lm_head.weight"
MASK_BUFFER = re.compile(r"transformer\.h\.\d+\.attn\.bias")
# Shapes of a layer's weights in multiples of n_embd, (out, in) as in torch's Linear. Each also has
# a bias.
LAYER_SHAPES = {
    "ln_1": (1,),
    "attn.c_attn": (3, 1),
    "attn.c_proj": (1, 1),
    "ln_2": (1,),
    "mlp.c_fc": (4, 1),
    "mlp.c_proj": (1, 4),
}
SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
END_OF_TEXT = 50256  # id of <|endoftext|> in GPT-2's vocabulary, which nanoGPT pads to 50,304
MAX_VOCABULARY = 4_000_000  # bytes; all characters of Unicode need less


class _PlainUnpickler(pickle._Unpickler):
    """Unpickle numbers, strings and collections.

    Every class and function is rejected, so that no code is executed. The base class is the one in
    Python: the one in C allocates as much memory as a file says.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnpicklingError(f"it references {module}.{name}")


def read_characters(path: Path) -> dict[str, int]:
    """Read the token ids of nanoGPT's ``meta.pkl``, by character.

    Source: nanoGPT, data/shakespeare_char/prepare.py.

    Raises:
        CheckpointError: The file is not such a vocabulary.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_VOCABULARY)
        characters = dict(_PlainUnpickler(io.BytesIO(content)).load()["stoi"])
        pairs = characters.items()
        if not pairs or any(type(key) is not str or type(value) is not int for key, value in pairs):
            raise UnpicklingError("its stoi does not map characters to integers")
    except Exception as error:  # a damaged pickle can raise anything
        reason = f"{type(error).__name__}: {one_line(error).rstrip('.')}"
        message = f"{path} is not a character vocabulary: {reason}."
        hint = "Pass the meta.pkl next to nanoGPT's training text."
        raise CheckpointError(message, hint) from error
    return characters


def is_nanogpt(content: Any) -> bool:
    """Whether a loaded pickle is a nanoGPT checkpoint."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        return False
    arguments = content.get("model_args")
    return isinstance(arguments, dict) and "block_size" in arguments


def from_nanogpt(content: Any, path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the equivalent GPT-2 config and tensors of transformers.

    Names, shapes and order are those of GPT2LMHeadModel: linear weights are (in, out) views,
    missing biases are zeros, and the LM head is included only if it is not tied.
    `ASSUMED_ACTIVATION` states the assumed activation.

    Raises:
        CheckpointError: Arguments or tensors are not those of nanoGPT, or contradict each other.
    """
    arguments = content["model_args"]
    # Older versions of nanoGPT lack these arguments and always have biases; dropout matters only in
    # training. Others, of forks, may change the computation.
    sizes = {"bias": True, "dropout": 0.0, **arguments}
    if (
        sizes.keys() != {*SIZES, "bias", "dropout"}
        or any(type(sizes[name]) is not int or sizes[name] < 1 for name in SIZES)
        or sizes["n_embd"] % sizes["n_head"]
        or type(sizes["bias"]) is not bool
        or type(sizes["dropout"]) not in (int, float)
        or not 0 <= sizes["dropout"] <= 1
    ):
        message = f"{path}: its model_args are not those of nanoGPT's model: {arguments!s:.300}."
        raise CheckpointError(message, HINT)
    stored, _ = find_tensors(content["model"], path)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in _shapes(sizes):
        if name == HEAD and HEAD not in stored:
            continue
        # Without biases, those of transformers are zeros.
        if name.endswith(".bias") and not sizes["bias"]:
            tensors[name] = torch.zeros(shape, dtype=tensors[EMBEDDINGS].dtype)
            continue
        tensor = stored.pop(name, None)
        if tensor is None or tensor.shape != shape:
            message = f"{path} has no {name} of shape {shape}, which its model_args require."
            raise CheckpointError(message, HINT)
        # transformers stores GPT-2's linear weights as (in, out), like the original TensorFlow
        # code.
        if ".h." in name and len(shape) == 2:
            tensor = tensor.T
        tensors[name] = tensor
    for name in stored:
        if not MASK_BUFFER.fullmatch(name):
            message = f"{path} contains {name!r:.200}, which its model_args do not have."
            raise CheckpointError(message, HINT)
    # nanoGPT ties them; other programs may save two tensors.
    embeddings = tensors[EMBEDDINGS]
    head = tensors.pop(HEAD, embeddings)
    is_tied = head.dtype == embeddings.dtype and torch.equal(head, embeddings)
    if not is_tied:
        tensors[HEAD] = head
    dtype = str(embeddings.dtype).removeprefix("torch.")
    end_of_text = END_OF_TEXT if sizes["vocab_size"] > END_OF_TEXT else None
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu",
        "resid_pdrop": sizes["dropout"],
        "embd_pdrop": sizes["dropout"],
        "attn_pdrop": sizes["dropout"],
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": dtype,
        "layer_norm_epsilon": 1e-5,
        "n_embd": sizes["n_embd"],
        "n_head": sizes["n_head"],
        "n_layer": sizes["n_layer"],
        "n_ctx": sizes["block_size"],  # transformers ignores it; llama.cpp and mlx-lm need it
        "n_positions": sizes["block_size"],
        "tie_word_embeddings": is_tied,
        "vocab_size": sizes["vocab_size"],
    }
    return config, tensors


def _shapes(sizes: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = sizes["n_embd"]
    yield EMBEDDINGS, (sizes["vocab_size"], width)
    yield POSITIONS, (sizes["block_size"], width)
    for layer in range(sizes["n_layer"]):
        for module, widths in LAYER_SHAPES.items():
            shape = tuple(width * count for count in widths)
            yield f"transformer.h.{layer}.{module}.weight", shape
            yield f"transformer.h.{layer}.{module}.bias", shape[:1]
    yield "transformer.ln_f.weight", (width,)
    yield "transformer.ln_f.bias", (width,)
    yield HEAD, (sizes["vocab_size"], width)
