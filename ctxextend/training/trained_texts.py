"""The files of a trained output that are no weights: recipe, card, log and loss curve."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from ctxextend.errors import counted, printable
from ctxextend.plan import output_files
from ctxextend.plan.find_tables import OpenedModel
from ctxextend.plan.plan import table_hash
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Recipe, Train
from ctxextend.recipe_file import any_layer, recipe_values, yaml_text
from ctxextend.report.figures import public_name, training_figure, write_figure
from ctxextend.training.task import TrainingTask
from ctxextend.training.train_result import TrainResult
from ctxextend.training.trained_weights import TrainedWeights
from ctxextend.training.training_run import RunFolder
from ctxextend.version import __version__

CURVE_FILE = "train_loss.png"
MAX_LISTED = 200  # maximum number of text files that a recipe lists, to keep it short
# What each objective trains a model to do, for the card.
OBJECTIVES = {
    "causal": "to predict the next token",
    "masked": "to predict masked tokens",
    "contrastive": (
        "to find the text of each pair, such as the document of a passage, among those of a batch"
    ),
    "distilled": (
        "to reproduce, on long texts, the hidden states of its base checkpoint on windows that it "
        "can read"
    ),
}
# What contrastive training with distillation also does.
KEEP_ANCHORS = "to keep its base checkpoint's embeddings of anchors"


@dataclass(frozen=True)
class FinishedRun:
    """A finished training run, whose output is to be written."""

    recipe: Recipe  # as the user gave it
    source: OpenedModel  # the checkpoint that it started from, before a resize or conversion
    source_sha256: str | None  # of the source's first table; None if it has no rows
    task: TrainingTask
    weights: TrainedWeights
    folder: RunFolder
    result: TrainResult

    @property
    def settings(self) -> Train:
        """The settings of training with all defaults filled in."""
        return replace(
            self.task.settings,
            lr=self.result.run.lr,
            per_device_batch_size=self.result.run.per_device_batch_size,
        )


def trained_texts_of(run: FinishedRun) -> dict[str, bytes]:
    """Return the content of the recipe, card, log, loss curve and logs of trackers, by path."""
    log = "".join(f"{json.dumps(line)}\n" for line in run.result.log)
    texts = {
        RECIPE_FILE: trained_recipe(run),
        output_files.CARD_FILE: trained_card(run),
        output_files.LOG_FILE: log,
    }
    files = {name: text.encode("utf-8", output_files.UNDECODED) for name, text in texts.items()}
    return files | _tracker_files(run.folder) | _curve(run)


def _tracker_files(folder: RunFolder) -> dict[str, bytes]:
    """Return the files that experiment trackers wrote, by path."""
    files = dict[str, bytes]()
    for path in (folder.path / "runs").rglob("*"):
        if path.is_file():
            files[path.relative_to(folder.path).as_posix()] = path.read_bytes()
    return files


def _curve(run: FinishedRun) -> dict[str, bytes]:
    """Return the figure of the losses, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return {}
    result = run.result
    path = run.folder.path / CURVE_FILE
    title = f"{result.output.name}: {result.trained.trainable} trained at {result.run.seq_len}"
    short = result.by_position.short_positions
    write_figure(path, lambda: training_figure(result.log, title, short))
    return {CURVE_FILE: path.read_bytes()}


# ---- recipe


def trained_recipe(run: FinishedRun) -> str:
    """Return the recipe that reproduces a run, with the provenance of its output."""
    recipe = replace(run.recipe, checkpoint=_pinned_reference(run), train=run.settings)
    values = recipe_values(recipe)
    before = dict[str, Any]()  # the recipe in the folder of the trained checkpoint
    if run.task.origin.provenance is not None:
        before |= run.task.origin.provenance.values
    if recipe.resize is not None or recipe.convert is not None:
        # That of the resize or conversion, to which training is added.
        provenance = before.pop("provenance")
        _add_hashes(provenance, _table_hashes(run))
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
    for _, name in files.tables:
        if name in files.checkpoint.names:
            hashes[name] = {"sha256_after": table_hash(run.weights.tensor(name))}
    if run.source_sha256 is not None:
        hashes[files.table] = {"sha256_before": run.source_sha256} | hashes[files.table]
    return hashes


def _add_hashes(provenance: Mapping[str, Any], hashes: Mapping[str, Mapping[str, str]]) -> None:
    """Update the hashes of the tables in a provenance, in place."""
    for table in provenance.get("tables", ()):
        table.update(hashes.get(table["name"], {}))


def _provenance(run: FinishedRun) -> dict[str, Any]:
    """Return what the recipe of a run that only trains states about its source."""
    files = run.task.files
    table = {"name": files.table, "rows_before": files.rows, "rows_after": files.rows}
    return {
        "model_type": files.tables[0].location.family.model_type,
        "max_len": files.max_len,
        "revision": files.checkpoint.source.revision,
        "source_fingerprint": files.checkpoint.weights_fingerprint(),
        "tables": [table | _table_hashes(run).get(files.table, {})],
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
        facts["adapted"] = sorted({any_layer(name) for name in adapters})  # for `verify`
    facts |= _shortened(facts)
    if run.task.planned_steps != run.settings.steps:
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
        if isinstance(items, list) and len(items) > MAX_LISTED:
            shortened[name] = items[:MAX_LISTED]
            shortened[f"{name}_not_listed"] = len(items) - MAX_LISTED
    return shortened


# ---- card


def trained_card(run: FinishedRun) -> str:
    """Return the source's card with a section about the training."""
    files = run.task.files
    card = output_files.read_card(files.checkpoint)
    if card is not None:
        card = output_files.without_untrained_statements(card, files.max_len)
    return output_files.model_card(
        card,
        output_files.known_base_model(files.checkpoint),
        is_adapter=run.settings.save_adapter,
        title=printable(run.result.output.name),
        section=_section(run.settings, run.result),
    )


def _section(settings: Train, result: TrainResult) -> str:
    """Return the section of the card about the training, as Markdown."""
    run = result.run
    sequences = (
        f"{counted(run.steps, 'step')} of {counted(run.batch_size, 'sequence')} of "
        f"{run.window:,} tokens"
    )
    if run.window < run.seq_len:
        sequences += f" at random positions below {run.seq_len:,}"
    data = ", ".join(f"`{printable(public_name(path))}`" for path in settings.data)
    return (
        f"## Trained at {run.seq_len}\n\n"
        f"Trained with ctxextend {__version__} {_objective_text(result)}: {settings.trained_text} "
        f"({counted(result.trained.parameters, 'parameter')}), {sequences}, on {data}; "
        f"peak learning rate {run.lr:.3g}. {_losses_text(result)}"
        f"{output_files.LOG_POINTER}{output_files.RECIPE_POINTER}\n"
    )


def _objective_text(result: TrainResult) -> str:
    """Return what the model was trained to do, as a phrase."""
    objective = result.trained.objective
    weight = result.trained.distill
    text = OBJECTIVES[objective]
    if weight:
        other = KEEP_ANCHORS if objective == "contrastive" else OBJECTIVES["distilled"]
        text += f" and, with weight {weight:g}, {other}"
    return text


def _losses_text(result: TrainResult) -> str:
    """Return the held-out losses before and after training, as a sentence."""
    losses = result.held_out
    text = f"Held-out loss: {losses.before:.4f} before training"
    if losses.saved_step:
        return f"{text}, {losses.after:.4f} after step {losses.saved_step} (these weights)."
    return f"{text}; no later evaluation was lower, so these are the untrained weights."
