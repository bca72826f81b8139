"""The header of a GGUF file: its metadata and its list of tensors.

The format, all integers little-endian: 4 bytes of magic, a version, the number of tensors, the
number of key/value pairs, the pairs, a description of each tensor, padding, and the tensors' bytes.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

The official package reads the same, but makes an object of each word of a vocabulary: with 150,000
words, that takes seconds and more than half a gigabyte. So arrays are only skipped here, and pairs
are copied as they are. The package knows the types of tensors and their sizes.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.safetensors_file import TensorEntry, TensorFile
from ctxextend.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 has counts of 32 bits, and llama.cpp no longer reads it
INSTALL = "pip install 'ctxextend[gguf]'"
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
# Several times what the largest models have, so that a malformed file is refused in about a second.
MAX_HEADER_BYTES = 1 << 26  # the largest vocabularies have about 20 MB
MAX_ITEMS = 1 << 16  # pairs, and tensors
MAX_DIMENSIONS = 4  # `GGML_MAX_DIMS`
READ_BYTES = 1 << 20  # per call

# Types of values, by their numbers in the format.
UINT32 = 4
FLOAT32 = 6
STRING = 8
ARRAY = 9
SCALAR_FORMATS: Mapping[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    UINT32: "<I",
    5: "<i",
    FLOAT32: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
TEXT_LENGTH = struct.Struct("<Q")  # before a text
ARRAY_VALUE = "an array"  # instead of the items, which are not read


class Pair(NamedTuple):
    """A key/value pair."""

    value_type: int  # `STRING`, `ARRAY` or one of `SCALAR_FORMATS`
    value: Any  # a number, a truth value, a text or `ARRAY_VALUE`
    content: bytes  # with the key, as in the file


@dataclass(frozen=True, eq=False)
class GgufFile(TensorFile):
    """A GGUF file with a checked header."""

    version: int = field(kw_only=True)
    alignment: int = field(kw_only=True)  # of tensors, in bytes
    pairs: Mapping[str, Pair] = field(kw_only=True)  # by key, in file order
    type_numbers: Mapping[str, int] = field(kw_only=True)  # of the dtypes of tensors, by name
    size: int = field(kw_only=True)  # in bytes

    @property
    def values(self) -> dict[str, Any]:
        """The values of all pairs, by key."""
        return {key: pair.value for key, pair in self.pairs.items()}


def padded(size: int, alignment: int) -> int:
    """Return a size in bytes, with the padding that follows it."""
    return size + -size % alignment


def open_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file; read no tensor.

    Raises:
        CheckpointError: The file is truncated, malformed, of another version or byte order, or the
            package ``gguf`` is not installed or too old for a type of tensors.
    """
    with reading(path), open_source(path) as opened:
        cursor = _Cursor(path, opened)
        magic = cursor.take(len(MAGIC))
        if magic != MAGIC:
            cursor.refuse(f"it starts with {magic!r}, not {MAGIC!r}")
        version = cursor.number("<I")
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise CheckpointError(
                f"{path} has version {version} of the GGUF format, or is a big-endian GGUF file: "
                f"ctxextend reads versions {known}, little-endian.",
                "Convert the model again, or the file with the package gguf: gguf-convert-endian "
                f"{path} little",
            )
        tensor_count = cursor.number("<Q")
        pairs = _read_pairs(cursor, cursor.number("<Q"))
        alignment = DEFAULT_ALIGNMENT
        if ALIGNMENT_KEY in pairs:
            alignment = pairs[ALIGNMENT_KEY].value
            if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
                cursor.refuse(f"{ALIGNMENT_KEY} is {alignment!r:.100}, not a power of 2")
        entries, type_numbers = _read_tensors(cursor, tensor_count)
        size = os.fstat(opened.fileno()).st_size
        data_start = padded(cursor.position, alignment)
        position = 0
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
            if data_start + entry.end > size:
                end = f"{entry.name!r:.100} ends at byte {data_start + entry.end:,} of {size:,}"
                cursor.refuse(f"it is truncated: {end}")
            if entry.start < position or entry.start % alignment:
                reason = "overlaps the previous tensor, or does not start at a multiple of"
                cursor.refuse(f"{entry.name!r:.100} {reason} {alignment} bytes")
            position = entry.end
    described: dict[str, Any] = {
        name: {"dtype": entry.dtype, "shape": entry.shape, "start": entry.start}
        for name, entry in entries.items()
    }
    return GgufFile(
        path=path,
        header=described,
        entries=entries,
        data_start=data_start,
        version=version,
        alignment=alignment,
        pairs=pairs,
        type_numbers=type_numbers,
        size=size,
    )


