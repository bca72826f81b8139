"""Find exports in the files of a folder, and say how to make them again."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ctxextend.checkpoints import filenames
from ctxextend.checkpoints.copy import open_source
from ctxextend.checkpoints.export_formats import (
    EXPORT_FORMATS,
    EXPORT_TASKS,
    UNKNOWN_TASK,
    ExportFormat,
    ExportTask,
)
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import HUB_ID, points_outside
from ctxextend.errors import CheckpointError, joined

PYTORCH_SUFFIX = ".bin"  # which other programs use too
HEAD_BYTES = 1 << 16  # bytes at the start of a file that are searched
MAX_LISTED_EXPORTS = 3
BASE = "BASE"  # in commands, if nothing names the base checkpoint
RESIZED = "longer"  # the folder of the resized base in commands
# In the model card: the checkpoint that a model was made from, as a text or the first of a list.
BASE_MODEL_LINE = rf"^base_model:\s*(?:-\s+)?[\"']?({HUB_ID})[\"']?\s*$"
# In a GGUF file: the keys of what it was made from, and of what that was made from. gguf-py writes
# the latter from the model card: `SOURCE_REPO_URL` and `BASE_MODEL_REPO_URL` in gguf/constants.py.
GGUF_BASES = (rb"general\.source\.repo_url", rb"general\.base_model\.0\.repo_url")
GGUF_TEXT = rb"\x08\0\0\0(?P<length>.{8})"  # after a key: the type of a text, and its length
HUB = "https://huggingface.co/"


def find_format(folder: Path, name: str) -> ExportFormat | None:
    """Return the format of a file by its name, or its first bytes; None for other files.

    Args:
        folder: The folder.
        name: The file, relative to it; it need not exist.
    """
    path = PurePosixPath(name)
    for row in EXPORT_FORMATS:
        if filenames.first_match(path, row.files) is not None:
            return row
    if path.suffix != PYTORCH_SUFFIX:
        return None
    head = _read_head(folder, name)
    for row in EXPORT_FORMATS:
        if row.start is not None and re.match(row.start, head, re.DOTALL):
            return row
    return None


def find_exports(folder: Path, names: Iterable[str]) -> dict[ExportFormat, list[str]]:
    """Return the exports among the files of a folder, by format."""
    found = dict[ExportFormat, list[str]]()
    for name in names:
        row = find_format(folder, name)
        if row is not None:
            found.setdefault(row, []).append(name)
    return found


def skipped_exports(omitted: Mapping[str, str]) -> dict[ExportFormat, list[str]]:
    """Return the exports among skipped files, by format.

    Args:
        omitted: The skipped files, each with the reason.
    """
    rows = {row.reason: row for row in EXPORT_FORMATS}
    found = dict[ExportFormat, list[str]]()
    for name, reason in omitted.items():
        if reason in rows:
            found.setdefault(rows[reason], []).append(name)
    return found


def commands_again(row: ExportFormat, folder: str, model_class: str | None) -> str:
    """Return the commands that make an export from a checkpoint, and how to get the programs.

    Args:
        row: The format.
        folder: The checkpoint.
        model_class: Its class in transformers, if known.
    """
    task = _task_of(model_class)
    values = {
        "folder": folder,
        "weights": f"{folder}/{filenames.SINGLE_FILE}",
        "output": f"{folder}-{row.ending}",
        "model_class": model_class or "AutoModel",
        "task": task.name,
        "cached_task": cached_task(model_class),
    }
    for name in ("folder", "weights", "output"):
        values[f"{name}_text"] = json.dumps(values[name], ensure_ascii=False)
    commands = list[str]()
    for words in row.commands:
        commands.append(shlex.join(word.format(**values) for word in words))
    return f"{', then '.join(commands)} ({row.install})"


def cached_task(model_class: str | None) -> str:
    """Return the task of Optimum for a class in transformers, of generating models with a cache."""
    task = _task_of(model_class)
    if task.is_cached:
        return f"{task.name}-with-past"
    return task.name


def _task_of(model_class: str | None) -> ExportTask:
    """Return the task of a class of transformers."""
    for row in EXPORT_TASKS:
        if model_class is not None and model_class.endswith(row.classes):
            return row
    return UNKNOWN_TASK


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:MAX_LISTED_EXPORTS])
    more = len(names) - MAX_LISTED_EXPORTS
    return f"{text} and {more} more" if more > 0 else text


def only_exports_error(
    folder: Path,
    exports: Mapping[ExportFormat, Sequence[str]],
    model_class: str | None,
    hub_id: str | None = None,
) -> CheckpointError:
    """Return the error for a folder whose only weights are exports.

    Args:
        folder: The folder.
        exports: Its exports.
        model_class: The transformers class in its config, if any.
        hub_id: Its name on the Hub, if it is from there.
    """
    kinds = list[str]()
    for row, names in exports.items():
        kind = row.kind
        if row.plural and len(names) > 1:
            kind = row.plural
        kinds.append(f"{kind} ({listed(names)})")
    message = f"{folder} has no weights of transformers, only {joined(kinds)}."
    files = [folder / name for names in exports.values() for name in names]
    hints = list[str]()
    for row, names in exports.items():
        if row.readers:
            hints.append(_pass_file(row, folder, names[0], hub_id))
    hints.append(base_hint(exports, folder, files, model_class))
    return CheckpointError(message, " ".join(hints))


def _pass_file(row: ExportFormat, folder: Path, name: str, hub_id: str | None) -> str:
    """Say how to use an export that some commands read."""
    use = row.readers.replace(" and", " or")
    if (folder / name).exists():
        return f"To {use} it as it is, pass the file: {shlex.quote(str(folder / name))}."
    if hub_id is None:
        return f"To {use} it as it is, pass the file."
    command = shlex.join(["hf", "download", hub_id, name, "--local-dir", "."])
    return f"To {use} it as it is, download the file and pass it: {command}."


def file_error(
    reference: str, path: Path, row: ExportFormat, model_class: str | None
) -> CheckpointError:
    """Return the error for a file of an export that was passed instead of a checkpoint.

    Args:
        reference: What the user typed.
        path: The file.
        row: Its format.
        model_class: The transformers class in the config next to it, if any.
    """
    if row.readers:
        message = f"{reference} is {row.kind}, which only {row.readers} read."
        base = _named_base(path.parent, (path,))
        hint = "Pass the checkpoint of transformers that it was made from: a folder or a Hub id."
        if base is not None:
            hint = f"Pass the checkpoint of transformers that it was made from: {base}"
        return CheckpointError(message, hint)
    message = f"{reference} is {row.kind}, which ctxextend does not read."
    return CheckpointError(message, base_hint((row,), path.parent, (path,), model_class))


def base_hint(
    rows: Iterable[ExportFormat], folder: Path, files: Sequence[Path], model_class: str | None
) -> str:
    """Say how to resize the base of exports, and to make them again.

    Args:
        rows: Their formats.
        folder: Their folder.
        files: Those files that may name the base.
        model_class: Its class in transformers, if known.
    """
    base = _named_base(folder, files)
    resize = shlex.join(["ctxextend", "resize", base or BASE, "--to", "N", "--output", RESIZED])
    exports = [commands_again(row, RESIZED, model_class) for row in rows]
    steps = ", then ".join((resize, *exports))
    return f"Resize the checkpoint that it was made from, and export that again: {steps}"


def _named_base(folder: Path, files: Sequence[Path]) -> str | None:
    """Return the Hub id of the checkpoint that exports were made from; None if nothing names it.

    It is in the config, in the model card, or in a GGUF file. The text is untrusted.
    """
    candidates = list[str]()
    with suppress(CheckpointError):  # no config, or an unreadable one
        candidates.append(str(load_inside(folder, "config.json").get("_name_or_path")))
    card = _read_head(folder, "README.md").decode(errors="replace")
    match = re.search(BASE_MODEL_LINE, card, re.MULTILINE)
    if match is not None:
        candidates.append(match[1])
    for path in files:
        if path.suffix == filenames.GGUF_SUFFIX:
            candidates += _bases_of_gguf(_read_head(path.parent, path.name))
    for name in candidates:
        # Names without an owner may be folders of the program that saved the file.
        if "/" in name and re.fullmatch(HUB_ID, name):
            return name
    return None


def _bases_of_gguf(head: bytes) -> Iterator[str]:
    """Yield the Hub ids of the checkpoints that a GGUF file says it was made from.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
    """
    for key in GGUF_BASES:
        match = re.search(key + GGUF_TEXT, head, re.DOTALL)
        if match is None:
            continue
        end = match.end() + int.from_bytes(match["length"], "little")
        url = head[match.end() : end].decode(errors="replace")
        if url.startswith(HUB):
            yield url.removeprefix(HUB)


def load_inside(folder: Path, name: str) -> dict[str, Any]:
    """Read a JSON file of a folder that may be no checkpoint.

    Raises:
        CheckpointError: It is missing, a link out of the folder, or not a JSON object.
    """
    path = folder / name
    if not path.is_file() or points_outside(folder, path):
        raise CheckpointError(f"{path} is not a file of the folder.")
    return load_object(path)


def _read_head(folder: Path, name: str) -> bytes:
    """Return the first bytes of a file; empty if it cannot be read, or is outside the folder."""
    path = folder / name
    if not path.is_file() or points_outside(folder, path):
        return b""
    try:
        with open_source(path) as file:
            return file.read(HEAD_BYTES)
    except (CheckpointError, OSError):
        return b""
