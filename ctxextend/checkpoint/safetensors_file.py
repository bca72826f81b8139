"""Safetensors files: open them, and read tensors by name.

The format is 8 bytes of header length (little-endian), a JSON header, and the tensors' bytes
without gaps; see https://huggingface.co/docs/safetensors, section "Format". The safetensors library
checks all this; the header is parsed here once more, for the order of its keys and for offsets.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ctxextend.checkpoint.copy import read_range, reading
from ctxextend.errors import CheckpointError, RemoteWeightsError, one_line

MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
MAX_DIMENSIONS = 64  # the limit of numpy
METADATA = "__metadata__"
# DataParallel and torch.compile keep a model in an attribute, whose name is then in the names of
# its tensors. transformers loads names without it.
COMPILED = "_orig_mod"  # of torch.compile: no model of transformers has it, so it is always removed
# Of DataParallel and DeepSpeed. Models may have this attribute: only removed if all names have it.
MODULE = "module."

# Dtypes by their names in safetensors, as numpy, ml_dtypes and torch spell them.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
}
COMPUTING = ("F64", "F32", "F16", "BF16")  # the dtypes in which models compute
# The dtypes that a position table may have.
FLOATS = (*COMPUTING, "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
ML_DTYPES = ("BF16", *(name for name in DTYPES if name.startswith("F8")))  # not of numpy itself
# Bits per value of every dtype in safetensors.
BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 8),
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
    "C64": 64,
    "BOOL": 8,
    "I8": 8,
    "I16": 16,
    "I32": 32,
    "I64": 64,
    "U8": 8,
    "U16": 16,
    "U32": 32,
    "U64": 64,
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
    is_remote: ClassVar = False  # whether only its header was downloaded
    # The names here by the names in the file, of all its tensors. They differ where wrappers are
    # removed (see `Weights.is_wrapped`); a PyTorch file also has old names.
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    @classmethod
    def parse(cls, path: Path, text: bytes) -> Self:
        """Return a file with this header, which is given without its length.

        A header of the Hub was not checked by the safetensors library: its entries are, so that
        reading it is quick and raises no other error.

        Raises:
            CheckpointError: The header is malformed.
        """
        entries = dict[str, TensorEntry]()
        try:
            header = dict[str, Any](json.loads(text))
            json.dumps(header, ensure_ascii=False).encode()  # fails for lone surrogates
            for name in header:
                if name == METADATA:
                    continue
                entry = header[name]
                start, end = entry["data_offsets"]
                numbers = (*entry["shape"], start, end)
                are_sizes = all(type(number) is int and 0 <= number < 2**63 for number in numbers)
                if not are_sizes or len(numbers) > MAX_DIMENSIONS + 2 or entry["dtype"] not in BITS:
                    raise ValueError(f"the entry of {name!r:.200} is invalid")
                entries[name] = TensorEntry(name, entry["dtype"], numbers[:-2], start, end)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            refuse_header(path, error)
        names = {name: name for name in entries}
        return cls(path=path, header=header, entries=entries, data_start=8 + len(text), names=names)

    @property
    def tensor_bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(entry.size for entry in self.entries.values())

    def with_names(self, names: Mapping[str, str]) -> "TensorFile":
        """Return the file with other names of its tensors, by the present ones."""
        entries = {
            names[name]: entry._replace(name=names[name]) for name, entry in self.entries.items()
        }
        header = {names.get(name, name): described for name, described in self.header.items()}
        renamed = {stored: names.get(name, name) for stored, name in self.names.items()}
        return replace(self, header=header, entries=entries, names=renamed)

    def offset(self, name: str) -> int | None:
        """Return the file offset of a tensor's bytes; None if they have another order there."""
        return self.data_start + self.entries[name].start

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Read the bytes of a tensor in safetensors' layout, shape (size,)."""
        entry = self.entries[name]
        content = read_range(self.path, self.data_start + entry.start, entry.size)
        return np.frombuffer(content, np.uint8)


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


def open_safetensors(path: Path) -> TensorFile:
    """Read the header of a file, and check it; read no tensor.

    Raises:
        CheckpointError: The file cannot be read or is malformed.
    """
    try:
        with (
            reading(path),
            path.open("rb") as file,
            safe_open(path, framework="numpy", backend="pread"),
        ):
            text = file.read(int.from_bytes(file.read(8), "little"))
    except SafetensorError as error:
        refuse_header(path, error)
    return TensorFile.parse(path, text)


def refuse_header(path: Path, reason: object) -> NoReturn:
    """Raise the error for a file with a malformed header."""
    message = f"{path} is not a valid safetensors file: {one_line(reason, 200)}."
    raise CheckpointError(message, "Download or save it again.")


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
    check_distinct(plain, where)
    return plain


def check_distinct(names: Mapping[str, str], where: str) -> None:
    """Check that no two tensors of a file have one name here.

    Args:
        names: The names here by those in the file.
        where: The file, for messages.

    Raises:
        CheckpointError: Two have.
    """
    stored_of = {name: stored for stored, name in names.items()}
    for stored, name in names.items():
        if stored_of[name] != stored:
            both = f"as {stored!r:.200} and as {stored_of[name]!r:.200}"
            message = f"{where} contains {name!r:.200} twice, {both}."
            raise CheckpointError(message, "Save it again under one name.")


def describe_tensors(
    new: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    """Return the header and entries of a new file.

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


def check_dtype(file: TensorFile, name: str, dtypes: Collection[str]) -> None:
    """Check that a tensor has one of these dtypes.

    Raises:
        CheckpointError: It has another one.
    """
    entry = file.entries[name]
    if entry.dtype not in dtypes:
        message = f"{file.path}: {name} has dtype {entry.dtype}, which is not supported."
        hint = f"Use a checkpoint that stores it as one of {', '.join(dtypes)}."
        raise CheckpointError(message, hint)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of one of `DTYPES`."""
    values: Any = DTYPES[name]
    if name in ML_DTYPES:
        import ml_dtypes  # imported at use: most checkpoints need only numpy's dtypes

        values = getattr(ml_dtypes, DTYPES[name])
    dtype: np.dtype[Any] = np.dtype(values)
    return dtype
