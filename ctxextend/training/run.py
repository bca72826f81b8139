"""A training run: its checkpoint, settings, devices and text; then its model and objective."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from ctxextend.checkpoint.checkpoint import MODULES
from ctxextend.errors import SourceError, TrainingError
from ctxextend.held_out import NO_HELD_OUT, trained_on_warnings
from ctxextend.lab import eval_model
from ctxextend.lab.embedding import read_pooling
from ctxextend.lab.eval_model import ENCODER, MASKED, EvalModel
from ctxextend.models.devices import open_device
from ctxextend.provenance import find_base, read_provenance
from ctxextend.settings import ATTENTION_WINDOWS, MIN_WINDOW
from ctxextend.training.choose_parameters import choose_parameters, default_learning_rate
from ctxextend.training.objectives import (
    Contrastive,
    Distillation,
    LanguageModeling,
    TableDistillation,
)
from ctxextend.training.pairs import Documents, PairDataset, Pairs
from ctxextend.training.rows_to_train import (
    BoolRows,
    new_rows,
    short_positions,
    untrained_row_warnings,
)
from ctxextend.training.train_data import (
    HeldOutSequences,
    Masking,
    MovedWindows,
    NumberedItems,
    SequenceSettings,
    Text,
    TrainingSequences,
)
from ctxextend.training.trainable import TrainableParameters
from ctxextend.training.trainable_setting import choose_trainable
from ctxextend.training.training_run import RunFolder
from ctxextend.training.training_source import TrainingSource, check_sequences
from ctxextend.training.training_text import (
    HELD_OUT_TOKENS,
    MIN_WHOLE_WINDOWS,
    read_training_text,
)

# Default weights of distillation. After a conversion, 4 is better than 1 after 100 steps on
# gpt2-byte-128 and tiny-gpt2; in contrastive training, 5 is measured on MiniLM.
CONVERTED_DISTILL = 4.0
CONTRASTIVE_DISTILL = 5.0
# Share of distillation if windows train only a table: better than the loss of the text on a
# byte-level GPT-2.
TABLE_DISTILL = 1.0
# Peak learning rate of an encoder after a conversion: better than 2e-5 and 2e-4 on MiniLM.
CONVERTED_ENCODER_RATE = 1e-4
# Held-out sequences of a short run, where evaluation would take most of the time.
HELD_OUT_PER_STEP = 2
MIN_HELD_OUT = 4
# Maximum tokens per micro-batch: larger ones are not faster.
CPU_TOKENS = 4096
ACCELERATOR_TOKENS = 16_384


class TrainingRun:
    """A training run. The constructor reads the text, `load` the weights."""

    # What `load` sets.
    model: EvalModel
    teacher: EvalModel | None
    objective: torch.nn.Module  # returns the ``loss`` to minimise
    trainable: TrainableParameters
    sequences: SequenceSettings
    lr: float  # peak learning rate

    def __init__(
        self,
        source: TrainingSource,
        folder: RunFolder,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Fill in unset settings, and tokenize the text into the run folder unless it is there.

        Raises:
            TrainingError: A setting does not fit the checkpoint or the device.
            ResizeError: The device does not exist.
            DataError: The text cannot be read, or is too short.
            OutputError: The run folder cannot be written.
            CtxextendError: The base checkpoint cannot be opened.
        """
        settings = source.settings
        self.source = source
        self.device = open_device(settings.device)
        self.folder = folder
        self.files = eval_model.open_files(source.prepare_model(folder))
        name = self.files.ref.source
        self.provenance = read_provenance(self.files.checkpoint)
        self.base = find_base(self.provenance, settings.base, self.files.ref.tokenizer)
        settings, notes = choose_trainable(self.files, settings)
        # A mask of the table's trainable rows, shape (rows,); None is all.
        self.rows: BoolRows | None = None
        if settings.trainable == "new":
            self.rows = new_rows(self.files, self.base)
        special = self.files.tokenizer.num_special
        shortest = max(MIN_WINDOW, special + 2)
        check_sequences(name, self.files.max_len, settings, shortest)
        precision = settings.precision
        if self.device.index:  # transformers' Trainer uses the first
            message = (
                f"--device {self.device} is not supported: training uses the first visible device."
            )
            raise TrainingError(message, f"Set CUDA_VISIBLE_DEVICES={self.device.index}.")
        if self.device.type == "cpu" and precision == "fp16":
            message = "Training in fp16 is not supported on a CPU."
            raise TrainingError(message, "Use --precision bf16 or fp32.")
        if precision == "auto":
            precision = eval_model.auto_precision(self.device.type)
        self.span = settings.seq_len or self.files.max_len  # positions available to a sequence
        self.length = settings.window or self.span  # tokens per sequence, special ones included
        self.text_length = self.length - special  # without special tokens
        self.whole_text = self.span - special  # tokens that all positions can read
        self.settings = replace(settings, seq_len=self.span, precision=precision)
        # Sizes to try, in sequences, largest first.
        self.micro_batches = self._micro_batch_sizes()
        # Positions that the base has; None if unknown, or if sequences use no others.
        self.short_positions = short_positions(self.files, self.base, self.span)
        self.text = read_training_text(self, notify)
        # The steps of the first start; a resumed run may have others.
        self.planned_steps = folder.planned_steps or settings.steps
        self.notes = notes
        self.warnings = (
            *trained_on_warnings(name, self.text.seen, f"{NO_HELD_OUT} text with --data."),
            *untrained_row_warnings(self.files, self.settings, self.provenance),
        )

    def _micro_batch_sizes(self) -> list[int]:
        batch_size = self.settings.batch_size
        if self.settings.per_device_batch_size:
            return [self.settings.per_device_batch_size]
        tokens = CPU_TOKENS if self.device.type == "cpu" else ACCELERATOR_TOKENS
        largest = min(batch_size, max(tokens // self.length, 1))
        return [size for size in range(largest, 0, -1) if batch_size % size == 0]

    @property
    def was_converted(self) -> bool:
        """Whether it was converted to another position scheme; attention windows keep it."""
        if self.provenance is None:
            return False
        conversions = [step.convert for step in self.provenance.steps if step.convert]
        return any(convert.scheme != ATTENTION_WINDOWS for convert in conversions)

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

    def load(self) -> None:
        """Load the model, and choose its objective, trainable parameters and learning rate.

        Raises:
            CheckpointError: The weights cannot be loaded, or do not fit the config, the tokenizer
                or the teacher.
            TrainingError: A setting does not apply to the model, or the base checkpoint, which is
                the teacher, is unknown or cannot be opened.
            UnsupportedModelError: The model needs other inputs than text, or does not accept
                position ids, which windows need.
        """
        self.model = eval_model.load_eval_model(self.files, self._dtype, self.settings.device)
        self._check_kind()
        self._fill_in_defaults()
        settings = self.settings
        is_encoder = self.model.kind == ENCODER
        self.teacher = None
        if settings.distill or (is_encoder and not settings.contrastive):
            self.teacher = self._open_teacher()
        last_tokens = [text.tokens.max() for text in (self.text.train, self.text.held_out)]
        eval_model.check_vocabulary(self.model, np.array(last_tokens, np.int64))
        self.objective = self._choose_objective()
        self.trainable = choose_parameters(self)
        tokenizer = self.model.tokenizer
        masking = None
        if self.model.kind == MASKED:
            masking = Masking.for_model(self.model)
        self.sequences = SequenceSettings(
            special_before=tokenizer.before,
            special_after=tokenizer.after,
            length=self.length,
            usable_positions=self.span,
            kind=self.model.kind,
            masking=masking,
            skips_once=settings.window_skip,
            seed=settings.seed,
        )
        self.lr = settings.lr or default_learning_rate(self)

    @property
    def _dtype(self) -> str:
        """The precision of the parameters: half precision is kept if bf16 is used."""
        is_half = self.settings.precision == "bf16" and self.files.checkpoint.weights.is_half
        return "bf16" if is_half else "fp32"

    def _check_kind(self) -> None:
        """Check that the settings apply to the kind of the model."""
        settings = self.settings
        name = self.model.name
        is_encoder = self.model.kind == ENCODER
        if settings.contrastive and not is_encoder:
            message = f"--contrastive applies to encoders without an LM head: {name} has one."
            raise TrainingError(message, "Remove --contrastive.")
        if is_encoder and settings.distill is not None and not settings.contrastive:
            message = (
                f"--distill applies to language models: {name} has no LM head, and is always "
                "distilled."
            )
            raise TrainingError(message, "Remove --distill.")
        is_share = self.distils_table and not is_encoder
        if is_share and settings.distill is not None and settings.distill > 1:
            message = (
                "--distill must be at most 1 where only the table is trained, got "
                f"{settings.distill:g}."
            )
            hint = "It is the share of distillation; the rest is the loss of the text."
            raise TrainingError(message, hint)

    def _fill_in_defaults(self) -> None:
        """Fill in the settings that depend on the kind of the model."""
        settings = self.settings
        distill = settings.distill
        lr = settings.lr
        if settings.contrastive:
            if distill is None and self.base is not None:
                distill = CONTRASTIVE_DISTILL
        elif self.model.kind == ENCODER:
            if self.was_converted and settings.lora is None:
                lr = lr or CONVERTED_ENCODER_RATE
        elif distill is None and self.was_converted:
            distill = CONVERTED_DISTILL
        elif distill is None and self.distils_table:
            distill = TABLE_DISTILL
        self.settings = replace(settings, distill=distill, lr=lr)

    def _open_teacher(self) -> EvalModel:
        name = self.model.name
        base = self.base
        if base is None:
            reason = f"{name} has no LM head"
            if self.settings.distill:
                reason = f"{name} is to be distilled"
            message = f"{reason}, and its base checkpoint is unknown."
            raise TrainingError(message, "Pass --base to distil from it.")
        device = self.settings.device
        planned = self.source.planned
        if planned is not None and self.settings.base is None:  # the base is what was resized
            files = eval_model.open_files(planned.base)
            return eval_model.load_eval_model(files, self._dtype, device)
        try:
            return eval_model.open_eval_model(base.ref, self._dtype, base.fingerprint, device)
        except SourceError as error:
            message = f"Cannot distil from the base checkpoint of {name}: {error.message}"
            hint = "Pass it with --base, or train without: --distill 0."
            if self.model.kind == ENCODER:
                hint = "Pass it with --base."
            raise TrainingError(message, hint) from error

    def _choose_objective(self) -> torch.nn.Module:
        """Return the objective.

        It is contrastive if the settings ask for it, distillation for other models without an LM
        head and for the table of a language model, and else language modelling. Contrastive
        training and language modelling also distil from the teacher if there is one.
        """
        model = self.model
        teacher = self.teacher
        weight = self.settings.distill or 0.0
        has_windows = self.length < self.span
        if self.settings.contrastive:
            return Contrastive(model, teacher, weight, position_ids=has_windows)
        if model.kind == ENCODER:
            assert teacher is not None
            poolings: tuple[str, ...] = ()
            if (model.root / MODULES).is_file():
                poolings = read_pooling(model.root)
            return Distillation(model, teacher, poolings, position_ids=has_windows)
        if teacher is not None and self.distils_table:
            return TableDistillation(
                model,
                teacher,
                weight,
                tokens=None if has_windows else self.text_length,
            )
        return LanguageModeling(model, teacher, weight, position_ids=has_windows)

    def training_items(self, count: int) -> NumberedItems:
        """Return the sequences or pairs to train on.

        Raises:
            DataError: There are too few documents or pairs.
        """
        if self.settings.contrastive:
            return self._pairs(self.text.train, count, self.settings.batch_size)
        objective = self.objective
        text = self.text.train
        if isinstance(objective, TableDistillation) and objective.moves_windows_of_texts:
            return MovedWindows(
                text,
                self.sequences,
                count,
                windows=objective.windows,
                tokenizer=self.model.tokenizer,
                batch=self.settings.batch_size,
            )
        return TrainingSequences(text, self.sequences, count)

    @cached_property
    def held_out(self) -> NumberedItems:
        """The sequences or pairs of the held-out loss.

        They are the same for every batch size, and for a resumed run. If windows train the table of
        a language model, they have all positions where held-out text is long enough: the loss in
        windows does not tell how the model reads long texts.

        Raises:
            DataError: There are too few documents or pairs.
        """
        settings = self.sequences
        text = self.text.held_out
        if self.distils_table:
            longest = int(np.diff(text.spans).max())
            if self.model.kind != ENCODER and longest >= self.whole_text:
                settings = replace(settings, length=self.span)
            count = max(HELD_OUT_TOKENS // settings.length, MIN_WHOLE_WINDOWS)
            return HeldOutSequences(text, settings, count)
        affordable = max(HELD_OUT_TOKENS // self.length, 1)
        count = min(affordable, max(HELD_OUT_PER_STEP * self.planned_steps, MIN_HELD_OUT))
        if self.settings.contrastive:
            return self._pairs(text, count, None)
        return HeldOutSequences(text, settings, count)

    def _pairs(self, text: Text, count: int, batch: int | None) -> PairDataset:
        kind: type[PairDataset] = Documents
        if self.settings.contrastive == "pairs":
            kind = Pairs
        return kind(text, self.sequences, count, model=self.model, batch=batch)
