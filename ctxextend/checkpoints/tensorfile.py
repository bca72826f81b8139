"""A safetensors file as its header describes it: names, dtypes, shapes and byte ranges.

The format: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes without holes; see
https://huggingface.co/docs/safetensors, section "Format".
"""

import os
from codecs import getincrementaldecoder
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copying import check_stamp, read_range, reading
from ctxextend.checkpoints.dtypes import FLOATS, numpy_dtype
from ctxextend.checkpoints.headers import Entries, TensorEntry, read_entries
from ctxextend.errors import CheckpointError

__all__ = [
    "Described",
    "TensorEntry",
    "TensorFile",
    "check_unchanged",
    "open_tensor_file",
    "read_tensor",
]

# The limit of safetensors itself.
MAX_HEADER_BYTES = 100_000_000

PIECE = 1 << 20


class Described(Protocol):
    """What is known of any file of weights: see `TensorFile`."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def entries(self) -> Entries: ...  # noqa: D102
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
        entries: Its header: the tensors by name, in their order there, and the ``__metadata__``.
        data_start: The file offset of the first tensor byte.
        size: Bytes of the whole file.
        modified_ns: Its modification time when it was read.
    """

    path: Path
    entries: Entries
    data_start: int
    size: int
    modified_ns: int


def open_tensor_file(path: Path) -> TensorFile:
    """Read and check a file's header; no tensor is read.

    Raises:
        CheckpointError: It is missing, truncated or malformed.
    """
    with reading(path), path.open("rb") as file:
        status = os.fstat(file.fileno())
        text = _header_text(path, file.read(8), status.st_size, file.read)
    try:
        entries = read_entries(text)
    except ValueError as error:
        raise _malformed(path, str(error)) from None
    data_start = 8 + len(text)
    _check_ranges(path, entries, status.st_size - data_start)
    return TensorFile(path, entries, data_start, status.st_size, status.st_mtime_ns)


def read_tensor(file: TensorFile, name: str) -> NDArray[Any]:
    """Read one float tensor.

    Returns:
        Its shape, its dtype as `numpy_dtype` gives it.

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
    if entry.dtype not in FLOATS:
        raise CheckpointError(
            f"{file.path}: {name} is stored as {entry.dtype}, which holds no position rows that can be read.",
            f"Use a checkpoint that keeps it as one of {', '.join(FLOATS)}.",
        )
    return numpy_dtype(entry.dtype)


def check_unchanged(file: Described) -> None:
    """Raise CheckpointError where the file is no longer the one whose header was read."""
    check_stamp(file.path, (file.size, file.modified_ns))


def _header_text(path: Path, prefix: bytes, size: int, read: Callable[[int], bytes]) -> bytes:
    if prefix == b"version ":
        raise CheckpointError(f"{path} is a Git LFS pointer, not the file itself.", "Run `git lfs pull` in its folder.")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length < 2:
        raise _malformed(path, f"it is {size} bytes and has no header" if len(prefix) < 8 else "its header is empty")
    if 8 + length > size:
        raise _malformed(path, f"its header should be {length:,} bytes, and the whole file is {size:,}")
    if length > MAX_HEADER_BYTES:
        raise _malformed(path, f"its header of {length:,} bytes is over safetensors' limit of {MAX_HEADER_BYTES:,}")
    text = read(length)
    if len(text) < length:
        raise _malformed(path, "it became shorter while it was read")
    _check_text(path, text)
    return text


def _check_text(path: Path, text: bytes) -> None:
    """Refuse what is not UTF-8, a piece at a time: as one text of wide characters it would take four times its size."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(text), PIECE):
            decoder.decode(text[start : start + PIECE], final=start + PIECE >= len(text))
    except UnicodeDecodeError:
        raise _malformed(path, "its header is not UTF-8") from None


def _check_ranges(path: Path, entries: Entries, available: int) -> None:
    order = entries.in_order_of_bytes()
    starts, ends = entries.starts[order], entries.ends[order]
    wanted = np.concatenate((np.zeros(1, np.int64), ends))
    for number in np.flatnonzero(starts != wanted[:-1])[:1]:
        kind = "overlaps the tensor before it" if starts[number] < wanted[number] else "leaves a hole before it"
        name = entries.entry(int(order[number])).name
        raise _malformed(path, f"{name!r:.200} {kind}, at byte {starts[number]:,}")
    position = int(wanted[-1])
    if position > available:
        raise _malformed(path, f"it is truncated: {position:,} bytes of tensors are described, {available:,} are there")
    if position < available:
        raise _malformed(path, f"{available - position:,} bytes behind the last tensor belong to none")


def _malformed(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is no whole safetensors file: {what}.", "Fetch or save it again.")
