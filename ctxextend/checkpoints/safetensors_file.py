"""Safetensors files: the header is read and checked once, tensors are read by name.

The format is 8 bytes of header length (little-endian), a JSON header, and the tensors' bytes without gaps; see
https://huggingface.co/docs/safetensors, section "Format".
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import read_range, reading
from ctxextend.checkpoints.json_edit import unique_keys
from ctxextend.errors import CheckpointError

# The limit of safetensors itself.
MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"

# Dtypes as safetensors spells them: those that numpy has, and those that ml_dtypes adds.
OF_NUMPY = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"},
    **{f"I{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
}
OF_ML_DTYPES = {
    "BF16": "bfloat16",
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}
NUMPY_DTYPES = (*OF_NUMPY, *OF_ML_DTYPES)
FLOATS = ("F64", "F32", "F16", *OF_ML_DTYPES)  # the dtypes in which a position table may be stored
# Bits per value of every dtype that safetensors has.
BITS: Mapping[str, int] = {
    **{name: 8 * np.dtype(dtype).itemsize for name, dtype in OF_NUMPY.items()},
    **{name: 16 if name == "BF16" else 8 for name in OF_ML_DTYPES},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "C64": 64},
}


class TensorEntry(NamedTuple):
    """One tensor of a header."""

    name: str
    dtype: str  # as safetensors spells it (F32, BF16, …)
    shape: tuple[int, ...]
    start: int  # its first byte, counted from the end of the header
    end: int  # the byte after its last

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class TensorFile:
    """A weights file whose header was read and checked; `PytorchFile` is the other kind."""

    path: Path
    header: Mapping[str, Any]  # as parsed JSON, in its order
    entries: Mapping[str, TensorEntry]  # by name, in the header's order
    data_start: int  # the file offset of the first tensor byte
    is_in_memory: bool = field(default=False, kw_only=True)  # its tensors were read when it was opened

    @property
    def tensor_bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(entry.size for entry in self.entries.values())

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if the file does not hold them as safetensors would."""
        return self.data_start + self.entries[name].start

    def stored_range(self, name: str) -> tuple[int, int] | None:
        """Return where the file holds a tensor's numbers, in whatever order: first byte, and size in bytes."""
        entry = self.entries[name]
        return self.data_start + entry.start, entry.size

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read the bytes of a tensor as safetensors stores them, shape (size,)."""
        entry = self.entries[name]
        return np.frombuffer(read_range(self.path, self.data_start + entry.start, entry.size), np.uint8)


def open_safetensors(path: Path) -> TensorFile:
    """Read a file's header, and check that its tensors fill the file without gaps or overlaps; none is read."""
    try:
        with reading(path), path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
            if 8 + length > size:
                raise ValueError(f"its header should be {length:,} bytes, and the whole file is {size:,}")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"its header of {length:,} bytes is over safetensors' limit of {MAX_HEADER_BYTES:,}")
            header, entries = parse_header(file.read(length))
        position, available = 0, size - 8 - length
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
            if entry.start != position:
                kind = "overlaps the tensor before it" if entry.start < position else "leaves a hole before it"
                raise ValueError(f"{entry.name!r:.200} {kind}, at byte {entry.start:,}")
            position = entry.end
        if position != available:
            bounds = f"{position:,} bytes of tensors are described, not {available:,}"
            raise ValueError(f"it is truncated or too long: {bounds}")
    except ValueError as error:
        raise CheckpointError(f"{path} is no whole safetensors file: {error}.", "Fetch or save it again.") from None
    return TensorFile(path, header, entries, 8 + length)


def parse_header(text: bytes) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Parse a header, check each tensor on its own; a ValueError's message continues a sentence on the file."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=unique_keys)
        # Not everything that Python reads can be written again: NaN, and half of a surrogate pair.
        json.dumps(header, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not valid JSON: {error!s:.200}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    metadata = header.get(METADATA)
    is_mapping = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if metadata is not None and not is_mapping:
        raise ValueError("its __metadata__ is not a mapping of texts")
    return header, {name: _entry(name, described) for name, described in header.items() if name != METADATA}


def _entry(name: str, described: Any) -> TensorEntry:
    match described:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]} if all(
            type(number) is int and 0 <= number < 2**63 for number in (*shape, start, end)
        ):
            if dtype not in BITS:
                raise ValueError(f"{name!r:.200} has the unknown dtype {dtype!r:.200}")
            bits = BITS[dtype]
            for length in shape:
                bits *= length
                if bits >= 2**64:  # safetensors counts in 64 bits
                    break
            if bits != (end - start) * 8:
                what = f"{name!r:.200} is {dtype} {shape!s:.200}"
                raise ValueError(f"{what}, which does not fill its {end - start:,} bytes")
            return TensorEntry(name, dtype, tuple(shape), start, end)
    raise ValueError(f"its header describes {name!r:.200} in a way that cannot be read")


def read_floats(file: TensorFile, name: str) -> NDArray[Any]:
    """Read a float tensor: its shape, and its dtype as `numpy_dtype` gives it."""
    dtype = float_dtype(file, name)
    return file.read_bytes(name).view(dtype).reshape(file.entries[name].shape)


def float_dtype(file: TensorFile, name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a tensor; raise CheckpointError if it holds no floats that can be interpolated."""
    entry = file.entries[name]
    if entry.dtype not in FLOATS:
        what = f"{file.path}: {name} is stored as {entry.dtype}, which holds no position rows that can be read."
        raise CheckpointError(what, f"Use a checkpoint that keeps it as one of {', '.join(FLOATS)}.")
    return numpy_dtype(entry.dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `NUMPY_DTYPES`; raise KeyError for others."""
    if name in OF_NUMPY:
        return np.dtype(OF_NUMPY[name])
    import ml_dtypes  # at use: most checkpoints need only numpy's own dtypes

    added: np.dtype[Any] = np.dtype(getattr(ml_dtypes, OF_ML_DTYPES[name]))
    return added
