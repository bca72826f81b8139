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
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.safetensors_file import TensorEntry, TensorFile
from ctxextend.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 has counts of 32 bits, and llama.cpp no longer reads it
ALIGNMENT = "general.alignment"
# The key of the recipe of a resize; llama.cpp ignores keys that it does not know.
RECIPE_KEY = "ctxextend.recipe"
# Several times what the largest models have, so that malformed files are refused in seconds.
MAX_METADATA_BYTES = 1 << 26  # the largest vocabularies have about 20 MB
MAX_ITEMS = 1 << 16  # pairs, and tensors
MAX_TEXTS = 1 << 22  # in an array; the largest vocabularies have fewer than a million words
MAX_DIMENSIONS = 4  # `GGML_MAX_DIMS`
READ_BYTES = 1 << 20  # per call

# Types of values, by their numbers in the format.
UINT32 = 4
FLOAT32 = 6
STRING = 8
ARRAY = 9
SCALAR_FORMATS = dict(enumerate(["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"]))
SCALAR_FORMATS |= {10: "<Q", 11: "<q", 12: "<d"}
ARRAY_VALUE = "an array"  # its items are not read


@dataclass(frozen=True, eq=False, kw_only=True)
class GgufFile(TensorFile):
    """A GGUF file with a checked header."""

    version: int
    alignment: int  # of tensors, in bytes
    values: Mapping[str, Any]  # by key, in file order; `ARRAY_VALUE` for an array
    pairs: Mapping[str, bytes]  # the same with their keys, as in the file, without the recipe
    size: int  # in bytes


def padded(size: int, alignment: int) -> int:
    """Return a size in bytes, with the padding that follows it."""
    return size + -size % alignment


def open_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file; read no tensor.

    Raises:
        CheckpointError: The file is truncated, malformed, of another version or byte order, or the
            package ``gguf`` is not installed or too old for a type of tensors.
    """
    try:
        with reading(path), open_source(path) as opened:
            size = os.fstat(opened.fileno()).st_size
            return _read_file(path, _Cursor(opened), size)
    except KeyError as error:
        reason = f"it has a value of the unknown type {error}"
    except ValueError as error:
        reason = str(error)
    message = f"{path} is not a valid GGUF file: {reason}."
    raise CheckpointError(message, "Download or convert it again, or upgrade gguf.")


def _read_file(path: Path, cursor: "_Cursor", size: int) -> GgufFile:
    """Read and check a header.

    Raises:
        ValueError: It is malformed; the text is a clause.
        KeyError: A value has an unknown type.
        CheckpointError: The package ``gguf`` is not installed.
    """
    if cursor.take(len(MAGIC)) != MAGIC:
        raise ValueError(f"it does not start with {MAGIC!r}")
    version = cursor.number("<I")
    if version not in VERSIONS:
        known = "versions 2 and 3 are read, little-endian (gguf-convert-endian converts others)"
        raise ValueError(f"it has version {version} or another byte order: {known}")
    tensor_count = cursor.number("<Q")
    values = dict[str, Any]()
    pairs = dict[str, bytes]()
    for _ in range(cursor.number("<Q")):
        start = cursor.position
        key = cursor.text()
        if key in pairs or len(pairs) == MAX_ITEMS:
            raise ValueError(f"the key {key!r:.100} is stated twice, or one of too many")
        values[key] = cursor.value(cursor.number("<I"))
        pairs[key] = bytes(cursor.content[start : cursor.position])
    pairs.pop(RECIPE_KEY, None)
    alignment = values.get(ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{ALIGNMENT} is {alignment!r:.100}, not a power of 2")
    entries = _read_tensors(cursor, tensor_count)
    data_start = padded(cursor.position, alignment)
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start < end or entry.start % alignment or data_start + entry.end > size:
            reason = "overlaps another one, is not aligned, or is truncated"
            raise ValueError(f"the tensor {entry.name!r:.100} {reason}")
        end = entry.end
    return GgufFile(
        path=path,
        header={
            name: {"dtype": entry.dtype, "shape": entry.shape, "start": entry.start}
            for name, entry in entries.items()
        },
        entries=entries,
        data_start=data_start,
        version=version,
        alignment=alignment,
        values=values,
        pairs=pairs,
        size=size,
    )


class _Cursor:
    """A position in a file, whose start is read piece by piece as far as it is needed."""

    def __init__(self, file: FileIO) -> None:
        self.position = 0
        self.content = bytearray()
        self._file = file

    def move(self, count: int) -> int:
        """Move over bytes, which the file must have; return where they start."""
        start = self.position
        self.position += count
        while self.position > len(self.content):
            piece = self._file.read(READ_BYTES)
            if not piece or len(self.content) > MAX_METADATA_BYTES:
                limit = f"or longer than {MAX_METADATA_BYTES:,} bytes"
                raise ValueError(f"it is truncated, or its header is malformed {limit}")
            self.content += piece
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
        return self.take(self.number("<Q")).decode()

    def value(self, value_type: int) -> Any:
        """Read a value; of an array, no items."""
        if value_type == STRING:
            return self.text()
        if value_type == ARRAY:
            self._skip_array()
            return ARRAY_VALUE
        return self.number(SCALAR_FORMATS[value_type])

    def _skip_array(self) -> None:
        """Move over an array: most of the time of reading a header is spent on those of texts."""
        item_type = self.number("<I")
        count = self.number("<Q")
        if item_type != STRING:
            # llama.cpp reads no arrays of arrays either.
            self.move(count * struct.calcsize(SCALAR_FORMATS[item_type]))
            return
        if count > MAX_TEXTS:
            raise ValueError(f"it has an array of {count:,} texts")
        content = self.content
        unpack = struct.Struct("<Q").unpack_from
        position = self.position
        for _ in range(count):
            if position + 8 > len(content):
                self.move(position + 8 - self.position)
            position += 8 + unpack(content, position)[0]
        self.move(position - self.position)


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
            reason = f"is described twice, one of too many, or has {dimensions} axes"
            raise ValueError(f"the tensor {name!r:.100} {reason}")
        lengths = [cursor.number("<Q") for _ in range(dimensions)]
        type_number = cursor.number("<I")
        start = cursor.number("<Q")
        kind = GGMLQuantizationType(type_number)  # raises a ValueError that names it
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if math.prod(lengths[:1]) % block:
            raise ValueError(f"the columns of {name!r:.100} are no multiple of {block}")
        end = start + math.prod(lengths) // block * block_bytes
        entries[name] = TensorEntry(name, kind.name, tuple(reversed(lengths)), start, end)
    return entries
