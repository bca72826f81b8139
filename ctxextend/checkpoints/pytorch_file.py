"""PyTorch files (`torch.save`), read as the safetensors files that they will be written as; nothing in them is run.

The format is a pickle that names every tensor, and the tensors' bytes, since torch 1.6 in one zip file; see
https://docs.pytorch.org/docs/stable/notes/serialization.html, section "Serialized file format for torch.save".
"""

import json
import re
import reprlib
import sys
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import Fingerprint, fingerprint_of, read_range, reading
from ctxextend.checkpoints.safetensors_file import METADATA, TensorFile, parse_header
from ctxextend.errors import CheckpointError

# Before it, a file could run code in spite of weights_only (CVE-2025-32434).
SAFE_SINCE = (2, 6)
ZIP_MAGIC = b"PK\x03\x04"
# The zip's records of numbers, and the one that states their byte order.
NUMBERS = re.compile(r"[^/]+/data/[^/]+")
BYTE_ORDER = re.compile(r"[^/]+/byteorder")

FETCH = "Fetch or save it again."
SAVE_TENSORS = (
    "In the program that wrote it, save the tensors alone: torch.save(model.state_dict(), 'pytorch_model.bin')."
)

# Where training programs keep the model's tensors beside the optimizer's.
NESTED = ("state_dict", "model")
# Prefixes that DataParallel and torch.compile add to every name.
WRAPPERS = ("module.", "_orig_mod.")
# Names in models that were ported from TensorFlow, which transformers renames on loading.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

# What transformers ties again when it loads a model, and so leaves out of a file: `_tied_weights_keys`.
TIED_AGAIN = re.compile(
    r"(?P<owner>(?:.+?\.)??)(?:(?:cls\.)?predictions\.decoder\.(?:weight|bias)|lm_head\.(?:decoder\.)?(?:weight|bias)"
    r"|(?:encoder|decoder)\.(?:embed_tokens|word_embeddings)\.weight|entity_predictions\.decoder\.weight"
    r"|(?:generator_lm_head|output_projection|pred_layer\.proj|proj_out|vocab_projector)\.weight)"
)
# transformers writes a tied tensor under its embedding's name; relatives of RoBERTa have the head before it.
LM_HEAD = ".lm_head."

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
class Unpickled:
    """What a PyTorch file holds.

    Attributes:
        path: Where it is.
        content: Tensors and plain values.
        fingerprint: What identified the file before it was read.
        mapped_at: The address at which the file is mapped into memory; None if its tensors were read.
    """

    path: Path
    content: Any
    fingerprint: Fingerprint
    mapped_at: int | None = None


@dataclass(frozen=True, eq=False)
class PytorchFile(TensorFile):
    """A PyTorch file, seen as the safetensors file that it will be written as.

    Attributes:
        tensors: The tensors by name, of any strides; tied ones once.
        tied: Names that are left out, each with the name in `tensors` that has the same numbers.
        mapped_at: As in `Unpickled`.
    """

    tensors: Mapping[str, torch.Tensor]
    tied: Mapping[str, str]
    mapped_at: int | None

    @property
    def is_in_memory(self) -> bool:
        """Whether its tensors were read into memory when it was opened."""
        return self.mapped_at is None

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if the file does not hold them as safetensors would."""
        tensor = self.tensors[name]
        is_plain = tensor.numel() and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        return self._mapped_offset(tensor) if is_plain else None

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read the bytes of a tensor as safetensors stores them.

        Returns:
            Shape (size,), a copy.

        Raises:
            CheckpointError: The file cannot be read, or shrank.
        """
        tensor = self.tensors[name]
        offset = self._mapped_offset(tensor)
        if offset is not None and tensor.numel():
            # Read from the file, so that no page of the map stays in memory.
            reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            data = torch.frombuffer(read_range(self.path, offset, reach * tensor.element_size()), dtype=torch.uint8)
            read = data.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
            read = read.conj() if tensor.is_conj() else read
            tensor = read.neg() if tensor.is_neg() else read
        tensor = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        # Not reshape(-1): a single number may have any stride and be contiguous, and then cannot be seen as bytes.
        flat: NDArray[np.uint8] = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        return flat

    def _mapped_offset(self, tensor: torch.Tensor) -> int | None:
        offset = tensor.data_ptr() - (self.mapped_at or 0)
        return offset if 0 <= offset < self.size else None


