"""Safetensors files: read and check the header once, then read tensors by name.

The format is 8 bytes of header length (little-endian), a JSON header, and the tensors' bytes
without gaps; see https://huggingface.co/docs/safetensors, section "Format".
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.copy import read_range, reading
from ctxextend.checkpoint.json_edit import unique_keys
from ctxextend.errors import CheckpointError, RemoteWeightsError

MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
METADATA = "__metadata__"
# DataParallel and torch.compile keep a model in an attribute, whose name is then in the names of
# its tensors. transformers loads names without it.
COMPILED = "_orig_mod"  # of torch.compile: no model of transformers has it, so it is always removed
# Of DataParallel and DeepSpeed. Models may have this attribute: only removed if all names have it.
MODULE = "module."

# Dtypes of numpy, by their names in safetensors.
NUMPY_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BOOL": "?",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}
# Dtypes of ml_dtypes, by their names in safetensors.
ML_DTYPES_NAMES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
NUMPY_DTYPES = (*NUMPY_NAMES, *ML_DTYPES_NAMES)
FLOATS = ("F64", "F32", "F16", *ML_DTYPES_NAMES)  # the dtypes that a position table may have
# Dtypes in which models compute, as torch spells them, by their names in safetensors.
TORCH_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Bits per value of every dtype in safetensors.
BITS: Mapping[str, int] = {
    **{name: 8 * np.dtype(dtype).itemsize for name, dtype in NUMPY_NAMES.items()},
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "C64": 64,
}


class TensorEntry(NamedTuple):
    """The header entry of one tensor."""

    name: str
    dtype: str  # its name in safetensors: F32, BF16, …
    shape: tuple[int, ...]
    start: int  # its first byte, relative to the end of the header
    end: int  # the byte after its last one

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A weights file with a checked header; the subclass `PytorchFile` is for PyTorch's format."""

    path: Path
    header: Mapping[str, Any]  # parsed JSON, in file order
    entries: Mapping[str, TensorEntry]  # by name, in header order
    data_start: int  # the file offset of the first tensor byte
    is_in_memory: bool = field(default=False, kw_only=True)  # whether opening it read its tensors
    is_remote: ClassVar = False  # whether only its header was downloaded
    # Names in the file, before what was removed from them, by name; see `Weights.wrappers`.
    stored_names: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @property
    def tensor_bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(entry.size for entry in self.entries.values())

    @property
    def saved_names(self) -> Set[str]:
        """The names of all tensors in the file, under which an index lists them."""
        return {self.stored_names.get(name, name) for name in self.entries}

    def with_names(self, names: Mapping[str, str]) -> Self:
        """Return the file with other names of its tensors, by the present ones."""
        entries = {
            names[name]: entry._replace(name=names[name]) for name, entry in self.entries.items()
        }
        header = {names.get(name, name): described for name, described in self.header.items()}
        stored = {names[name]: self.stored_names.get(name, name) for name in self.entries}
        return replace(self, header=header, entries=entries, stored_names=stored)

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if they have another order there."""
        return self.data_start + self.entries[name].start

    def stored_range(self, name: str) -> tuple[int, int] | None:
        """Return the file offset and size in bytes of a tensor's values, in any memory order."""
        entry = self.entries[name]
        return self.data_start + entry.start, entry.size

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read the bytes of a tensor in safetensors' layout, shape (size,)."""
        entry = self.entries[name]
        content = read_range(self.path, self.data_start + entry.start, entry.size)
        return np.frombuffer(content, np.uint8)


def open_safetensors(path: Path) -> TensorFile:
    """Read the header of a file, and check it; read no tensor.

    Raises:
        CheckpointError: The file cannot be read, or its header is malformed, or its tensors do not
            fill it without gaps and overlaps.
    """
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = header_size(path, file.read(8), size)
        text = file.read(length)
    header, entries = parse_header(path, text, size)
    return TensorFile(path=path, header=header, entries=entries, data_start=8 + length)


@dataclass(frozen=True, eq=False)
class RemoteFile(TensorFile):
    """A safetensors file on the Hub; its path is where a download would put it."""

    is_remote: ClassVar = True

    def read_bytes(self, name: str) -> NoReturn:
        """Raise an error, since the bytes of a tensor are not here.

        Raises:
            RemoteWeightsError: Always.
        """
        raise RemoteWeightsError(self.path.name, name)


def open_remote(path: Path, text: bytes, size: int) -> RemoteFile:
    """Return a file of the Hub of which only the header is downloaded.

    A resize of settings, and all that headers tell, needs no values.

    Args:
        path: Where a download would put the file.
        text: The header, without its length.
        size: The size of the file in bytes.

    Raises:
        CheckpointError: The header is malformed.
    """
    header, entries = parse_header(path, text, size)
    data_start = 8 + len(text)
    return RemoteFile(path=path, header=header, entries=entries, data_start=data_start)


def header_size(path: Path, first: bytes, size: int) -> int:
    """Return the size of a header in bytes, by the first 8 bytes of the file.

    Args:
        path: The file, for errors.
        first: Its first 8 bytes.
        size: Its size in bytes.

    Raises:
        CheckpointError: The file is smaller, or the header is larger than the format allows.
    """
    length = int.from_bytes(first, "little")
    if 8 + length > size:
        sizes = f"it should have {length:,} bytes, the file has {size:,}"
        _refuse(path, f"the header is truncated: {sizes}")
    if length > MAX_HEADER_BYTES:
        limit = f"safetensors' limit of {MAX_HEADER_BYTES:,}"
        _refuse(path, f"the header of {length:,} bytes exceeds {limit}")
    return length


