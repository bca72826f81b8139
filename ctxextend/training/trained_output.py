"""The output of a training run: a checkpoint, or an adapter, with recipe, card and logs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from ctxextend.card import CARD_FILE, LOG_FILE, UNDECODED
from ctxextend.checkpoint.checkpoint import Weights
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.json_edit import edit
from ctxextend.checkpoint.writing import NewTensors, Output
from ctxextend.limits.edits import in_existing_objects, missing_engine_keys
from ctxextend.positions.rotary_dialects import both_dialects
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.training.finished_run import FinishedRun
from ctxextend.training.trained_card import trained_card
from ctxextend.training.trained_recipe import trained_recipe

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
        from ctxextend.training.adapters import adapter_files

        source = replace(source, weights=Weights(files={}), copied=())  # nothing is copied
        layouts = {}
        table = run.task.files.table_name
        tables = dict[str, NDArray[Any]]()
        if table in weights.trainable.names:
            tables[weights.trainable.table] = weights.tensor(table)
        files = adapter_files(weights.trainable, tables, run.source.ref)
    else:
        files = weights.texts
        files |= _config_for_other_readers(run, files)
    files |= _record_files(run)
    recipe = files[RECIPE_FILE]
    return Output(
        source=source,
        path=run.result.output,
        layouts=layouts,
        texts=files,
        compute=lambda path: NewTensors(tensor=weights.tensor, recipe=recipe),
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


def _record_files(run: FinishedRun) -> dict[str, bytes]:
    log = "".join(f"{json.dumps(line)}\n" for line in run.result.log)
    texts = {
        RECIPE_FILE: trained_recipe(run),
        CARD_FILE: trained_card(run),
        LOG_FILE: log,
    }
    files = {name: text.encode("utf-8", UNDECODED) for name, text in texts.items()}
    folder = run.folder.path
    for path in (folder / "runs").rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    if find_spec("matplotlib") is not None:
        result = run.result
        path = folder / CURVE_FILE
        title = f"{result.output.name}: {result.trainable} trained at {result.seq_len}"
        short = result.short_positions
        write_figure(path, lambda: training_figure(result.log, title, short))
        files[CURVE_FILE] = path.read_bytes()
    return files
