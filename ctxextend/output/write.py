"""Write an output to a temporary folder and rename it, so that it is complete or absent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ctxextend.output.gguf_output import GgufOutput
from ctxextend.output.output import Output
from ctxextend.progress import Progress, no_progress

AnyOutput = Output | GgufOutput


class Written(NamedTuple):
    """An output that was written."""

    folder: Path  # or a GGUF file
    size: int  # of all files but links, in bytes
    warnings: tuple[str, ...]  # about the new tensors


def output_path(folder: str | os.PathLike[str] | None, default: Path) -> Path:
    """Return the output folder: the given one with ``~`` expanded, or the default."""
    if folder is None:
        return default
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - never raises


def no_check(folder: Path) -> None:
    """Check nothing of an output."""


def write_output(
    output: AnyOutput,
    folder: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    check: Callable[[Path], None] = no_check,
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
    output.source.check_unchanged()
    with output.stage(path, force=force) as staged:
        size, warnings = output.fill(staged, path, progress)
        if check is not no_check:
            check(staged)
    return Written(folder=path, size=size, warnings=warnings)