def unpickle(path: Path) -> Unpickled:
    """Load a PyTorch file; nothing but tensors and plain values is built, and nothing is run.

    Raises:
        CheckpointError: It is missing, truncated, malformed, or holds other objects; or torch is too old to be safe.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_SINCE:
        wanted = ".".join(map(str, SAFE_SINCE))
        raise CheckpointError(
            f"torch {torch.__version__} can be made to run code by a file that it loads, so no torch file is read"
            " with it.",
            f"Upgrade it: pip install 'torch>={wanted}'",
        )
    with reading(path), path.open("rb") as file:
        prefix = file.read(8)
        fingerprint = fingerprint_of(path.stat())
    if not prefix:
        raise CheckpointError(f"{path} is empty.", FETCH)
    if prefix == b"version ":
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", "Run `git lfs pull` in its folder.")
    addresses = set[int]()

    def note_address(storage: Any, location: str) -> Any:
        if storage.nbytes():
            addresses.add(storage.data_ptr())
        return storage

    try:
        offsets = _data_offsets(path) if prefix.startswith(ZIP_MAGIC) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of odd files is in the error, or does not matter
            content = torch.load(path, map_location=note_address, weights_only=True, mmap=offsets is not None)
        mapped_at = None if offsets is None else _mapped_at(path, addresses, offsets)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # hostile files raise whatever the code that they lead to raises
        raise _refused(path, error) from error
    return Unpickled(path, content, fingerprint, mapped_at)


def _data_offsets(path: Path) -> set[int] | None:
    """Return where in a zip file each tensor's numbers begin; None if they are in another byte order."""
    offsets = set[int]()
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:  # torch would take the compressed bytes for numbers
                raise CheckpointError(
                    f"{path} is a zip file whose {record.filename!r} is compressed, so torch did not write it.", FETCH
                )
            if BYTE_ORDER.fullmatch(record.filename) and archive.read(record) != sys.byteorder.encode():
                return None
            if NUMBERS.fullmatch(record.filename) and record.file_size:
                lengths = bytes(read_range(path, record.header_offset + 26, 4))  # of the name and of what follows it
                skipped = 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
                offsets.add(record.header_offset + skipped)
    return offsets


def _mapped_at(path: Path, addresses: set[int], offsets: set[int]) -> int:
    """Return the address at which torch mapped a zip file, from those of its storages and their file offsets."""
    start = min(addresses, default=0) - min(offsets, default=0)
    if {address - start for address in addresses} != offsets:
        message = f"{path} is a zip file with records of numbers that are not its tensors', so torch did not write it."
        raise CheckpointError(message, FETCH)
    return start


def _refused(path: Path, error: Exception) -> CheckpointError:
    if asked := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return CheckpointError(
            f"{path} asks for {asked[1].rstrip('.')}, which is no tensor; nothing in it was run.",
            f"Do not load it unless you know who wrote it. {SAVE_TENSORS}",
        )
    if "legacy .tar format" in str(error):
        message = f"{path} is no whole torch file, but perhaps a tar of before torch 0.1.10, which is not read."
        return CheckpointError(message, SAVE_TENSORS)
    # torch's own text begins with advice to load the file unsafely, and ends with a request to report a bug.
    said = str(error).split("WeightsUnpickler error:")[-1].strip()
    first = "".join(filter(str.isprintable, re.split(r"\. |\.?\n", said)[0]))
    reason = f"{type(error).__name__}: {first:.200}" if first else type(error).__name__
    return CheckpointError(
        f"{path} is no whole torch file that holds tensors alone ({reason}).",
        f"{FETCH} Do not load it elsewhere unless you know who wrote it.",
    )