class _Cursor:
    """A position in a file, whose start is read piece by piece as far as it is needed."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.position = 0
        self.content = bytearray()
        self._path = path
        self._file = file

    def move(self, count: int) -> int:
        """Move over bytes, which the file must have; return where they start."""
        start = self.position
        self.position += count
        while self.position > len(self.content):
            if len(self.content) > MAX_HEADER_BYTES:
                self.refuse(f"its header is longer than {MAX_HEADER_BYTES:,} bytes")
            piece = self._file.read(READ_BYTES)
            if not piece:
                self.refuse(f"it is truncated: its header goes beyond {len(self.content):,} bytes")
            self.content += piece
        return start

    def take(self, count: int) -> bytes:
        """Read bytes."""
        start = self.move(count)
        return bytes(self.content[start : self.position])

    def number(self, layout: str) -> Any:
        """Read a number, or a truth value."""
        start = self.move(struct.calcsize(layout))
        return struct.unpack_from(layout, self.content, start)[0]

    def text(self) -> str:
        """Read a text, which follows its length."""
        content = self.take(self.number(TEXT_LENGTH.format))
        try:
            return content.decode()
        except UnicodeDecodeError:
            self.refuse(f"the text before byte {self.position:,} is not UTF-8")

    def check_count(self, count: int, what: str) -> None:
        """Refuse more items than any model has, before they are read."""
        if count > MAX_ITEMS:
            self.refuse(f"the number of {what} is {count:,}, more than {MAX_ITEMS:,}")

    def refuse(self, reason: str) -> NoReturn:
        """Refuse a file that is not a valid GGUF file; the reason is a clause."""
        message = f"{self._path} is not a valid GGUF file: {reason}."
        raise CheckpointError(message, "Download or convert it again.") from None


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Pair]:
    cursor.check_count(count, "keys")
    pairs = dict[str, Pair]()
    for _ in range(count):
        start = cursor.position
        key = cursor.text()
        value_type = cursor.number("<I")
        if key in pairs:
            cursor.refuse(f"the key {key!r:.100} is stated twice")
        value: Any = ARRAY_VALUE
        if value_type == STRING:
            value = cursor.text()
        elif value_type in SCALAR_FORMATS:
            value = cursor.number(SCALAR_FORMATS[value_type])
        elif value_type == ARRAY:
            _skip_array(cursor, key)
        else:
            cursor.refuse(f"{key!r:.100} has the unknown type {value_type}")
        content = bytes(cursor.content[start : cursor.position])
        pairs[key] = Pair(value_type=value_type, value=value, content=content)
    return pairs


def _skip_array(cursor: _Cursor, key: str) -> None:
    """Move over an array: most of the time of reading a header is spent on those of texts."""
    item_type = cursor.number("<I")
    count = cursor.number("<Q")
    if item_type in SCALAR_FORMATS:
        cursor.move(count * struct.calcsize(SCALAR_FORMATS[item_type]))
        return
    if item_type != STRING:  # llama.cpp reads no arrays of arrays either
        cursor.refuse(f"{key!r:.100} is an array of the unknown type {item_type}")
    content = cursor.content
    position = cursor.position
    for _ in range(count):
        if position + TEXT_LENGTH.size > len(content):
            cursor.move(position + TEXT_LENGTH.size - cursor.position)
        position += TEXT_LENGTH.size + TEXT_LENGTH.unpack_from(content, position)[0]
    cursor.move(position - cursor.position)


def _read_tensors(cursor: _Cursor, count: int) -> tuple[dict[str, TensorEntry], dict[str, int]]:
    """Return the entries of all tensors, with the rows first, and the numbers of their types."""
    cursor.check_count(count, "tensors")
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        message = "GGUF files need the package gguf, which is not installed."
        raise CheckpointError(message, f"Install it: {INSTALL}") from error
    kinds = {int(kind): kind for kind in GGML_QUANT_SIZES}
    entries = dict[str, TensorEntry]()
    type_numbers = dict[str, int]()
    for _ in range(count):
        name = cursor.text()
        dimensions = cursor.number("<I")
        if name in entries or dimensions > MAX_DIMENSIONS:
            reason = f"is described twice, or has {dimensions} dimensions"
            cursor.refuse(f"the tensor {name!r:.100} {reason}")
        lengths = [cursor.number("<Q") for _ in range(dimensions)]
        type_number = cursor.number("<I")
        start = cursor.number("<Q")
        if type_number not in kinds:
            message = f"{name!r:.100} has the type {type_number}, which the package gguf lacks."
            raise CheckpointError(message, "Upgrade it: pip install --upgrade gguf")
        kind = kinds[type_number]
        values_per_block, block_bytes = GGML_QUANT_SIZES[kind]
        if math.prod(lengths[:1]) % values_per_block:
            reason = f"not a multiple of {values_per_block}, as {kind.name} needs"
            cursor.refuse(f"{name!r:.100} has {math.prod(lengths[:1]):,} columns, {reason}")
        type_numbers[name] = type_number
        entries[name] = TensorEntry(
            name=name,
            dtype=kind.name,
            shape=tuple(reversed(lengths)),
            start=start,
            end=start + math.prod(lengths) // values_per_block * block_bytes,
        )
    return entries, type_numbers
