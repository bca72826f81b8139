"""Write the files of an output: weights are streamed, and unchanged bytes keep their place in their disk block.

File systems that share blocks share them at equal offsets modulo the block size. So the header is padded with
spaces until unchanged tensors stand where they stood modulo 4,096, and a new table takes its old place only
where the difference is whole blocks; elsewhere it goes last.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copy import (
    CHUNK,
    DISK_BLOCK,
    Written,
    check_unchanged,
    copy_file,
    copy_range,
    open_source,
    sync_file,
    write_all,
    write_file,
)
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import BITS, MAX_HEADER_BYTES, METADATA, TensorFile
from ctxextend.errors import CheckpointError


@dataclass(frozen=True)
class TensorRange:
    """A range of the new file: unchanged tensors that stand together in the old file, or one tensor.

    Attributes:
        name: The first tensor.
        size: Bytes of all its tensors.
        offset: Where the old file holds these bytes; None if they are new, or must be converted first.
        shape: The shape of a new tensor; None for unchanged ones.
    """

    name: str
    size: int
    offset: int | None
    shape: tuple[int, ...] | None = None

    @property
    def end(self) -> int | None:
        """The old file's byte after it; None where `offset` is."""
        return None if self.offset is None else self.offset + self.size


@dataclass(frozen=True)
class Layout:
    """The layout of a new file.

    Attributes:
        header: Its first bytes: length, JSON, padding.
        ranges: The tensors that follow, in the order of their bytes.
        shareable: Bytes in whole blocks that stand at the same place of a block as in the old file, which file systems
            that clone need not write.
    """

    header: bytes
    ranges: tuple[TensorRange, ...]
    shareable: int

    @property
    def tensor_bytes(self) -> int:
        """Size of its tensors in bytes."""
        return sum(piece.size for piece in self.ranges)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(self.header) + self.tensor_bytes


