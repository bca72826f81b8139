"""Train a checkpoint on the user's text, and write it as a new folder."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import check_disk_space, check_output, existing_above
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import TrainingError
from ctxextend.evaluation.eval_model import ENCODER, load_eval_model, open_eval_model, open_files
from ctxextend.models.load import match_parameters
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.output_files import file_warnings
from ctxextend.plan.plan import ResizePlan, plan_recipe, table_hash
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import find_base
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Recipe, Train
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.text_data import check_texts, path_names, shared
from ctxextend.training.memory import open_devices
from ctxextend.training.run_folder import SAVE, RunFolder, open_run_folder
from ctxextend.training.setup import TrainingSetup, find_new_rows, open_task, set_up
from ctxextend.training.trained_output import TrainedWeights, output_texts
from ctxextend.training.trainer import TrainingOutcome, run_training
from ctxextend.training.training_result import TrainingInterrupted, TrainResult, counted

CURVE_FILE = "train_loss.png"


def train(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    steps: int,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    resume: bool = False,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
    progress: Progress = no_progress,
    **settings: Any,
) -> TrainResult:
    """Train a checkpoint for a short while, and write it as a new folder.

    Causal and masked language models learn to predict tokens; encoders without a head learn to give, on long texts,
    what their base checkpoint gives on windows that it can read. Every process that torchrun or accelerate started
    calls this alike, and the first writes.

    Args:
        reference: As in `plan_resize`.
        data: Text files, folders, .jsonl, .parquet, or Hub datasets as ``hf:OWNER/NAME``.
        steps: Optimizer steps, ≥ 1.
        output: The new folder; None is ``<name>-trained`` in the current folder.
        force: Replace an existing checkpoint folder, and discard the saves of an interrupted run.
        resume: Continue from the last save, if there is one.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Called with the tokens of each step, and its loss.
        settings: The other fields of `Train`, by name: ``trainable``, ``seq_len``, ``window``, ``lr``, …

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: It has no learned position table, reads one text and writes another, or takes no
            position ids though windows need them.
        ResizeError: A setting that no training could have.
        DataError: The text cannot be read, or there is too little of it.
        TrainingError: Training cannot start, resume or finish.
        OutputError: The output or a save cannot be written.
        TrainingInterrupted: Ctrl-C or another signal; it says what is saved.
    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    ref = CheckpointRef(os.fspath(reference), revision, subfolder, variant, family)
    recipe = Recipe(ref, train=Train(path_names(data), steps, **values))
    return train_recipe(recipe, output, force=force, resume=resume, progress=progress)


