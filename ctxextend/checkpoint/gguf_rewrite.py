"""Write a GGUF file with other metadata: all other pairs and all tensors are copied as they are.

A pair that changes keeps its place, new ones follow the others, and the recipe is padded until the
tensors are aligned as before, modulo 4,096 bytes, so that file systems can share blocks; if tensors
are aligned to more bytes, modulo these.
"""

import struct
from collections.abc import Mapping
from typing import Any

from ctxextend.checkpoint.copy import DISK_BLOCK
from ctxextend.checkpoint.gguf_header import (
    FLOAT32,
    MAGIC,
    RECIPE_KEY,
    STRING,
    UINT32,
    GgufFile,
    padded,
)
from ctxextend.checkpoint.writing import Layout, TensorRange


def plan_gguf_layout(
    file: GgufFile,
    values: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    recipe: bytes,
) -> Layout:
    """Return the layout of a file with other metadata.

    Args:
        file: The old file.
        values: New values by key: integers, floats and texts.
        shapes: The shape of the tensor that changes, by name; at most one does.
        recipe: The text of `RECIPE_KEY`.
    """
    pairs = new_pairs(file, values)
    counts = struct.pack("<IQQ", file.version, len(file.entries), len(pairs) + 1)
    start = b"".join((MAGIC, counts, *pairs.values()))
    end, ranges = _tensors(file, shapes)
    text = recipe.decode()
    size = len(start) + len(_pair(RECIPE_KEY, text)) + len(end)
    text += "\n" * ((file.data_start - size) % max(DISK_BLOCK, file.alignment))
    content = start + _pair(RECIPE_KEY, text) + end
    size = sum(item.size for item in ranges)
    return Layout(header=content, ranges=tuple(ranges), tensor_bytes=size)


def new_pairs(file: GgufFile, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the pairs of a file with other values, of the types that llama.cpp reads, by key.

    The recipe is not among them.
    """
    return {**file.pairs, **{key: _pair(key, value) for key, value in values.items()}}


def _pair(key: str, value: Any) -> bytes:
    name = _text(key)
    if isinstance(value, float):
        return name + struct.pack("<If", FLOAT32, value)
    if isinstance(value, int):
        return name + struct.pack("<II", UINT32, value)
    return name + struct.pack("<I", STRING) + _text(value)


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


def _tensors(
    file: GgufFile, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, list[TensorRange]]:
    """Return the descriptions of all tensors, and the ranges of their bytes."""
    from gguf.constants import GGMLQuantizationType

    ranges = list[TensorRange]()
    position = file.data_start
    growth = 0
    for name, shape in shapes.items():
        table = file.entries[name]
        ranges.append(TensorRange("", size=table.start, offset=position, is_new=False))
        position += table.start
        # The padding may be missing at the end of the file.
        old_size = min(padded(table.size, file.alignment), file.size - position)
        new_size = padded(table.size // table.shape[0] * shape[0], file.alignment)
        ranges.append(TensorRange(name, size=new_size, offset=None, is_new=True))
        position += old_size
        growth = new_size - old_size
    ranges.append(TensorRange("", size=file.size - position, offset=position, is_new=False))
    described = list[bytes]()
    for entry in file.entries.values():
        lengths = shapes.get(entry.name, entry.shape)[::-1]
        start = entry.start
        if file.data_start + start >= position:  # after the table
            start += growth
        described.append(_text(entry.name))
        described.append(struct.pack(f"<I{len(lengths)}Q", len(lengths), *lengths))
        described.append(struct.pack("<IQ", GGMLQuantizationType[entry.dtype], start))
    return b"".join(described), ranges
