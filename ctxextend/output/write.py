"""Write an output to a temporary folder and rename it, so that it is complete or absent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ctxextend.checkpoints.atomic_output import atomic_folder, check_output
from ctxextend.checkpoints.folder import protected_paths
from ctxextend.checkpoints.rewrite import write_files
from ctxextend.output.gguf_output import GgufOutput, check_gguf_output, write_gguf_output
from ctxextend.output.output import Output
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE

AnyOutput = Output | GgufOutput


class Written(NamedTuple):
    """An output that was written."""

    folder: Path  # or a GGUF file
    size: int  # of all files, in bytes
    warnings: tuple[str, ...]  # about the new tensors


def output_path(folder: str | os.PathLike[str] | None, default: Path) -> Path:
    """Return the output folder: the given one with ``~`` expanded, or the default."""
    if folder is None:
        return default
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - never raises


def check_writable(
    output: AnyOutput, folder: str | os.PathLike[str] | None = None, *, force: bool = False
) -> None:
    """Check that `write_output` can write to a folder, without writing anything.

    Raises:
        OutputError: It exists, cannot be written or replaced, or there is too little disk space.
    """
    path = output_path(folder, output.default_folder)
    if isinstance(output, GgufOutput):
        check_gguf_output(output, path, force=force)
        return
    check_output(path, protected_paths(output.source), output.file_sizes, force=force)


def write_output(
    output: AnyOutput,
    folder: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    check: Callable[[Path], None] = lambda staged: None,
) -> Written:
    """Write an output; resize, convert and train all do it here.

    Args:
        output: What to write.
        folder: Where. Defaults to the output's default folder.
        force: Replace an existing checkpoint folder, once the new one is complete.
        progress: Called with the bytes written since the last call and the total.
        check: Called with the complete temporary folder before it is renamed; if it raises,
            nothing is written.

    Raises:
        OutputError: The output exists, cannot be written or replaced, or there is too little disk
            space.
        CheckpointError: The source cannot be read, or changed after it was planned.
        ResizeError: A new table does not fit in memory.
    """
    path = output_path(folder, output.default_folder)
    if isinstance(output, GgufOutput):
        size, warnings = write_gguf_output(
            output, path, force=force, progress=progress, check=check
        )
        return Written(folder=path, size=size, warnings=warnings)
    output.source.check_unchanged()
    sizes = output.sizes_in(path)
    total = sum(sizes.values())
    with atomic_folder(path, protected_paths(output.source), sizes, force=force) as staged:
        new = output.compute(path)
        texts = {**output.texts, RECIPE_FILE: new.recipe}
        write_files(
            output.source,
            staged,
            output.layouts,
            new.tensor,
            texts,
            lambda count: progress(count, total),
        )
        size = sum((staged / name).stat().st_size for name in sizes)
        check(staged)
    return Written(folder=path, size=size, warnings=new.warnings)
