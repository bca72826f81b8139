"""The recipe of a trained output, which reproduces the run and records what was trained."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ctxextend.checkpoints.weights import layer_pattern
from ctxextend.output.record import table_hash
from ctxextend.recipe import CheckpointRef
from ctxextend.recipe_text import recipe_values, yaml_text
from ctxextend.training.finished_run import FinishedRun
from ctxextend.version import __version__

MAX_LISTED_TEXTS = 200  # maximum number of text files that a recipe lists, to keep it short


def trained_recipe(run: FinishedRun) -> str:
    """Return the recipe that reproduces a run, with the provenance of its output."""
    recipe = replace(run.recipe, checkpoint=_pinned_reference(run), train=run.settings)
    values = recipe_values(recipe)
    before = dict[str, Any]()  # the recipe in the folder of the trained checkpoint
    if run.task.origin.provenance is not None:
        before |= run.task.origin.provenance.values
    if recipe.resize is not None or recipe.convert is not None:
        # That of the resize or conversion, to which training is added.
        provenance = _with_hashes(before.pop("provenance"), _table_hashes(run))
        values = before | {name: values[name] for name in ("train", "evaluate") if name in values}
    else:
        provenance = _provenance(run)
        if before:
            provenance["source_recipe"] = before
    provenance = provenance | {"trained": _facts(run)}
    return yaml_text(values | {"provenance": provenance}, run.result.output)


def _pinned_reference(run: FinishedRun) -> CheckpointRef:
    """Return the reference of the source; of a Hub model, with its commit, since branches move."""
    origin = run.source.checkpoint.source
    if origin.kind != "hub":
        return run.recipe.checkpoint
    return replace(run.recipe.checkpoint, revision=origin.revision)


def _table_hashes(run: FinishedRun) -> dict[str, dict[str, str]]:
    """Return the hashes before and after training of each stored table, by name."""
    files = run.task.files
    hashes = dict[str, dict[str, str]]()
    for table in files.tables:
        if table.name in files.checkpoint.weights.entries:
            hashes[table.name] = {"sha256_after": table_hash(run.weights.tensor(table.name))}
    if run.source_sha256 is not None:
        hashes[files.table_name] = {"sha256_before": run.source_sha256} | hashes[files.table_name]
    return hashes


def _with_hashes(
    provenance: Mapping[str, Any], hashes: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return a provenance with other hashes of its tables, where it records them.

    A conversion records none of the table before, which no file has.
    """
    changed = dict(provenance)
    if "tables" in provenance:
        changed["tables"] = [
            _with_recorded(table, hashes.get(table["name"], {})) for table in provenance["tables"]
        ]
    return changed


def _with_recorded(table: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return a table's facts with the hashes that it already records."""
    recorded = {name: value for name, value in hashes.items() if name in table}
    return {**table, **recorded}


def _provenance(run: FinishedRun) -> dict[str, Any]:
    """Return what the recipe of a run that only trains states about its source."""
    files = run.task.files
    table = {"name": files.table_name, "rows_before": files.rows, "rows_after": files.rows}
    return {
        "model_type": files.tables[0].location.family.model_type,
        "max_len": files.max_len,
        "revision": files.checkpoint.source.revision,
        "source_fingerprint": files.checkpoint.weights.fingerprint(),
        "tables": [table | _table_hashes(run).get(files.table_name, {})],
        "versions": {"ctxextend": __version__},
    }


def _facts(run: FinishedRun) -> dict[str, Any]:
    """Return what the recipe states about the training."""
    result = run.result
    held_out = result.held_out
    facts: dict[str, Any] = {
        "objective": result.trained.objective,
        "parameters": result.trained.parameters,
        "tokens": result.run.tokens,
        "devices": result.run.devices,
        "threads": result.cost.threads,
        "loss_before": held_out.before,
        "loss_after": held_out.after,
        "loss_last": held_out.last,
        "loss_best": held_out.best,
        "best_step": held_out.best_step,
        "saved_step": held_out.saved_step,
    }
    facts |= run.task.text.facts
    adapters = run.weights.trainable.adapters
    if adapters:
        facts["adapted"] = sorted({layer_pattern(name) for name in adapters})  # for `verify`
    facts |= _shortened(facts)
    if run.task.epochs is not None:
        facts["steps"] = result.run.steps
    if run.task.planned_steps != result.run.steps:
        facts["planned_steps"] = run.task.planned_steps
    libraries = ["torch", "transformers", "accelerate"]
    if run.settings.lora is not None:
        libraries.append("peft")
    facts["versions"] = {name: version(name) for name in libraries}
    return facts


def _shortened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of a recipe that are too long, with the number of items not listed."""
    shortened = dict[str, Any]()
    for name, items in facts.items():
        if isinstance(items, list) and len(items) > MAX_LISTED_TEXTS:
            shortened[name] = items[:MAX_LISTED_TEXTS]
            shortened[f"{name}_not_listed"] = len(items) - MAX_LISTED_TEXTS
    return shortened
