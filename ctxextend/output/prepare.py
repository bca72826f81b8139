"""Prepare the output of a resize: its files, and the function that creates its tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import delete, edit
from ctxextend.checkpoints.rewrite import Layout
from ctxextend.checkpoints.weights import Weights
from ctxextend.errors import MethodError
from ctxextend.notes import Note
from ctxextend.output.card import CARD_FILE, UNDECODED, resize_card
from ctxextend.output.output import NewTensors, Output
from ctxextend.output.record import Hashes, recipe_bytes, resize_record, table_hash
from ctxextend.plan.buffers import new_buffer
from ctxextend.plan.choose import read_rows, resize_rows
from ctxextend.plan.plan import Plan
from ctxextend.plan.weight_layouts import weight_layouts
from ctxextend.recipe import RECIPE_FILE
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.stats import describe_rows


def prepare_output(plan: Plan, notes: Sequence[Note], *, edit_only: bool = False) -> Output:
    """Return the output of a resize, to be written by `write_output`.

    Args:
        plan: What changes.
        notes: What the model card says about it.
        edit_only: Write only edited and created files, and no weights.

    Raises:
        CheckpointError: A file to edit cannot be read.
        MethodError: `edit_only` is set, but the weights change too.
    """
    source = plan.checkpoint
    default_folder = Path(f"{source.source.name}-{plan.max_len_after}")
    layouts = weight_layouts(plan)
    if edit_only and layouts:
        refuse_weights(list(layouts))
    record = resize_record(plan)
    texts = edited_texts(plan, layouts)
    texts[CARD_FILE] = resize_card(plan, notes).encode("utf-8", UNDECODED)
    if edit_only:
        if source.weights.is_remote:
            record["provenance"]["source_fingerprint"] = None
        copied = tuple(name for name in source.copied if name in (*texts, RECIPE_FILE))
        source = replace(source, weights=Weights(files={}), copied=copied)
    texts[RECIPE_FILE] = recipe_bytes(record, default_folder)
    return Output(
        source=source,
        default_folder=default_folder,
        layouts=layouts,
        texts=texts,
        compute=partial(compute_tables, plan, plan.checkpoint, record),
        has_weights=not edit_only,
    )


def refuse_weights(files: Sequence[str]) -> NoReturn:
    """Refuse weights files that an output of only edited files would lack.

    Raises:
        MethodError: Always.
    """
    message = f"--edit-only writes no weights, but {' and '.join(files[:2])} must be written."
    raise MethodError(message, "Remove --edit-only.")


def edited_texts(plan: Plan, layouts: Mapping[str, Layout]) -> dict[str, bytes]:
    """Return the generated and edited files of an output, by path.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    checkpoint = plan.checkpoint
    texts = dict(checkpoint.generated)
    for name in dict.fromkeys(change.file for change in plan.edits):
        values = {change.path: change.after for change in plan.edits if change.file == name}
        texts[name] = edit(checkpoint.text(name), values)
    if checkpoint.weights.index is not None and layouts:
        added = 0
        for table in plan.stored:
            added += (table.rows_after - table.rows_before) * table.hidden_size
        texts[checkpoint.weights.index_file] = index_text(checkpoint, layouts, plan.dropped, added)
    # Files can be invalid UTF-8.
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def index_text(
    checkpoint: Checkpoint,
    layouts: Mapping[str, Layout],
    dropped: Collection[str] = (),
    added: int = 0,
) -> str:
    """Return the shard index with updated totals.

    Args:
        checkpoint: The source.
        layouts: Of weights files that change.
        dropped: Tensors that the output does not have.
        added: The number of new parameters.

    Raises:
        CheckpointError: The index cannot be read.
    """
    text = checkpoint.text(checkpoint.weights.index_file)
    metadata = (checkpoint.weights.index or {}).get("metadata")
    if isinstance(metadata, Mapping):
        totals: dict[tuple[str, ...], Any] = {}
        if "total_size" in metadata:
            sizes = {name: file.tensor_bytes for name, file in checkpoint.weights.files.items()}
            sizes |= {name: layout.tensor_bytes for name, layout in layouts.items()}
            totals["metadata", "total_size"] = sum(sizes.values())
        parameters = metadata.get("total_parameters")
        if isinstance(parameters, int | float):
            totals["metadata", "total_parameters"] = parameters + added
        text = edit(text, totals)
    return delete(text, ("weight_map",), dropped)


def compute_tables(
    plan: Plan, source: Checkpoint, record: Mapping[str, Any], folder: Path
) -> NewTensors:
    """Create the new tables and buffers of an output.

    Args:
        plan: What changes.
        source: The checkpoint whose fingerprint the recipe records: that of the plan or, for the
            twin of a conversion, the source of the conversion.
        record: The values of the recipe, with placeholders of the hashes.
        folder: The output folder.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: A table does not fit in memory.
    """
    tensors = {buffer.name: new_buffer(buffer) for buffer in plan.rebuilt_buffers}
    hashes = dict[str, str]()
    warnings = list[str]()
    fingerprint = None
    if not source.weights.is_remote:
        fingerprint = source.weights.fingerprint()
    for table in plan.stored:
        before = read_rows(plan.checkpoint, table)
        after = resize_rows(table, before)
        tensors[table.name] = after
        hashes[table.name] = table_hash(after)
        bad = nonfinite_rows(before)
        new_bad = len(nonfinite_rows(after))
        if bad:
            rows = "rows" if len(bad) > 1 else "row"
            text = (
                f"{table.name} contains NaN or infinity in {rows} {describe_rows(bad)}; so do "
                f"{new_bad} of the {len(after)} rows of the output."
            )
            warnings.append(text)
        elif new_bad:
            warnings.append(
                f"{new_bad} new rows of {table.name} overflow {table.dtype} to infinity."
            )
    return NewTensors(
        tensor=tensors.__getitem__,
        recipe=recipe_bytes(record, folder, Hashes(fingerprint=fingerprint, tables=hashes)),
        warnings=tuple(warnings),
    )
