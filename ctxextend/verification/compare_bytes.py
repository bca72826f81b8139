"""Compare the bytes of tensors."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO

import numpy as np

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.safetensors_file import TensorEntry, TensorFile
from ctxextend.progress import Progress

# Bytes read at a time: two blocks stay in the CPU cache until they are compared.
COMPARED_BYTES = 1 << 18


def find_wrong_bytes(
    tensors: Sequence[tuple[TensorEntry, TensorFile]],
    resized: Checkpoint,
    threads: int,
    progress: Progress,
) -> Iterator[str]:
    """Yield the first difference of each tensor of the base, given with its file.

    `progress` is called with the bytes compared since the last call, and the total.

    Raises:
        CheckpointError: A file cannot be read.
    """
    total = sum(entry.size for entry, _ in tensors)
    pool = ThreadPoolExecutor(threads)
    try:
        found = pool.map(partial(_first_difference, resized), tensors)
        for (entry, _), byte in zip(tensors, found, strict=True):
            progress(entry.size, total)
            if byte is not None:
                element = byte * math.prod(entry.shape) // entry.size
                yield f"{entry.name} differs, first at byte {byte:,} (element {element:,})"
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for at most as many tensors as threads


def _first_difference(resized: Checkpoint, tensor: tuple[TensorEntry, TensorFile]) -> int | None:
    """Return the first byte at which a tensor differs in the resized checkpoint; None if equal."""
    entry, base = tensor
    other = resized.weights.file_of[entry.name]
    offset = base.offset(entry.name)
    other_offset = other.offset(entry.name)
    if offset is None or other_offset is None:
        # Computed in memory, or in a torch file, which can store it with other strides.
        first = base.read_bytes(entry.name)
        second = other.read_bytes(entry.name)
        if np.array_equal(first, second):
            return None
        return int((first != second).argmax())
    with (
        open_source(base.path) as base_file,
        open_source(other.path) as other_file,
        reading(f"{base.path} or {other.path}"),
    ):
        base_file.seek(offset)
        other_file.seek(other_offset)
        return first_difference_of_streams(base_file, other_file, entry.size)


def first_difference_of_streams(first: FileIO, second: FileIO, size: int) -> int | None:
    """Return the first byte at which the next `size` bytes of two files differ; None if equal."""
    for start in range(0, size, COMPARED_BYTES):
        count = min(COMPARED_BYTES, size - start)
        left = first.read(count)
        right = second.read(count)
        if left == right and left:
            continue
        for byte, (one, other) in enumerate(zip(left, right, strict=False)):
            if one != other:
                return start + byte
        return start  # a file was truncated in the meantime
    return None