def find_tensors(content: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors under the names that transformers gives them, in their order.

    Args:
        content: A state dict, or a training checkpoint that holds one.
        path: Where it came from, for messages.

    Returns:
        Tensors of any shape and strides, each of a dtype that safetensors has.

    Raises:
        CheckpointError: It holds something but tensors, none at all, or one that safetensors cannot hold.
    """
    state = _state_dict(content, path)
    strange = next((key for key in state if not isinstance(key, str)), None)
    if strange is not None:
        raise CheckpointError(f"{path} names a tensor {reprlib.repr(strange)}, which is no text.", SAVE_TENSORS)
    prefix = ""
    while further := [part for part in WRAPPERS if all(key.startswith(prefix + part) for key in state)]:
        prefix += further[0]
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix(prefix)
        for old, new in RENAMED.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in found:
            raise CheckpointError(f"{path} names {name!r} twice, by an old name and by a new one.", SAVE_TENSORS)
        if name == METADATA:
            raise CheckpointError(f"{path} names a tensor {name!r}, which safetensors keeps for itself.", SAVE_TENSORS)
        _check_tensor(path, key, value)
        found[name] = value.detach()
    return found


def _state_dict(content: Any, path: Path) -> Mapping[Any, Any]:
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise CheckpointError(f"{path} holds an object of type {kind}, not tensors by name.", SAVE_TENSORS)
    if not all(map(_is_tensor, content.values())):
        for key in NESTED:
            inner = content.get(key)
            if isinstance(inner, dict) and inner and all(map(_is_tensor, inner.values())):
                return inner
    if not content:
        raise CheckpointError(f"{path} holds no tensors.", SAVE_TENSORS)
    return content


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _check_tensor(path: Path, key: str, value: Any) -> None:
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


def as_tensor_file(unpickled: Unpickled, tensors: Mapping[str, torch.Tensor], *, ties: bool) -> PytorchFile:
    """Describe the safetensors file that tensors will be written as.

    Args:
        unpickled: The file that they came from.
        tensors: By name, of any strides, from `find_tensors`.
        ties: Whether names that share their numbers, and that transformers ties again, are written once.

    Raises:
        CheckpointError: A name cannot be written to a safetensors header.
    """
    tied = _tied_names(tensors) if ties else {}
    kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
    described: dict[str, Any] = {METADATA: {"format": "pt"}, **dict.fromkeys(kept)}
    start = 0
    # As safetensors does, the widest dtypes first, so that each stands at a multiple of its size.
    for name, tensor in sorted(kept.items(), key=lambda item: -item[1].element_size()):
        end = start + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        described[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    try:
        header, entries = parse_header(json.dumps(described).encode())
    except ValueError as error:
        path = unpickled.path
        raise CheckpointError(f"{path} cannot be written as safetensors: {error}.", SAVE_TENSORS) from None
    path, fingerprint = unpickled.path, unpickled.fingerprint
    return PytorchFile(path, header, entries, 0, fingerprint, kept, tied, unpickled.mapped_at)


def _tied_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the names that are left out, each with the name that is kept: the first, LM heads counted last."""
    kept: dict[Any, str] = {}
    tied = {}
    for name in sorted(tensors, key=lambda name: LM_HEAD in f".{name}"):
        tensor = tensors[name]
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())
        # Tensors without numbers have no storage either, and so all have the same.
        first = kept.setdefault(place, name) if tensor.numel() else name
        again = TIED_AGAIN.fullmatch(name)
        # Whatever else shares its numbers is written out: nothing is tied again across models in a model.
        if first != name and again and first.startswith(again["owner"]):
            tied[name] = first
    return tied
