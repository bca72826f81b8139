"""The checkpoint that a training run starts from, and checks before any library is imported."""

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from ctxextend.checkpoint.atomic_output import check_output
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import TrainingError, install_command
from ctxextend.models.devices import check_device
from ctxextend.notes import Level
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.plan_notes import file_notes
from ctxextend.planned import Planned
from ctxextend.recipe import Recipe
from ctxextend.settings import CheckpointRef, Train
from ctxextend.tables.rope_types import NONE
from ctxextend.text_data import check_beginnings
from ctxextend.training.pair_rows import check_pairs
from ctxextend.training.training_run import RunFolder, check_run_folder

# The variables by which launchers tell a process how many there are.
# Source: accelerate 1.15, state.py and utils/environment.py (`get_int_from_env`).
PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def training_settings(recipe: Recipe) -> Train:
    """Return the settings of training of a recipe that trains."""
    assert recipe.train is not None
    return recipe.train


@dataclass(frozen=True)
class TrainingSource:
    """The checkpoint that a run starts from, and what is done to it before training."""

    recipe: Recipe
    planned: Planned | None  # a resize or conversion; None: the checkpoint is trained as it is
    model: OpenedModel

    @classmethod
    def open(cls, recipe: Recipe, planned: Planned | None) -> "TrainingSource":
        """Open the checkpoint of a recipe, or take that of a plan.

        Raises:
            CtxextendError: It cannot be opened.
        """
        model = planned.plan.model if planned is not None else open_model(recipe.checkpoint)
        return cls(recipe=recipe, planned=planned, model=model)

    def output_path(self, output: str | os.PathLike[str] | None) -> Path:
        """Return the output folder: the given one, or the default."""
        if self.planned is not None:
            return self.planned.output.at(output).path
        if output is None:
            return Path(f"{self.model.checkpoint.source.name}-trained")
        return Path(os.path.expanduser(output))  # noqa: PTH111 - never raises

    def check_output(self, path: Path, *, force: bool) -> None:
        """Check that an output can be written, before anything is.

        Raises:
            OutputError: It cannot.
        """
        checkpoint = self.model.checkpoint
        # Their sizes are checked once the tensors to save are known: see `_check_disk_space`.
        files = dict.fromkeys(checkpoint.files, 0)
        check_output(path, checkpoint.protected, files, force=force)

    def prepare_model(self, folder: RunFolder) -> OpenedModel:
        """Return the checkpoint to train: resized or converted into the run folder if planned.

        Raises:
            OutputError: The folder cannot be written.
        """
        if self.planned is None:
            return self.model.without_other_format()
        resized = folder.path / "resized"
        # Another process or an interrupted run has written it: all of it, from the same plan.
        is_written = resized.exists()
        if not is_written:
            self.planned.execute(resized)
        ref = CheckpointRef(
            source=str(resized),
            variant=self.planned.plan.model.ref.variant,
            model_type=self.planned.plan.model.ref.model_type,
        )
        # Messages show the reference that the user passed.
        model = replace(open_model(ref), ref=self.model.ref)
        return model.without_other_format()

    @property
    def notes(self) -> tuple[str, ...]:
        """How the reference was resolved; the notes of a plan say so too."""
        if self.planned is not None:
            return ()
        return tuple(note.text for note in self.model.checkpoint.source.notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the resize or conversion, or about files that are copied."""
        if self.planned is not None:
            warnings = self.planned.warnings
        else:
            notes = file_notes(self.model.checkpoint)
            warnings = tuple(note.text for note in notes if note.level is Level.WARNING)
        stale = self.model.checkpoint.mistral_files
        if stale:
            warnings += (f"Not in the output: {', '.join(stale)}, in Mistral's own format.",)
        return warnings

    def check_start(
        self, output: str | os.PathLike[str] | None, *, force: bool, resume: bool | None = None
    ) -> None:
        """Check what can be checked without torch: libraries, output, text, lengths, device.

        Args:
            output, force: As in `train`.
            resume: As in `train`; None for a dry run, which leaves an interrupted run as it is.

        Raises:
            SourceError: The base that the settings name does not exist.
            OutputError: The output cannot be written.
            DataError: A text cannot be read.
            TrainingError: A library is missing, a sequence needs more positions than there are, or
                an interrupted run would be discarded or is another one.
            ResizeError: The device is not available.
        """
        settings = training_settings(self.recipe)
        check_libraries(settings)
        path = self.output_path(output)
        self.check_output(path, force=force)
        if resume is not None:
            check_run_folder(path, self.recipe, self.model, resume=resume, force=force)
        is_launched = any(name in os.environ for name in PROCESS_COUNTS)
        if resume is not None and settings.fsdp and not is_launched:
            refuse_one_process()
        table = self.model.tables[0]
        has_rows = self.planned is not None or bool(table.rows)
        if not has_rows and settings.trainable in ("new", "positions"):
            refuse_rows(table.scheme, settings)
        if settings.base is not None:
            resolve_source(settings.base, only_headers=True)
        # The folder of a run to resume has the text as token ids already.
        if RunFolder.for_output(path).save is None:
            check_train_texts(settings)
        max_len = table.length()
        if self.planned is not None:
            max_len = self.planned.plan.max_len_after
        check_sequences(self.model.ref.source, max_len, settings)
        check_device(settings.device)


def without_rows(scheme: str) -> str:
    """Say that positions of a scheme have no rows to train."""
    if scheme == NONE:
        return "the model has no positions to train"
    return f"{scheme} positions have no rows to train"


def refuse_rows(scheme: str, settings: Train) -> NoReturn:
    """Refuse to train the rows of a model that has none.

    Raises:
        TrainingError: Always.
    """
    hint = "Use --trainable all."
    if settings.lora:
        hint = "Remove --trainable."
    message = f"--trainable {settings.trainable}: {without_rows(scheme)}."
    raise TrainingError(message, hint)


def refuse_one_process() -> NoReturn:
    """Refuse to shard a model across one process.

    Raises:
        TrainingError: Always.
    """
    hint = (
        "Start several: torchrun --nproc-per-node 2 -m ctxextend train ... --fsdp, or remove "
        "--fsdp."
    )
    message = "--fsdp shards a model across processes, but there is only one."
    raise TrainingError(message, hint)


def check_train_texts(settings: Train) -> None:
    """Read the beginnings of the texts to train on, to report errors early.

    Raises:
        DataError: One cannot be read.
    """
    texts = (*settings.data, *settings.eval_data)
    if settings.contrastive == "pairs":
        check_pairs(texts)
    else:
        check_beginnings(texts, settings.text_field)


def check_sequences(source: str, max_len: int, settings: Train, shortest: int = 0) -> None:
    """Check that sequences do not need more positions than a checkpoint has.

    Args:
        source: The checkpoint, as the user passed it.
        max_len: Its positions.
        settings: The settings of the training.
        shortest: The positions that any sequence needs.

    Raises:
        TrainingError: They do.
    """
    lengths = {
        "--seq-len": settings.seq_len,
        "--window": settings.window,
        "A sequence of": shortest,
    }
    for label, length in lengths.items():
        if length is not None and length > max_len:
            message = f"{label} {length} is more than the {max_len} positions of {source}."
            hint = f"Resize it first: ctxextend resize {source} --to {length}"
            raise TrainingError(message, hint)


def check_libraries(settings: Train | None = None) -> None:
    """Check that the libraries that training needs are installed, without importing them.

    Args:
        settings: The settings of the training; None: those of a table that is tuned on a text.

    Raises:
        TrainingError: One is not.
    """
    needs = {"Training": "accelerate"}
    if settings is not None and settings.lora is not None:
        needs["--lora"] = "peft"
    if settings is not None and settings.contrastive:
        needs["--contrastive"] = "sentence_transformers"
    for needed_by, module in needs.items():
        if find_spec(module) is None:
            name = module.replace("_", "-")
            message = f"{needed_by} requires {name}, which is not installed."
            raise TrainingError(message, install_command(module))
