"""The command that adds the files which an output of only edited files lacks.

It uses only what POSIX requires of `cp` and `mkdir`, so that it runs on macOS and Linux. It names
each file, so that it replaces none of the edited ones.
"""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.errors import not_an_option

SHARD = r"(?P<stem>.*-)[0-9]{5}(?P<total>-of-[0-9]{5}\..*)"


def copy_command(source: Checkpoint, present: Collection[str], output: Path) -> str:
    """Return the shell command that copies all files which an output lacks.

    Args:
        source: The checkpoint with all files.
        present: The files that the output has.
        output: Its folder.
    """
    missing = sorted(source.files - set(present))
    target = not_an_option(str(output))
    folders = sorted({PurePosixPath(name).parent.as_posix() for name in missing})
    commands = list[str]()
    for folder in folders:
        names = [name for name in missing if PurePosixPath(name).parent.as_posix() == folder]
        to_folder = f"{target}/"
        if folder != ".":
            to_folder = f"{target}/{folder}/"
            commands.append(shlex.join(["mkdir", "-p", to_folder]))
        words = _words(source.root, names)
        commands.append(f"cp {' '.join(words)} {shlex.quote(to_folder)}")
    return " && ".join(commands)


def download_command(source: Checkpoint, present: Collection[str], output: Path) -> str:
    """Return the shell command that downloads all files which an output of a Hub id lacks."""
    missing = sorted(source.files - set(present))
    hub_id = source.source.hub_id or source.source.reference
    words = ["hf", "download", hub_id, *missing]
    if source.source.revision is not None:
        words += ["--revision", source.source.revision]
    return shlex.join([*words, "--local-dir", not_an_option(str(output))])


def _words(root: Path, names: Sequence[str]) -> list[str]:
    """Return shell words for files of one folder; all shards of a model are one pattern."""
    words = dict[str, None]()
    for name in names:
        path = f"{root}/{name}"
        match = re.fullmatch(SHARD, path)
        if match is None:
            words[shlex.quote(path)] = None
        else:
            word = f"{shlex.quote(match['stem'])}?????{shlex.quote(match['total'])}"
            words[word] = None
    return list(words)
