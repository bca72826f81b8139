"""The streaming rewrite: a new safetensors file from an old one and the tensors that changed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copying import CHUNK, Progress, copy_range, finish, open_source, write_all
from ctxextend.checkpoints.layout import Layout, Placement
from ctxextend.checkpoints.tensorfile import TensorFile, check_unchanged
from ctxextend.checkpoints.torchfile import TorchFile, tensor_bytes

__all__ = ["rewrite"]


def rewrite(
    file: TensorFile | TorchFile,
    layout: Layout,
    tensors: Mapping[str, NDArray[Any]],
    destination: Path,
    progress: Progress = lambda moved: None,
) -> None:
    """Write the file that a layout describes; only the new tensors are ever in memory.

    Args:
        file: The old file.
        layout: From `plan_layout(file, …)`.
        tensors: The new tensors by name, in their file's dtype and the layout's shapes.
        destination: Must not exist; gets the old file's permission bits and is synced to the disk.
        progress: Called with the bytes written since the last call.

    Raises:
        CheckpointError: The old file cannot be read, or changed since its header was read.
        OSError: Writing failed.
    """
    with open_source(file.path) as source, destination.open("xb", buffering=0) as output:
        write_all(output, memoryview(layout.header))
        progress(len(layout.header))
        for first, last in _runs(layout.placements):
            if first.is_new:
                _write_tensor(output, first, tensors[first.entry.name], progress)
            elif isinstance(file, TorchFile):
                _write_run(output, file, layout.placements, (first, last), progress)
            else:
                start = file.data_start + first.entry.start
                copy_range(source, output, start, last.entry.end - first.entry.start, progress)
        check_unchanged(file)
        finish(output, file.path.stat().st_mode)


def _runs(placements: tuple[Placement, ...]) -> Iterator[tuple[Placement, Placement]]:
    """Yield the first and last tensor of every stretch that moves as one; a new tensor is one of its own."""
    first = last = None
    for placement in placements:
        if last and not placement.is_new and not last.is_new and placement.shift == last.shift:
            last = placement
            continue
        if first and last:
            yield first, last
        first = last = placement
    if first and last:
        yield first, last


def _write_run(
    output: BinaryIO,
    file: TorchFile,
    placements: tuple[Placement, ...],
    run: tuple[Placement, Placement],
    progress: Progress,
) -> None:
    """Write a stretch of unchanged tensors one by one: a torch file has them in no order that could be copied."""
    for placement in placements[placements.index(run[0]) : placements.index(run[1]) + 1]:
        data = tensor_bytes(file, placement.entry.name)
        for start in range(0, len(data), CHUNK):
            write_all(output, data[start : start + CHUNK].data)
            progress(len(data[start : start + CHUNK]))


def _write_tensor(output: BinaryIO, placement: Placement, tensor: NDArray[Any], progress: Progress) -> None:
    if (tensor.shape, tensor.nbytes) != (placement.shape, placement.size):
        raise ValueError(f"{placement.entry.name}: {tensor.shape} given, {placement.shape} planned")
    write_all(output, np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    progress(placement.size)
