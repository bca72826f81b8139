"""Train a checkpoint on the user's text, and save it as a new checkpoint."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensorMode

from ctxextend.checkpoints.atomic_output import (
    atomic_folder,
    check_disk_space,
    check_output,
    nearest_existing_parent,
)
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.json_edit import edit
from ctxextend.checkpoints.rewrite import Layout, file_sizes, plan_layouts, write_files
from ctxextend.checkpoints.safetensors_file import numpy_dtype, read_floats
from ctxextend.errors import ResizeError, TrainingError, counted, one_line, printable
from ctxextend.evaluation.eval_model import DTYPES as CONFIG_DTYPES
from ctxextend.evaluation.eval_model import ModelFiles, open_files
from ctxextend.held_out import shared_texts
from ctxextend.models.devices import open_device, torch_threads
from ctxextend.output import card as output_files
from ctxextend.output.prepare import index_text
from ctxextend.output.record import table_hash
from ctxextend.output.write import output_path
from ctxextend.plan.effects import UNTRAINED
from ctxextend.plan.file_warnings import file_warnings
from ctxextend.plan.find_tables import open_model
from ctxextend.planned import Planned
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Recipe, Train, accepts_settings, split_ref
from ctxextend.recipe_file import (
    SECTIONS,
    TABLE_KEYS,
    any_layer,
    read_provenance,
    recipe_values,
    yaml_text,
)
from ctxextend.report.figures import public_name, training_figure, write_figure
from ctxextend.text_data import check_texts, empty_files, path_names
from ctxextend.training.memory import estimate_memory, open_devices
from ctxextend.training.setup import (
    TrainableParameters,
    TrainingSetup,
    TrainingTask,
    choose_parameters,
    load_task,
    open_task,
    set_up,
)
from ctxextend.training.trainer import run_training
from ctxextend.training.training_run import (
    SAVE,
    RunFolder,
    TrainingPlan,
    TrainResult,
    open_run_folder,
)
from ctxextend.version import __version__

DTYPES = {
    "fp32": "F32",
    "bf16": "BF16",
    "fp16": "F16",
}  # safetensors' names of the dtypes of --dtype
CONFIG_KEYS = (
    "dtype",
    "torch_dtype",
)  # config keys of the dtype; older versions of transformers use the second

LOSSES = (
    "loss_before",
    "loss_after",
    "loss_last",
    "loss_best",
    "best_step",
    "saved_step",
)  # also in the recipe
RECORDED = ("objective", "parameters", "tokens", "devices", *LOSSES)
MAX_LISTED = 200  # maximum number of text files that a recipe lists, to keep it short
OBJECTIVES = {
    "causal": "to predict the next token",
    "masked": "to predict masked tokens",
    "contrastive": "to find the text of each pair, such as the document of a passage, "
    "among those of a batch",
    "kept": "to keep its base checkpoint's embeddings of anchors",
    "distilled": "to reproduce, on long texts, the hidden states of its base "
    "checkpoint on windows that "
    "it can read",
}
LOG_FILE = "train_log.jsonl"
LOG_POINTER = f" `{LOG_FILE}` contains the training and held-out losses."


@accepts_settings(CheckpointRef, Train, without=TABLE_KEYS)
def train(
    reference: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    steps: int,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    **settings: Any,
) -> TrainResult:
    """Fine-tune a checkpoint on text, and save it as a new checkpoint.

    Causal and masked language models learn to predict tokens; encoders without an LM head are
    distilled from their base checkpoint, so that they reproduce, on long texts, its hidden states
    on windows that it can read. Under torchrun or accelerate, call this in every process; the main
    process saves.

    Args:
        reference: As in `resize`.
        data: Text files, folders, .jsonl, .parquet, or Hub datasets as ``hf:OWNER/NAME``.
        steps: Optimizer steps, ≥ 1.
        output: The new folder; by default ``<name>-trained`` in the current folder.
        force: Replace an existing checkpoint folder, and discard the saved state of an interrupted
            run.
        resume: Resume from the last saved state, if there is one.
        progress: Called with the tokens of each step, and its loss.
        settings: Other fields of `Train`: ``trainable``, ``seq_len``, ``window``, ``lr``, …; and
            ``revision``, ``subfolder``, ``variant`` and ``model_type`` as in `resize`.

    Raises:
        CtxextendError: As `resize`; or windows are used and the model does not accept position ids.
        DataError: The text cannot be read or is too short.
        TrainingError: Training failed to start, resume or finish.
        OutputError: The output or a saved state cannot be written.
        TrainingInterrupted: A signal such as Ctrl-C arrived; it has the step and folder of the
            saved state.
    """
    ref, settings = split_ref(reference, settings)
    settings["eval_data"] = path_names(settings.get("eval_data") or ())
    recipe = Recipe(ref, train=Train(path_names(data), steps, **settings))
    return train_recipe(recipe, output, force=force, resume=resume, progress=progress)


def train_recipe(
    recipe: Recipe,
    output: str | os.PathLike[str] | None = None,
    *,
    plan: Planned | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = lambda text: None,
) -> TrainResult:
    """Resize or convert a checkpoint if there is a plan, then train and save it; see `train`."""
    settings = recipe.train
    assert settings is not None
    if settings.save_adapter and (plan is not None or recipe.evaluate is not None):
        message = (
            "--save-adapter cannot be combined with other steps: an adapter belongs to an "
            "existing checkpoint."
        )
        raise ResizeError(
            message,
            "Run the other steps first, then ctxextend train MODEL --lora R --save-adapter.",
        )
    devices = open_devices(settings.device, fsdp=settings.fsdp)
    with ExitStack() as stack:
        with devices.main_process_first():
            source = opened = plan.model if plan is not None else open_model(recipe.checkpoint)
            if recipe.copies_code:
                source = opened = source.with_code()
            table = source.read_table()
            hashes = {} if table is None else {"sha256_before": table_hash(table)}
            trained = Path(f"{source.checkpoint.source.name}-trained")
            path = output_path(output, plan.output.default_folder if plan is not None else trained)
            folder = RunFolder.for_output(path)
            if devices.is_main_process:
                check_output(
                    path,
                    source.checkpoint.protected,
                    dict.fromkeys(source.checkpoint.files, 0),
                    force=force,
                )
                steps = {
                    "source": recipe.checkpoint,
                    **{name: getattr(recipe, name) for name in SECTIONS},
                }
                values = {
                    name: asdict(step)
                    for name, step in steps.items()
                    if step and name != "evaluate"
                }
                named = {
                    f"{name}.{key}": value
                    for name, step in values.items()
                    for key, value in step.items()
                }
                named[f"sha256 of {source.tables[0].name}"] = hashes.get("sha256_before")
                named["fingerprint of all weights"] = source.checkpoint.weights_fingerprint()
                folder = stack.enter_context(
                    open_run_folder(path, named, resume=resume, force=force)
                )
                if (
                    folder.save is None and settings.contrastive != "pairs"
                ):  # these are checked when they are read
                    check_texts((*settings.data, *settings.eval_data), settings.text_field)
            if plan is not None:
                resized = folder.path / "resized"
                if not resized.exists():
                    plan.execute(resized)
                ref = CheckpointRef(
                    str(resized),
                    variant=plan.model.ref.variant,
                    model_type=plan.model.ref.model_type,
                )
                opened = replace(
                    open_model(ref), ref=source.ref
                )  # messages show the reference that the user passed
                opened = opened.with_code() if recipe.copies_code else opened
            files, provenance = open_files(opened), read_provenance(opened.checkpoint)
            task = open_task(files, settings, devices, folder, notify)
        task, model, names, teacher = load_task(task)
        settings = task.settings
        setup = set_up(model, names, task, teacher)
        adapted = sorted(
            {any_layer(name) for name in setup.trainable.adapters}
        )  # recorded in the recipe, for verify
        task = replace(
            task, provenance={**task.provenance, **({"adapted": adapted} if adapted else {})}
        )
        weights = TrainedWeights(opened.checkpoint, setup.trainable, settings.dtype)
        notes = (source.checkpoint.source.notes if plan is None else ()) + task.notes
        notes += tuple(empty_files((*settings.data, *settings.eval_data)))
        notes += ("Nothing to resume: training starts at step 0.",) * (
            resume and folder.save is None
        )
        for text in (*notes, *(f"Warning: {text}" for text in task.warnings), _summary(setup)):
            notify(text)
        if (
            devices.is_main_process
        ):  # the new weights are written while up to two saved states exist
            saves = dict.fromkeys((f"{SAVE}1", f"{SAVE}2"), setup.trainable.save_bytes)
            sizes = {
                name: layout.size
                for name, layout in weights.layouts.items()
                if not settings.save_adapter
            }
            check_disk_space(nearest_existing_parent(path), sizes | saves)
        with torch_threads(model.model, settings.threads):
            result = run_training(setup, folder, progress, notify)
        warnings = plan.warnings if plan is not None else tuple(file_warnings(opened.checkpoint))
        warnings += (*task.warnings, *_warnings(task, result))
        result = replace(result, output=path, notes=notes, warnings=warnings)
        if devices.is_main_process:
            origin, ref = source.checkpoint.source, recipe.checkpoint
            ref = replace(ref, revision=origin.revision) if origin.kind == "hub" else ref
            filled = replace(
                task.settings, lr=result.lr, per_device_batch_size=result.per_device_batch_size
            )
            stored = (name for _, name in files.tables if name in opened.checkpoint.names)
            written = {name: {"sha256_after": table_hash(weights.tensor(name))} for name in stored}
            written |= {files.table: hashes | written[files.table]} if hashes else {}
            recipe = replace(recipe, checkpoint=ref, train=filled)
            before = dict(provenance.values) if provenance else {}
            texts = {
                RECIPE_FILE: _recipe(recipe, before, task, result, written),
                output_files.CARD_FILE: _card(filled, files, result),
                LOG_FILE: "".join(f"{json.dumps(line)}\n" for line in result.log),
            }
            others = {
                name: text.encode("utf-8", output_files.UNDECODED) for name, text in texts.items()
            }
            others |= _curve_and_runs(result, folder)
            if settings.save_adapter:
                from ctxextend.training.adapters import save_adapter

                sizes = {name: len(content) for name, content in others.items()}
                with atomic_folder(path, opened.checkpoint.protected, sizes, force=force) as staged:
                    tables = (
                        {setup.trainable.table: weights.tensor(files.table)}
                        if files.table in setup.trainable.names
                        else {}
                    )
                    save_adapter(setup.trainable, tables, opened.ref, staged)
                    for name, content in others.items():
                        (staged / name).write_bytes(content)
            else:
                weights.write(others, path, force=force)
            folder.remove()
    return result


def plan_training(
    recipe: Recipe, output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> TrainingPlan:
    """Check the training of a recipe, which must not resize or convert, and estimate its memory.

    No weights are loaded, only temporary files are written, and of a long text, only the start is
    read.

    Raises:
        CtxextendError: As `train`, if the run could not start.
    """
    opened = open_model(recipe.checkpoint)
    settings = recipe.train
    assert settings is not None
    path = output_path(output, Path(f"{opened.checkpoint.source.name}-trained"))
    check_output(
        path, opened.checkpoint.protected, dict.fromkeys(opened.checkpoint.files, 0), force=force
    )
    if settings.contrastive != "pairs":
        check_texts((*settings.data, *settings.eval_data), settings.text_field)
    devices: Any = SimpleNamespace(
        device=open_device(settings.device), num_processes=1, is_main_process=True
    )
    with TemporaryDirectory() as folder:
        settings = replace(settings, steps=1, fsdp=False)
        task = open_task(open_files(opened), settings, devices, RunFolder(Path(folder)))
    with devices.device, FakeTensorMode(allow_non_fake_inputs=True) as mode:
        task, model, names, other = load_task(task)
        teacher = other.model.num_parameters() * other.model.dtype.itemsize if other else 0
    trainable = choose_parameters(
        model, names, task
    )  # adapters have values: peft cannot move those without
    with mode:
        tables = [
            model.model.get_parameter(names[name])
            for _, name in task.files.tables
            if name in trainable.names
        ]
        try:
            memory = tuple(estimate_memory(model, tables, task.settings, task.length, teacher))
        except RuntimeError as error:  # such as an operation that depends on values
            message = (
                f"Cannot estimate the memory of {model.model_type} models without weights: "
                f"{one_line(error)}"
            )
            raise TrainingError(message, "Measure it with --steps 1.") from error
    facts = trainable.count, model.model.num_parameters(), str(task.settings.precision), memory
    return TrainingPlan(
        path,
        recipe.checkpoint.source,
        str(task.settings.trainable),
        *facts,
        task.notes,
        task.warnings,
    )


def _summary(setup: TrainingSetup) -> str:
    task, settings = setup.task, setup.task.settings
    what = settings.trained_text if settings.lora else settings.trainable
    return (
        f"{counted(setup.trainable.count, 'trainable parameter')} ({what}), "
        f"{counted(settings.steps, 'step')} of {counted(settings.batch_size, 'sequence')} of "
        f"{task.length:,} tokens, "
        f"micro-batch {task.micro_batches[0]} on {counted(task.devices.num_processes, 'device')}"
        f"{', sharded' if settings.fsdp else ''}, "
        f"{settings.precision}, lr {setup.lr:.3g}"
        + (
            f", distilled from its base with weight {settings.distill:g}"
            if settings.distill
            else ""
        )
    )


def _warnings(task: TrainingTask, result: TrainResult) -> Iterator[str]:
    settings, planned_steps = task.settings, task.planned_steps
    if not result.best_step or result.loss_last > result.loss_before:
        reason, best = "Training did not lower the held-out loss", ""
        if result.best_step:
            reason = f"The held-out loss rose after step {result.best_step}"
            best = f", {result.loss_best:.4f} after step {result.best_step}"
        saved = f"weights of step {result.saved_step}" if result.saved_step else "untrained weights"
        more = "--trainable all, or " * (
            not result.best_step and settings.trainable in ("new", "positions")
        )
        yield (
            f"{reason}: {result.loss_before:.4f} at the start{best}, {result.loss_last:.4f} "
            f"after step {result.steps}. "
            f"Saved the {saved}. Try {more}a lower --lr than {result.lr:.3g}."
        )
    if settings.eval_data and (shared := shared_texts(settings.eval_data, settings.data)):
        names = ", ".join(map(str, shared[:3]))
        yield (
            f"{names} is in both --data and --eval-data: the held-out loss does not measure new "
            "text."
        )
    if planned_steps != settings.steps:
        yield (
            f"The run was planned for {planned_steps:,} steps and ended at {settings.steps:,}. "
            "Before it was resumed, "
            f"the learning rate followed a {planned_steps:,}-step schedule: {RECIPE_FILE} does "
            "not reproduce it."
        )


def _curve_and_runs(result: TrainResult, folder: RunFolder) -> dict[str, bytes]:
    runs = [path for path in (folder.path / "runs").rglob("*") if path.is_file()]
    files = {path.relative_to(folder.path).as_posix(): path.read_bytes() for path in runs}
    if find_spec("matplotlib") is not None:
        path = folder.path / "train_loss.png"
        title = f"{result.output.name}: {result.trainable} trained at {result.seq_len}"
        write_figure(path, lambda: training_figure(result.log, title, result.short_positions))
        files[path.name] = path.read_bytes()
    return files


@dataclass(frozen=True)
class TrainedWeights:
    """The tensors of a trained checkpoint, each computed on access, so that few are in memory."""

    checkpoint: Checkpoint  # before training
    trainable: TrainableParameters
    dtype: str | None  # of all floats, as in ``--dtype``; None keeps each tensor's

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor; frozen rows are copied from the source unless the dtype changes."""
        file = self.checkpoint.names[name]
        dtype = numpy_dtype(self._dtype(name))
        if path := self.trainable.adapters.get(name):
            layer: Any = self.trainable.model.get_submodule(path)
            a, b = (
                self.trainable.value(f"{path}.lora_{part}.default.weight").double() for part in "AB"
            )
            delta = layer.scaling["default"] * (a.T @ b.T if layer.fan_in_fan_out else b @ a)
            return np.asarray(read_floats(file, name).astype(np.float64) + delta.numpy()).astype(
                dtype
            )
        if name not in self.trainable.names:
            return read_floats(file, name).astype(dtype)
        parameter = self.trainable.names[name]
        values = self.trainable.value(parameter).numpy().astype(dtype)
        if (
            parameter == self.trainable.table
            and not self.dtype
            and (rows := self.trainable.rows) is not None
        ):
            values[~rows] = read_floats(file, name)[~rows]
        return values

    def _dtype(self, name: str) -> str:
        before = self.checkpoint.entries[name].dtype
        return (
            DTYPES[self.dtype] if self.dtype is not None and before in DTYPES.values() else before
        )

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        """The layout of every weights file that changes or is renamed."""
        before = self.checkpoint.entries
        dtypes = {name: self._dtype(name) for name in before}
        trained = self.trainable.names.keys() | self.trainable.adapters.keys()
        names = [name for name in before if name in trained or dtypes[name] != before[name].dtype]
        return plan_layouts(
            self.checkpoint, {name: before[name].shape for name in names}, dtypes=dtypes
        )

    def write(self, others: Mapping[str, bytes], output: Path, *, force: bool) -> None:
        """Write the checkpoint folder atomically; `others` are its recipe, card and logs by
        path.
        """
        checkpoint = self.checkpoint
        texts = dict(self.checkpoint.generated)
        if self.dtype is not None and checkpoint.has_config:
            keys = [key for key in CONFIG_KEYS if key in checkpoint.config] or CONFIG_KEYS[:1]
            changes: dict[tuple[str, ...], Any] = {
                (key,): CONFIG_DTYPES[self.dtype] for key in keys
            }
            texts[checkpoint.config_file] = edit(checkpoint.text(checkpoint.config_file), changes)
        if self.dtype is not None and checkpoint.index is not None:
            texts[checkpoint.index_file] = index_text(checkpoint, self.layouts)
        data = {name: text.encode() for name, text in texts.items()} | dict(others)
        checkpoint.check_unchanged()
        sizes = file_sizes(checkpoint, self.layouts, data)
        with atomic_folder(output, checkpoint.protected, sizes, force=force) as staged:
            write_files(checkpoint, staged, self.layouts, self.tensor, data)


