"""The output of a plan: the files that change, with the recipe and the model card."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from ctxextend.card import CARD_FILE, UNDECODED, output_card
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.json_edit import delete, edit
from ctxextend.checkpoint.weights import Weights
from ctxextend.checkpoint.writing import Layout, NewTensors, Output
from ctxextend.errors import MethodError
from ctxextend.notes import Note
from ctxextend.plan import Plan
from ctxextend.recipe import RECIPE_FILE
from ctxextend.record import Hashes, output_record, recipe_bytes, table_hash
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.stats import describe_rows


def make_output(plan: Plan, notes: Sequence[Note], *, edit_only: bool = False) -> Output:
    """Return the output of a resize or conversion, to be written by `write_output`.

    Args:
        plan: What changes.
        notes: What the model card says about it; an output that is one file has none.
        edit_only: Write only edited and created files, and no weights.

    Raises:
        CheckpointError: A file to edit cannot be read.
        MethodError: `edit_only` is set, but the weights change too.
    """
    source = plan.checkpoint
    record = output_record(plan)
    compute = partial(compute_tensors, plan, record)
    shapes = dict[str, tuple[int, ...]]()
    for change in plan.stored:
        if change.is_changed:
            shapes[change.name] = (change.rows_after, change.hidden_size)
    if source.file_suffix:
        values = {change.key: change.after for change in plan.edits}
        layout_of = partial(source.layout_of_file, values, shapes)
        file = Path(f"{Path(source.config_file).stem}-{plan.max_len_after}{source.file_suffix}")
        return Output(
            source=source,
            path=file,
            layouts={file.name: layout_of(recipe_bytes(record, file.parent))},
            texts={},
            recipe_file="",
            compute=compute,
            layout_of=layout_of,
        )
    path = Path(plan.output_name)
    texts = edited_texts(plan)
    texts[CARD_FILE] = output_card(plan, notes).encode("utf-8", UNDECODED)
    if edit_only:
        if plan.layouts:
            refuse_weights(list(plan.layouts))
        if source.weights.is_remote:
            record["provenance"]["source_fingerprint"] = None
        copied = tuple(name for name in source.copied if name in (*texts, RECIPE_FILE))
        source = replace(source, weights=Weights(files={}), copied=copied)
    texts[RECIPE_FILE] = recipe_bytes(record, path)
    return Output(
        source=source,
        path=path,
        layouts=plan.layouts,
        texts=texts,
        recipe_file=RECIPE_FILE,
        compute=compute,
        has_weights=not edit_only,
    )


def refuse_weights(files: Sequence[str]) -> NoReturn:
    """Refuse weights files that an output of only edited files would lack.

    Raises:
        MethodError: Always.
    """
    message = f"--edit-only writes no weights, but {' and '.join(files[:2])} must be written."
    raise MethodError(message, "Remove --edit-only.")


def edited_texts(plan: Plan) -> dict[str, bytes]:
    """Return the generated and edited files of an output, by path.

    Raises:
        CheckpointError: A file to edit cannot be read.
    """
    checkpoint = plan.checkpoint
    texts = dict(checkpoint.generated)
    for name in dict.fromkeys(item.file for item in plan.edits):
        values = {item.path: item.after for item in plan.edits if item.file == name}
        texts[name] = edit(checkpoint.text(name), values)
    if checkpoint.weights.index is not None and plan.layouts:
        added = 0
        for change in plan.stored:
            added += (change.rows_after - change.rows_before) * change.hidden_size
        texts[checkpoint.weights.index_file] = index_text(
            checkpoint, plan.layouts, plan.dropped, added
        )
    # Files can be invalid UTF-8.
    return {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}


def index_text(
    checkpoint: Checkpoint,
    layouts: Mapping[str, Layout],
    dropped: Collection[str] = (),
    added: int = 0,
) -> str:
    """Return the shard index with updated totals, and without dropped tensors.

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
    return delete(text, "weight_map", dropped)


def compute_tensors(plan: Plan, record: Mapping[str, Any], folder: Path) -> NewTensors:
    """Create the new tables and buffers of an output, and the recipe with their hashes.

    Args:
        plan: What changes.
        record: The values of the recipe, with placeholders of the hashes.
        folder: The output folder.

    Raises:
        CheckpointError: A table cannot be read.
        ResizeError: A table does not fit in memory.
    """
    fingerprint = None
    weights = plan.checkpoint.weights
    if not weights.is_remote:
        fingerprint = weights.fingerprint()
    values = dict[str, NDArray[Any]]()
    for name, tensor in plan.tensors.items():
        values[name] = tensor.compute()
    hashes = dict[str, str]()
    warnings = list[str]()
    for change in plan.stored:
        after = values[change.name]
        hashes[change.name] = table_hash(after)
        bad = nonfinite_rows(after)
        if bad:
            learned = nonfinite_rows(change.positions.read()[: change.rows_before])
            text = f"{len(bad)} new rows of {change.name} overflow {change.dtype} to infinity."
            if learned:
                rows = "rows" if len(learned) > 1 else "row"
                text = (
                    f"{change.name} contains NaN or infinity in {rows} {describe_rows(learned)}; "
                    f"so do {len(bad)} of the {change.rows_after} rows of the output."
                )
            warnings.append(text)
    return NewTensors(
        tensor=values.__getitem__,
        recipe=recipe_bytes(record, folder, Hashes(fingerprint=fingerprint, tables=hashes)),
        warnings=tuple(warnings),
    )
