"""Write the files of an output: weights are streamed, and unchanged bytes keep their place in their disk block.

File systems that share blocks share them at equal offsets modulo the block size. So the header is padded with
spaces until unchanged tensors stand where they stood modulo 4,096, and a new table takes its old place only
where the difference is whole blocks; elsewhere it goes last.
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

from ctxextend.checkpoints.copy import CHUNK, DISK_BLOCK, Written, copy_file, copy_range, open_source, write_all
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import BITS, MAX_HEADER_BYTES, METADATA, TensorFile
from ctxextend.errors import CheckpointError

# The disk is told to begin at once with outputs up to this size, else it idles until all is written. With larger ones
# it begins by itself, and telling it takes longer than it saves.
EARLY_BYTES = 1 << 30


class TensorRange(NamedTuple):
    """A range of the new file: unchanged tensors that stand together in the old file, or one tensor."""

    name: str  # of the first tensor
    size: int  # bytes of all its tensors
    offset: int | None  # where the old file holds these bytes; None if they are new, or must be converted first
    is_new: bool


@dataclass(frozen=True)
class Layout:
    """The layout of a new file: its first bytes (length, JSON, padding), and the tensors that follow, in order."""

    header: bytes
    ranges: tuple[TensorRange, ...]

    @property
    def tensor_bytes(self) -> int:
        """Size of its tensors in bytes."""
        return sum(piece.size for piece in self.ranges)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + self.tensor_bytes

    @property
    def shareable(self) -> int:
        """Bytes in whole blocks that keep their place in a block, which file systems that clone need not write."""
        found, position = 0, len(self.header)
        for piece in self.ranges:
            if piece.offset is not None and (position - piece.offset) % DISK_BLOCK == 0:
                first, behind = -(-piece.offset // DISK_BLOCK), (piece.offset + piece.size) // DISK_BLOCK
                found += max(behind - first, 0) * DISK_BLOCK
            position += piece.size
        return found


def plan_layouts(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str] = (),
    dtypes: Mapping[str, str] | None = None,
) -> dict[str, Layout]:
    """Lay out every weights file that changes or gets another name, by its name in the output.

    Tensors of new shapes, and dtypes where they change, replace the old ones; `dropped` ones are left out.
    """
    layouts = {}
    for name, file in checkpoint.weights.items():
        new = {one: shape for one, shape in shapes.items() if one in file.entries}
        if new or name != checkpoint.relative(file) or any(one in file.entries for one in dropped):
            layouts[name] = plan_layout(file, new, dropped, dtypes or {})
    return layouts


def plan_layout(
    file: TensorFile, shapes: Mapping[str, tuple[int, ...]], dropped: Collection[str], dtypes: Mapping[str, str]
) -> Layout:
    """Lay out one file, which holds all tensors of `shapes`; see `plan_layouts`."""
    old = file.entries
    sizes = {name: math.prod(shape) * BITS[dtypes.get(name, old[name].dtype)] // 8 for name, shape in shapes.items()}
    last = {name for name, size in sizes.items() if (size - old[name].size) % DISK_BLOCK}
    kept = [entry for name, entry in old.items() if name not in dropped]
    kept.sort(key=lambda entry: (entry.name in last, entry.start, entry.end))
    ranges: list[TensorRange] = []
    described: dict[str, Any] = {}
    shifts = Counter[int]()  # bytes of unchanged tensors by how far they are off their place in a block
    position = 0
    for name, dtype, shape, start, end in kept:
        size, offset = sizes.get(name, end - start), None if name in shapes else file.offset(name)
        before = ranges[-1] if ranges else None
        if before and before.offset is not None and before.offset + before.size == offset:
            ranges[-1] = before._replace(size=before.size + size)
        else:
            ranges.append(TensorRange(name, size, offset, name in shapes))
        if offset is not None:
            shifts[(offset - position) % DISK_BLOCK] += size
        changes = {"dtype": dtypes.get(name, dtype), "shape": shapes.get(name, shape)}
        described[name] = {**file.header[name], **changes, "data_offsets": [position, position + size]}
        position += size
    header = {name: described.get(name, value) for name, value in file.header.items() if name in {METADATA, *described}}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    shift = shifts.most_common(1)[0][0] if shifts else 0
    text += b" " * ((shift - 8 - len(text)) % DISK_BLOCK)
    if len(text) > MAX_HEADER_BYTES:
        what = f"{file.path}: its new header of {len(text):,} bytes is over safetensors' limit of {MAX_HEADER_BYTES:,}"
        raise CheckpointError(f"{what}.", "Split the checkpoint into shards.")
    return Layout(len(text).to_bytes(8, "little") + text, tuple(ranges))


def rewrite(
    file: TensorFile,
    layout: Layout,
    tensor_of: Callable[[str], NDArray[Any]],
    destination: Path,
    written: Written = lambda file, count: None,
) -> None:
    """Write a file as `plan_layout` laid it out, in its old mode; `tensor_of` gives each new tensor, one at a time."""
    with open_source(file.path) as source, destination.open("xb", buffering=0) as output:
        write_all(output, memoryview(layout.header))
        written(output, len(layout.header))
        for piece in layout.ranges:
            if piece.offset is not None:
                copy_range(source, output, piece.offset, piece.size, written)
                continue
            tensor = tensor_of(piece.name) if piece.is_new else file.read_bytes(piece.name)
            data = np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data
            for start in range(0, piece.size, CHUNK):
                write_all(output, data[start : start + CHUNK])
                written(output, min(CHUNK, piece.size - start))
    destination.chmod(file.path.stat().st_mode & 0o777)


def file_sizes(checkpoint: Checkpoint, layouts: Mapping[str, Layout], texts: Mapping[str, bytes]) -> dict[str, int]:
    """Return the size in bytes of each file that `write_files` writes, by its path below the output."""
    sizes = {name: checkpoint.fingerprints[name][0] for name in checkpoint.files - layouts.keys() - texts.keys()}
    sizes |= {name: layout.size for name, layout in layouts.items()}
    return sizes | {name: len(text) for name, text in texts.items()}


def write_files(
    checkpoint: Checkpoint,
    folder: Path,
    layouts: Mapping[str, Layout],
    tensor_of: Callable[[str], NDArray[Any]],
    texts: Mapping[str, bytes],
    written: Callable[[int], None] = lambda count: None,
) -> None:
    """Write an output: weights as laid out, with new tensors from `tensor_of`, texts, copies; then check the source."""
    is_early = sum(file_sizes(checkpoint, layouts, texts).values()) <= EARLY_BYTES and hasattr(os, "posix_fadvise")

    def moved(file: BinaryIO, count: int) -> None:
        if is_early:
            with contextlib.suppress(OSError):  # a hint, which not every file system takes
                os.posix_fadvise(file.fileno(), file.tell() - count, count, os.POSIX_FADV_DONTNEED)
        written(count)

    for name, file in checkpoint.weights.items():
        if name in layouts:
            rewrite(file, layouts[name], tensor_of, folder / name, moved)
    for name in sorted(checkpoint.files - layouts.keys() - texts.keys()):
        copy_file(checkpoint.root / name, folder / name, moved)
    for name, text in texts.items():
        (folder / name).write_bytes(text)
        if name in checkpoint.files:
            (folder / name).chmod((checkpoint.root / name).stat().st_mode & 0o777)
        written(len(text))
    checkpoint.check_unchanged()