def _recipe(
    recipe: Recipe,
    before: dict[str, Any],
    task: TrainingTask,
    result: TrainResult,
    hashes: dict[str, dict[str, str]],
) -> str:
    """Return the recipe: with `before`, the plain values of the source's recipe, and hashes by
    table.
    """
    files = task.files
    values = recipe_values(recipe)
    trained = {name: getattr(result, name) for name in RECORDED} | dict(task.provenance)
    for name, items in task.provenance.items():
        if len(items) > MAX_LISTED:
            trained |= {name: items[:MAX_LISTED], f"{name}_not_listed": len(items) - MAX_LISTED}
    if task.planned_steps != task.settings.steps:
        trained["planned_steps"] = task.planned_steps
    libraries = ("torch", "transformers", "accelerate", *["peft"] * bool(task.settings.lora))
    trained["versions"] = {name: version(name) for name in libraries}
    if recipe.resize is not None or recipe.convert is not None:
        provenance = before.pop("provenance")
        for table in provenance.get("tables", ()):
            table.update(hashes.get(table["name"], {}))
        steps = {name: values[name] for name in ("train", "evaluate") if name in values}
        return yaml_text(
            before | steps | {"provenance": provenance | {"trained": trained}}, result.output
        )
    table = {"name": files.table, "rows_before": files.rows, "rows_after": files.rows}
    provenance = {
        "model_type": files.tables[0].location.family.model_type,
        "max_len": files.max_len,
        "revision": files.checkpoint.source.revision,
        "source_fingerprint": files.checkpoint.weights_fingerprint(),
        "tables": [table | hashes.get(files.table, {})],
        "versions": {"ctxextend": __version__},
        **({"source_recipe": before} if before else {}),
    }
    return yaml_text(values | {"provenance": provenance | {"trained": trained}}, result.output)


