"""Write a GGUF file with other metadata: all other pairs and all tensors are copied as they are.

A pair that changes keeps its place and its type, new ones follow the others, and a text is padded
until the tensors are aligned as before, modulo 4,096 bytes, so that file systems can share blocks.
"""

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ctxextend.checkpoint.copy import DISK_BLOCK
from ctxextend.checkpoint.gguf_header import (
    FLOAT32,
    MAGIC,
    RECIPE_KEY,
    SCALAR_FORMATS,
    STRING,
    UINT32,
    GgufFile,
    GgufHeader,
    padded,
)
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.checkpoint.writing import Layout, TensorRange


def plan_gguf_layout(
    file: GgufFile,
    edits: Sequence[Edit],
    shapes: Mapping[str, tuple[int, ...]],
    recipe: bytes,
) -> Layout:
    """Return the layout of a file with other metadata.

    Args:
        file: The old file.
        edits: Changed values: integers, floats and texts.
        shapes: The shape of the tensor that changes, by name; at most one does.
        recipe: The text of `RECIPE_KEY`.
    """
    header = file.metadata
    pairs = _pairs(file, {edit.key: edit.after for edit in edits})
    descriptions = header.content[header.descriptions_start :]
    size = header.file_size - header.data_start
    ranges = [TensorRange(name="", size=size, offset=header.data_start, is_new=False)]
    for name, shape in shapes.items():
        descriptions, ranges = _with_table(header, name, shape)
    before = len(pairs) + len(descriptions) + len(_pair(RECIPE_KEY, STRING, recipe))
    padding = (header.data_start - before) % DISK_BLOCK
    pairs += _pair(RECIPE_KEY, STRING, recipe + b"\n" * padding)
    content = pairs + descriptions
    content += b"\0" * (padded(len(content), header.alignment) - len(content))
    kept = tuple(item for item in ranges if item.size > 0)
    return Layout(header=content, ranges=kept, tensor_bytes=sum(item.size for item in kept))


def _pairs(file: GgufFile, values: Mapping[str, Any]) -> bytes:
    header = file.metadata
    pairs = list[bytes]()
    for pair in header.pairs.values():
        if pair.key == RECIPE_KEY:
            continue
        if pair.key in values:
            pairs.append(_value_pair(pair.key, values[pair.key], pair.value_type))
        else:
            pairs.append(header.content[pair.start : pair.end])
    for key, value in values.items():
        if key not in header.pairs:
            pairs.append(_value_pair(key, value, None))
    count = len(pairs) + 1  # with the recipe
    start = MAGIC + struct.pack("<IQQ", header.version, len(header.tensors), count)
    return b"".join((start, *pairs))


def _pair(key: str, value_type: int, content: bytes) -> bytes:
    name = key.encode()
    start = struct.pack("<Q", len(name)) + name + struct.pack("<I", value_type)
    if value_type == STRING:
        start += struct.pack("<Q", len(content))
    return start + content


def _value_pair(key: str, value: Any, value_type: int | None) -> bytes:
    """Return a pair of the type that it had, unless that is unknown or cannot hold the value.

    Then it has the type that llama.cpp reads: UINT32, FLOAT32 or STRING.
    """
    if isinstance(value, str):
        return _pair(key, STRING, value.encode())
    if value_type is not None and value_type in SCALAR_FORMATS:
        with suppress(struct.error):
            return _pair(key, value_type, struct.pack(SCALAR_FORMATS[value_type], value))
    value_type = FLOAT32 if isinstance(value, float) else UINT32
    return _pair(key, value_type, struct.pack(SCALAR_FORMATS[value_type], value))


def _with_table(
    header: GgufHeader, name: str, shape: tuple[int, ...]
) -> tuple[bytes, list[TensorRange]]:
    table = header.tensors[name].entry
    start = header.data_start + table.start
    # The padding may be missing at the end of the file.
    old_size = min(padded(table.size, header.alignment), header.file_size - start)
    new_size = padded(table.size // table.shape[0] * shape[0], header.alignment)
    described = list[bytes]()
    for other in header.tensors.values():
        entry = other.entry
        if entry.name == name:
            entry = entry._replace(shape=shape)
        elif entry.start > table.start:
            entry = entry._replace(start=entry.start + new_size - old_size)
        encoded = entry.name.encode()
        lengths = entry.shape[::-1]
        described += (struct.pack("<Q", len(encoded)), encoded, struct.pack("<I", len(lengths)))
        described.append(struct.pack(f"<{len(lengths)}Q", *lengths))
        described.append(struct.pack("<IQ", other.type_number, entry.start))
    end = start + old_size
    ranges = [
        TensorRange(name="", size=table.start, offset=header.data_start, is_new=False),
        TensorRange(name=name, size=new_size, offset=None, is_new=True),
        TensorRange(name="", size=header.file_size - end, offset=end, is_new=False),
    ]
    return b"".join(described), ranges
