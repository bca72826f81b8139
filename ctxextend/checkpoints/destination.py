"""Where an output may go, and what it may replace."""

import errno
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from ctxextend.checkpoints.disk import walk
from ctxextend.checkpoints.filenames import is_known
from ctxextend.errors import OutputError

__all__ = ["MARKS", "check_output", "check_replaceable", "resolved"]

# Files that only a checkpoint's folder holds.
MARKS = ("config.json", "modules.json", "adapter_config.json", "ctxextend.yaml")
WEIGHTS = (
    "adapter_model.safetensors",
    "model*.safetensors",
    "*/model*.safetensors",
    "pytorch_model*.bin",
    "*/pytorch_model*.bin",
)


def check_output(output: Path, source: Path, force: bool, written: Collection[str]) -> None:
    """Refuse an output that cannot or must not be written, before any byte is.

    Args:
        output: The folder wanted.
        source: The checkpoint's own folder.
        force: Whether an existing checkpoint may be replaced.
        written: Files that the run will write, below the output; what an output may hold and still be replaced.

    Raises:
        OutputError: What stands there, and what to type instead.
        OSError: As the system gives it, where a place cannot be looked at.
    """
    output, source = resolved(output), source.resolve()
    _check_apart(output, source)
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    if _same(output, home) or _same(output, Path(output.anchor)):
        raise OutputError(f"{output} is not a folder that a checkpoint may replace.", f"Use -o {output / 'NAME'}.")
    above = next(path for path in output.parents if path.exists())
    if not above.is_dir():
        raise OutputError(f"The output {output} cannot be in {above}, which is a file.", "Choose another -o.")
    if not output.exists():
        return
    if not output.is_dir():
        raise OutputError(f"The output {output} is a file.", "Choose another name with -o.")
    if _is_mount(output):
        raise OutputError(
            f"The output {output} is a mount point, which cannot be renamed.",
            f"Use a folder in it: -o {output / 'NAME'}.",
        )
    if _same(output, Path()):
        raise OutputError(f"The output {output} is the current folder.", "Name a folder in it with -o NAME.")
    check_replaceable(output, force, written)
    _check_links(output, source)


def check_replaceable(output: Path, force: bool, written: Collection[str]) -> None:
    """Refuse to replace an existing folder that is not empty, unless forced, and then if it is no checkpoint alone.

    Raises:
        OutputError: What stands there, and what to do.
        OSError: A folder in it cannot be looked at.
    """
    if not any(output.iterdir()):
        return
    if not force:
        raise OutputError(f"The output {output} exists.", "Replace it with --force, or choose another name with -o.")
    has_config = any((output / name).is_file() for name in MARKS)
    if not has_config or not any(any(output.glob(pattern)) for pattern in WEIGHTS):
        raise OutputError(f"{output} is not a checkpoint folder, so --force does not replace it.", "Choose another -o.")
    strange = next((name for name in _files(output) if not (name in written or is_known(PurePosixPath(name)))), None)
    if strange:
        raise OutputError(
            f"{output} holds {strange}, which no checkpoint that is made here holds: --force does not replace it.",
            "Move that away, or choose another name with -o.",
        )


def resolved(output: Path) -> Path:
    """Return the output's path without links.

    Raises:
        OSError: Its links lead in a circle.
    """
    try:
        return output.resolve()
    except RuntimeError as error:  # before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error


def _check_apart(output: Path, source: Path) -> None:
    """Compare folders, not names: one folder has several where mounts are bound or case does not count."""
    if _same(output, source):
        raise OutputError(f"The output {output} is the source itself.", "Choose another folder with -o.")
    if any(_same(folder, source) for folder in output.parents):
        raise OutputError(f"The output {output} lies inside the source {source}.", "Choose a folder outside with -o.")
    if any(_same(folder, output) for folder in source.parents):
        raise OutputError(f"The source {source} lies inside the output {output}.", "Choose another folder with -o.")


def _check_links(output: Path, source: Path) -> None:
    for folder, _, files in walk(source) if source.is_dir() else ():
        for path in (Path(folder) / name for name in files):
            if path.is_symlink() and output in path.resolve().parents:
                raise OutputError(
                    f"The source's {path.name} is a link into the output {output}.", "Choose another folder with -o."
                )


def _same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:  # one is not there, or is a place, like another user's home, that this user may not look at
        return False


def _is_mount(folder: Path) -> bool:
    if folder.is_mount():
        return True
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return False
    # A folder of the same disk that is bound here shows in no other way; spaces stand as \040.
    points = (line.split(" ")[4] for line in mounts.read_text(errors="surrogateescape").splitlines())
    return os.fspath(folder) in (re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point) for point in points)


def _files(folder: Path) -> Iterator[str]:
    """Yield every file below a folder, and every folder in it that is empty or a link."""
    for here, folders, files in walk(folder):
        path = Path(here).relative_to(folder)
        links = [name for name in folders if (Path(here) / name).is_symlink()]
        yield from ((path / name).as_posix() for name in sorted([*files, *links]))
        if not folders and not files:
            yield path.as_posix()
