"""Resize or convert a checkpoint as the commands do: plan, tune, write, verify."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ctxextend.errors import RemoteWeightsError
from ctxextend.keywords import keyword_arguments
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel, open_model
from ctxextend.output import refuse_weights
from ctxextend.planned import (
    Planned,
    ResizeResult,
    plan_checkpoint,
    planned_conversion,
)
from ctxextend.progress import Events, Silence
from ctxextend.recipe import Recipe
from ctxextend.settings import (
    WITHOUT_POSITIONS,
    CheckpointRef,
    Convert,
    Resize,
    Saving,
    Writing,
)
from ctxextend.text_data import check_texts

if TYPE_CHECKING:
    from ctxextend.training.train_result import TrainResult

# The notes of a resize that a training after it makes untrue.
BEFORE_TRAINING_ONLY = (Code.UNTRAINED, Code.SHORT_INPUTS)


@keyword_arguments(CheckpointRef, Resize)
def resize(ref: CheckpointRef, settings: Resize) -> ResizeResult:
    """Resize the positions of a checkpoint, and save the result as a new checkpoint.

    With ``tune``, the rows of a table are trained so that a window of the old length predicts the
    same everywhere; what is not better on held-out text by more than its 95 % interval is not kept.

    Raises:
        SourceError: The reference does not exist or cannot be reached.
        CheckpointError: A file is missing or malformed, or config and table disagree.
        UnsupportedModelError: The model has no known position table.
        ResizeError: The length, method or another setting is invalid for this model.
        DataError: The text cannot be read or is too short.
        OutputError: The output exists, or cannot be written.
        VerificationError: `verify` is set, and the output does not match the plan.
        TrainingError: Training failed to start or finish.
    """
    return resize_checkpoint(ref, settings)


@keyword_arguments(CheckpointRef, Convert, without=("table", "trained_length"))
def convert(ref: CheckpointRef, settings: Convert) -> ResizeResult:
    """Convert a model to another position scheme, or to attention windows, and save the result.

    GPT-2 becomes GPT-NeoX (``rotary``, arXiv:2104.09864) or Falcon (``alibi``, arXiv:2108.12409);
    BERT, RoBERTa, CamemBERT, XLM-RoBERTa and ELECTRA become RoFormer (``rotary``). Every tensor is
    one of the source's: copied, transposed, regrouped by head, or with the mean position row added.
    Without positions, outputs are equal within float32 rounding. A rotary model becomes one without
    positions (``none``, arXiv:2512.12167): its settings rotate nothing, and its weights stay. These
    outputs need training.

    With ``window``, the encoders become Longformer, and BART becomes LED (arXiv:2004.05150): tokens
    attend to those near by, at a cost that is linear in the length. Every tensor is one of the
    source's; queries, keys and values are copied for global attention too, and the position table
    is extended as by `resize`. Inputs of up to half a window give the source's outputs within
    float32 rounding, if padded on the right.

    Raises:
        UnsupportedModelError: No model type of transformers computes the same with these positions.
        MethodError: The classes of a rotary model have no settings that rotate nothing.
        CtxextendError: As `resize`.
    """
    return convert_checkpoint(ref, settings)


def resize_checkpoint(
    ref: CheckpointRef, settings: Resize, events: Events | None = None
) -> ResizeResult:
    """Resize a checkpoint; `events` says what the steps report. See `resize`."""
    events = events or Silence()
    if settings.tune:
        check_texts(settings.tune)
    writes_weights = not (settings.edit_only or settings.dry_run)
    reads_text = bool(settings.tune)
    try:
        only_headers = not (writes_weights or reads_text)
        planned = plan_checkpoint(ref, settings, only_headers=only_headers)
    except RemoteWeightsError as error:  # values of tensors are needed: they are downloaded
        if settings.edit_only:
            refuse_weights([error.file])
        planned = plan_checkpoint(ref, settings)
    if settings.tune:
        from ctxextend.training.training_source import check_libraries, check_tunable

        check_tunable(planned.plan)
        check_libraries()
    if settings.edit_only:
        planned = planned.without_weights()
    elif settings.link:
        planned = planned.with_links()
    recipe = Recipe(ref, resize=planned.plan.settings)
    if not settings.dry_run:
        # Fail before notes about an output that will not be written, and before measurements.
        check_before_writing(recipe, planned, settings)
    events.warning(*planned.warnings)
    if settings.tune and not settings.dry_run:
        from ctxextend.training.tune import tune_table

        tuning, trained = tune_table(planned, recipe, settings, events)
        if trained is None:  # what the text does not improve stays as planned
            result = _write(planned, settings, events)
        else:
            result = replace(_trained_result(planned, trained), verified=settings.verify)
        return replace(result, tuning=tuning)
    return _write(planned, settings, events)


def convert_checkpoint(
    ref: CheckpointRef, settings: Convert, events: Events | None = None
) -> ResizeResult:
    """Convert a checkpoint; `events` says what the steps report. See `convert`."""
    events = events or Silence()
    recipe = Recipe(ref, convert=settings)
    planned = planned_conversion(_open_source(ref, settings), settings)
    if settings.link:
        planned = planned.with_links()
    if not settings.dry_run:
        check_before_writing(recipe, planned, settings)
    events.warning(*planned.warnings)
    return _write(planned, settings, events)


def _open_source(ref: CheckpointRef, settings: Convert) -> OpenedModel:
    """Open the source of a conversion; one of a type without a twin fails before any download.

    Raises:
        CtxextendError: As `convert`.
    """
    if settings.scheme == WITHOUT_POSITIONS:
        return open_model(ref)
    from ctxextend.conversion.find import find_twin

    return open_model(ref, partial(find_twin, scheme=settings.scheme))


def check_before_writing(recipe: Recipe, planned: Planned, saving: Saving) -> None:
    """Check that the output of a resize or conversion can be written, and its text be read.

    Raises:
        OutputError: The output exists, or cannot be written.
        TrainingError: A library is missing.
        DataError: The text to train on cannot be read.
    """
    planned.output.at(saving.output).check(force=saving.force)
    if recipe.train is not None:
        from ctxextend.training.training_source import TrainingSource

        TrainingSource.open(recipe, planned).check_start(saving.output, force=saving.force)


def _write(planned: Planned, settings: Writing, events: Events) -> ResizeResult:
    """Write a planned output, or only say what would be written."""
    if settings.dry_run:
        return planned.dry_run(settings.output, force=settings.force)
    check = None
    if settings.verify:
        from ctxextend.verification.verify import check_output

        check = partial(check_output, planned)
    with events.progress("Writing") as progress:
        result = planned.execute(
            settings.output, force=settings.force, progress=progress, check=check
        )
    return replace(result, verified=settings.verify)


def _trained_result(planned: Planned, trained: "TrainResult") -> ResizeResult:
    """Return the result of a resize whose table was tuned before it was written."""
    files = [path for path in Path(trained.output).rglob("*") if path.is_file()]
    known = planned.warnings
    still_true = [note for note in planned.notes if note.code not in BEFORE_TRAINING_ONLY]
    notes = [
        Note(Code.TRAINING, Level.WARNING, text) for text in trained.warnings if text not in known
    ]
    return ResizeResult(
        planned=replace(planned, output=planned.output.at(trained.output)),
        notes=(*still_true, *notes),
        bytes_written=sum(path.stat().st_size for path in files),
        seconds=round(trained.seconds, 3),
        train=trained,
    )
