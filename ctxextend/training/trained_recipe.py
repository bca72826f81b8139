"""The recipe of a trained output, which reproduces the run and records what was trained."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

from ctxextend.checkpoint.checkpoint import layer_pattern
from ctxextend.output import table_hash
from ctxextend.provenance import earlier_steps, trainings
from ctxextend.recipe import recipe_values, yaml_text
from ctxextend.training.run import TrainingRun
from ctxextend.training.train_result import TrainResult
from ctxextend.version import __version__

# Values of the result that a recipe records.
RECORDED = (
    "objective",
    "parameters",
    "tokens",
    "threads",
    "loss_before",
    "loss_after",
    "loss_last",
    "loss_best",
    "best_step",
    "saved_step",
)


def trained_recipe(run: TrainingRun, result: TrainResult) -> str:
    """Return the recipe that reproduces a run, with the provenance of its output."""
    files = run.files
    recipe = run.source.recipe
    ref = recipe.checkpoint
    origin = run.source.model.checkpoint.source
    if origin.kind == "hub":  # with its commit, since branches move
        ref = replace(ref, revision=origin.revision)
    settings = replace(
        run.settings, lr=result.lr, per_device_batch_size=result.per_device_batch_size
    )
    recipe = replace(recipe, checkpoint=ref, train=settings)
    values = recipe_values(recipe)
    before = run.provenance
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
                table["sha256"] = table_hash(run.trainable.tensor(table["name"]))
        provenance["tables"] = tables
    provenance["trained"] = _facts(run, result)
    return yaml_text(values | {"provenance": provenance}, result.output)


def _facts(run: TrainingRun, result: TrainResult) -> dict[str, Any]:
    facts: dict[str, Any] = {name: getattr(result, name) for name in RECORDED}
    facts |= run.text.facts
    adapters = run.trainable.adapters
    if adapters:
        facts["adapted"] = sorted({layer_pattern(name) for name in adapters})  # for `verify`
    if run.planned_steps != result.steps:
        facts["planned_steps"] = run.planned_steps
    libraries = ["torch", "transformers", "accelerate"]
    if run.settings.lora is not None:
        libraries.append("peft")
    facts["versions"] = {name: version(name) for name in libraries}
    return facts
