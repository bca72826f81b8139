"""What a training run does: its settings, text and checkpoint, filled in step by step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ctxextend.errors import SourceError, TrainingError
from ctxextend.held_out import NO_HELD_OUT, trained_on_warnings
from ctxextend.lab import eval_model
from ctxextend.lab.eval_model import ENCODER, EvalModel, ResizableFiles
from ctxextend.models.load import loads_from_folder, match_parameters
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.provenance import BaseCheckpoint, Provenance, find_base, read_provenance
from ctxextend.settings import ATTENTION_WINDOWS, FROZEN, MIN_WINDOW, Train
from ctxextend.training.parallel import micro_batch_sizes
from ctxextend.training.rows_to_train import (
    BoolRows,
    new_rows,
    short_positions,
    untrained_row_warnings,
)
from ctxextend.training.trainable import Names
from ctxextend.training.trainable_setting import choose_trainable
from ctxextend.training.training_run import RunFolder
from ctxextend.training.training_source import check_libraries, check_sequences
from ctxextend.training.training_text import SequenceLengths, TrainingText, read_training_text

if TYPE_CHECKING:
    from accelerate import PartialState

# Default weights of distillation. After a conversion, 4 is better than 1 after 100 steps on
# gpt2-byte-128 and tiny-gpt2; in contrastive training, 5 is measured on MiniLM.
CONVERTED_DISTILL = 4.0
CONTRASTIVE_DISTILL = 5.0
# Share of distillation if windows train only a table: better than the loss of the text on a
# byte-level GPT-2.
TABLE_DISTILL = 1.0
# Peak learning rate of an encoder after a conversion: better than 2e-5 and 2e-4 on MiniLM.
CONVERTED_ENCODER_RATE = 1e-4


@dataclass(frozen=True)
class TrainingTask:
    """The checkpoint, settings, devices and text of a run; the weights are not loaded yet."""

    files: ResizableFiles
    settings: Train  # with sequence length and precision filled in
    devices: "PartialState"
    micro_batches: list[int]  # sizes to try, in sequences, largest first
    text: TrainingText
    provenance: Provenance | None  # of the checkpoint
    base: BaseCheckpoint | None  # that a recipe or the user names
    planned_steps: int  # the steps of the first start; a resumed run may have others
    notes: tuple[str, ...]  # about what is trained
    # If the held-out text was trained on before, or new rows stay untrained.
    warnings: tuple[str, ...]
    rows: BoolRows | None  # mask of the table's trainable rows, shape (rows,); None is all
    # Positions that the base has; None if unknown, or if sequences use no others.
    short_positions: int | None

    source: OpenedModel | None = None  # what the run resizes or converts; it may be the base

    @property
    def lengths(self) -> SequenceLengths:
        """The lengths of sequences."""
        return SequenceLengths.of_run(self.files, self.settings)

    @property
    def span(self) -> int:
        """Positions available to a sequence."""
        return self.lengths.span

    @property
    def length(self) -> int:
        """Tokens per sequence, special tokens included."""
        return self.lengths.length

    @property
    def distils_table(self) -> bool:
        """Whether only a table is trained, and the base can read the text in windows.

        The windows are those of `Train.window`, or all of a text that is as long as the model.
        """
        if self.base is None or self.short_positions is None:
            return False
        if not self.settings.compares_tables or self.was_converted:
            return False
        return self.settings.window is None or self.length <= self.short_positions

    @property
    def was_converted(self) -> bool:
        """Whether it was converted to another position scheme; attention windows keep it."""
        if self.provenance is None:
            return False
        conversions = [step.convert for step in self.provenance.steps if step.convert]
        return any(convert.scheme != ATTENTION_WINDOWS for convert in conversions)

    @property
    def dtype(self) -> str:
        """The precision of the parameters: half precision is kept if bf16 is used."""
        is_half = self.settings.precision == "bf16" and self.files.checkpoint.weights.is_half
        return "bf16" if is_half else "fp32"


@dataclass(frozen=True)
class LoadedTask:
    """A task with its loaded models."""

    task: TrainingTask  # with settings filled in that depend on the kind of the model
    model: EvalModel
    names: Names  # parameter by tensor; see `match_parameters`
    teacher: EvalModel | None


def open_task(
    files: ResizableFiles,
    settings: Train,
    devices: "PartialState",
    folder: RunFolder,
    notify: Callable[[str], None] = lambda text: None,
    *,
    source: OpenedModel | None = None,
) -> TrainingTask:
    """Fill in unset settings, and tokenize the text into the run folder unless it is there already.

    `source`: what the run resizes or converts, if it does.

    Raises:
        TrainingError: A setting does not fit the checkpoint or the devices, or a library that it
            needs is not installed.
        DataError: The text cannot be read, or is too short.
        OutputError: The run folder cannot be written.
        CtxextendError: The base checkpoint cannot be opened.
    """
    check_libraries(settings)
    if settings.save_adapter and not loads_from_folder(files.checkpoint):
        message = (
            f"transformers does not load the weights of {files.ref.source} by themselves, so an "
            "adapter for them has no base."
        )
        raise TrainingError(message, "Save merged weights: remove --save-adapter.")
    provenance = read_provenance(files.checkpoint)
    base = find_base(provenance, settings.base, files.ref.tokenizer)

    settings, notes = choose_trainable(files, settings)
    rows = None
    if settings.trainable == "new":
        rows = new_rows(files, base)
    shortest = max(MIN_WINDOW, files.tokenizer.num_special + 2)
    check_sequences(files.ref.source, files.max_len, settings, shortest)
    device = devices.device.type
    precision = settings.precision
    if device == "cpu" and precision == "fp16":
        message = "Training in fp16 is not supported on a CPU."
        raise TrainingError(message, "Use --precision bf16 or fp32.")
    if precision == "auto":
        precision = eval_model.auto_precision(device)
    seq_len = settings.seq_len or files.max_len
    settings = replace(settings, seq_len=seq_len, precision=precision)
    lengths = SequenceLengths.of_run(files, settings)
    micro_batches = micro_batch_sizes(devices, settings, lengths.length)
    text = read_training_text(files, settings, devices, folder, notify)
    planned_steps = folder.planned_steps
    if planned_steps is None:
        planned_steps = settings.steps
        if devices.is_main_process:
            folder.record_steps(planned_steps)
    warnings = [
        *trained_on_warnings(files.ref.source, text.seen, f"{NO_HELD_OUT} text with --eval-data."),
        *untrained_row_warnings(files, settings, provenance),
    ]
    return TrainingTask(
        files=files,
        settings=settings,
        devices=devices,
        micro_batches=micro_batches,
        text=text,
        provenance=provenance,
        base=base,
        planned_steps=planned_steps,
        notes=notes,
        warnings=tuple(warnings),
        rows=rows,
        short_positions=short_positions(files, base, lengths.span),
        source=source,
    )


def load_task(task: TrainingTask) -> LoadedTask:
    """Load the model, and the teacher if there is to be one; fill in what depends on their kind.

    Raises:
        CheckpointError: The weights cannot be loaded, or do not fit the config.
        TrainingError: The base checkpoint, which is the teacher, cannot be opened.
    """
    files = task.files
    # A sharded model is loaded on the CPU: none of the devices may hold all of it.
    device = "cpu" if task.settings.fsdp else task.settings.device
    model = eval_model.load_eval_model(files, task.dtype, device)
    tables = []
    if files.tables[0].rows and task.settings.trainable not in FROZEN:
        tables.append(files.table_name)
    names = match_parameters(model.model, files.checkpoint, tables)
    task = replace(task, settings=_with_defaults(task, model.kind))
    teacher = _open_teacher(task, model.kind)
    return LoadedTask(task=task, model=model, names=names, teacher=teacher)


def _with_defaults(task: TrainingTask, kind: str) -> Train:
    settings = task.settings
    was_converted = task.was_converted
    if settings.contrastive:
        if settings.distill is None and task.base is not None:
            return replace(settings, distill=CONTRASTIVE_DISTILL)
    elif was_converted and kind != ENCODER:
        if settings.distill is None:
            return replace(settings, distill=CONVERTED_DISTILL)
    elif task.distils_table and kind != ENCODER:
        if settings.distill is None:
            return replace(settings, distill=TABLE_DISTILL)
        if settings.distill > 1:
            message = (
                "--distill must be at most 1 where only the table is trained, got "
                f"{settings.distill:g}."
            )
            hint = "It is the share of distillation; the rest is the loss of the text."
            raise TrainingError(message, hint)
    elif was_converted and settings.lora is None:
        return replace(settings, lr=settings.lr or CONVERTED_ENCODER_RATE)
    return settings


def needs_teacher(settings: Train, kind: str) -> bool:
    """Whether a model of a kind is distilled: only from it, or besides another objective."""
    return bool(settings.distill) or (kind == ENCODER and not settings.contrastive)


def _open_teacher(task: TrainingTask, kind: str) -> EvalModel | None:
    base = task.base
    if base is None or not needs_teacher(task.settings, kind):
        return None
    device = task.settings.device
    if task.source is not None and task.settings.base is None:  # the base is what was resized
        files = eval_model.open_files(task.source)
        return eval_model.load_eval_model(files, task.dtype, device)
    try:
        return eval_model.open_eval_model(base.ref, task.dtype, base.fingerprint, device)
    except SourceError as error:
        source = task.files.ref.source
        message = f"Cannot distil from the base checkpoint of {source}: {error.message}"
        hint = "Pass it with --base, or train without: --distill 0."
        if kind == ENCODER:
            hint = "Pass it with --base."
        raise TrainingError(message, hint) from error
