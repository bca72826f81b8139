"""The output of a plan: the files that change, with the recipe and the model card."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ctxextend.card import CARD_FILE, UNDECODED, output_card
from ctxextend.checkpoint.checkpoint import Checkpoint, Weights
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.json_edit import delete, edit
from ctxextend.checkpoint.safetensors_file import ML_DTYPES
from ctxextend.checkpoint.writing import Layout, NewTensors, Output
from ctxextend.errors import MethodError
from ctxextend.notes import Note
from ctxextend.plan import Plan
from ctxextend.provenance import Provenance, earlier_steps, read_provenance, trainings
from ctxextend.recipe import Recipe, recipe_values, yaml_text
from ctxextend.settings import ATTENTION_WINDOWS
from ctxextend.tables.apply import nonfinite_rows
from ctxextend.tables.stats import describe_rows
from ctxextend.version import __version__

PLACEHOLDER = "x" * 64  # as long as a hash, to plan the size of a recipe


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
    earlier = read_provenance(source)
    record = output_record(plan, earlier)
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
            compute=compute,
            layout_of=layout_of,
        )
    path = Path(plan.output_name)
    texts = edited_texts(plan)
    texts[CARD_FILE] = output_card(plan, notes, earlier).encode("utf-8", UNDECODED)
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
    provenance = {**record["provenance"], "source_fingerprint": fingerprint}
    tables = [dict(table) for table in provenance.get("tables", ())]
    for table in tables:
        if "sha256" in table:
            table["sha256"] = hashes[table["name"]]
    if tables:
        provenance["tables"] = tables
    return NewTensors(
        tensor=values.__getitem__,
        recipe=recipe_bytes({**record, "provenance": provenance}, folder),
        warnings=tuple(warnings),
    )


# The recipe


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's row-major bytes, as recorded in recipes."""
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
    return hashlib.sha256(data).hexdigest()


def recipe_bytes(record: Mapping[str, Any], folder: Path) -> bytes:
    """Return the recipe of an output as YAML; local paths are relative to the output folder."""
    return yaml_text(record, folder).encode("utf-8", UNDECODED)


def output_record(plan: Plan, earlier: Provenance | None) -> dict[str, Any]:
    """Return the values of the recipe of an output, with placeholders of all hashes.

    Args:
        plan: What changes.
        earlier: How the source was created, if its recipe says so.
    """
    checkpoint = plan.checkpoint
    recipe = plan_recipe(plan)
    facts: dict[str, Any] = {"model_type": plan.model_type}
    if plan.convert is not None:
        facts["max_len_before"] = plan.max_len_before
    if plan.convert is None or plan.convert.scheme == ATTENTION_WINDOWS:
        facts |= table_facts(plan)
    provenance = {
        "revision": checkpoint.source.revision,
        "source_fingerprint": PLACEHOLDER,
        **facts,
    }
    if earlier is not None and recipe.resize is not None and not plan.is_changed:
        # A copy: its rows are what the earlier resize or training made of them.
        provenance["steps"] = earlier_steps(earlier)
    versions = {"ctxextend": __version__, "numpy": np.__version__}
    if any(table.dtype in ML_DTYPES for table in plan.stored):
        import ml_dtypes

        versions["ml_dtypes"] = ml_dtypes.__version__
    provenance["versions"] = versions
    if earlier is not None and trainings(earlier):
        provenance["source_trainings"] = trainings(earlier)
    return recipe_values(recipe) | {"provenance": provenance}


def plan_recipe(plan: Plan) -> Recipe:
    """Return the recipe that makes a planned output again.

    A Hub checkpoint is named with its commit, since branches move.
    """
    ref = plan.model.ref
    source = plan.checkpoint.source
    if source.kind == "hub":
        ref = replace(ref, revision=source.revision or ref.revision)
    if plan.convert is not None:
        return Recipe(ref, convert=plan.convert)
    keep_first = None
    if plan.extended:
        keep_first = (plan.recorded_method or plan.settings.choice).keep_first
    resize = replace(plan.settings, method=plan.recorded_method, keep_first=keep_first)
    return Recipe(ref, resize=resize)


def table_facts(plan: Plan) -> dict[str, Any]:
    """Return what a recipe records of the tables that change, and of the method of their rows.

    The method is stated once if all tables have the same, else for each table.
    """
    facts = dict[str, Any]()
    shared = None
    if plan.recorded_method is not None:
        shared = plan.recorded_method.text
        facts["method"] = shared
    if plan.extended:
        facts["convention"] = plan.main_choice.facts.convention
    is_shared = all(method == shared for method in plan.methods.values())
    tables = list[dict[str, Any]]()
    for table in plan.changes:
        values: dict[str, Any] = {"name": table.name}
        if not is_shared and table.name in plan.methods:
            values["method"] = plan.methods[table.name]
        values["rows_before"] = table.rows_before
        values["rows_after"] = table.rows_after
        if table.dtype:
            values["sha256"] = PLACEHOLDER
        tables.append(values)
    return {**facts, "tables": tables}
