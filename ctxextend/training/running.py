"""From a checkpoint and a text to a trained checkpoint."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.atomic_output import check_disk_space, check_output, existing_above
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.plan.find_tables import open_model, open_reference
from ctxextend.plan.plan import table_hash
from ctxextend.recipe import CheckpointRef, Recipe, Train
from ctxextend.recipe_file import REF_KEYS, TABLE_KEYS
from ctxextend.report.figures import plot_training
from ctxextend.text_data import check_texts, path_names
from ctxextend.training.devices import Devices
from ctxextend.training.learning import Learned, Learner
from ctxextend.training.objectives import LanguageModelling
from ctxextend.training.opening import Opened, open_texts, open_trained, table_sha
from ctxextend.training.reports import TrainingInterrupted, TrainResult, counted
from ctxextend.training.setup import set_up
from ctxextend.training.shown import check_shown
from ctxextend.training.texts import output_texts
from ctxextend.training.work import SAVE, Work, open_work, work_folder
from ctxextend.training.writing import TrainedOutput

__all__ = ["train", "train_run"]

CURVE_FILE = "train_loss.png"
RUNS = "runs"
# Tokens of text after which it is told how many were read: some seconds' worth.
TOLD_TOKENS = 10_000_000

# Told how many tokens were trained on since the last call, how many there will be, and what there is to say.
Progress = Callable[[int, int, str], None]


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
    progress: Progress | None = None,
    **settings: Any,
) -> TrainResult:
    """Train a checkpoint for a short while, and write it as a new folder.

    Causal and masked language models learn to tell tokens; encoders without a head learn to give, on long texts, what
    the original gives on windows that it can read. In each process of a run that torchrun or accelerate started this is
    called alike, and the first writes.

    Args:
        reference: As in `plan_resize`.
        data: Text files, folders of them, .jsonl, .parquet, or data sets of the Hub as ``hf:OWNER/NAME``.
        steps: Optimizer steps, ≥ 1.
        output: The new folder; None is ``<name>-trained`` in the current folder.
        force: Replace an existing checkpoint folder at the last moment, and throw away the saves of a stopped run.
        resume: Go on from the last save, where there is one.
        revision: As in `plan_resize`.
        subfolder: As in `plan_resize`.
        variant: As in `plan_resize`.
        family: As in `plan_resize`.
        progress: Told how many tokens were trained on since the last call, how many there will be, and the loss.
        settings: The other fields of `Train`, by their names: ``trainable``, ``seq_len``, ``window``, ``lr``, …

    Raises:
        SourceError: Nothing is at that reference, or it cannot be reached.
        CheckpointError: A file is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: It has no learned position table, reads one text and writes another, or takes no
            positions though windows ask for it.
        ResizeError: A setting that no training could have.
        DataError: The text cannot be read, or there is too little of it.
        TrainingError: A training that cannot be begun, gone on with, or brought to its end.
        OutputError: The output or a save cannot be written.
        TrainingInterrupted: Ctrl-C or another signal; it says what is saved.
    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    asked = Train(path_names(data), steps, **values)
    recipe = Recipe(CheckpointRef(os.fspath(reference), revision, subfolder, variant, family), train=asked)
    return train_run(recipe, output, force=force, resume=resume, progress=progress)