def parse_header(
    path: Path, text: bytes, size: int
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Parse the header of a file, and check it.

    Args:
        path: The file, for errors.
        text: The header, without its length.
        size: The size of the file in bytes.

    Returns:
        The header, and its entries by name.

    Raises:
        CheckpointError: The header is malformed, or its tensors do not fill the file without gaps
            and overlaps.
    """
    try:
        header = json.loads(text.decode(), object_pairs_hook=unique_keys)
        # Fails for NaN and lone surrogates.
        json.dumps(header, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        _refuse(path, f"the header is not valid JSON: {error!s:.200}")
    if not isinstance(header, dict):
        _refuse(path, "the header is not a JSON object")
    metadata = header.get(METADATA)
    if metadata is not None:
        is_object = isinstance(metadata, dict)
        if not is_object or not all(isinstance(value, str) for value in metadata.values()):
            _refuse(path, "__metadata__ does not map strings to strings")
    entries = dict[str, TensorEntry]()
    for name, described in header.items():
        if name != METADATA:
            entries[name] = _entry(path, name, described)

    position = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start < position:
            where = f"overlaps the previous tensor, at byte {entry.start:,}"
            _refuse(path, f"{entry.name!r:.200} {where}")
        if entry.start > position:
            _refuse(path, f"{entry.name!r:.200} starts after a gap, at byte {entry.start:,}")
        position = entry.end
    available = size - 8 - len(text)
    if position != available:
        sizes = f"the header lists {position:,} bytes of tensors, the file has {available:,}"
        _refuse(path, f"it is truncated or too long: {sizes}")
    return header, entries


def _entry(path: Path, name: str, described: Any) -> TensorEntry:
    match described:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
            numbers = (*shape, start, end)
        case _:
            _refuse(path, f"the header entry of {name!r:.200} is invalid")
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        _refuse(path, f"the header entry of {name!r:.200} is invalid")
    if dtype not in BITS:
        _refuse(path, f"{name!r:.200} has the unknown dtype {dtype!r:.200}")
    bits = BITS[dtype]
    for length in shape:
        bits *= length
        if bits >= 2**64:  # safetensors counts in 64 bits
            break
    if bits != (end - start) * 8:
        stated = f"dtype {dtype} and shape {shape!s:.200}"
        _refuse(path, f"{stated} of {name!r:.200} do not match its {end - start:,} bytes")
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), start=start, end=end)


def _refuse(path: Path, reason: str) -> NoReturn:
    message = f"{path} is not a valid safetensors file: {reason}."
    raise CheckpointError(message, "Download or save it again.") from None


def plain_names(names: Iterable[str], where: str) -> dict[str, str]:
    """Return the name without wrappers of every stored name.

    Args:
        names: The stored names.
        where: The file, for messages.

    Raises:
        CheckpointError: Two names become one.
    """
    plain = dict[str, str]()
    for name in names:
        plain[name] = ".".join(part for part in name.split(".") if part != COMPILED)
    while plain and all(name.startswith(MODULE) for name in plain.values()):
        plain = {stored: name.removeprefix(MODULE) for stored, name in plain.items()}
    stored_of = dict[str, str]()
    for stored, name in plain.items():
        other = stored_of.setdefault(name, stored)
        if other != stored:
            both = f"as {other!r:.200} and as {stored!r:.200}"
            message = f"{where} contains {name!r:.200} twice, {both}."
            raise CheckpointError(message, "Save the model again, without its wrappers.")
    return plain


def describe_tensors(
    new: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return the header and entries of a new file, as `parse_header` does.

    Args:
        new: The dtypes and shapes of its tensors, by name.
    """
    header: dict[str, Any] = {METADATA: {"format": "pt"}, **dict.fromkeys(new)}
    entries = dict[str, TensorEntry]()
    start = 0
    # The widest dtypes first, as in safetensors, so that each tensor is aligned to its item size.
    for name, (dtype, shape) in sorted(new.items(), key=lambda item: -BITS[item[1][0]]):
        end = start + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        entries[name] = TensorEntry(name=name, dtype=dtype, shape=shape, start=start, end=end)
        start = end
    return header, {name: entries[name] for name in new}


def read_tensor(file: TensorFile, name: str) -> NDArray[Any]:
    """Read a tensor of any dtype, in its shape.

    Raises:
        CheckpointError: It cannot be read, or numpy has no such dtype.
    """
    entry = file.entries[name]
    try:
        dtype = numpy_dtype(entry.dtype)
    except KeyError as error:
        message = f"{file.path}: {name} has dtype {entry.dtype}, which cannot be read here."
        raise CheckpointError(message) from error
    return file.read_bytes(name).view(dtype).reshape(entry.shape)


def float_dtype(file: TensorFile, name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a float tensor.

    Raises:
        CheckpointError: Its dtype is not one of `FLOATS`.
    """
    entry = file.entries[name]
    if entry.dtype not in FLOATS:
        found = f"{file.path}: {name} has dtype {entry.dtype}"
        message = f"{found}, which is not supported for position tables."
        hint = f"Use a checkpoint that stores it as one of {', '.join(FLOATS)}."
        raise CheckpointError(message, hint)
    return numpy_dtype(entry.dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a safetensors dtype.

    Raises:
        KeyError: It is not one of `NUMPY_DTYPES`.
    """
    if name in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[name])
    import ml_dtypes  # imported at use: most checkpoints need only numpy's dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES_NAMES[name]))
    return dtype
