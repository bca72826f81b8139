"""The recipe that an output contains: its settings, and the source that they belong to."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.card import UNDECODED
from ctxextend.checkpoint.folder import Checkpoint
from ctxextend.checkpoint.safetensors_file import ML_DTYPES
from ctxextend.plan import Plan
from ctxextend.provenance import earlier_steps, read_provenance, trainings
from ctxextend.recipe import Recipe, recipe_values, yaml_text
from ctxextend.settings import ATTENTION_WINDOWS, CheckpointRef, Resize
from ctxextend.tables.methods import TRUNCATION_CHOICE
from ctxextend.version import __version__

PLACEHOLDER = "x" * 64  # as long as a hash, to plan the size of a recipe


class Hashes(NamedTuple):
    """What a recipe records of the weights, known once they are written."""

    fingerprint: str | None  # of the source's weights; None if they were not downloaded
    tables: Mapping[str, str]  # SHA-256 of stored tables in the output, by name


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's row-major bytes, as recorded in recipes."""
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
    return hashlib.sha256(data).hexdigest()


def recipe_bytes(record: Mapping[str, Any], folder: Path, hashes: Hashes | None = None) -> bytes:
    """Return the recipe of an output as YAML.

    Args:
        record: Its values; see `output_record`.
        folder: The output folder: local paths in the recipe are relative to it.
        hashes: Those of the weights; by default the placeholders in `record` stay.
    """
    if hashes is not None:
        provenance = {**record["provenance"], "source_fingerprint": hashes.fingerprint}
        if "tables" in provenance:
            tables = list[dict[str, Any]]()
            for table in provenance["tables"]:
                tables.append(dict(table))
                if "sha256" in table:
                    tables[-1]["sha256"] = hashes.tables[table["name"]]
            provenance["tables"] = tables
        record = {**record, "provenance": provenance}
    return yaml_text(record, folder).encode("utf-8", UNDECODED)


def output_record(plan: Plan) -> dict[str, Any]:
    """Return the values of the recipe of an output, with placeholders of all hashes."""
    checkpoint = plan.checkpoint
    settings = recorded_settings(plan)
    ref = pinned_ref(plan.model.ref, checkpoint)
    if plan.convert is None:
        recipe = Recipe(ref, resize=settings)
        facts = resize_facts(plan, settings)
    else:
        recipe = Recipe(ref, convert=plan.convert)
        facts = {"model_type": plan.model_type, "max_len_before": plan.max_len_before}
        if plan.convert.scheme == ATTENTION_WINDOWS:
            facts |= resize_facts(plan, settings)
    earlier = read_provenance(checkpoint)
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


def pinned_ref(ref: CheckpointRef, source: Checkpoint) -> CheckpointRef:
    """Return a reference with the commit of a Hub checkpoint, since branches move."""
    if source.source.kind != "hub":
        return ref
    return replace(ref, revision=source.source.revision or ref.revision)


def recorded_settings(plan: Plan) -> Resize:
    """Return the settings to record, with a method that gives the same output again.

    - Without new rows, it is `TRUNCATE`, or None if no table changes.
    - If all tables have the same method, it is that one, with the settings that were chosen.
    - Else it is what the user gave, or None; `resize_facts` records the method of each table.
    """
    settings = plan.settings
    if not plan.extended:
        method = TRUNCATION_CHOICE if plan.is_changed else None
        return replace(settings, method=method, keep_first=None)
    methods = set(plan.methods.values())
    if len(methods) == 1:
        choice = plan.main_choice
        return replace(settings, method=choice, keep_first=choice.keep_first)
    return replace(settings, keep_first=settings.choice.keep_first)


def resize_facts(plan: Plan, settings: Resize) -> dict[str, Any]:
    """Return what a recipe records about the model and its tables.

    The method is stated once if all tables have the same, else for each table.

    Args:
        plan: What changes.
        settings: Those that the recipe records; see `recorded_settings`.
    """
    facts: dict[str, Any] = {"model_type": plan.model_type}
    shared = settings.method.text if settings.method is not None else None
    if shared is not None:
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
