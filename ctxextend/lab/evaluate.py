"""Measure how much a checkpoint's context length helps on a text."""

from collections.abc import Iterator, Sequence

from ctxextend.checkpoint.source import resolve_source
from ctxextend.errors import CheckpointError, CtxextendError
from ctxextend.lab import eval_model
from ctxextend.lab.effective import check_effective
from ctxextend.lab.eval_model import CAUSAL, PASS_BASE, EvalModel, ModelFiles
from ctxextend.lab.evaluation_result import Evaluation
from ctxextend.lab.evaluation_run import (
    KIND_NAMES,
    applicable_measures,
    check_length,
    check_measures,
    plan_evaluation,
)
from ctxextend.lab.search_set import read_search_set
from ctxextend.lab.stated_files import StatedFiles, length_errors, open_to_evaluate
from ctxextend.lab.unseen_text import read_start, read_unseen
from ctxextend.held_out import Ids
from ctxextend.keywords import keyword_arguments
from ctxextend.models.devices import check_device, torch_threads
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import BaseCheckpoint, find_base, read_provenance
from ctxextend.settings import MIN_WINDOW, CheckpointRef, Evaluate
from ctxextend.text_data import check_beginnings

TRAINED_AND_BASE = (
    "The model was trained and its base was not: differences are those of the new positions and of "
    "the training together. To see the longer context by itself, compare with a base that was "
    "trained on the same text: --base MODEL (evaluate.base in a recipe)."
)


@keyword_arguments(CheckpointRef, Evaluate, without=("table", "trained_length"))
def evaluate(
    ref: CheckpointRef, settings: Evaluate, progress: Progress = no_progress
) -> Evaluation:
    """Measure how much a checkpoint's context length helps on a text.

    Language models: loss by position and by context length. Encoders: document retrieval. Both: the
    length up to which they find what a text hides. If the base checkpoint is known, it reads the
    same tokens in chunks and sliding windows, as a user without the longer context would.

    Of files that the checkpoint's recipe lists as training data (recognised by content), only the
    held-out windows are used, or everything with a warning. Not recognised: training with other
    tools, the same text in another file, changes after the first 64 MiB, and files after the first
    200 of a training. A causal language model of transformers that cannot be resized is read at the
    length that its files state, or at ``length``.

    Raises:
        CtxextendError: The checkpoint or its base cannot be loaded, the text cannot be read or is
            shorter than one window, or a length or a measure does not apply to the model.
    """
    return evaluate_checkpoint(ref, settings, progress)


def evaluate_checkpoint(
    ref: CheckpointRef, settings: Evaluate, progress: Progress = no_progress
) -> Evaluation:
    """Evaluate a checkpoint.

    Raises:
        CtxextendError: As `evaluate`.
    """
    check_start(settings)
    search_set = read_search_set(settings)
    files = open_to_evaluate(ref, settings.length)
    if files.stated_kind == CAUSAL:  # of others, the weights decide
        check_measures(files.name, CAUSAL, settings)
    documents, text_warnings = open_text(files, settings)
    model = eval_model.load_eval_model(files, settings.precision, settings.device)
    applicable_measures(model, settings)
    stated = None
    compares_with_base = not settings.no_base and not settings.measures_effective_only
    if compares_with_base:
        stated = find_base(read_provenance(files.checkpoint), settings.base, ref.tokenizer)
    base, failures = open_base(stated, settings, model.name, model.kind)
    notes = [*model.notes]
    if base is not None:
        notes += base.notes
    # A model that cannot be resized has no shorter base to pass.
    if compares_with_base and not isinstance(files, StatedFiles):
        if stated is None:
            notes.append(f"Not compared with a base checkpoint: no recipe names one. {PASS_BASE}")
        elif base is not None and stated.provenance and stated.provenance.trainable is not None:
            notes.append(TRAINED_AND_BASE)

    longest = max(settings.length, default=model.max_len)
    with length_errors(files, longest):
        run = plan_evaluation(model, base, settings, documents, search_set=search_set, notes=notes)
    failed = [f"{failure} {PASS_BASE}" for failure in failures]
    run.warnings = (*failed, *text_warnings, *run.warnings)
    total = run.tokens + run.base_tokens
    with torch_threads(model.model, settings.threads), length_errors(files, longest):
        run.measure(lambda tokens: progress(tokens, total))
    return run.report()


def check_start(settings: Evaluate) -> None:
    """Check what can be checked before any library is imported: text, base and device.

    Raises:
        DataError: A text cannot be read.
        SourceError: The base that the settings name does not exist.
        ResizeError: The device is not available.
    """
    if settings.data:
        check_beginnings(settings.data, settings.text_field)
    if settings.base is not None:
        resolve_source(settings.base, only_headers=True)
    check_device(settings.device)


def open_text(files: ModelFiles, settings: Evaluate) -> tuple[Iterator[Ids] | None, Sequence[str]]:
    """Return the documents of an evaluation, if any, and warnings about them.

    Checks what can be known before the model is loaded.

    Raises:
        ResizeError: A length is longer than the model's context.
        DataError: The text is too short, or the model's vocabulary makes no needles.
    """
    longest = max(settings.length, default=max(files.max_len, MIN_WINDOW))
    check_length(files, longest)
    if not settings.data:
        return None, ()
    size = longest - files.tokenizer.num_special
    unseen, warnings = read_unseen([files], settings, size)
    hint = "Pass more text with --data." if "effective" in settings.measure else ""
    start, documents = read_start(unseen, size, files.tokenizer.separator, hint)
    if "effective" in settings.measure and files.stated_kind is not None:
        check_effective(files, start, longest, settings)
    return documents, warnings


def open_base(
    stated: BaseCheckpoint | None, settings: Evaluate, name: str, kind: str
) -> tuple[EvalModel | None, list[str]]:
    """Load the base of a model of this name and kind.

    Returns:
        The base, or None without one, and warnings: if only a recipe names it, and it fails.

    Raises:
        CtxextendError: The base that the settings name cannot be loaded, or is of another kind.
    """
    if stated is None:
        return None, []
    try:
        base = eval_model.open_eval_model(
            stated.ref, settings.precision, stated.fingerprint, settings.device
        )
        if base.kind != kind:
            message = f"{base.name} is {KIND_NAMES[base.kind]}, but {name} is {KIND_NAMES[kind]}."
            raise CheckpointError(message, PASS_BASE)
    except CtxextendError as error:
        if settings.base is not None:
            raise
        return None, [f"Not compared with the base checkpoint: {error.message}"]
    return base, []
