"""Write a GGUF file with other metadata: all other pairs and all tensors are copied as they are.

A pair that changes keeps its place and its type, new ones follow the others, and a text is padded
until the tensors are aligned as before, modulo 4,096 bytes, so that file systems can share blocks.
"""

import struct
from collections.abc import Mapping
from typing import Any

from ctxextend.checkpoint.copy import DISK_BLOCK
from ctxextend.checkpoint.gguf_checkpoint import RECIPE_KEY
from ctxextend.checkpoint.gguf_header import (
    FLOAT32,
    MAGIC,
    SCALAR_FORMATS,
    STRING,
    TEXT_LENGTH,
    UINT32,
    GgufFile,
    padded,
)
from ctxextend.checkpoint.rewrite import Layout, TensorRange


def plan_gguf_layout(
    file: GgufFile,
    values: Mapping[str, Any],
    recipe: bytes,
    shapes: Mapping[str, tuple[int, ...]],
) -> Layout:
    """Return the layout of a file with other metadata.

    Args:
        file: The old file.
        values: New values by key: integers, floats and texts.
        recipe: The text of `RECIPE_KEY`.
        shapes: The shape of the tensor that changes, by name; at most one does.
    """
    pairs = new_pairs(file, values)
    pairs.pop(RECIPE_KEY, None)
    content = MAGIC + struct.pack("<IQQ", file.version, len(file.entries), len(pairs) + 1)
    content += b"".join(pairs.values())
    descriptions, ranges = _tensors(file, shapes)
    size = len(content) + len(_pair(RECIPE_KEY, STRING, recipe)) + len(descriptions)
    recipe += b"\n" * ((file.data_start - size) % DISK_BLOCK)
    content += _pair(RECIPE_KEY, STRING, recipe) + descriptions
    content += b"\0" * (padded(len(content), file.alignment) - len(content))
    return Layout(header=content, ranges=tuple(item for item in ranges if item.size > 0))


def new_pairs(file: GgufFile, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the pairs of a file with other values, by key, as bytes."""
    pairs = {key: pair.content for key, pair in file.pairs.items()}
    for key, value in values.items():
        pairs[key] = _value_pair(file, key, value)
    return pairs


def _pair(key: str, value_type: int, content: bytes) -> bytes:
    name = key.encode()
    start = TEXT_LENGTH.pack(len(name)) + name + struct.pack("<I", value_type)
    if value_type == STRING:
        start += TEXT_LENGTH.pack(len(content))
    return start + content


def _value_pair(file: GgufFile, key: str, value: Any) -> bytes:
    """Return a pair of the type that it had, unless that is unknown or cannot hold the value.

    Then it has the type that llama.cpp reads: UINT32, FLOAT32 or STRING.
    """
    if isinstance(value, str):
        return _pair(key, STRING, value.encode())
    value_type = FLOAT32 if isinstance(value, float) else UINT32
    if key in file.pairs:
        try:
            layout = SCALAR_FORMATS[file.pairs[key].value_type]
            return _pair(key, file.pairs[key].value_type, struct.pack(layout, value))
        except (KeyError, struct.error):
            pass
    return _pair(key, value_type, struct.pack(SCALAR_FORMATS[value_type], value))


def _tensors(
    file: GgufFile, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, list[TensorRange]]:
    """Return the descriptions of all tensors, and the ranges of their bytes."""
    changes = dict[str, int]()  # in the size of tensors with their padding
    ranges = list[TensorRange]()
    start = file.data_start
    for name, shape in shapes.items():
        table = file.entries[name]
        offset = file.data_start + table.start
        # The padding may be missing at the end of the file.
        old_size = min(padded(table.size, file.alignment), file.size - offset)
        new_size = padded(table.size // table.shape[0] * shape[0], file.alignment)
        changes[name] = new_size - old_size
        ranges.append(TensorRange(name="", size=offset - start, offset=start, is_new=False))
        ranges.append(TensorRange(name=name, size=new_size, offset=None, is_new=True))
        start = offset + old_size
    ranges.append(TensorRange(name="", size=file.size - start, offset=start, is_new=False))
    descriptions = list[bytes]()
    for entry in file.entries.values():
        name = entry.name.encode()
        lengths = shapes.get(entry.name, entry.shape)[::-1]
        moved = sum(by for other, by in changes.items() if file.entries[other].start < entry.start)
        descriptions += (TEXT_LENGTH.pack(len(name)), name, struct.pack("<I", len(lengths)))
        descriptions.append(struct.pack(f"<{len(lengths)}Q", *lengths))
        type_number = file.type_numbers[entry.name]
        descriptions.append(struct.pack("<IQ", type_number, entry.start + moved))
    return b"".join(descriptions), ranges
