"""The recipe of a trained output, which reproduces the run and records what was trained."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ctxextend.checkpoint.checkpoint import layer_pattern
from ctxextend.output import table_hash
from ctxextend.provenance import earlier_steps, trainings
from ctxextend.recipe import recipe_values, yaml_text
from ctxextend.training.finished_run import FinishedRun
from ctxextend.version import __version__

MAX_LISTED_TEXTS = 200  # maximum number of text files that a recipe lists, to keep it short


def trained_recipe(run: FinishedRun) -> str:
    """Return the recipe that reproduces a run, with the provenance of its output."""
    files = run.task.files
    ref = run.recipe.checkpoint
    origin = run.source.checkpoint.source
    if origin.kind == "hub":  # with its commit, since branches move
        ref = replace(ref, revision=origin.revision)
    recipe = replace(run.recipe, checkpoint=ref, train=run.settings)
    values = recipe_values(recipe)
    before = run.task.provenance
    if recipe.resize is not None or recipe.convert is not None:
        # The recipe of the resize or conversion, to which training is added.
        assert before is not None
        provenance = dict(before.values["provenance"])
        steps = {name: values[name] for name in ("train", "evaluate") if name in values}
        values = dict(before.values) | steps
    else:
        rows = files.rows
        provenance = {
            "model_type": files.tables[0].family.model_type,
            "revision": files.checkpoint.source.revision,
            "source_fingerprint": files.checkpoint.weights.fingerprint(),
            "tables": [{"name": files.table_name, "rows_before": rows, "rows_after": rows}],
            "versions": {"ctxextend": __version__},
        }
        if before is not None:
            provenance["steps"] = earlier_steps(before)
            earlier_runs = trainings(before)
            if earlier_runs:
                provenance["source_trainings"] = earlier_runs
    if "tables" in provenance:
        tables = [dict(table) for table in provenance["tables"]]
        for table in tables:
            if table["name"] in files.checkpoint.weights.entries:
                table["sha256"] = table_hash(run.weights.tensor(table["name"]))
        provenance["tables"] = tables
    provenance["trained"] = _facts(run)
    return yaml_text(values | {"provenance": provenance}, run.result.output)


def _facts(run: FinishedRun) -> dict[str, Any]:
    result = run.result
    facts: dict[str, Any] = {
        "objective": result.objective,
        "parameters": result.parameters,
        "tokens": result.tokens,
        "devices": result.devices,
        "threads": result.threads,
        "loss_before": result.loss_before,
        "loss_after": result.loss_after,
        "loss_last": result.loss_last,
        "loss_best": result.loss_best,
        "best_step": result.best_step,
        "saved_step": result.saved_step,
    }
    facts |= run.task.text.facts
    adapters = run.weights.trainable.adapters
    if adapters:
        facts["adapted"] = sorted({layer_pattern(name) for name in adapters})  # for `verify`
    for name, items in [*facts.items()]:
        if isinstance(items, list) and len(items) > MAX_LISTED_TEXTS:
            facts[name] = items[:MAX_LISTED_TEXTS]
            facts[f"{name}_not_listed"] = len(items) - MAX_LISTED_TEXTS
    if run.task.planned_steps != result.steps:
        facts["planned_steps"] = run.task.planned_steps
    libraries = ["torch", "transformers", "accelerate"]
    if run.settings.lora is not None:
        libraries.append("peft")
    facts["versions"] = {name: version(name) for name in libraries}
    return facts
