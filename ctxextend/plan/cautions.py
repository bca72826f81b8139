"""What the user should know of a resize, before it and after it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.filenames import is_code
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import load_object
from ctxextend.checkpoints.source import OUTSIDE, as_copied
from ctxextend.errors import CheckpointError
from ctxextend.plan.changes import Changes
from ctxextend.plan.outputtexts import limits_below
from ctxextend.plan.tableplan import TablePlan
from ctxextend.tables.apply import nonfinite_rows

__all__ = ["cautions", "cautions_of_files", "nonfinite"]

# Files whose auto_map names the code that transformers runs in the place of its own, where it is told to trust it.
MAPPED = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
NAMES_SHOWN = 5


def cautions(changes: Changes) -> Iterator[str]:
    """Yield a sentence for whatever is not as one would expect, known from shapes alone."""
    yield from _equal_length(changes)
    yield from limits_below(changes)
    yield from _without_config(changes)
    yield from _of_an_adapter(changes)
    yield from _left_alone(changes)
    yield from cautions_of_files(changes.checkpoint)


def cautions_of_files(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a sentence for links that lead out of a folder, for code in it, and for what names code."""
    outside = [name for name, why in checkpoint.omitted.items() if why == OUTSIDE]
    if outside:
        are = "are links that lead" if len(outside) > 1 else "is a link that leads"
        yield f"{_listed(outside)} {are} out of the folder, and left out. {as_copied(checkpoint.root)}"
    copied = [name for name in checkpoint.copied if is_code(PurePosixPath(name))]
    if copied:
        yield f"The folder holds code, which was not run and is copied: {_listed(copied)}."
    if checkpoint.code:
        yield (
            f"The folder holds code, which was not run and is left out: {_listed(checkpoint.code)}. Keep it with "
            "--keep-code."
        )
    mapped = list(dict.fromkeys(_mapped(checkpoint)))
    if mapped:
        yield (
            f"The configs' auto_map still names code, {_listed(mapped)}: whoever loads the output with "
            "trust_remote_code=True runs it, wherever it lies."
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _mapped(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the classes that auto_map names, such as ``modeling_x.XModel`` or ``owner/repo--modeling_x.XModel``."""
    for name in checkpoint.copied:
        if PurePosixPath(name).name not in MAPPED:
            continue
        try:
            mapped = load_object(checkpoint.root / name).get("auto_map")
        except CheckpointError:  # its reader, where it has one, says so
            continue
        values = list(mapped.values()) if isinstance(mapped, Mapping) else []
        for value in values:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def _equal_length(changes: Changes) -> Iterator[str]:
    if not changes.is_changed:
        flags = changes.settings.method_flags
        ignored = f" {', '.join(flags)} had nothing to do." if flags else ""
        what = "the same weights as safetensors" if changes.rewritten else "a copy"
        what += ", with the limits mended" if changes.edits else ""
        yield f"The table has {changes.max_len_before} positions already: the output is {what}.{ignored}"


def _without_config(changes: Changes) -> Iterator[str]:
    if not changes.checkpoint.has_config and not changes.checkpoint.is_adapter:
        lengths = {table.config_key: table.place.key_value(table.max_len_after) for table in changes.tables}
        keys = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield f"There is no config.json: the one that transformers will need must state {keys}."


def _of_an_adapter(changes: Changes) -> Iterator[str]:
    if changes.checkpoint.is_adapter and changes.is_changed:
        yield (
            f"The adapter now fits {changes.checkpoint.base} at {changes.max_len_after} positions alone: resize that "
            "too, and load the adapter onto the result, since adapter_config.json still names the old one."
        )


def _left_alone(changes: Changes) -> Iterator[str]:
    """Yield what may follow the length too in a model that was described by hand."""
    if changes.ref.table is None or not changes.is_changed:
        return
    lengths = {length for table in changes.tables for length in (table.rows_before, table.max_len_before)}
    names = {table.name for table in changes.tables}
    for file in changes.checkpoint.weights:
        for entry in file.entries.values():
            if entry.name not in names and "pos" in entry.name and lengths & set(entry.shape):
                yield f"{entry.name} {list(entry.shape)} may follow the length too, and is left as it is."


def nonfinite(table: TablePlan, before: NDArray[Any], after: NDArray[Any]) -> Iterator[str]:
    """Yield a sentence where a table holds what is no number, or got it by the method or the dtype.

    Args:
        table: What became of it.
        before: Its rows, shape (rows_before, hidden_size).
        after: Its new rows, shape (rows_after, hidden_size).
    """
    bad, written = nonfinite_rows(before), len(nonfinite_rows(after))
    if bad:
        listed = ", ".join(map(str, bad[:10])) + (f" and {len(bad) - 10} more" if len(bad) > 10 else "")
        plural = "s" if len(bad) > 1 else ""
        yield (
            f"{table.name} holds NaN or infinity in row{plural} {listed}; "
            f"{written} of the {len(after)} rows that were written hold them."
        )
    elif written:
        yield f"{written} new rows of {table.name} go beyond what {table.dtype} can hold, and are infinite."
