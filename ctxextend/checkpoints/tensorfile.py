"""A safetensors file as its header describes it: names, dtypes, shapes and byte ranges.

The format: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes without holes; see
https://huggingface.co/docs/safetensors, section "Format".
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copying import check_stamp, read_range
from ctxextend.checkpoints.jsontext import parse_object
from ctxextend.errors import CheckpointError

__all__ = [
    "FLOAT_DTYPES",
    "Described",
    "TensorEntry",
    "TensorFile",
    "check_unchanged",
    "open_tensor_file",
    "read_tensor",
]

# The limit of safetensors itself.
MAX_HEADER_BYTES = 100_000_000

FLOAT_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}

BITS: Mapping[str, int] = {
    **{name: dtype.itemsize * 8 for name, dtype in FLOAT_DTYPES.items()},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "C64": 64},
    **{"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64},
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file.

    Attributes:
        name: As in the header.
        dtype: As safetensors spells it (F32, BF16, …).
        shape: Its dimensions.
        start: Its first byte, counted from the end of the header.
        end: The byte behind its last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return self.end - self.start


class Described(Protocol):
    """What is known of any file of weights: see `TensorFile`."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def header(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def entries(self) -> Mapping[str, TensorEntry]: ...  # noqa: D102
    @property
    def data_start(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def modified_ns(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file whose header was read and checked.

    Attributes:
        path: Where it is.
        header: The JSON header as it stands there, in its order, ``__metadata__`` included.
        entries: The tensors by name, in the header's order.
        data_start: The file offset of the first tensor byte.
        size: Bytes of the whole file.
        modified_ns: Its modification time when it was read.
    """

    path: Path
    header: Mapping[str, Any]
    entries: Mapping[str, TensorEntry]
    data_start: int
    size: int
    modified_ns: int


def open_tensor_file(path: Path) -> TensorFile:
    """Read and check a file's header; no tensor is read.

    Raises:
        CheckpointError: It is missing, truncated or malformed.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = _header_text(path, file.read(8), status.st_size, file.read)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}.", "Check the file and its permissions."
        ) from error
    header = parse_object(text, f"the header of {path}")
    data_start = 8 + len(text.encode())
    entries = {name: _entry(path, name, value) for name, value in header.items() if name != "__metadata__"}
    _check_metadata(path, header.get("__metadata__") or {})
    _check_ranges(path, entries, status.st_size - data_start)
    return TensorFile(path, header, entries, data_start, status.st_size, status.st_mtime_ns)


def read_tensor(file: TensorFile, name: str) -> NDArray[Any]:
    """Read one float tensor.

    Returns:
        Its shape, its dtype as in `FLOAT_DTYPES`.

    Raises:
        CheckpointError: It holds no floats that can be interpolated, or the file cannot be read or shrank.
    """
    entry = file.entries[name]
    dtype = float_dtype(file, name)
    data = read_range(file.path, file.data_start + entry.start, entry.size)
    return np.frombuffer(data, dtype).reshape(entry.shape)


def float_dtype(file: Described, name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a float tensor.

    Raises:
        CheckpointError: It holds no floats that can be interpolated.
    """
    entry = file.entries[name]
    if entry.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"{file.path}: {name} is stored as {entry.dtype}, which holds no position rows that can be read.",
            f"Use a checkpoint that keeps it as one of {', '.join(FLOAT_DTYPES)}.",
        )
    return FLOAT_DTYPES[entry.dtype]


def check_unchanged(file: Described) -> None:
    """Raise CheckpointError where the file is no longer the one whose header was read."""
    check_stamp(file.path, (file.size, file.modified_ns))


def _header_text(path: Path, prefix: bytes, size: int, read: Any) -> str:
    if prefix == b"version ":
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", "Run `git lfs pull` in its folder.")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length < 2:
        raise _malformed(path, f"it is {size} bytes and has no header" if len(prefix) < 8 else "its header is empty")
    if 8 + length > size:
        raise _malformed(path, f"its header should be {length:,} bytes, and the whole file is {size:,}")
    if length > MAX_HEADER_BYTES:
        raise _malformed(path, f"its header of {length:,} bytes is over safetensors' limit of {MAX_HEADER_BYTES:,}")
    try:
        return str(read(length).decode("utf-8"))
    except UnicodeDecodeError:
        raise _malformed(path, "its header is not UTF-8") from None


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    try:
        dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
        numbers = [*shape, start, end]
        if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise ValueError
        name.encode()
    except (KeyError, TypeError, ValueError):
        raise _malformed(path, f"its header describes {name!r} in a way that cannot be read") from None
    if dtype not in BITS:
        raise _malformed(path, f"{name!r} has the unknown dtype {dtype!r}")
    if math.prod(shape) * BITS[dtype] != (end - start) * 8:
        raise _malformed(path, f"{name!r} is {dtype} {shape}, which does not fill its {end - start:,} bytes")
    return TensorEntry(name, dtype, tuple(shape), start, end)


def _check_metadata(path: Path, metadata: Any) -> None:
    try:
        for text in (*metadata.keys(), *metadata.values()):
            text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise _malformed(path, "its __metadata__ is not a mapping of texts") from None


def _check_ranges(path: Path, entries: Mapping[str, TensorEntry], available: int) -> None:
    position = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != position:
            kind = "overlaps the tensor before it" if entry.start < position else "leaves a hole before it"
            raise _malformed(path, f"{entry.name!r} {kind}, at byte {entry.start:,}")
        position = entry.end
    if position > available:
        raise _malformed(path, f"it is truncated: {position:,} bytes of tensors are described, {available:,} are there")
    if position < available:
        raise _malformed(path, f"{available - position:,} bytes behind the last tensor belong to none")


def _malformed(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole safetensors file: {what}.", "Fetch or save it again.")
