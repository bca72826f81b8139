"""The header of a GGUF file: its metadata and its list of tensors.

The format, all integers little-endian: 4 bytes of magic, a version, the number of tensors, the
number of key/value pairs, the pairs, a description of each tensor, padding, and the tensors' bytes.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

The official package reads the same, but makes an object of each word of a vocabulary: with 150,000
words, that takes seconds and more than half a gigabyte. So arrays are only skipped here, and pairs
are copied as they are. The package knows the types of tensors and their sizes.
"""

import os
import struct
from collections.abc import Mapping, Set
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
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
# The key of the recipe of a resize; llama.cpp ignores keys that it does not know.
RECIPE_KEY = "ctxextend.recipe"
# Several times what the largest models have, so that a malformed file is refused in about a second.
MAX_METADATA_BYTES = 1 << 27  # of the whole header; the largest vocabularies have about 20 MB
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_TEXTS = 1 << 22  # in all arrays; the largest vocabularies have fewer than a million words
# The fewest bytes of items: of a pair, an empty key, a type and a value; of a tensor, an empty
# name, a number of dimensions, a type and a start.
MIN_PAIR_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
TEXT_LENGTH = struct.Struct("<Q")  # before a text
MAX_TEXT_BYTES = 1 << 24  # of a value; chat templates, the longest ones, have about 100 kB
MAX_KEY_BYTES = (1 << 16) - 1  # the limit of the format
MAX_DIMENSIONS = 4  # `GGML_MAX_DIMS`
MAX_ALIGNMENT = 1 << 20
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


class Pair(NamedTuple):
    """A key/value pair, and where it is in the file."""

    key: str
    value_type: int  # `STRING`, `ARRAY` or one of `SCALAR_FORMATS`
    value: Any  # a number, a truth value or a text; None for an array
    start: int  # its first byte
    end: int  # the byte after its last one


class Described(NamedTuple):
    """The description of a tensor in the header."""

    entry: TensorEntry  # its shape has the rows first
    type_number: int  # of its dtype in the format


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file."""

    content: bytes  # up to the first byte of padding
    version: int
    alignment: int  # of tensors, in bytes
    pairs: Mapping[str, Pair]  # by key, in file order
    tensors: Mapping[str, Described]  # by name, in file order
    descriptions_start: int  # the offset of the first description of a tensor
    file_size: int  # in bytes

    @property
    def data_start(self) -> int:
        """The file offset of the first tensor byte."""
        return padded(len(self.content), self.alignment)

    @property
    def values(self) -> dict[str, Any]:
        """The values of all pairs but arrays, by key."""
        return {pair.key: pair.value for pair in self.pairs.values() if pair.value_type != ARRAY}

    @property
    def arrays(self) -> Set[str]:
        """The keys of all arrays, whose items are not read."""
        return {pair.key for pair in self.pairs.values() if pair.value_type == ARRAY}


@dataclass(frozen=True, eq=False)
class GgufFile(TensorFile):
    """A GGUF file with a checked header."""

    metadata: GgufHeader = field(kw_only=True)


def padded(size: int, alignment: int) -> int:
    """Return a size in bytes, with the padding that follows it."""
    return size + -size % alignment


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of a GGUF file; read no tensor.

    Raises:
        CheckpointError: The file is truncated, malformed, of another version or byte order, or the
            package ``gguf`` is not installed or too old for a type of tensors.
    """
    with reading(path), open_source(path) as file:
        cursor = _Cursor(path, file)
        version, tensor_count, pair_count = _read_start(cursor)
        pairs = _read_pairs(cursor, pair_count)
        alignment = DEFAULT_ALIGNMENT
        if ALIGNMENT_KEY in pairs:
            alignment = pairs[ALIGNMENT_KEY].value
            is_number = pairs[ALIGNMENT_KEY].value_type == UINT32
            if not is_number or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
                reason = f"{ALIGNMENT_KEY} is {alignment!r:.100}, not a power of 2 as UINT32"
                refuse(path, reason)
        descriptions_start = cursor.position
        tensors = _read_tensors(cursor, tensor_count)
        header = GgufHeader(
            content=cursor.content,
            version=version,
            alignment=alignment,
            pairs=pairs,
            tensors=tensors,
            descriptions_start=descriptions_start,
            file_size=cursor.size,
        )
        _check_ranges(path, header)
    return header


