"""The streaming rewrite: a new safetensors file from an old one and the tensors that changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.copying import CHUNK, Progress, copy_range, finish, open_source, write_all
from ctxextend.checkpoints.layout import Layout, Run
from ctxextend.checkpoints.room import Extent
from ctxextend.checkpoints.tensorfile import TensorFile, check_unchanged

if TYPE_CHECKING:
    from ctxextend.checkpoints.torchfile import TorchFile
    from ctxextend.checkpoints.weights import WeightsFile

__all__ = ["rewrite", "room_of"]


def rewrite(
    file: "WeightsFile",
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
        for run in layout.runs:
            if run.shape is not None:
                _write_tensor(output, run, tensors[_name(file, run)], progress)
            elif isinstance(file, TensorFile):
                copy_range(source, output, file.data_start + run.start, run.size, progress)
            else:
                _write_run(source, output, file, run, progress)
        check_unchanged(file)
        finish(output, file.path.stat().st_mode)


def room_of(file: "WeightsFile", layout: Layout) -> Extent:
    """Return the room that a rewritten file takes; of a torch file nothing stands in it as it stood."""
    if isinstance(file, TensorFile):
        return Extent(layout.size, layout.shareable, file.path)
    return Extent(layout.size)


def _name(file: "WeightsFile", run: Run) -> str:
    return file.entries.entry(int(run.numbers[0])).name


def _write_run(source: BinaryIO, output: BinaryIO, file: "TorchFile", run: Run, progress: Progress) -> None:
    """Write a stretch of unchanged tensors one by one: a torch file has them in no order that could be copied."""
    from ctxextend.checkpoints.torchfile import place_in, tensor_bytes

    for number in run.numbers:
        entry = file.entries.entry(int(number))
        place = place_in(file, entry.name)
        if place is not None:
            copy_range(source, output, place, entry.size, progress)
            continue
        data = tensor_bytes(file, entry.name)
        for start in range(0, len(data), CHUNK):
            write_all(output, data[start : start + CHUNK].data)
            progress(len(data[start : start + CHUNK]))


def _write_tensor(output: BinaryIO, run: Run, tensor: NDArray[Any], progress: Progress) -> None:
    if (tensor.shape, tensor.nbytes) != (run.shape, run.size):
        raise ValueError(f"a new tensor of shape {tensor.shape} was given, and {run.shape} planned")
    write_all(output, np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    progress(run.size)