def train_run(
    recipe: Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Resize a checkpoint, where that is asked for, train it, and write it.

    Every process of a run calls this; the first alone writes.

    Args:
        recipe: What is asked for.
        output: The new folder; None is ``<name>-<length>`` of what is resized, and else ``<name>-trained``.
        force: Replace an existing checkpoint folder at the last moment, and throw away the saves of a stopped run.
        resume: Go on from the last save, where there is one.
        progress: Told how many tokens were trained on since the last call, how many there will be, and the loss.
        tell: Told what should be known before the first step.

    Raises:
        CtxextendError: As `ctxextend.train`.
        TrainingInterrupted: Ctrl-C or another signal; it says what is saved.
    """
    devices = Devices.here()
    check_shown(recipe.train.report_to if recipe.train else "none")
    folder = _output(recipe, output)
    with ExitStack() as stack:
        with devices.first_goes_first():
            work = stack.enter_context(_work(recipe, folder, devices, resume=resume, force=force))
            opened = _fitted(open_trained(recipe, work), devices)
            texts = open_texts(opened, work, packs=devices.is_first, progress=_reading(tell))
        learner = set_up(opened, texts, devices)
        for text in _plan_texts(learner, devices):
            tell(text)
        if devices.is_first:
            _check_room(learner, folder)
        before = table_sha(opened.files)
        learned = learner.learn(work, devices, _reporter(learner, progress))
        if learned.stopped_by is not None:
            raise TrainingInterrupted(learned.stopped_by, learned.step, work.folder)
        result = _result(recipe, folder, learner, learned, devices)
        if devices.is_first:
            _write(recipe, learner, result, (before, work), force=force)
            work.remove()
    return result


def _check_room(learner: Learner, output: Path) -> None:
    """Refuse a training whose saves and output the disk does not hold, before the first step of it."""
    opened, size = learner.opened, learner.trained.save_bytes
    made = TrainedOutput(opened.files.checkpoint, learner.trained, opened.files.table, opened.settings.dtype, {}, {})
    # One save is written before the one that came before it is removed.
    check_disk_space(existing_above(output), {**made.file_sizes, f"{SAVE}1": size, f"{SAVE}2": size})


def _fitted(opened: Opened, devices: Devices) -> Opened:
    """Return it with the precision that the devices have, having seen that they can share out its batches."""
    devices.micro_batches(opened.settings)
    return replace(opened, settings=replace(opened.settings, precision=devices.precision(opened.settings.precision)))


def _output(recipe: Recipe, output: str | os.PathLike[str] | None) -> Path:
    asked = recipe.output if output is None else output
    if asked is not None:
        return Path(os.path.expanduser(asked))  # noqa: PTH111 - never raises
    ending = "trained" if recipe.resize is None else recipe.resize.to
    return Path(f"{open_reference(recipe.checkpoint).source.name}-{ending}")


@contextmanager
def _work(recipe: Recipe, output: Path, devices: Devices, *, resume: bool, force: bool) -> Iterator[Work]:
    """Give the work folder, which the first process opens once it is seen that the output can be written."""
    if not devices.is_first:
        yield Work(work_folder(output))
        return
    opened = open_model(recipe.checkpoint, typed=recipe.typed)
    checkpoint = opened.with_code().checkpoint if recipe.keeps_code else opened.checkpoint
    check_output(output, checkpoint.guarded, dict.fromkeys(checkpoint.files, 0), force=force)
    name = opened.tables[0].name
    asked = _flat(recipe) | {f"sha256 of {name}": table_hash(read_floats(checkpoint.holder(name), name))}
    with open_work(output, asked, resume=resume, force=force) as work:
        if recipe.train is not None and work.save is None:
            for paths in filter(None, (recipe.train.data, recipe.train.eval_data)):
                check_texts(paths, recipe.train.text_field)
        yield work


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Return what was asked for as plain values, each under the name that it has in a recipe with ``--set``."""
    values: dict[str, Any] = {key: getattr(recipe.checkpoint, name) for key, name in REF_KEYS.items()}
    values |= {f"resize.{key}": getattr(recipe.checkpoint, name) for key, name in TABLE_KEYS.items()}
    for name in ("resize", "train"):
        section = getattr(recipe, name)
        found = asdict(section) if section is not None else {}
        values |= {f"{name}.{key}": list(value) if isinstance(value, tuple) else value for key, value in found.items()}
    return values


def _reading(tell: Callable[[str], None]) -> Callable[[int], None]:
    """Return what tells from time to time how much of a long text was cut into tokens."""
    read = 0

    def report(tokens: int) -> None:
        nonlocal read
        before, read = read // TOLD_TOKENS, read + tokens
        if read // TOLD_TOKENS > before:
            tell(f"{read:,} tokens of text were read")

    return report


def _reporter(learner: Learner, progress: Progress | None) -> Callable[[int, Mapping[str, float]], None]:
    """Return what tells of each step how many tokens it took and its loss."""
    settings, taken = learner.opened.settings, 0
    of_a_step = settings.batch_size * learner.opened.length

    def report(step: int, logs: Mapping[str, float]) -> None:
        nonlocal taken
        if progress is not None and "loss" in logs:
            progress((step - taken) * of_a_step, settings.steps * of_a_step, f"loss {logs['loss']:.4f}")
            taken = step

    return report


def _result(recipe: Recipe, output: Path, learner: Learner, learned: Learned, devices: Devices) -> TrainResult:
    settings, opened = learner.opened.settings, learner.opened
    measured = [line["eval_loss"] for line in learned.log if "eval_loss" in line]
    kind = learner.reader.kind
    return TrainResult(
        output=output,
        source=recipe.checkpoint.source,
        objective="distilled" if kind == ENCODER else kind,
        trainable=settings.trainable,
        parameters=learner.trained.count,
        steps=learned.step,
        batch_size=settings.batch_size,
        micro_batch=learner.choice.micro_batch,
        devices=devices.count,
        seq_len=opened.span,
        window=opened.length,
        lr=learner.lr,
        tokens=learned.step * settings.batch_size * opened.length,
        loss_before=measured[0],
        loss_after=measured[-1],
        seconds=learned.seconds,
        peak_bytes=learned.peak_bytes,
        precision=settings.precision,
        log=tuple(map(dict, learned.log)),
        is_first=devices.is_first,
        warnings=opened.warnings,
        notes=opened.notes,
    )


def _write(recipe: Recipe, learner: Learner, result: TrainResult, made: tuple[str, Work], *, force: bool) -> None:
    """Write the output: the weights, what they say of themselves, and a curve where matplotlib can draw it."""
    before, work = made
    opened, settings = learner.opened, learner.opened.settings
    source = opened.files.checkpoint.source
    ref = replace(recipe.checkpoint, revision=source.revision) if source.kind == "hub" else recipe.checkpoint
    steps = replace(settings, lr=result.lr, micro_batch=result.micro_batch)
    asked = replace(recipe, train=steps, checkpoint=ref)
    others = {RUNS: work.reports} if work.reports.is_dir() else {}
    output = TrainedOutput(opened.files.checkpoint, learner.trained, opened.files.table, settings.dtype, {}, others)
    table = output.tensor(opened.files.checkpoint.holder(opened.files.table), opened.files.table)
    texts = output_texts(asked, opened, result, (before, table_hash(table)))
    replace(output, texts=texts | _curve(result, work)).write(result.output, force=force)


def _curve(result: TrainResult, work: Work) -> dict[str, bytes]:
    """Return the file of the loss curve; none where there is nothing to draw it with."""
    if find_spec("matplotlib") is None:
        return {}
    path = work.folder / CURVE_FILE
    plot_training(result.log, f"{result.output.name}: {result.trainable} trained at {result.seq_len}", path)
    return {CURVE_FILE: path.read_bytes()}


def _plan_texts(learner: Learner, devices: Devices) -> Iterator[str]:
    """Yield what should be known before the first step."""
    settings, opened, choice = learner.opened.settings, learner.opened, learner.choice
    yield from opened.notes
    yield (
        f"{learner.trained.count:,} numbers are trained ({settings.trainable}), {counted(settings.steps, 'step')} of "
        f"{counted(settings.batch_size, 'sequence')} of {opened.length:,} tokens, {choice.micro_batch} at once on "
        f"{counted(devices.count, 'device')}, in {settings.precision}, lr {learner.lr:.3g}"
    )
    yield str(choice)
    if isinstance(learner.objective, LanguageModelling) and not learner.objective.is_apart:
        yield "The model's head cannot be parted from it, so the logits of all sequences at once are held whole."
    if warning := choice.warning(window=settings.window is not None):
        yield f"Warning: {warning}"
