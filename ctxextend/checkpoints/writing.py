"""A whole output written beside its source: what is new, what is copied, and the checks around both."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.copying import copy_file, late_syncs, write_file
from ctxextend.checkpoints.disk import existing_above, explained
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.layout import Layout
from ctxextend.checkpoints.rewriting import room_of
from ctxextend.checkpoints.room import Extent, check_room, shortage
from ctxextend.checkpoints.staging import stage

__all__ = ["extents", "staged_output", "write_rest"]


def extents(checkpoint: Checkpoint, copied: Collection[str], layouts: Mapping[str, Layout]) -> dict[str, Extent]:
    """Return the room that an output's copied and rewritten files take.

    Args:
        checkpoint: The source.
        copied: Files of the source that are copied byte for byte.
        layouts: Of each weights file that is rewritten, by its name in the output.
    """
    files = {checkpoint.output_name(file): file for file in checkpoint.weights}
    whole = {name: Extent.of_copy(checkpoint.root / name, checkpoint.stamps[name][0]) for name in copied}
    return whole | {name: room_of(files[name], layout) for name, layout in layouts.items()}


@contextmanager
def staged_output(checkpoint: Checkpoint, output: Path, files: Mapping[str, Extent], *, force: bool) -> Iterator[Path]:
    """Give a folder to write an output in, which takes its name when the block ends.

    Args:
        checkpoint: The source.
        output: The folder wanted.
        files: Every file that will be written, by its path below it.
        force: Whether an existing checkpoint may be replaced.

    Yields:
        The folder, with the sub-folders of `files`.

    Raises:
        OutputError: The output exists, cannot be written, does not fit, or must not be replaced.
    """
    room = partial(shortage, existing_above(output), files, always=True)
    with explained(output, room), stage(output, checkpoint.guarded, force, files) as staged:
        check_room(staged.parent, files)
        for folder in {PurePosixPath(name).parent for name in files} - {PurePosixPath(".")}:
            (staged / folder).mkdir(parents=True, exist_ok=True)
        with late_syncs():
            yield staged


def write_rest(
    checkpoint: Checkpoint,
    folder: Path,
    copied: Collection[str],
    texts: Callable[[], Mapping[str, bytes]],
    progress: Callable[[int], None] = lambda written: None,
) -> None:
    """Write all but the weights, and see that the source is still what it was.

    Args:
        checkpoint: The source.
        folder: From `staged_output`.
        copied: Files of the source that are copied byte for byte.
        texts: Gives the files that are new or changed, whole; called once all others are copied.
        progress: Called with the bytes written since the last call.

    Raises:
        CheckpointError: The source changed since it was opened.
        OSError: Writing failed.
    """
    for name in copied:
        copy_file(checkpoint.root / name, folder / name, progress)
    for name, text in texts().items():
        mode = (checkpoint.root / name).stat().st_mode if name in checkpoint.files else None
        write_file(folder / name, text, mode)
        progress(len(text))
    checkpoint.check_unchanged()
