"""The output of a training run: a checkpoint, or an adapter, with recipe, card and logs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from ctxextend.card import CARD_FILE, LOG_FILE, UNDECODED
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit
from ctxextend.checkpoints.weights import Weights
from ctxextend.limits.config_edits import in_existing_objects, missing_engine_keys
from ctxextend.output import NewTensors, Output
from ctxextend.positions.rotary_dialects import both_dialects
from ctxextend.recipe import RECIPE_FILE
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.training.finished_run import FinishedRun
from ctxextend.training.trained_card import trained_card
from ctxextend.training.trained_recipe import trained_recipe
from ctxextend.training.training_run import RunFolder

CURVE_FILE = "train_loss.png"


def trained_output(run: FinishedRun) -> Output:
    """Return the output of a run, to be written by `write_output`.

    Its tensors are known before it is written, so its recipe is complete. The recipe, card and logs
    of the run replace files of the same name.

    Raises:
        CheckpointError: A file of the trained checkpoint cannot be read.
    """
    weights = run.weights
    source = weights.checkpoint
    layouts = weights.layouts
    if run.settings.save_adapter:
        source = _without_files(source)
        layouts = {}
        files = _adapter_files(run)
    else:
        files = weights.texts
        files |= _config_for_other_readers(run, files)
    files |= _record_files(run)
    recipe = files[RECIPE_FILE]
    return Output(
        source=source,
        default_folder=run.result.output,
        layouts=layouts,
        texts=files,
        compute=lambda folder: NewTensors(tensor=weights.tensor, recipe=recipe),
    )


def _config_for_other_readers(run: FinishedRun, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return config.json with what transformers does not write, by path; empty if it has all of it.

    They are rotary settings in both dialects, since transformers writes only ``rope_parameters``
    when it saves a model; and keys of the length that other engines need.

    Args:
        run: The run.
        files: The files that training changes.
    """
    task_files = run.task.files
    checkpoint = task_files.checkpoint
    if not checkpoint.has_config:
        return {}
    changes = missing_engine_keys(task_files.opened)
    changes |= both_dialects(task_files.opened.architecture.locations)
    if not changes:
        return {}
    name = checkpoint.config_file
    text = checkpoint.text(name)
    if name in files:
        text = files[name].decode()
    return {name: edit(text, in_existing_objects(checkpoint.config, changes)).encode()}


def _without_files(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of which nothing is copied."""
    return replace(checkpoint, weights=Weights(files={}), copied=())


def _adapter_files(run: FinishedRun) -> dict[str, bytes]:
    """Return the files of a PEFT adapter for the source, with the table if that is trained."""
    from ctxextend.training.adapters import adapter_files

    trainable = run.weights.trainable
    tensor_name = run.task.files.table_name
    tables = dict[str, NDArray[Any]]()
    if tensor_name in trainable.names:
        parameter_name = trainable.table
        tables[parameter_name] = run.weights.tensor(tensor_name)
    return adapter_files(trainable, tables, run.source.ref)


def _record_files(run: FinishedRun) -> dict[str, bytes]:
    """Return the recipe, card, log, loss curve and logs of trackers, by path."""
    log = "".join(f"{json.dumps(line)}\n" for line in run.result.log)
    texts = {
        RECIPE_FILE: trained_recipe(run),
        CARD_FILE: trained_card(run),
        LOG_FILE: log,
    }
    files = {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}
    return files | _tracker_files(run.folder) | _write_curve(run)


def _tracker_files(folder: RunFolder) -> dict[str, bytes]:
    """Return the files that experiment trackers wrote, by path."""
    files = dict[str, bytes]()
    for path in (folder.path / "runs").rglob("*"):
        if path.is_file():
            files[path.relative_to(folder.path).as_posix()] = path.read_bytes()
    return files


def _write_curve(run: FinishedRun) -> dict[str, bytes]:
    """Write the figure of the losses into the run folder, and return it, by path.

    Without matplotlib, there is none.
    """
    if find_spec("matplotlib") is None:
        return {}
    result = run.result
    path = run.folder.path / CURVE_FILE
    title = f"{result.output.name}: {result.trainable} trained at {result.seq_len}"
    short = result.short_positions
    write_figure(path, lambda: training_figure(result.log, title, short))
    return {CURVE_FILE: path.read_bytes()}
