"""Verify that a checkpoint differs from its base only in its positions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.filenames import RECIPE_FILE
from ctxextend.checkpoint.formats import source_recipe
from ctxextend.checkpoint.source import Source, resolve_source
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    RecipeError,
    ResizeError,
    SourceError,
    VerificationError,
)
from ctxextend.keywords import keyword_arguments
from ctxextend.opening.opened_model import identify_model, open_reference
from ctxextend.planned import Planned
from ctxextend.progress import Progress, no_progress
from ctxextend.provenance import find_base, parse_provenance
from ctxextend.recipe import plain_values
from ctxextend.settings import CheckpointRef, Verify
from ctxextend.verification.checks import Check
from ctxextend.verification.compare_files import check_files
from ctxextend.verification.compare_tables import check_tables
from ctxextend.verification.compare_tensors import check_tensors
from ctxextend.verification.conclusion import Changed, Verification
from ctxextend.verification.expected import Expected, expect_recorded
from ctxextend.verification.gguf_metadata import check_metadata
from ctxextend.verification.open_resized import open_resized

NO_OUTPUT = (
    "No output was written. Run the same command again; if it fails again, please report this "
    "message."
)
TRAINING_UNVERIFIED = (
    "The recipe states what was trained: verify checks that only this differs, and cannot "
    "recreate the trained values."
)


@keyword_arguments(Verify, CheckpointRef, without=("source",))
def verify(settings: Verify, ref: CheckpointRef) -> Verification:
    """Verify that a resized checkpoint differs from its base only in its position tables.

    Other tensors are compared byte by byte. Tables and rotary settings are recreated from the base
    with the recipe's settings; other files are compared with what the resize should have written.
    Settings of the base override the recipe.

    Raises:
        SourceError: A reference does not exist, or both are the same checkpoint.
        CheckpointError: A file of the base is missing or malformed, or transformers cannot load it.
        RecipeError: The recipe is missing or invalid.
        UnsupportedModelError: The base has no supported position table.
    """
    return verify_checkpoint(settings, ref)


def verify_checkpoint(
    settings: Verify,
    ref: CheckpointRef,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Verify a resized checkpoint like `verify`.

    Args:
        settings: What to verify.
        ref: How to read the base; what it states overrides the recipe.
        progress: Called with the bytes compared.
        notify: Called with a sentence on what a long run costs, before it.

    Raises:
        CtxextendError: As `verify`.
    """
    reference = settings.resized
    base_name = settings.base
    given = {key: value for key, value in plain_values(ref).items() if key != "source"}
    source = resolve_source(reference)
    try:
        text = source_recipe(source)
    except CheckpointError as error:
        if base_name is None:
            raise
        return _failed(base_name, reference, "readable", error)
    if text is None:
        message = f"{reference} has no recipe ({RECIPE_FILE}) that says how it was made."
        raise RecipeError(message, "Verify an output of resize, convert or train.")
    recipe = parse_provenance(text, RECIPE_FILE, source.folder)
    stated_base = find_base(recipe, base_name)
    assert stated_base is not None
    ref = replace(stated_base.ref, **given)
    try:
        base = open_reference(ref)
    except SourceError as error:
        if base_name is not None or given:
            raise
        message = f"The recipe of {reference} names its base, but {error.message}"
        raise SourceError(message, "Pass the base: --base MODEL.") from error
    if settings.deep:
        base.check("--deep")
    _check_is_other(source, base.source, is_named=base_name is not None)
    try:
        resized = open_resized(source, base)
    except CheckpointError as error:
        return _failed(ref.source, reference, "readable", error)
    model = identify_model(base, ref)
    try:
        expected = expect_recorded(model, recipe)
    except ResizeError as error:
        return _failed(ref.source, reference, "table", error)
    checks = compare(expected, resized, progress)
    if settings.deep:
        from ctxextend.verification.deep import check_models

        checks += check_models(expected, resized, notify)
    return _conclude(ref, reference, expected, checks)


