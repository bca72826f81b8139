"""Write the files of an output: stream the weights, and keep unchanged bytes aligned.

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
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoint.copy import (
    CHUNK,
    DISK_BLOCK,
    OnWrite,
    copy_range,
    open_source,
    write_all,
)
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.safetensors_file import BITS, MAX_HEADER_BYTES, METADATA, TensorFile
from ctxextend.errors import CheckpointError

# Up to this size, start write-back with each write: otherwise the disk idles until the final sync.
# The kernel starts it for larger outputs, where the calls cost more than they save.
EARLY_BYTES = 1 << 30


class TensorRange(NamedTuple):
    """A byte range of the new file: one tensor, or unchanged ones that follow in the old file."""

    name: str  # of the first tensor
    size: int  # bytes of all its tensors
    offset: int | None  # of these bytes in the old file; None if they are new or must be converted
    is_new: bool


class Layout(NamedTuple):
    """The layout of a new file."""

    header: bytes  # its length, JSON and padding
    ranges: tuple[TensorRange, ...]  # after the header, in order

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensors.size for tensors in self.ranges)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + sum(tensors.size for tensors in self.ranges)

    @property
    def shareable(self) -> int:
        """Bytes in whole, equally aligned blocks, which file systems with reflinks share."""
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
    """Return the layout of every weights file that changes or is renamed, by its new name.

    Args:
        checkpoint: The source.
        shapes: Those of changed tensors, by name.
        dropped: Names of tensors to omit.
        dtypes: Those of changed tensors, in safetensors' spelling, by name; else they stay.

    Raises:
        CheckpointError: A new header is too long.
    """
    layouts = dict[str, Layout]()
    for name, file in checkpoint.weights.files.items():
        new = {tensor: shape for tensor, shape in shapes.items() if tensor in file.entries}
        is_computed = any(file.offset(tensor) is None for tensor in file.entries)
        is_renamed = any(stored != tensor for stored, tensor in file.names.items())
        is_renamed = is_renamed or name != checkpoint.relative(file)
        drops = any(tensor in file.entries for tensor in dropped)
        if new or is_computed or is_renamed or drops:
            layouts[name] = plan_layout(file, new, dropped, dtypes or {})
    return layouts


def plan_layout(
    file: TensorFile,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str],
) -> Layout:
    """Return the layout of one file that contains all tensors of `shapes`; see `plan_layouts`.

    Raises:
        CheckpointError: The new header is too long.
    """
    entries = [entry for name, entry in file.entries.items() if name not in dropped]
    sizes = {entry.name: entry.size for entry in entries}
    for name, shape in shapes.items():
        dtype = dtypes.get(name, file.entries[name].dtype)
        sizes[name] = math.prod(shape) * BITS[dtype] // 8
    moved = {name for name in shapes if (sizes[name] - file.entries[name].size) % DISK_BLOCK}
    entries.sort(key=lambda entry: (entry.name in moved, entry.start, entry.end))
    ranges = list[TensorRange]()
    described = dict[str, Any]()
    shifts = Counter[int]()  # bytes of unchanged tensors, by their shift within a block
    position = 0
    for entry in entries:
        name = entry.name
        size = sizes[name]
        offset = None if name in shapes else file.offset(name)
        last = ranges[-1] if ranges else None
        if last and last.offset is not None and last.offset + last.size == offset:
            # It continues the last range in the old file.
            ranges[-1] = last._replace(size=last.size + size)
        else:
            ranges.append(TensorRange(name, size, offset, is_new=name in shapes))
        if offset is not None:
            shifts[(offset - position) % DISK_BLOCK] += size
        described[name] = {
            **file.header[name],
            "dtype": dtypes.get(name, entry.dtype),
            "shape": shapes.get(name, entry.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    shift = 0
    if shifts:
        [(shift, _)] = shifts.most_common(1)
    return Layout(_header(file, described, shift), tuple(ranges))


def _header(file: TensorFile, described: Mapping[str, Any], shift: int) -> bytes:
    header = dict[str, Any]()
    for name, value in file.header.items():
        if name == METADATA:
            header[name] = value
        elif name in described:
            header[name] = described[name]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * ((shift - 8 - len(text)) % DISK_BLOCK)
    if len(text) > MAX_HEADER_BYTES:
        header_size = f"the new header of {len(text):,} bytes"
        message = f"{file.path}: {header_size} exceeds the limit of {MAX_HEADER_BYTES:,}."
        raise CheckpointError(message, "Split the checkpoint into shards.")
    return len(text).to_bytes(8, "little") + text


def write_layout(
    file: TensorFile,
    source: FileIO,
    layout: Layout,
    tensor_of: Callable[[str], NDArray[Any]],
    output: BinaryIO,
    on_write: OnWrite,
) -> None:
    """Write a header and tensors to an open file.

    Args:
        file: The old file.
        source: The same, open for reading.
        layout: The layout of the new one.
        tensor_of: Is called once per new tensor, by name, and returns it.
        output: The new file, open for writing and empty.
        on_write: Is called after each write.

    Raises:
        CheckpointError: The old file cannot be read.
        OSError: The new file cannot be written.
    """
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


def planned_sizes(
    checkpoint: Checkpoint, layouts: Mapping[str, Layout], texts: Mapping[str, bytes]
) -> dict[str, int]:
    """Return the size in bytes of each file that `write_files` writes, by name in the output."""
    sizes = {
        name: checkpoint.fingerprints[name].size
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
    linked: Collection[str] = (),
) -> None:
    """Write all files of an output, then check that the source did not change.

    Args:
        checkpoint: The source.
        folder: The new folder, which exists.
        layouts: Of weights files that change, by name; others are copied.
        tensor_of: Returns each new tensor by name.
        texts: The content of other new or changed files, by name.
        on_write: Is called with the number of bytes after each write.
        linked: Files that the folder has already.

    Raises:
        CheckpointError: A source file cannot be read, or changed.
        OSError: A file cannot be written.
    """
    sizes = planned_sizes(checkpoint, layouts, texts)
    total = sum(size for name, size in sizes.items() if name not in linked)
    is_early = total <= EARLY_BYTES and hasattr(os, "posix_fadvise")

    def written(file: BinaryIO, count: int) -> None:
        if is_early:
            with contextlib.suppress(OSError):  # only a hint, which some file systems reject
                os.posix_fadvise(file.fileno(), file.tell() - count, count, os.POSIX_FADV_DONTNEED)
        on_write(count)

    for name, file in checkpoint.weights.files.items():
        if name in layouts:
            new = folder / name
            with open_source(file.path) as source, new.open("xb", buffering=0) as output:
                write_layout(file, source, layouts[name], tensor_of, output, written)
            new.chmod(file.path.stat().st_mode & 0o777)
    for name in sorted(checkpoint.files - layouts.keys() - texts.keys() - set(linked)):
        new = folder / name
        with open_source(checkpoint.root / name) as source, new.open("xb", buffering=0) as output:
            status = os.fstat(source.fileno())
            copy_range(source, output, 0, status.st_size, written)
        new.chmod(status.st_mode & 0o777)
    for name, text in texts.items():
        (folder / name).write_bytes(text)
        if name in checkpoint.files:
            (folder / name).chmod((checkpoint.root / name).stat().st_mode & 0o777)
        on_write(len(text))
    checkpoint.check_unchanged()