def _card(settings: Train, files: ModelFiles, result: TrainResult) -> str:
    """Return the model card, without statements of the old one that no longer apply."""
    checkpoint = files.checkpoint
    card = output_files.read_card(files.checkpoint)
    if card is not None:
        card = card.replace(LOG_POINTER, "").replace(
            UNTRAINED.format(files.max_len), "Before training:"
        )
    data = ", ".join(f"`{printable(public_name(path))}`" for path in settings.data)
    placed = f" at random positions below {result.seq_len:,}" * (result.window < result.seq_len)
    after = f", {result.loss_after:.4f} after step {result.saved_step} (these weights)"
    after = (
        after
        if result.saved_step
        else "; no later evaluation was lower, so these are the untrained weights"
    )
    objective = OBJECTIVES[result.objective]
    other = OBJECTIVES["kept" if result.objective == "contrastive" else "distilled"]
    objective += f" and, with weight {result.distill:g}, {other}" if result.distill else ""
    trained = settings.trained_text
    section = (
        f"## Trained at {result.seq_len}\n\n"
        f"Trained with ctxextend {__version__} {objective}: {trained} "
        f"({counted(result.parameters, 'parameter')}), {counted(result.steps, 'step')} of "
        f"{counted(result.batch_size, 'sequence')} of {result.window:,} tokens{placed}, on "
        f"{data}; peak learning rate "
        f"{result.lr:.3g}. Held-out loss: {result.loss_before:.4f} before training{after}."
        f"{LOG_POINTER}{output_files.RECIPE_POINTER}\n"
    )
    title, base_model = printable(result.output.name), output_files.known_base_model(checkpoint)
    return output_files.model_card(
        card, base_model, is_adapter=settings.save_adapter, title=title, section=section
    )
