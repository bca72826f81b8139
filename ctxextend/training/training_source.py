"""The checkpoint that a training run starts from, and checks before any library is imported."""

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from ctxextend.checkpoint.atomic_output import check_output
from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import MethodError, ResizeError, TrainingError, install_command
from ctxextend.notes import Level
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.plan import Plan
from ctxextend.plan_notes import file_notes
from ctxextend.planned import Planned
from ctxextend.recipe import Recipe
from ctxextend.settings import CheckpointRef, Train
from ctxextend.tables.method_facts import FORMULA
from ctxextend.text_data import check_texts
from ctxextend.training.training_run import RunFolder


@dataclass(frozen=True)
class TrainingSource:
    """The checkpoint that a run starts from, and what is done to it before training."""

    recipe: Recipe
    planned: Planned | None  # a resize or conversion; None: the checkpoint is trained as it is
    model: OpenedModel

    @property
    def settings(self) -> Train:
        """The settings of training."""
        assert self.recipe.train is not None
        return self.recipe.train

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

    def prepare_model(self, folder: RunFolder) -> OpenedModel:
        """Return the checkpoint to train: resized or converted into the run folder if planned.

        Raises:
            OutputError: The folder cannot be written.
        """
        if self.planned is None:
            return self.model
        resized = folder.path / "resized"
        # Else an interrupted run has written it: all of it, from the same plan.
        if not resized.exists():
            self.planned.execute(resized)
        named = self.model.ref  # messages show the reference that the user passed
        ref = CheckpointRef(str(resized), variant=named.variant, model_type=named.model_type)
        return replace(open_model(ref), ref=named)

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
        return warnings

    def check_start(self, output: str | os.PathLike[str] | None, *, force: bool) -> None:
        """Check what can be checked without torch: libraries, output, text, lengths.

        Args:
            output, force: As in `train`.

        Raises:
            SourceError: The base that the settings name does not exist.
            OutputError: The output cannot be written.
            DataError: A text cannot be read.
            TrainingError: A library is missing, or a sequence needs more positions than there are.
        """
        settings = self.settings
        check_libraries(settings)
        path = self.output_path(output)
        checkpoint = self.model.checkpoint
        # Their sizes are checked once the tensors to save are known: see `open_run`.
        check_output(path, checkpoint.protected, dict.fromkeys(checkpoint.files, 0), force=force)
        if os.environ.get("WORLD_SIZE", "1") != "1":  # of torchrun and accelerate launch
            message = "Training in several processes is not supported."
            raise TrainingError(message, "Start one, without torchrun or accelerate launch.")
        max_len = self.model.tables[0].length()
        if self.planned is not None:
            max_len = self.planned.plan.max_len_after
        if settings.base is not None:
            resolve_source(settings.base, only_headers=True)
        # The folder of a run to resume has the text as token ids already.
        if RunFolder.for_output(path).save is None and settings.contrastive != "pairs":
            check_texts(settings.data, settings.text_field)
        check_sequences(self.model.ref.source, max_len, settings)


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


def check_tunable(plan: Plan) -> None:
    """Check that a plan creates rows that can be trained.

    Raises:
        MethodError: The positions have no rows, or their rows are fixed.
        ResizeError: The new length creates none.
    """
    table = plan.changes[0]
    hint = "Remove --tune."
    if not table.positions.rows:
        message = f"{table.positions.scheme.capitalize()} positions have no rows to tune."
        raise MethodError(message, hint)
    if not table.dtype or (table.choice or plan.settings.choice).name == FORMULA:
        message = f"The rows of {table.name} follow a formula, so there is nothing to tune."
        raise MethodError(message, hint)
    if table.rows_after <= table.rows_before:
        source = plan.model.ref.source
        message = (
            f"{source} has a context length of {plan.max_len_before} tokens, so --to "
            f"{plan.max_len_after} creates no new rows to tune."
        )
        raise ResizeError(message, "Use a larger --to, or remove --tune.")
