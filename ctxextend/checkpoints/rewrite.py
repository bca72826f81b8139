"""Write the files of an output: stream the weights, and keep unchanged bytes at the same offset in
their disk block.

Reflinks need equal offsets modulo the block size. So the header is padded with spaces until
unchanged tensors are aligned as before, modulo 4,096 bytes. A new table whose size does not change
by whole blocks is moved to the end.
"""

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import (
    CHUNK,
    DISK_BLOCK,
    OnWrite,
    copy_file,
    copy_range,
    open_source,
    write_all,
)
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import BITS, MAX_HEADER_BYTES, METADATA, TensorFile
from ctxextend.errors import CheckpointError

# Up to this size, start write-back with each write: otherwise the disk idles until the final sync.
# The kernel starts it for larger outputs, where the calls cost more than they save.
EARLY_BYTES = 1 << 30


class TensorRange(NamedTuple):
    """A byte range of the new file: unchanged tensors that are contiguous in the old file, or one
    tensor.
    """

    name: str  # of the first tensor
    size: int  # bytes of all its tensors
    offset: int | None  # of these bytes in the old file; None if they are new or must be converted
    is_new: bool


@dataclass(frozen=True)
class Layout:
    """The layout of a new file: the header (length, JSON, padding) and the tensor ranges after it,
    in order.
    """

    header: bytes
    ranges: tuple[TensorRange, ...]

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensors.size for tensors in self.ranges)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + self.tensor_bytes

    @property
    def shareable(self) -> int:
        """Bytes in whole, equally aligned blocks, which file systems with reflinks share instead of
        writing them.
        """
        total = 0
        position = len(self.header)
        for tensors in self.ranges:
            if tensors.offset is not None and (position - tensors.offset) % DISK_BLOCK == 0:
                start = -(-tensors.offset // DISK_BLOCK)
                end = (tensors.offset + tensors.size) // DISK_BLOCK
                total += max(end - start, 0) * DISK_BLOCK
            position += tensors.size
        return total


def plan_layouts(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, Layout]:
    """Return the layout of every weights file that changes or is renamed, by its name in the
    output.

    `shapes` and `dtypes` are those of changed tensors, by name; `dropped` tensors are omitted.
    """
    layouts = {}
    for name, file in checkpoint.weights.files.items():
        new = {tensor: shape for tensor, shape in shapes.items() if tensor in file.entries}
        is_computed = any(file.offset(tensor) is None for tensor in file.entries)
        is_renamed = bool(file.stored_names) or name != checkpoint.relative(file)
        if new or is_computed or is_renamed or any(tensor in file.entries for tensor in dropped):
            layouts[name] = plan_layout(file, new, dropped, dtypes or {})
    return layouts


def plan_layout(
    file: TensorFile,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str],
) -> Layout:
    """Return the layout of one file that contains all tensors of `shapes`; see `plan_layouts`."""
    old = file.entries
    sizes = {
        name: math.prod(shape) * BITS[dtypes.get(name, old[name].dtype)] // 8
        for name, shape in shapes.items()
    }
    moved = {name for name, size in sizes.items() if (size - old[name].size) % DISK_BLOCK}
    kept = [entry for name, entry in old.items() if name not in dropped]
    kept.sort(key=lambda entry: (entry.name in moved, entry.start, entry.end))
    ranges: list[TensorRange] = []
    described: dict[str, Any] = {}
    shifts = Counter[int]()  # bytes of unchanged tensors, by their shift within a block
    position = 0
    for name, dtype, shape, start, end in kept:
        size = sizes.get(name, end - start)
        offset = None if name in shapes else file.offset(name)
        previous = ranges[-1] if ranges else None
        if previous and previous.offset is not None and previous.offset + previous.size == offset:
            ranges[-1] = previous._replace(size=previous.size + size)
        else:
            ranges.append(TensorRange(name, size, offset, name in shapes))
        if offset is not None:
            shifts[(offset - position) % DISK_BLOCK] += size
        changes = {"dtype": dtypes.get(name, dtype), "shape": shapes.get(name, shape)}
        described[name] = {
            **file.header[name],
            **changes,
            "data_offsets": [position, position + size],
        }
        position += size
    written = {METADATA, *described}
    header = {
        name: described.get(name, value) for name, value in file.header.items() if name in written
    }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (((shifts.most_common(1)[0][0] if shifts else 0) - 8 - len(text)) % DISK_BLOCK)
    if len(text) > MAX_HEADER_BYTES:
        message = (
            f"{file.path}: the new header of {len(text):,} bytes exceeds the limit of "
            f"{MAX_HEADER_BYTES:,}."
        )
        raise CheckpointError(message, "Split the checkpoint into shards.")
    return Layout(len(text).to_bytes(8, "little") + text, tuple(ranges))


def rewrite(
    file: TensorFile,
    layout: Layout,
    tensor_of: Callable[[str], NDArray[Any]],
    destination: Path,
    on_write: OnWrite,
) -> None:
    """Write a file in a layout and with its old mode; `tensor_of` is called once per new tensor and
    returns it.
    """
    with open_source(file.path) as source, destination.open("xb", buffering=0) as output:
        write_all(output, memoryview(layout.header))
        on_write(output, len(layout.header))
        for name, size, offset, is_new in layout.ranges:
            if offset is not None:
                copy_range(source, output, offset, size, on_write)
                continue
            tensor = tensor_of(name) if is_new else file.read_bytes(name)
            data = np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data
            for start in range(0, size, CHUNK):
                write_all(output, data[start : start + CHUNK])
                on_write(output, min(CHUNK, size - start))
    destination.chmod(file.path.stat().st_mode & 0o777)


def file_sizes(
    checkpoint: Checkpoint, layouts: Mapping[str, Layout], texts: Mapping[str, bytes]
) -> dict[str, int]:
    """Return the size in bytes of each file that `write_files` writes, by its path relative to the
    output.
    """
    sizes = {
        name: checkpoint.fingerprints[name][0]
        for name in checkpoint.files - layouts.keys() - texts.keys()
    }
    sizes |= {name: layout.size for name, layout in layouts.items()}
    return sizes | {name: len(text) for name, text in texts.items()}


def write_files(
    checkpoint: Checkpoint,
    folder: Path,
    layouts: Mapping[str, Layout],
    tensor_of: Callable[[str], NDArray[Any]],
    texts: Mapping[str, bytes],
    on_write: Callable[[int], None] = lambda count: None,
) -> None:
    """Write weights in their layouts, with new tensors from `tensor_of`, copies and texts; then
    check the source.
    """
    is_early = sum(file_sizes(checkpoint, layouts, texts).values()) <= EARLY_BYTES and hasattr(
        os, "posix_fadvise"
    )

    def written(file: BinaryIO, count: int) -> None:
        if is_early:
            with contextlib.suppress(OSError):  # only a hint, which some file systems reject
                os.posix_fadvise(file.fileno(), file.tell() - count, count, os.POSIX_FADV_DONTNEED)
        on_write(count)

    for name, file in checkpoint.weights.files.items():
        if name in layouts:
            rewrite(file, layouts[name], tensor_of, folder / name, written)
    for name in sorted(checkpoint.files - layouts.keys() - texts.keys()):
        copy_file(checkpoint.root / name, folder / name, written)
    for name, text in texts.items():
        (folder / name).write_bytes(text)
        if name in checkpoint.files:
            (folder / name).chmod((checkpoint.root / name).stat().st_mode & 0o777)
        on_write(len(text))
    checkpoint.check_unchanged()