class _Cursor:
    """A position in a file, whose start is read piece by piece as far as it is needed."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        self._file = file
        self._read = bytearray()
        self._texts = 0  # in arrays, so far

    @property
    def content(self) -> bytes:
        """All bytes before the position."""
        return bytes(self._read[: self.position])

    def skip(self, count: int) -> int:
        """Move over bytes, which the file must have; return where they start."""
        start = self.position
        self._read_up_to(start + count)
        self.position = start + count
        return start

    def _read_up_to(self, end: int) -> int:
        if end > self.size:
            refuse(self.path, f"it is truncated: the header goes beyond {self.size:,} bytes")
        if end > MAX_METADATA_BYTES:
            limit = f"{MAX_METADATA_BYTES:,} bytes"
            refuse(self.path, f"its header is longer than {limit}")
        while end > len(self._read):
            piece = self._file.read(max(READ_BYTES, end - len(self._read)))
            if not piece:
                refuse(self.path, "it became shorter while it was read")
            self._read += piece
        return len(self._read)

    def check_count(self, count: int, what: str, *, smallest: int, maximum: int) -> None:
        """Check a number of items before they are read.

        Args:
            count: As the file states it.
            what: The items, in the plural.
            smallest: The fewest bytes of one.
            maximum: The most items that are read.

        Raises:
            CheckpointError: The file is too short for so many items, or they are too many.
        """
        available = self.size - self.position
        if count * smallest > available:
            reason = f"the number of {what} is {count:,}, too many for {available:,} bytes"
            refuse(self.path, f"it is truncated: {reason}")
        if count > maximum:
            reason = f"the number of {what} is {count:,}, more than {maximum:,}"
            refuse(self.path, reason)

    def number(self, layout: str) -> Any:
        """Read a number, or a truth value."""
        start = self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self._read, start)[0]

    def text(self, maximum: int = MAX_TEXT_BYTES) -> str:
        """Read a text, which follows its length."""
        length = self.number(TEXT_LENGTH.format)
        if length > maximum:
            refuse(self.path, f"a name or text has {length:,} bytes, more than {maximum:,}")
        start = self.skip(length)
        try:
            return self._read[start : self.position].decode()
        except UnicodeDecodeError:
            refuse(self.path, f"the text at byte {start:,} is not UTF-8")

    def skip_texts(self, count: int) -> None:
        """Move over texts: most of the time of reading a header is spent here."""
        self.check_count(
            count, "texts in arrays", smallest=TEXT_LENGTH.size, maximum=MAX_TEXTS - self._texts
        )
        self._texts += count
        content = self._read
        position = self.position
        read = len(content)
        for _ in range(count):
            if position + TEXT_LENGTH.size > read:
                read = self._read_up_to(position + TEXT_LENGTH.size)
            position += TEXT_LENGTH.size + TEXT_LENGTH.unpack_from(content, position)[0]
        self._read_up_to(position)
        self.position = position


def refuse(path: Path, reason: str) -> NoReturn:
    """Refuse a file that is not a valid GGUF file; the reason is a clause.

    Raises:
        CheckpointError: Always.
    """
    message = f"{path} is not a valid GGUF file: {reason}."
    raise CheckpointError(message, "Download or convert it again.") from None


def _read_start(cursor: _Cursor) -> tuple[int, int, int]:
    """Read the version, the number of tensors and the number of pairs."""
    path = cursor.path
    if cursor.size < len(MAGIC):
        refuse(path, f"it has {cursor.size} bytes")
    start = cursor.skip(len(MAGIC))
    magic = cursor.content[start:]
    if magic != MAGIC:
        refuse(path, f"it starts with {magic!r}, not {MAGIC!r}")
    version = cursor.number("<I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise CheckpointError(
                f"{path} is a big-endian GGUF file, which ctxextend does not read.",
                f"Convert it with the package gguf: gguf-convert-endian {path} little",
            )
        known = " and ".join(map(str, VERSIONS))
        has = f"has version {version} of the GGUF format"
        hint = "Convert the model again: llama.cpp does not read it either."
        if version > max(VERSIONS):
            hint = "Upgrade ctxextend, or convert the model again."
        raise CheckpointError(f"{path} {has}; ctxextend reads versions {known}.", hint)
    tensor_count = cursor.number("<Q")
    pair_count = cursor.number("<Q")
    return version, tensor_count, pair_count


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Pair]:
    cursor.check_count(count, "keys", smallest=MIN_PAIR_BYTES, maximum=MAX_PAIRS)
    pairs = dict[str, Pair]()
    for _ in range(count):
        start = cursor.position
        key = cursor.text(MAX_KEY_BYTES)
        if key in pairs:
            refuse(cursor.path, f"the key {key!r:.100} is stated twice")
        value_type = cursor.number("<I")
        value = None
        if value_type == STRING:
            value = cursor.text()
        elif value_type in SCALAR_FORMATS:
            value = cursor.number(SCALAR_FORMATS[value_type])
        elif value_type == ARRAY:
            _skip_array(cursor, key)
        else:
            refuse(cursor.path, f"{key!r:.100} has the unknown type {value_type}")
        pairs[key] = Pair(
            key=key, value_type=value_type, value=value, start=start, end=cursor.position
        )
    return pairs


def _skip_array(cursor: _Cursor, key: str) -> None:
    item_type = cursor.number("<I")
    count = cursor.number("<Q")
    if item_type == STRING:
        cursor.skip_texts(count)
    elif item_type in SCALAR_FORMATS:
        cursor.skip(count * struct.calcsize(SCALAR_FORMATS[item_type]))
    elif item_type == ARRAY:
        reason = f"{key!r:.100} is an array of arrays, which llama.cpp does not read either"
        refuse(cursor.path, reason)
    else:
        refuse(cursor.path, f"{key!r:.100} is an array of the unknown type {item_type}")


def _read_tensors(cursor: _Cursor, count: int) -> dict[str, Described]:
    cursor.check_count(count, "tensors", smallest=MIN_TENSOR_BYTES, maximum=MAX_TENSORS)
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        message = "GGUF files need the package gguf, which is not installed."
        raise CheckpointError(message, f"Install it: {INSTALL}") from error
    kinds = {int(kind): kind for kind in GGML_QUANT_SIZES}
    tensors = dict[str, Described]()
    for _ in range(count):
        name = cursor.text(MAX_KEY_BYTES)
        if name in tensors:
            refuse(cursor.path, f"the tensor {name!r:.100} is described twice")
        dimensions = cursor.number("<I")
        if dimensions > MAX_DIMENSIONS:
            reason = f"the tensor {name!r:.100} has {dimensions} dimensions"
            refuse(cursor.path, reason)
        lengths = [cursor.number("<Q") for _ in range(dimensions)]
        type_number = cursor.number("<I")
        start = cursor.number("<Q")
        if type_number not in kinds:
            message = (
                f"{cursor.path}: {name!r:.100} has the type {type_number}, which the package gguf "
                "does not know."
            )
            raise CheckpointError(message, "Upgrade it: pip install --upgrade gguf")
        kind = kinds[type_number]
        values_per_block, block_bytes = GGML_QUANT_SIZES[kind]
        columns = lengths[0] if lengths else 1
        if columns % values_per_block:
            reason = f"{name!r:.100} has {columns:,} columns, not a multiple of {values_per_block}"
            refuse(cursor.path, f"{reason}, as {kind.name} needs")
        values = 1
        for length in lengths:
            values *= length
            if values >= 1 << 63:
                refuse(cursor.path, f"{name!r:.100} has too many values")
        entry = TensorEntry(
            name=name,
            dtype=kind.name,
            shape=tuple(reversed(lengths)),
            start=start,
            end=start + values // values_per_block * block_bytes,
        )
        tensors[name] = Described(entry=entry, type_number=type_number)
    return tensors


def _check_ranges(path: Path, header: GgufHeader) -> None:
    size = header.file_size
    available = size - header.data_start
    entries = [described.entry for described in header.tensors.values()]
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.end > available:
            needed = header.data_start + entry.end
            reason = f"it is truncated: {entry.name!r:.100} ends at byte {needed:,} of {size:,}"
            refuse(path, reason)
        if entry.start % header.alignment:
            reason = f"{entry.name!r:.100} does not start at a multiple of {header.alignment} bytes"
            refuse(path, reason)
        if entry.start < position:
            refuse(path, f"{entry.name!r:.100} overlaps the previous tensor")
        position = entry.end
