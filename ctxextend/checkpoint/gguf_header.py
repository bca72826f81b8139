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
ALIGNMENT = "general.alignment"
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
SCALAR_FORMATS = dict(enumerate(["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"]))
SCALAR_FORMATS |= {10: "<Q", 11: "<q", 12: "<d"}
TEXT_LENGTH = struct.Struct("<Q")  # before a text
ARRAY_VALUE = "an array"  # instead of the items, which are not read


class Pair(NamedTuple):
    """A key/value pair."""

    value_type: int  # `STRING`, `ARRAY` or one of `SCALAR_FORMATS`
    value: Any  # a number, a truth value, a text or `ARRAY_VALUE`
    content: bytes  # with the key, as in the file


@dataclass(frozen=True, eq=False, kw_only=True)
class GgufFile(TensorFile):
    """A GGUF file with a checked header."""

    version: int
    alignment: int  # of tensors, in bytes
    pairs: Mapping[str, Pair]  # by key, in file order
    size: int  # in bytes

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
        size = os.fstat(opened.fileno()).st_size
        cursor = _Cursor(path, opened)
        if cursor.take(len(MAGIC)) != MAGIC:
            cursor.refuse(f"it does not start with {MAGIC!r}")
        version = cursor.number("<I")
        if version not in VERSIONS:
            raise CheckpointError(
                f"{path} has version {version} of the GGUF format, or the big-endian byte order: "
                f"ctxextend reads little-endian files of versions {VERSIONS}.",
                "Convert the model again, or the file: gguf-convert-endian FILE little",
            )
        tensor_count = cursor.number("<Q")
        pairs = _read_pairs(cursor, cursor.number("<Q"))
        alignment = pairs[ALIGNMENT].value if ALIGNMENT in pairs else 32
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            cursor.refuse(f"{ALIGNMENT} is {alignment!r:.100}, not a power of 2")
        entries = _read_tensors(cursor, tensor_count)
        data_start = padded(cursor.position, alignment)
        end = 0
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
            if data_start + entry.end > size:
                cursor.refuse(f"it is truncated: {entry.name!r:.100} ends at byte {entry.end:,}")
            if entry.start < end or entry.start % alignment:
                cursor.refuse(f"{entry.name!r:.100} overlaps the previous tensor, or is not aligned")
            end = entry.end
    described = dict[str, Any]()
    for name, entry in entries.items():
        described[name] = {"dtype": entry.dtype, "shape": entry.shape, "start": entry.start}
    return GgufFile(
        path=path,
        header=described,
        entries=entries,
        data_start=data_start,
        version=version,
        alignment=alignment,
        pairs=pairs,
        size=size,
    )


class _Cursor:
    """A position in a file, whose start is read piece by piece as far as it is needed."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.position = 0
        self.content = bytearray()
        self._path = path
        self._file = file

    def refuse(self, reason: str) -> NoReturn:
        """Refuse a file that is not a valid GGUF file; the reason is a clause."""
        message = f"{self._path} is not a valid GGUF file: {reason}."
        raise CheckpointError(message, "Download or convert it again.")

    def move(self, count: int) -> int:
        """Move over bytes, which the file must have; return where they start."""
        start = self.position
        self.position += count
        while self.position > len(self.content):
            piece = self._file.read(READ_BYTES)
            if not piece:
                self.refuse("it is truncated: the header goes beyond its end")
            self.content += piece
            if len(self.content) > MAX_HEADER_BYTES:
                self.refuse(f"its header is longer than {MAX_HEADER_BYTES:,} bytes")
        return start

    def take(self, count: int) -> bytes:
        """Read bytes."""
        start = self.move(count)
        return bytes(self.content[start : self.position])

    def number(self, layout: str) -> Any:
        """Read a number, or a truth value."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self) -> str:
        """Read a text, which follows its length."""
        content = self.take(self.number("<Q"))
        try:
            return content.decode()
        except UnicodeDecodeError:
            self.refuse(f"the text before byte {self.position:,} is not UTF-8")

    def scalar_format(self, value_type: int) -> str:
        """Return the layout of a number, or a truth value."""
        if value_type not in SCALAR_FORMATS:
            self.refuse(f"it has a value of the unknown type {value_type}, or an array of such")
        return SCALAR_FORMATS[value_type]

    def skip_array(self) -> None:
        """Move over an array: most of the time of reading a header is spent on those of texts.

        llama.cpp does not read arrays of arrays either.
        """
        item_type = self.number("<I")
        count = self.number("<Q")
        if item_type != STRING:
            self.move(count * struct.calcsize(self.scalar_format(item_type)))
            return
        position = self.position
        for _ in range(count):
            if position + TEXT_LENGTH.size > len(self.content):
                self.move(position + TEXT_LENGTH.size - self.position)
            position += TEXT_LENGTH.size + TEXT_LENGTH.unpack_from(self.content, position)[0]
        self.move(position - self.position)


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Pair]:
    pairs = dict[str, Pair]()
    for _ in range(count):
        start = cursor.position
        key = cursor.text()
        if key in pairs or len(pairs) == MAX_ITEMS:
            cursor.refuse(f"the key {key!r:.100} is stated twice, or follows {MAX_ITEMS:,} others")
        value_type = cursor.number("<I")
        value: Any = ARRAY_VALUE
        if value_type == STRING:
            value = cursor.text()
        elif value_type == ARRAY:
            cursor.skip_array()
        else:
            value = cursor.number(cursor.scalar_format(value_type))
        content = bytes(cursor.content[start : cursor.position])
        pairs[key] = Pair(value_type=value_type, value=value, content=content)
    return pairs


def _read_tensors(cursor: _Cursor, count: int) -> dict[str, TensorEntry]:
    """Return the entries of all tensors, with the rows first."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        message = "GGUF files need the package gguf, which is not installed."
        raise CheckpointError(message, "Install it: pip install 'ctxextend[gguf]'") from error
    entries = dict[str, TensorEntry]()
    for _ in range(count):
        name = cursor.text()
        dimensions = cursor.number("<I")
        if name in entries or len(entries) == MAX_ITEMS or dimensions > MAX_DIMENSIONS:
            reason = f"is described twice, follows {MAX_ITEMS:,} others, or has {dimensions} axes"
            cursor.refuse(f"the tensor {name!r:.100} {reason}")
        lengths = [cursor.number("<Q") for _ in range(dimensions)]
        type_number = cursor.number("<I")
        start = cursor.number("<Q")
        try:
            kind = GGMLQuantizationType(type_number)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            message = f"{name!r:.100} has the type {type_number}, which the package gguf lacks."
            raise CheckpointError(message, "Upgrade it: pip install --upgrade gguf") from None
        if math.prod(lengths[:1]) % block:
            cursor.refuse(f"the columns of {name!r:.100} are no multiple of {block}")
        end = start + math.prod(lengths) // block * block_bytes
        entries[name] = TensorEntry(name, kind.name, tuple(reversed(lengths)), start, end)
    return entries
