"""The recipe that an output contains: its settings, and the source that they belong to."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.safetensors_file import ML_DTYPES_NAMES
from ctxextend.plan.plan import Plan
from ctxextend.plan.table_plan import TablePlan
from ctxextend.provenance import earlier_steps, read_provenance, trainings
from ctxextend.recipe import Recipe, recipe_values, yaml_text
from ctxextend.settings import CheckpointRef, Resize
from ctxextend.tables.method_parser import TRUNCATION_CHOICE
from ctxextend.version import __version__


class Hashes(NamedTuple):
    """What a recipe records of the weights, known once they are written."""

    fingerprint: str | None  # of the source's weights; None if they were not downloaded
    tables: Mapping[str, str]  # SHA-256 of stored tables in the output, by name


# Returns the recipe of an output, for its folder.
RecipeOf = Callable[[Path, Hashes], bytes]


def table_hash(array: NDArray[Any]) -> str:
    """Return the SHA-256 of a table's row-major bytes, as recorded in recipes."""
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
    return hashlib.sha256(data).hexdigest()


def placeholders(plan: Plan) -> Hashes:
    """Return hashes as long as the real ones, to plan the size of a recipe."""
    text = "x" * 64
    return Hashes(fingerprint=text, tables={table.name: text for table in plan.stored})


def recipe_text(
    recipe: Recipe,
    source: Checkpoint,
    facts: Mapping[str, Any],
    fingerprint: str | None,
    folder: Path,
    *,
    uses_ml_dtypes: bool,
) -> str:
    """Return the recipe of an output as YAML.

    Args:
        recipe: The settings.
        source: The checkpoint that they were applied to.
        facts: What is recorded about the model and its tables.
        fingerprint: Of the weights of the source; None if they were not downloaded.
        folder: The output folder: local paths in the recipe are relative to it.
        uses_ml_dtypes: Whether tables have a dtype of this library, whose version is recorded.
    """
    versions = {"ctxextend": __version__, "numpy": np.__version__}
    if uses_ml_dtypes:
        import ml_dtypes

        versions["ml_dtypes"] = ml_dtypes.__version__
    provenance = {
        "revision": source.source.revision,
        "source_fingerprint": fingerprint,
        **facts,
        "versions": versions,
    }
    earlier_runs = trainings(read_provenance(source))
    if earlier_runs:
        provenance["source_trainings"] = earlier_runs
    return yaml_text(recipe_values(recipe) | {"provenance": provenance}, folder)


def pinned_ref(ref: CheckpointRef, source: Checkpoint) -> CheckpointRef:
    """Return a reference with the commit of a Hub checkpoint, since branches move."""
    if source.source.kind != "hub":
        return ref
    return replace(ref, revision=source.source.revision or ref.revision)


def resize_recipe_text(plan: Plan, folder: Path, hashes: Hashes) -> str:
    """Return the recipe of a resized checkpoint; see `recipe_text`."""
    facts = resize_facts(plan, hashes.tables)
    steps = earlier_steps(read_provenance(plan.checkpoint))
    if steps and not plan.is_changed:
        # A copy: its rows are what the earlier resize or training made of them.
        facts["steps"] = steps
    return recipe_text(
        Recipe(pinned_ref(plan.model.ref, plan.checkpoint), resize=recorded_settings(plan)),
        plan.checkpoint,
        facts,
        hashes.fingerprint,
        folder,
        uses_ml_dtypes=uses_ml_dtypes(plan),
    )


def uses_ml_dtypes(plan: Plan) -> bool:
    """Whether any stored table has a dtype of the library ml_dtypes."""
    return any(table.dtype in ML_DTYPES_NAMES for table in plan.stored)


def recorded_settings(plan: Plan) -> Resize:
    """Return the settings to record, with a method that gives the same output again.

    - Without new rows, it is `TRUNCATE`, or None if no table changes.
    - If all tables have the same method, it is that one, with the settings that were chosen.
    - Else it is what the user gave, or None; `resize_facts` records the method of each table.
    """
    settings = plan.settings
    if not plan.creates_rows:
        method = TRUNCATION_CHOICE if plan.is_changed else None
        return replace(settings, method=method, keep_first=None)
    methods = set(plan.methods.values())
    if len(methods) == 1:
        choice = plan.main_choice
        return replace(settings, method=choice, keep_first=choice.keep_first)
    return replace(settings, keep_first=settings.choice.keep_first)


def resize_facts(plan: Plan, hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return what a recipe records about the model and its tables.

    The method is stated once if all tables have the same, else for each table.
    """
    settings = recorded_settings(plan)
    facts: dict[str, Any] = {"model_type": plan.model_type}
    shared = settings.method.text if settings.method is not None else None
    if shared is not None:
        facts["method"] = shared
    if plan.creates_rows:
        facts["convention"] = plan.main_choice.facts.convention
    is_shared = all(method == shared for method in plan.methods.values())
    tables = list[dict[str, Any]]()
    for table in plan.tables:
        own_method = None if is_shared else plan.methods.get(table.name)
        tables.append(_table_facts(table, own_method, hashes))
    return {**facts, "tables": tables}


def _table_facts(
    table: TablePlan, own_method: str | None, hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a recipe records about a table, with its method if tables have several."""
    facts: dict[str, Any] = {"name": table.name}
    if own_method is not None:
        facts["method"] = own_method
    facts["rows_before"] = table.rows_before
    facts["rows_after"] = table.rows_after
    if table.is_stored:
        facts["sha256"] = hashes[table.name]
    return facts