def plan_layout(
    file: TensorFile,
    shapes: Mapping[str, tuple[int, ...]],
    dropped: Collection[str],
    dtypes: Mapping[str, str] | None = None,
) -> Layout:
    """Lay out a file in which some tensors are replaced and others are left out.

    Args:
        file: The old file.
        shapes: The shapes of the new tensors by name.
        dropped: Names that are left out.
        dtypes: The dtypes of new tensors where they change, as safetensors spells them.

    Raises:
        CheckpointError: The header would be longer than safetensors reads.
    """
    entries = file.entries
    new = {
        name: entries[name]._replace(shape=shape, dtype=(dtypes or {}).get(name, entries[name].dtype))
        for name, shape in shapes.items()
    }
    sizes = {name: entry.size for name, entry in entries.items()}
    sizes |= {name: math.prod(entry.shape) * BITS[entry.dtype] // 8 for name, entry in new.items()}
    last = {name for name in new if (sizes[name] - entries[name].size) % DISK_BLOCK}
    kept = [entry for entry in entries.values() if entry.name not in dropped]
    kept.sort(key=lambda entry: (entry.name in last, entry.start, entry.end))

    ranges: list[TensorRange] = []
    described: dict[str, Any] = {}
    position = 0
    for name in (entry.name for entry in kept):
        offset = None if name in new else file.offset(name)
        if offset is not None and ranges and ranges[-1].end == offset:
            ranges[-1] = replace(ranges[-1], size=ranges[-1].size + sizes[name])
        else:
            ranges.append(TensorRange(name, sizes[name], offset, new[name].shape if name in new else None))
        entry, offsets = new.get(name, entries[name]), [position, position + sizes[name]]
        described[name] = {**file.header[name], "dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets}
        position += sizes[name]
    names = [name for name in file.header if name in described or name == METADATA]
    header = _padded({name: described.get(name, file.header[name]) for name in names}, ranges)
    if len(header) - 8 > MAX_HEADER_BYTES:
        limit = f"safetensors' limit of {MAX_HEADER_BYTES:,}"
        raise CheckpointError(
            f"{file.path}: its new header would be {len(header) - 8:,} bytes, over {limit}.",
            "Split the checkpoint into shards.",
        )
    return Layout(header, tuple(ranges), _shareable(ranges, len(header)))


def _padded(header: Mapping[str, Any], ranges: Sequence[TensorRange]) -> bytes:
    """Return the bytes of a header, padded so that most unchanged bytes keep their place in their disk block."""
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    shifts, position = Counter[int](), 0
    for piece in ranges:
        if piece.offset is not None:
            shifts[(piece.offset - position) % DISK_BLOCK] += piece.size
        position += piece.size
    shift = shifts.most_common(1)[0][0] if shifts else 0
    text += b" " * ((shift - 8 - len(text)) % DISK_BLOCK)
    return len(text).to_bytes(8, "little") + text


def _shareable(ranges: Sequence[TensorRange], position: int) -> int:
    """Return the bytes of whole blocks that keep their place in them, the first range going to `position`."""
    found = 0
    for piece in ranges:
        if piece.offset is not None and (position - piece.offset) % DISK_BLOCK == 0:
            first, behind = -(-piece.offset // DISK_BLOCK), (piece.offset + piece.size) // DISK_BLOCK
            found += max(behind - first, 0) * DISK_BLOCK
        position += piece.size
    return found


def rewrite(
    file: TensorFile,
    layout: Layout,
    tensors: Mapping[str, NDArray[Any]],
    destination: Path,
    written: Written = lambda count: None,
) -> None:
    """Write the file that a layout describes; only the new tensors are ever in memory.

    Args:
        file: The old file.
        layout: From `plan_layout(file, …)`.
        tensors: The new tensors by name, in their file's dtype and the layout's shapes.
        destination: Must not exist; gets the old file's permission bits and is synced to disk.
        written: Called with the bytes written since the last call.

    Raises:
        CheckpointError: The old file cannot be read, or changed since its header was read.
        OSError: Writing failed.
    """
    with open_source(file.path) as source, destination.open("xb", buffering=0) as output:
        write_all(output, memoryview(layout.header))
        written(len(layout.header))
        for piece in layout.ranges:
            if piece.offset is not None:
                copy_range(source, output, piece.offset, piece.size, written)
                continue
            if piece.shape is None:
                data = file.read_bytes(piece.name)
            else:
                tensor = tensors[piece.name]
                if (tensor.shape, tensor.nbytes) != (piece.shape, piece.size):
                    raise ValueError(f"a new tensor of shape {tensor.shape} was given, and {piece.shape} planned")
                data = np.ascontiguousarray(tensor).view(np.uint8).reshape(-1)
            for start in range(0, piece.size, CHUNK):
                write_all(output, data[start : start + CHUNK].data)
                written(min(CHUNK, piece.size - start))
        check_unchanged(file.path, file.fingerprint)
        sync_file(output, file.path.stat().st_mode)


def file_sizes(checkpoint: Checkpoint, copied: Collection[str], layouts: Mapping[str, Layout]) -> dict[str, int]:
    """Return the sizes in bytes of an output's copied and rewritten files, by path below the output.

    Args:
        checkpoint: The source.
        copied: Files of the source that are copied byte for byte.
        layouts: Of each weights file that is rewritten, by its name in the output.
    """
    sizes = {name: checkpoint.fingerprints[name][0] for name in copied}
    return sizes | {name: layout.size for name, layout in layouts.items()}


def write_rest(
    checkpoint: Checkpoint,
    folder: Path,
    copied: Collection[str],
    texts: Mapping[str, bytes],
    written: Written = lambda count: None,
) -> None:
    """Write all files but the weights, then check that the source is unchanged.

    Args:
        checkpoint: The source.
        folder: The new folder, from `atomic_folder`.
        copied: Files of the source that are copied byte for byte.
        texts: The new and edited files.
        written: Called with the bytes written since the last call.

    Raises:
        CheckpointError: The source changed since it was opened.
        OSError: Writing failed.
    """
    for name in copied:
        copy_file(checkpoint.root / name, folder / name, written)
    for name, text in texts.items():
        mode = (checkpoint.root / name).stat().st_mode if name in checkpoint.files else None
        write_file(folder / name, text, mode)
        written(len(text))
    checkpoint.check_unchanged()
