"""Files that torch.save wrote, read as the safetensors files that they will be written as; nothing in them is run.

The format: a pickle that names every tensor, and the tensors' bytes; in one zip since torch 1.6, see
https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format for torch.save".
"""

import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.headers import Entries, read_entries
from ctxextend.checkpoints.headertext import compact
from ctxextend.checkpoints.pickles import SAVE_TENSORS
from ctxextend.checkpoints.records import Stored, place_of, read_stored
from ctxextend.checkpoints.tensorfile import float_dtype
from ctxextend.errors import CheckpointError

if TYPE_CHECKING:
    import torch

__all__ = [
    "TorchFile",
    "find_tensors",
    "place_in",
    "read_torch_tensor",
    "tensor_bytes",
    "torch_file",
]


# Where training programs keep the model's tensors beside the optimizer's.
NESTED = ("state_dict", "model")

# Written in front of every name by DataParallel and by torch.compile.
WRAPPERS = ("module.", "_orig_mod.")

# Names of models that were ported from TensorFlow, which transformers renames on loading.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

# What transformers ties again by itself when it loads a model, and so leaves out of a file: `_tied_weights_keys`.
TIED_AGAIN = re.compile(
    r"(?P<owner>(?:.+?\.)??)(?:(?:cls\.)?predictions\.decoder\.(?:weight|bias)|lm_head\.(?:decoder\.)?(?:weight|bias)"
    r"|(?:encoder|decoder)\.(?:embed_tokens|word_embeddings)\.weight|entity_predictions\.decoder\.weight"
    r"|(?:generator_lm_head|output_projection|pred_layer\.proj|proj_out|vocab_projector)\.weight)"
)

# transformers writes a tied tensor under its embedding's name; only relatives of RoBERTa have the head in front of it.
LATE = ".lm_head."

# Bytes that a tensor may take beyond those that are stored: a stride of 0 makes terabytes of a few.
MAX_EXPANSION = 1 << 30

DTYPES: Mapping[str, str] = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"},
    **{"uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64"},
    **{"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
}


@dataclass(frozen=True)
class TorchFile:
    """A torch file whose tensors were found, seen as the safetensors file that they will be written as.

    Attributes:
        path: Where it is.
        entries: What the safetensors header would be: the tensors by name, in their order here.
        data_start: 0: no header stands in front of the tensors here.
        size: Bytes of the file on disk.
        modified_ns: Its modification time before it was read.
        tensors: The tensors by name, of any strides; tied ones once.
        tied: Names that are left out, each with the name in `tensors` that has the same numbers.
        stored: Where their numbers stand.
    """

    path: Path
    entries: Entries
    data_start: int
    size: int
    modified_ns: int
    tensors: Mapping[str, "torch.Tensor"]
    tied: Mapping[str, str]
    stored: Stored


def torch_file(
    stored: Stored, tensors: Mapping[str, "torch.Tensor"], status: os.stat_result, *, ties: bool
) -> TorchFile:
    """Describe the safetensors file that tensors will be written as.

    Args:
        stored: The torch file that they came from.
        tensors: By name, of any strides, as `find_tensors` lets them pass.
        status: Of that file, from before it was read.
        ties: Whether names that share their numbers, and that transformers ties again, are written once.

    Raises:
        CheckpointError: A name is longer than a safetensors header can say.
    """
    tied = _ties(tensors) if ties else {}
    kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
    header = {"__metadata__": {"format": "pt"}, **_described(kept)}
    try:
        entries = read_entries(compact(header))
    except ValueError as error:
        raise CheckpointError(f"{stored.path} cannot be written as safetensors: {error}.", SAVE_TENSORS) from None
    return TorchFile(stored.path, entries, 0, status.st_size, status.st_mtime_ns, kept, tied, stored)


def find_tensors(content: Any, path: Path) -> dict[str, "torch.Tensor"]:
    """Return the model's tensors by the names that transformers gives them, in their order.

    Args:
        content: What `load_pickle` found: a state dict, or a training checkpoint that holds one.
        path: Where it came from, for messages.

    Returns:
        Tensors of any shape and strides, each of a dtype that safetensors has.

    Raises:
        CheckpointError: It holds something but tensors, none at all, or one that safetensors cannot hold.
    """
    state = _state_dict(content, path)
    found: dict[str, torch.Tensor] = {}
    prefix = _wrappers(path, state)
    for key, value in state.items():
        name = _renamed(key[len(prefix) :])
        _check_name(path, name, found)
        _check_tensor(path, key, value)
        found[name] = value.detach()
    return found


