"""Compare all tensors but tables: names, forms, buffers and bytes."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from ctxextend.checkpoint.checkpoint import Checkpoint, Weights, layer_pattern
from ctxextend.checkpoint.copy import open_source, reading
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.safetensors_file import METADATA
from ctxextend.errors import CheckpointError, counted
from ctxextend.progress import Progress
from ctxextend.settings import TRAINABLE
from ctxextend.verification.checks import Check
from ctxextend.verification.expected import Expected

# Bytes read at a time: two blocks stay in the CPU cache until they are compared.
COMPARED_BYTES = 1 << 18


def check_tensors(expected: Expected, resized: Checkpoint, progress: Progress) -> Check:
    """Compare all tensors but tables, and check position buffers.

    Of tensors that adapters changed, only name, dtype and shape are compared. `progress` is called
    with the bytes compared since the last call, and the total.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: A tensor of a conversion cannot be computed.
    """
    check = Check("tensors")
    faults = check.failures
    base = expected.base.weights
    plan = expected.plan
    if expected.trainable in ("all-but-positions", "all"):
        faults.append(
            f"{TRAINABLE[expected.trainable]} were trained according to the recipe, so not only "
            "positions differ"
        )
    if resized.weights.is_wrapped:
        faults.append("names of tensors have parts of a wrapper, which transformers does not load")
    faults += _wrong_files(expected, resized)
    same = list[str]()
    adapted = 0
    stored = resized.weights.entries
    for name in dict.fromkeys((*base.entries, *stored)):
        entry = base.entries.get(name)
        new = plan.tensors.get(name)
        if entry is not None and new is None and name not in plan.dropped:
            fault = wrong_form(resized, name, entry.dtype, entry.shape)
            is_adapted = layer_pattern(name) in expected.adapted
            adapted += is_adapted
            if fault:
                faults.append(fault)
            elif not is_adapted:
                same.append(name)
        elif new is None or not new.is_table:
            faults += _wrong_buffer(expected, resized, name)
    # One thread reads while the other compares; tensors that are computed fill memory, so one at a
    # time.
    threads = 1 if expected.conversion else 2
    faults += _wrong_bytes(same, base, resized.weights, threads, progress)
    size = sum(base.entries[name].size for name in same)
    text = f"{counted(len(same), 'tensor')} compared ({size:,} bytes)"
    if not faults:
        text += ": byte-identical"
    if adapted:
        text += f"; {adapted:,} with adapters not compared"
    check.findings.append(text)
    return check


def _wrong_files(expected: Expected, resized: Checkpoint) -> Iterator[str]:
    """Yield weights files with other metadata than the base's, and links to changed ones."""
    base = expected.base.weights
    linked = list[str]()
    for name, file in resized.weights.files.items():
        if name not in base.files:
            continue
        if file.path.samefile(base.files[name].path):
            linked.append(name)
        metadata = file.header.get(METADATA)
        stated = base.files[name].header.get(METADATA)
        if metadata != stated and name == resized.relative(file):
            yield f"{name} has __metadata__ {metadata}, expected {stated}"
    # A link is compared with itself. So the weights of the base are compared with the fingerprint
    # that the recipe records of them, where it records one.
    if linked and expected.fingerprint not in (None, base.fingerprint()):
        for name in linked:
            yield (
                f"{name} is the same file as the base's, and the base's weights are not those of "
                f"{RECIPE_FILE}: one of them was edited in place, or the base was changed before"
            )


def wrong_form(resized: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Say how a tensor differs from the expected dtype and shape; None if it does not."""
    entry = resized.weights.entries.get(name)
    if entry is None:
        return f"{name} is missing"
    if (entry.dtype, entry.shape) == (dtype, shape):
        return None
    return f"{name} is {entry.dtype} {list(entry.shape)}, expected {dtype} {list(shape)}"


def _wrong_buffer(expected: Expected, resized: Checkpoint, name: str) -> Iterator[str]:
    """Yield what is wrong with a tensor that must be a position buffer for the new length.

    One that transformers creates may be missing. The file states the dtype.
    """
    entry = resized.weights.entries.get(name)
    if entry is None:
        if name in expected.plan.tensors:
            yield f"{name} is missing"
        return
    for change in expected.plan.changes:
        buffer = change.positions.buffer(name)
        if buffer is None:
            continue
        with suppress(CheckpointError):
            tensor = change.positions.new_buffer(entry, buffer, change.max_len_after)
            content = resized.weights.file_of[name].read_bytes(name)
            if tensor.shape == entry.shape and tensor.compute().tobytes() == content.tobytes():
                return
    if name in expected.base.weights.entries:
        yield f"{name} is not the position buffer for the new length"
    else:
        yield f"{name} is not in the base"


def _wrong_bytes(
    names: list[str], base: Weights, resized: Weights, threads: int, progress: Progress
) -> Iterator[str]:
    """Yield the first difference of each tensor.

    Raises:
        CheckpointError: A file cannot be read.
    """
    total = sum(base.entries[name].size for name in names)
    pool = ThreadPoolExecutor(threads)
    try:
        differences = pool.map(partial(_first_difference, base, resized), names)
        for name, byte in zip(names, differences, strict=True):
            entry = base.entries[name]
            progress(entry.size, total)
            if byte is not None:
                element = byte * math.prod(entry.shape) // entry.size
                yield f"{name} differs, first at byte {byte:,} (element {element:,})"
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for at most as many tensors as threads


def _first_difference(base: Weights, resized: Weights, name: str) -> int | None:
    """Return the first byte at which a tensor differs; None if it does not."""
    position = 0
    for left, right in zip(_blocks(base, name), _blocks(resized, name), strict=True):
        if left != right or not left:
            for byte, (one, other) in enumerate(zip(left, right, strict=False), position):
                if one != other:
                    return byte
            return position  # a file was truncated in the meantime
        position += COMPARED_BYTES
    return None


def _blocks(weights: Weights, name: str) -> Iterator[bytes]:
    """Yield the bytes of a tensor, in safetensors' layout."""
    file = weights.file_of[name]
    offset = file.offset(name)
    starts = range(0, file.entries[name].size, COMPARED_BYTES)
    if offset is None:
        # Computed in memory, or in a torch file, which can store it with other strides.
        content = file.read_bytes(name)
        for start in starts:
            yield content[start : start + COMPARED_BYTES].tobytes()
        return
    with open_source(file.path) as opened, reading(file.path):
        opened.seek(offset)
        for start in starts:
            yield opened.read(min(COMPARED_BYTES, file.entries[name].size - start))
