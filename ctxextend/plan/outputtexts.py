"""The text files of an output: edited JSON, the index, the recipe with its provenance, the model card."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ctxextend.checkpoints.card import model_card
from ctxextend.checkpoints.json_edit import delete, edit, read_bytes
from ctxextend.checkpoints.redaction import hidden
from ctxextend.checkpoints.safetensors_file import OF_ML_DTYPES
from ctxextend.plan.changes import CARD_FILE, Changes
from ctxextend.recipe import RECIPE_FILE, Recipe
from ctxextend.recipe_file import recipe_text
from ctxextend.tables.method_facts import UNCHANGED
from ctxextend.tables.methods import METHODS
from ctxextend.version import __version__

__all__ = [
    "RECIPE_POINTER",
    "UNDECODED",
    "UNTRAINED",
    "Hashes",
    "consequences",
    "limits_below",
    "output_texts",
    "printable",
]

# Stands for a hash that is not known yet, so that the texts are as long as the final ones.
UNKNOWN = ("f" * 64, "f" * 64)

RECIPE_POINTER = f" `{RECIPE_FILE}` holds the recipe."

# What a card says before it tells what a new length is worth without training.
UNTRAINED = "It has not been trained at {}:"

# How bytes that are no UTF-8 live through a text.
UNDECODED = "surrogateescape"

Hashes = Mapping[str, tuple[str, str]]


def output_texts(changes: Changes, hashes: Hashes) -> dict[str, bytes]:
    """Return every text file that is edited or made, whole, as bytes, by its path below the output.

    Args:
        changes: What the resize changes.
        hashes: SHA-256 of each table before and after, by the table's name; a missing one stands as a placeholder.

    Raises:
        CheckpointError: A file of the source cannot be read.
    """
    texts = dict(changes.checkpoint.made)
    for name in dict.fromkeys(change.file for change in changes.edits):
        values = {change.path: change.after for change in changes.edits if change.file == name}
        texts[name] = edit(changes.checkpoint.text(name), values)
    if changes.edits_index:
        texts[changes.checkpoint.index_file] = _index_text(changes)
    texts[RECIPE_FILE] = _recipe_text(changes, hashes)
    texts[CARD_FILE] = _card_text(changes)
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def consequences(changes: Changes) -> str:
    """Say in a sentence what the new length is worth before any training."""
    after = changes.max_len_after
    if not changes.is_changed:
        return "Its table is the old one, row for row."
    if not changes.makes_rows:
        return f"Texts of up to {after} tokens give exactly what they gave; longer ones no longer fit."
    method = METHODS[changes.method]
    options = changes.settings.options
    but = f" but for the first {options.kept_first}" if options.kept_first else ""
    short = UNCHANGED if changes.keeps_learned_rows else f"{method.short_inputs}{but}"
    if method.keeps_learned_rows and not options.keeps_learned_rows:
        short = f"nothing that it had learned of positions is left{but}, so short texts change too"
    return (
        f"{UNTRAINED.format(after)} with {changes.method}, {short}; beyond {_old_lengths(changes)}, "
        f"{method.long_inputs}."
    )


def _old_lengths(changes: Changes) -> str:
    """Return the tables' old lengths in words: one number where all agree."""
    lengths = {table.part: table.max_len_before for table in changes.tables}
    if len(set(lengths.values())) == 1:
        return str(changes.max_len_before)
    return " and ".join(f"{length} ({part})" for part, length in lengths.items())


def limits_below(changes: Changes) -> Iterator[str]:
    """Yield a sentence where side files stated less than the old table had: such texts now give something else."""
    before = changes.max_len_before
    low = [
        f"{edit.file} {edit.key} {edit.before}"
        for edit in changes.edits
        if edit.is_limit and isinstance(edit.before, int) and edit.before < before
    ]
    if low and (changes.makes_rows or changes.settings.mend_limits):
        yield (
            f"Limits below the table's {before} positions are raised too ({', '.join(low)}): longer texts were cut "
            "there, are now read whole, and so give something else."
        )