def train_recipe(
    recipe: Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    plan: ResizePlan | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    tell: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Resize a checkpoint, if the recipe says so, train it, and write it; see `train`.

    The output is by default the recipe's, else ``<name>-<length>`` of what is resized, or ``<name>-trained``; `plan` is
    that of the resize, if it is made already; `tell` is told what the user should know before the first step.
    """
    settings = recipe.train
    if settings is None:
        raise TrainingError("The run asks for no training.", "Say what to train on: --data and --steps.")
    devices = open_devices()
    with ExitStack() as stack:
        with devices.main_process_first():
            if plan is None and recipe.resize is not None:
                plan = plan_recipe(recipe)
            source = opened = plan.model if plan is not None else open_model(recipe.checkpoint, typed=recipe.typed)
            path = _output(recipe, output, source)
            folder = RunFolder.beside(path)
            if devices.is_main_process:
                source = source.with_code() if recipe.keeps_code else source
                check_output(path, source.checkpoint.guarded, dict.fromkeys(source.checkpoint.files, 0), force=force)
                begun = open_run_folder(path, _asked(recipe, source), resume=resume, force=force)
                folder = stack.enter_context(begun)
                if folder.save is None:
                    for paths in filter(None, (settings.data, settings.eval_data)):
                        check_texts(paths, settings.text_field)
            if plan is not None:
                resized = folder.path / "resized"
                if not resized.exists():
                    plan.execute(resized)
                ref = CheckpointRef(str(resized), variant=plan.ref.variant, model_type=plan.ref.model_type)
                opened = replace(open_model(ref), ref=source.ref)  # so that messages name what the user named
            opened = opened.with_code() if recipe.keeps_code else opened
            files, table = open_files(opened), _read_table(opened)
            base = find_base(opened.checkpoint, settings.original)
            rows = find_new_rows(files, base, table) if settings.trainable == "new" else None
            task = open_task(files, settings, devices, folder, rows, tell)
        model = load_eval_model(files, "fp32")
        names = match_parameters(model.model, opened.checkpoint, [files.table])
        teacher = open_eval_model(base.ref, "fp32", base.hashes) if base and model.kind == ENCODER else None
        setup = set_up(model, names, task, teacher)
        weights = TrainedWeights(opened.checkpoint, setup.trainable, settings.dtype)
        notes = source.checkpoint.source.notes if plan is None else ()
        for text in (*notes, _summary(setup)):
            tell(text)
        if devices.is_main_process:  # for the rewritten weights, and for two saves meanwhile
            saves = dict.fromkeys((f"{SAVE}1", f"{SAVE}2"), setup.trainable.save_bytes)
            sizes = {name: layout.size for name, layout in weights.layouts.items()}
            check_disk_space(existing_above(path), sizes | saves)
        outcome = run_training(setup, folder, progress, tell)
        if outcome.stopped_by is not None:
            raise TrainingInterrupted(outcome.stopped_by, outcome.step, folder.path)
        begun_for = folder.begun_for if folder.begun_for != settings.steps else None
        warnings = plan.warnings if plan is not None else tuple(file_warnings(opened.checkpoint))
        result = _result(recipe, path, setup, outcome)
        result = replace(result, notes=notes, warnings=(*warnings, *_warnings(settings, begun_for)))
        if devices.is_main_process:
            found, ref = source.checkpoint.source, recipe.checkpoint
            ref = replace(ref, revision=found.revision) if found.kind == "hub" else ref
            filled = replace(task.settings, lr=result.lr, micro_batch=result.micro_batch)
            hashes = table_hash(table), table_hash(weights[files.table])
            recipe = replace(recipe, checkpoint=ref, train=filled)
            texts = output_texts(recipe, files, result, hashes, begun_for) | _curve_and_runs(result, folder)
            weights.write(texts, path, force=force)
            folder.remove()
    return result


def _output(recipe: Recipe, output: str | os.PathLike[str] | None, source: OpenedModel) -> Path:
    asked = recipe.output if output is None else output
    if asked is not None:
        return Path(os.path.expanduser(asked))  # noqa: PTH111 - never raises
    return Path(f"{source.checkpoint.source.name}-{'trained' if recipe.resize is None else recipe.resize.to}")


def _read_table(opened: OpenedModel) -> NDArray[Any]:
    """Return the position table of a checkpoint, shape (rows, hidden_size)."""
    name = opened.tables[0].name
    return read_floats(opened.checkpoint.holder(name), name)


def _asked(recipe: Recipe, source: OpenedModel) -> dict[str, Any]:
    """Return what was asked for and the hash of the table, as plain values by which a run is known again."""
    sections = {"source": recipe.checkpoint, "resize": recipe.resize, "train": recipe.train}
    values = {name: asdict(section) for name, section in sections.items() if section is not None}
    flat = {f"{name}.{key}": value for name, section in values.items() for key, value in section.items()}
    flat[f"sha256 of {source.tables[0].name}"] = table_hash(_read_table(source))
    asked: dict[str, Any] = json.loads(json.dumps(flat))
    return asked


# ---- what is said


def _summary(setup: TrainingSetup) -> str:
    task, settings = setup.task, setup.task.settings
    return (
        f"{setup.trainable.count:,} numbers are trained ({settings.trainable}), {counted(settings.steps, 'step')} of "
        f"{counted(settings.batch_size, 'sequence')} of {task.length:,} tokens, {task.micro_batches[0]} at once on "
        f"{counted(task.devices.num_processes, 'device')}, in {settings.precision}, lr {setup.lr:.3g}"
    )


def _warnings(settings: Train, begun_for: int | None) -> Iterator[str]:
    if settings.eval_data and (both := shared(settings.eval_data, settings.data)):
        names = ", ".join(map(str, both[:3]))
        yield f"{names} is trained on and measured on: the held-out loss is not one of new text."
    if begun_for is not None:
        yield (
            f"It was begun for {begun_for:,} steps, and ends at {settings.steps:,}: the learning rates until the stop "
            f"were those of {begun_for:,}, so {RECIPE_FILE} alone does not make the same weights again."
        )


# ---- after the last step


def _result(recipe: Recipe, output: Path, setup: TrainingSetup, outcome: TrainingOutcome) -> TrainResult:
    task, settings, kind = setup.task, setup.task.settings, setup.model.kind
    held_out = [line["eval_loss"] for line in outcome.log if "eval_loss" in line]
    return TrainResult(
        output=output,
        source=recipe.checkpoint.source,
        objective="distilled" if kind == ENCODER else kind,
        trainable=settings.trainable,
        parameters=setup.trainable.count,
        steps=outcome.step,
        batch_size=settings.batch_size,
        micro_batch=outcome.micro_batch,
        devices=task.devices.num_processes,
        seq_len=task.span,
        window=task.length,
        lr=setup.lr,
        tokens=outcome.step * settings.batch_size * task.length,
        loss_before=held_out[0],
        loss_after=held_out[-1],
        seconds=outcome.seconds,
        peak_bytes=outcome.peak_bytes,
        precision=settings.precision,
        log=outcome.log,
        is_first=task.devices.is_main_process,
    )


def _curve_and_runs(result: TrainResult, folder: RunFolder) -> dict[str, bytes]:
    """Return the loss curve, if there is matplotlib, and what tensorboard and the like wrote, by path."""
    runs = [path for path in (folder.path / "runs").rglob("*") if path.is_file()]
    found = {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in runs}
    if find_spec("matplotlib") is not None:
        path = folder.path / CURVE_FILE
        title = f"{result.output.name}: {result.trainable} trained at {result.seq_len}"
        write_figure(path, lambda: training_figure(result.log, title))
        found[CURVE_FILE] = path.read_bytes()
    return found
