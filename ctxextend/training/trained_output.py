"""The output of a training run: a checkpoint, or an adapter, with recipe, card and logs."""

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.weights import Weights
from ctxextend.output.card import CARD_FILE, LOG_FILE
from ctxextend.output.output import NewTensors, Output
from ctxextend.output.prepare import encode
from ctxextend.output.record import Hashes
from ctxextend.recipe import RECIPE_FILE
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.training.finished_run import FinishedRun
from ctxextend.training.trained_card import trained_card
from ctxextend.training.trained_recipe import trained_recipe
from ctxextend.training.training_run import RunFolder

CURVE_FILE = "train_loss.png"
# The tensors are known before the output is written, so the recipe has their hashes already.
RECORDED = Hashes(fingerprint="", tables={})


def trained_output(run: FinishedRun) -> Output:
    """Return the output of a run, to be written by `write_output`.

    Raises:
        CheckpointError: A file of the trained checkpoint cannot be read.
    """
    weights = run.weights
    source = weights.checkpoint
    layouts = weights.layouts
    texts = _texts(run)
    if run.settings.save_adapter:
        source = _without_files(source)
        layouts = {}
        texts = _adapter_files(run) | texts
    else:
        texts = weights.texts | texts
    new = NewTensors(tensor=weights.tensor, hashes=RECORDED)
    return Output(
        source=source,
        default_folder=run.result.output,
        layouts=layouts,
        texts=texts,
        compute=lambda: new,
        placeholders=RECORDED,
        recipe=partial(_recipe, texts[RECIPE_FILE]),
    )


def _without_files(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of which nothing is copied."""
    return replace(checkpoint, weights=Weights(files={}), copied=())


def _recipe(text: bytes, folder: Path, hashes: Hashes) -> bytes:
    """Return the recipe, which is complete: the folder of the run's result is the output."""
    return text


def _adapter_files(run: FinishedRun) -> dict[str, bytes]:
    """Return the files of a PEFT adapter for the source, with the table if that is trained."""
    from ctxextend.training.adapters import adapter_files

    trainable = run.weights.trainable
    table = run.task.files.table
    tables = dict[str, Any]()
    if table in trainable.names:
        tables[trainable.table] = run.weights.tensor(table)
    return adapter_files(trainable, tables, run.source.ref)


def _texts(run: FinishedRun) -> dict[str, bytes]:
    """Return the recipe, card, log, loss curve and logs of trackers, by path."""
    log = "".join(f"{json.dumps(line)}\n" for line in run.result.log)
    texts = {
        RECIPE_FILE: trained_recipe(run),
        CARD_FILE: trained_card(run),
        LOG_FILE: log,
    }
    return encode(texts) | _tracker_files(run.folder) | _curve(run)


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