def _index_text(changes: Changes) -> str:
    checkpoint = changes.checkpoint
    text = checkpoint.text(checkpoint.index_file)
    metadata = (checkpoint.index or {}).get("metadata")
    if isinstance(metadata, dict):
        totals = {"total_size": _tensor_bytes(changes)}
        if isinstance(metadata.get("total_parameters"), int | float):
            added = sum((table.rows_after - table.rows_before) * table.hidden_size for table in changes.tables)
            totals["total_parameters"] = metadata["total_parameters"] + added
        text = edit(text, {("metadata", key): value for key, value in totals.items() if key in metadata})
    return delete(text, ("weight_map",), changes.dropped)


def _tensor_bytes(changes: Changes) -> int:
    total = 0
    for file in changes.checkpoint.weights:
        layout = changes.layouts.get(changes.checkpoint.output_name(file))
        total += layout.tensor_bytes if layout else file.tensor_bytes
    return total


def _recipe_text(changes: Changes, hashes: Hashes) -> str:
    source, ref = changes.checkpoint.source, changes.ref
    if source.kind == "hub" and source.revision is not None:
        ref = replace(ref, revision=source.revision)
    tables = [
        {
            "name": table.name,
            "rows_before": table.rows_before,
            "rows_after": table.rows_after,
            "sha256_before": hashes.get(table.name, UNKNOWN)[0],
            "sha256_after": hashes.get(table.name, UNKNOWN)[1],
        }
        for table in changes.tables
    ]
    provenance: dict[str, Any] = {
        "family": changes.family,
        "method": changes.method,
        **({"convention": METHODS[changes.method].convention} if changes.makes_rows else {}),
        "revision": source.revision,
        "tables": tables,
        "versions": _versions(changes),
    }
    return recipe_text(Recipe(ref, changes.settings), provenance, makes_rows=changes.makes_rows)


def _versions(changes: Changes) -> dict[str, str]:
    """Return the versions of what computed the rows: ml_dtypes too, where numpy has no such dtype."""
    versions = {"ctxextend": __version__, "numpy": np.__version__}
    if any(table.dtype in OF_ML_DTYPES for table in changes.tables):
        import ml_dtypes

        versions["ml_dtypes"] = ml_dtypes.__version__
    return versions


def _card_text(changes: Changes) -> str:
    source = changes.checkpoint.source
    path = source.folder / CARD_FILE
    # Whatever bytes a card holds are kept: what is no UTF-8 becomes surrogates here and bytes again when written.
    card = read_bytes(path).decode("utf-8", UNDECODED) if CARD_FILE in changes.checkpoint.copied else None
    name = printable(source.hub_id or source.name)
    return model_card(
        card and card.replace(RECIPE_POINTER, ""),
        name,
        is_hub_id=source.hub_id is not None,
        title=f"{printable(source.name)}-{changes.max_len_after}",
        section=_card_section(changes, name),
    )


def printable(name: str) -> str:
    """Return a name on one line, without secrets, bytes that are no text written out."""
    return " ".join(hidden(name).encode("utf-8", UNDECODED).decode("utf-8", "backslashreplace").split())


def _card_section(changes: Changes, name: str) -> str:
    after = changes.max_len_after
    tables = ", ".join(f"`{table.name}`" for table in changes.tables)
    made = (
        f"resized from {_old_lengths(changes)} to {after} token positions"
        if changes.is_changed
        else f"of {after} token positions as it was"
    )
    plural = "s" if len(changes.tables) > 1 else ""
    return (
        f"## Context length {after}\n\n"
        f"{name} with its position table{plural} ({tables}) {made} by ctxextend {__version__}, method "
        f"`{changes.method}`; no other weight was changed. "
        f"{' '.join((consequences(changes), *limits_below(changes)))}{RECIPE_POINTER}\n"
    )