def _conclude(
    ref: CheckpointRef, reference: str, expected: Expected, checks: list[Check]
) -> Verification:
    """Return the result of all checks."""
    plan = expected.plan
    what: Changed = "limits"
    if expected.conversion:
        what = "converted"
    elif any(table.is_changed for table in plan.stored):
        what = "resized"
    elif not plan.edits:
        what = "same"
    elif any(change.settings for change in plan.changes):
        what = "rotary"
    method = None
    if not expected.replaces_positions:
        method = expected.unregistered_method or plan.method
    return Verification(
        base=ref.source,
        resized=reference,
        method=method,
        trainable=expected.trainable,
        checks=tuple(checks),
        adapted=tuple(sorted(expected.adapted)),
        notes=(TRAINING_UNVERIFIED,) if expected.is_trained else (),
        what=what,
    )


def _failed(base: str, reference: str, name: str, error: CtxextendError) -> Verification:
    """Return the result of the only check that could be made, which an error ended."""
    failures = [text for text in (error.message, error.hint) if text]
    return Verification(
        base=base,
        resized=reference,
        method=None,
        trainable=None,
        checks=(Check(name, failures),),
    )


def _check_is_other(resized: Source, base: Source, *, is_named: bool) -> None:
    """Raise SourceError if a checkpoint would be compared with itself, which finds nothing.

    Args:
        resized: The resized checkpoint.
        base: Its base.
        is_named: Whether the user named the base; else the recipe names it.
    """
    are_two_files = None not in (resized.file, base.file) and resized.file != base.file
    if are_two_files or not resized.folder.samefile(base.folder):
        return
    name = resized.reference
    message = f"{base.reference} and {name} are the same: there is nothing to compare."
    if not is_named:
        message = (
            f"The recipe of {name} names {name} as its base: the output replaced the checkpoint "
            "that it was created from, or was copied over it."
        )
    raise SourceError(message, "Pass --base MODEL, the checkpoint as it was before.")


def compare(expected: Expected, resized: Checkpoint, progress: Progress) -> list[Check]:
    """Compare the files of a resized checkpoint with the expected ones.

    Raises:
        CheckpointError: A file cannot be read.
        ResizeError: The tables of the base cannot be resized.
    """
    check_others = check_metadata if expected.base.file_suffix else check_files
    return [
        check_tensors(expected, resized, progress),
        check_tables(expected, resized),
        check_others(expected, resized),
    ]


def check_output(planned: Planned, folder: Path) -> None:
    """Verify the folder or GGUF file of a planned output, before it is moved into place.

    Raises:
        VerificationError: A check fails, or could not be made.
    """

    def checks() -> Sequence[Check]:
        resized = open_resized(resolve_source(folder), planned.plan.checkpoint)
        expected = Expected(plan=planned.plan, conversion=planned.conversion)
        return compare(expected, resized, no_progress)

    _refuse_failed(checks, "the plan")


def check_recorded_output(base: CheckpointRef, folder: Path) -> None:
    """Verify the complete folder of an output by its recipe, before it is moved into place.

    Args:
        base: The source; its path in the recipe is relative to the folder in its place.
        folder: The folder, in another place.

    Raises:
        VerificationError: A check fails, or could not be made.
    """
    settings = Verify(str(folder), base=base.source)
    _refuse_failed(lambda: verify_checkpoint(settings, base).checks, "its recipe")


def _refuse_failed(make_checks: Callable[[], Sequence[Check]], what: str) -> None:
    """Raise VerificationError unless all checks can be made and pass."""
    try:
        checks = make_checks()
    except CtxextendError as error:
        message = f"The output could not be verified: {error.message}"
        raise VerificationError(message, NO_OUTPUT) from error
    failed = [f"{check.name}: {check.evidence[0]}" for check in checks if not check.passed]
    if failed:
        message = f"The output does not match {what}. {'; '.join(failed)}."
        raise VerificationError(message, NO_OUTPUT)