def tensor_bytes(file: TorchFile, name: str) -> NDArray[np.uint8]:
    """Return a tensor's bytes as safetensors writes them, in C order.

    Returns:
        Shape (size,): a copy, but of a tensor that is contiguous and in memory a view.

    Raises:
        CheckpointError: The file cannot be read, or shrank.
    """
    import torch

    tensor = read_stored(file.stored, file.tensors[name]).contiguous()
    # Not reshape(-1): a single number may have any stride and be contiguous, and then cannot be seen as bytes.
    data: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return data


def place_in(file: TorchFile, name: str) -> int | None:
    """Return the file's byte where a tensor's bytes begin; None where they do not stand as safetensors writes them."""
    tensor = file.tensors[name]
    is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return place_of(file.stored, tensor) if is_plain else None


def read_torch_tensor(file: TorchFile, name: str) -> NDArray[Any]:
    """Read one float tensor.

    Returns:
        A copy of its shape, its dtype as `numpy_dtype` gives it.

    Raises:
        CheckpointError: It holds no floats that can be interpolated, or the file cannot be read or shrank.
    """
    dtype = float_dtype(file, name)
    return tensor_bytes(file, name).copy().view(dtype).reshape(file.entries[name].shape)


def _state_dict(content: Any, path: Path) -> Mapping[Any, Any]:
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds an object of type {type(content).__name__}, not tensors by name.", SAVE_TENSORS
        )
    if not all(map(_is_tensor, content.values())):
        for key in NESTED:
            inner = content.get(key)
            if isinstance(inner, dict) and inner and all(map(_is_tensor, inner.values())):
                return inner
    if not content:
        raise CheckpointError(f"{path} holds no tensors.", SAVE_TENSORS)
    return content


def _is_tensor(value: Any) -> bool:
    import torch

    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _wrappers(path: Path, state: Mapping[Any, Any]) -> str:
    """Return what wrappers wrote in front of all names, one or several."""
    strange = next((key for key in state if not isinstance(key, str)), None)
    if strange is not None:
        raise CheckpointError(f"{path} names a tensor {reprlib.repr(strange)}, which is no text.", SAVE_TENSORS)
    prefix = ""
    while further := [part for part in WRAPPERS if all(key.startswith(prefix + part) for key in state)]:
        prefix += further[0]
    return prefix


def _renamed(name: str) -> str:
    for old, new in RENAMED.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _check_name(path: Path, name: str, found: Mapping[str, Any]) -> None:
    if name in found:
        raise CheckpointError(f"{path} names {name!r} twice, by an old name and by a new one.", SAVE_TENSORS)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"{path} names a tensor {name!r}, which is no text.", SAVE_TENSORS) from None
    if name == "__metadata__":
        raise CheckpointError(f"{path} names a tensor {name!r}, which safetensors keeps for itself.", SAVE_TENSORS)


def _check_tensor(path: Path, key: str, value: Any) -> None:
    import torch

    if not _is_tensor(value):
        raise CheckpointError(f"{path}: {key!r:.200} is of type {type(value).__name__}, not a tensor.", SAVE_TENSORS)
    kind = None
    if value.is_meta:
        kind = "a meta tensor, which has no numbers"
    elif value.is_nested or value.layout != torch.strided:
        kind = "a sparse or nested tensor, which safetensors cannot hold"
    elif value.is_quantized or str(value.dtype).removeprefix("torch.") not in DTYPES:
        kind = f"a tensor of {value.dtype}, which safetensors cannot hold"
    elif value.numel() * value.element_size() > value.untyped_storage().nbytes() + MAX_EXPANSION:
        kind = f"expanded from {value.untyped_storage().nbytes():,} bytes to the shape {tuple(value.shape)}"
    if kind:
        raise CheckpointError(f"{path}: {key!r:.200} is {kind}.", "Save it again as a dense tensor of a plain dtype.")


def _ties(tensors: Mapping[str, "torch.Tensor"]) -> dict[str, str]:
    """Return the names that are left out, each with the name that is kept: the first, heads counted last."""
    kept: dict[Any, str] = {}
    tied = {}
    for name in sorted(tensors, key=lambda name: LATE in f".{name}"):
        tensor = tensors[name]
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        # Tensors without numbers have no storage either, and so all have the same.
        first = kept.setdefault(place, name) if tensor.numel() else name
        again = TIED_AGAIN.fullmatch(name)
        # Whatever else shares its numbers is written out: nothing is tied again across models in a model.
        if first != name and again and first.startswith(again["owner"]):
            tied[name] = first
    return tied


def _described(tensors: Mapping[str, "torch.Tensor"]) -> dict[str, dict[str, Any]]:
    """Lay tensors out as safetensors does: the widest dtypes first, so that each stands at a multiple of its size."""
    described, start = {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        end = start + tensor.numel() * tensor.element_size()
        described[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    return {name: described[name] for name in tensors}
