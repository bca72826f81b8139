"""Train a checkpoint on the user's text, and write it as a new folder."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import check_disk_space, check_output, existing_above
from ctxextend.checkpoints.safetensors_file import read_floats
from ctxextend.errors import TrainingError
from ctxextend.evaluation.eval_model import ENCODER, load_eval_model, open_files
from ctxextend.models.load import match_parameters
from ctxextend.plan.find_tables import OpenedModel, open_model
from ctxextend.plan.output_files import file_warnings
from ctxextend.plan.plan import ResizePlan, plan_recipe, table_hash
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import find_base
from ctxextend.recipe import RECIPE_FILE, REF_KEYS, CheckpointRef, Recipe, Train
from ctxextend.recipe_file import TABLE_KEYS
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.text_data import check_texts, path_names, shared
from ctxextend.training.devices import open_devices
from ctxextend.training.objectives import LanguageModeling
from ctxextend.training.run_folder import SAVE, RunFolder, open_run_folder
from ctxextend.training.setup import TrainingSetup, TrainingTask, fill_in, find_new_rows, open_texts, set_up
from ctxextend.training.trained_output import TrainedWeights, output_texts, write_trained
from ctxextend.training.trainer import TrainingOutcome, run_training
from ctxextend.training.training_result import TrainingInterrupted, TrainResult, counted

if TYPE_CHECKING:
    from accelerate import PartialState

CURVE_FILE = "train_loss.png"
# Tokens of text between two messages while a long text is tokenized: some seconds' worth.
TOKENIZED = 10_000_000


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
    """Resize a checkpoint, if the recipe says so, train it, and write it.

    Every process of a run calls this; only the first writes.

    Args:
        recipe: What is asked for.
        output: The new folder; None is the recipe's, and else ``<name>-<length>`` of what is resized, or
            ``<name>-trained``.
        plan: The plan of its resize; None plans it.
        force: Replace an existing checkpoint folder, and discard the saves of an interrupted run.
        resume: Continue from the last save, if there is one.
        progress: Called with the tokens of each step, and its loss.
        tell: Called with what the user should know before the first step.

    Raises:
        CtxextendError: As `ctxextend.train`.
        TrainingInterrupted: Ctrl-C or another signal; it says what is saved.
    """
    if recipe.train is None:
        raise TrainingError("The run asks for no training.", "Say what to train on: --data and --steps.")
    devices = open_devices()
    with ExitStack() as stack:
        with devices.main_process_first():
            if plan is None and recipe.resize is not None:
                plan = plan_recipe(recipe)
            source = plan.model if plan is not None else open_model(recipe.checkpoint, typed=recipe.typed)
            source = source.with_code() if recipe.keeps_code else source
            path, table = _output(recipe, output, source), _read_table(source)
            begin = _run_folder(recipe, source, table, path, devices, resume=resume, force=force)
            folder = stack.enter_context(begin)
            trained = source
            if plan is not None:
                trained = _open_resized(plan, folder)
                trained = trained.with_code() if recipe.keeps_code else trained
                table = _read_table(trained)
            task = _open_task(trained, recipe.train, table, source.ref, devices)
            texts = open_texts(task, folder, writes=devices.is_main_process, advance=_tokenized(tell))
        model = load_eval_model(task.files, "fp32")
        names = match_parameters(model.model, trained.checkpoint, [task.files.table])
        setup = set_up(model, names, task, texts)
        weights = TrainedWeights(trained.checkpoint, setup.trainable, task.settings.dtype)
        notes = source.checkpoint.source.notes if plan is None else ()
        for text in (*notes, *_summary(setup, devices)):
            tell(text)
        if devices.is_main_process:
            _check_disk_space(weights, path)
        outcome = run_training(setup, folder, devices, _reporter(setup, progress), tell)
        if outcome.stopped_by is not None:
            raise TrainingInterrupted(outcome.stopped_by, outcome.step, folder.path)
        begun_for = folder.begun_for if folder.begun_for != task.settings.steps else None
        warnings = plan.warnings if plan is not None else tuple(file_warnings(trained.checkpoint))
        result = _result(recipe, path, setup, outcome, devices)
        result = replace(result, notes=notes, warnings=(*warnings, *_warnings(task.settings, begun_for)))
        if devices.is_main_process:
            hashes = table_hash(table), table_hash(weights.tensor(task.files.table))
            written = output_texts(_filled_in(recipe, source, setup, result), task.files, result, hashes, begun_for)
            write_trained(weights, written | _curve(result, folder), _others(folder), path, force=force)
            folder.remove()
    return result


def _output(recipe: Recipe, output: str | os.PathLike[str] | None, source: OpenedModel) -> Path:
    asked = recipe.output if output is None else output
    if asked is not None:
        return Path(os.path.expanduser(asked))  # noqa: PTH111 - never raises
    return Path(f"{source.checkpoint.source.name}-{'trained' if recipe.resize is None else recipe.resize.to}")


# ---- before the first step


@contextmanager
def _run_folder(
    recipe: Recipe,
    source: OpenedModel,
    table: NDArray[Any],
    output: Path,
    devices: "PartialState",
    *,
    resume: bool,
    force: bool,
) -> Iterator[RunFolder]:
    """Yield the run folder, which the first process opens, after checking that the output can be written."""
    if not devices.is_main_process or recipe.train is None:
        yield RunFolder.beside(output)
        return
    checkpoint = source.checkpoint
    check_output(output, checkpoint.guarded, dict.fromkeys(checkpoint.files, 0), force=force)
    asked = _flat(recipe) | {f"sha256 of {source.tables[0].name}": table_hash(table)}
    with open_run_folder(output, asked, resume=resume, force=force) as folder:
        if folder.save is None:
            for paths in filter(None, (recipe.train.data, recipe.train.eval_data)):
                check_texts(paths, recipe.train.text_field)
        yield folder


def _flat(recipe: Recipe) -> dict[str, Any]:
    """Return what was asked for as plain values, under the names that ``--set`` uses."""
    ref = {key: getattr(recipe.checkpoint, name) for key, name in REF_KEYS.items()}
    values = {f"resize.{key}" if key in TABLE_KEYS else key: value for key, value in ref.items()}
    for name in ("resize", "train"):
        section = getattr(recipe, name)
        found = asdict(section) if section is not None else {}
        values |= {f"{name}.{key}": list(value) if isinstance(value, tuple) else value for key, value in found.items()}
    return values


def _open_resized(plan: ResizePlan, folder: RunFolder) -> OpenedModel:
    """Carry out a plan in the run folder, unless that was done before, and open the result."""
    if not folder.resized.exists():
        plan.execute(folder.resized)
    ref = CheckpointRef(str(folder.resized), variant=plan.ref.variant, model_type=plan.ref.model_type)
    return open_model(ref, typed=("train",))


def _read_table(opened: OpenedModel) -> NDArray[Any]:
    """Return the position table of a checkpoint, shape (rows, hidden_size)."""
    name = opened.tables[0].name
    return read_floats(opened.checkpoint.holder(name), name)


def _open_task(
    trained: OpenedModel,
    settings: Train,
    table: NDArray[Any],
    source: CheckpointRef,
    devices: "PartialState",
) -> TrainingTask:
    """Return what is trained: a checkpoint with its position table, and how, given what was asked for."""
    files = open_files(trained)
    settings, micro_batches = fill_in(settings, source.source, files, devices)
    base = find_base(files.checkpoint, settings.original)
    rows = find_new_rows(files, base, table) if settings.trainable == "new" else None
    return TrainingTask(files, settings, micro_batches, base, rows)


def _tokenized(tell: Callable[[str], None]) -> Callable[[int], None]:
    """Return a function that tells from time to time how many tokens were read."""
    read = 0

    def advance(tokens: int) -> None:
        nonlocal read
        before, read = read // TOKENIZED, read + tokens
        if read // TOKENIZED > before:
            tell(f"{read:,} tokens of text were read")

    return advance


def _summary(setup: TrainingSetup, devices: "PartialState") -> Iterator[str]:
    settings, micro_batch = setup.task.settings, setup.task.micro_batches[0]
    yield (
        f"{setup.trainable.count:,} numbers are trained ({settings.trainable}), {counted(settings.steps, 'step')} of "
        f"{counted(settings.batch_size, 'sequence')} of {setup.task.length:,} tokens, {micro_batch} at once on "
        f"{counted(devices.num_processes, 'device')}, in {settings.precision}, lr {setup.lr:.3g}"
    )
    if isinstance(setup.objective, LanguageModeling) and not setup.objective.has_separate_head:
        yield "The model's head cannot be parted from it, so the logits of all sequences at once are held whole."


def _check_disk_space(weights: TrainedWeights, output: Path) -> None:
    """Raise OutputError if the disk has no space for the rewritten weights, and for two saves meanwhile."""
    save = weights.trainable.save_bytes
    files = {name: layout.size for name, layout in weights.layouts.items()}
    check_disk_space(existing_above(output), {**files, f"{SAVE}1": save, f"{SAVE}2": save})


def _warnings(settings: Train, begun_for: int | None) -> Iterator[str]:
    if settings.eval_data and (both := shared(settings.eval_data, settings.data)):
        names = ", ".join(map(str, both[:3]))
        yield f"{names} is trained on and measured on: the held-out loss is not one of new text."
    if begun_for is not None:
        yield (
            f"It was begun for {begun_for:,} steps, and ends at {settings.steps:,}: the learning rates until the stop "
            f"were those of {begun_for:,}, so {RECIPE_FILE} alone does not make the same weights again."
        )


def _reporter(setup: TrainingSetup, progress: Progress) -> Callable[[int, Mapping[str, float]], None]:
    """Return a function that reports the tokens of each step, and its loss."""
    settings, taken = setup.task.settings, 0
    tokens = settings.batch_size * setup.sequences.length

    def report(step: int, logs: Mapping[str, float]) -> None:
        nonlocal taken
        if "loss" in logs:
            progress((step - taken) * tokens, settings.steps * tokens, f"loss {logs['loss']:.4f}")
            taken = step

    return report


# ---- after the last step


def _result(
    recipe: Recipe, output: Path, setup: TrainingSetup, outcome: TrainingOutcome, devices: "PartialState"
) -> TrainResult:
    settings, sequences, kind = setup.task.settings, setup.sequences, setup.model.kind
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
        devices=devices.num_processes,
        seq_len=sequences.span,
        window=sequences.length,
        lr=setup.lr,
        tokens=outcome.step * settings.batch_size * sequences.length,
        loss_before=held_out[0],
        loss_after=held_out[-1],
        seconds=outcome.seconds,
        peak_bytes=outcome.peak_bytes,
        precision=settings.precision,
        log=outcome.log,
        is_first=devices.is_main_process,
    )


def _filled_in(recipe: Recipe, source: OpenedModel, setup: TrainingSetup, result: TrainResult) -> Recipe:
    """Return the recipe with all that was left open filled in."""
    found, ref = source.checkpoint.source, recipe.checkpoint
    ref = replace(ref, revision=found.revision) if found.kind == "hub" else ref
    train = replace(setup.task.settings, lr=result.lr, micro_batch=result.micro_batch)
    return replace(recipe, checkpoint=ref, train=train)


def _curve(result: TrainResult, folder: RunFolder) -> dict[str, bytes]:
    """Return the file of the loss curve; none without matplotlib."""
    if find_spec("matplotlib") is None:
        return {}
    path = folder.path / CURVE_FILE
    title = f"{result.output.name}: {result.trainable} trained at {result.seq_len}"
    write_figure(path, lambda: training_figure(result.log, title))
    return {CURVE_FILE: path.read_bytes()}


def _others(folder: RunFolder) -> dict[str, Path]:
    """Return what tensorboard and the like wrote, by its path in the output."""
    files = (path for path in (folder.path / "runs").rglob("*") if path.is_file())
    return {path.relative_to(folder.path).as_posix(): path for path in files}
