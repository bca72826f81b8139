"""Proof, from the files of two checkpoints, that one is the other with resized position tables."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import Source, resolve_source
from ctxextend.errors import CheckpointError, CtxextendError, ResizeError, VerificationError
from ctxextend.inspection.reports import written_recipe
from ctxextend.plan import ResizePlan
from ctxextend.proof.claims import Claim, Proof
from ctxextend.proof.expectations import NEAREST, Expectation, find_expectation
from ctxextend.proof.files import check_files
from ctxextend.proof.rows import check_tables
from ctxextend.proof.tensors import check_tensors
from ctxextend.recipe import Origin, Subject

__all__ = ["check_output", "verify", "verify_subject"]

# Called with the bytes compared since the last call, and all that there are.
Progress = Callable[[int, int], None]


def verify(
    base: str | os.PathLike[str],
    extended: str | os.PathLike[str],
    *,
    deep: bool = False,
    table: str | None = None,
    config_key: str | None = None,
    offset: int = 0,
    revision: str | None = None,
    subfolder: str | None = None,
    variant: str | None = None,
    family: str | None = None,
) -> Proof:
    """Prove that one checkpoint is another with resized position tables, and nothing else.

    Every byte of every other tensor is read and compared; the tables are made again from the original, by the recipe
    beside the checkpoint or, without one, by trying every method; config, tokenizer and side files are compared with
    what the resize should have made of them. Torch is imported for `deep` and for torch files alone.

    Args:
        base: The original, as in `plan_resize`.
        extended: The resized checkpoint: a folder, a bundled name, or a Hub id.
        deep: Also load both in transformers, run the new length, and compare what they give at old lengths.
        table: As in `plan_resize`, of the original.
        config_key: As in `plan_resize`, of the original.
        offset: As in `plan_resize`, of the original.
        revision: As in `plan_resize`, of the original; what the recipe says where it names the same source.
        subfolder: Like `revision`.
        variant: Like `revision`.
        family: Like `revision`.

    Raises:
        SourceError: Nothing is at one of the references.
        CheckpointError: A file of the original is missing or malformed.
        UnsupportedModelError: The original has no learned position table that is known here.
        ResizeError: Flags have no meaning together.
    """
    origin = Origin(revision, subfolder, variant, family)
    subject = Subject(os.fspath(base), origin, table, config_key, offset, "verify")
    return verify_subject(subject, os.fspath(extended), deep=deep)


def verify_subject(
    subject: Subject, reference: str, *, deep: bool = False, progress: Progress = lambda moved, total: None
) -> Proof:
    """Prove what a command names; see `verify`.

    Args:
        subject: The original.
        reference: The resized checkpoint.
        deep: As in `verify`.
        progress: Called with the bytes compared since the last call, and with all that there are.

    Raises:
        CtxextendError: As `verify`.
    """
    source = resolve_source(reference)
    try:
        extended = _open(source)
        subject = _completed(subject, extended)
    except CheckpointError as error:
        _base(subject)
        return Proof(subject.source, reference, None, None, (Claim("readable", False, (error.message,)),))
    base = _base(subject)
    try:
        expectation = find_expectation(base, subject, extended)
    except ResizeError as error:
        return Proof(subject.source, reference, None, None, (Claim("table", False, (error.message,)),))
    return _prove(expectation, extended, (subject.source, reference), deep=deep, progress=progress)


def check_output(
    plan: ResizePlan, folder: Path, *, deep: bool = False, progress: Progress = lambda moved, total: None
) -> None:
    """Prove what a plan has written, before it takes its name.

    Args:
        plan: The plan.
        folder: What it wrote, finished.
        deep: As in `verify`.
        progress: As in `verify_subject`.

    Raises:
        VerificationError: It is not what was planned.
    """
    try:
        extended = open_checkpoint(Source(str(folder), "folder", folder, folder.name), plan.checkpoint.stored.variant)
        names = plan.recipe.source, "the output"
        proof = _prove(Expectation(plan, None, "as planned"), extended, names, deep=deep, progress=progress)
    except CtxextendError as error:
        raise VerificationError(f"The output could not be verified: {error.message}", KEPT_NOTHING) from error
    failed = [f"{claim.name}: {claim.evidence[0]}" for claim in proof.claims if not claim.holds]
    if failed:
        raise VerificationError(f"The output is not what was planned. {' '.join(failed)}", KEPT_NOTHING)


KEPT_NOTHING = "Nothing was kept. Run the command again; if it fails again, check the disk and the memory."


def _open(source: Source) -> Checkpoint:
    """Open the resized checkpoint, in the variant of which it holds weights."""
    try:
        return open_checkpoint(source)
    except CheckpointError:
        variants = {path.name.split(".")[1] for path in source.folder.glob("model.*.safetensors")}
        if len(variants) != 1:
            raise
        return open_checkpoint(source, variants.pop())


def _completed(subject: Subject, extended: Checkpoint) -> Subject:
    """Return the subject with what the recipe says of the same source."""
    try:
        written = written_recipe(extended)
    except CtxextendError:
        return subject
    if written is None:
        return subject
    recipe, given = written.recipe, subject.origin
    if subject.table is None and given.family is None:
        settings = recipe.resize
        subject = replace(subject, table=settings.table, config_key=settings.config_key, offset=settings.offset)
    family = None if subject.table else given.family or recipe.origin.family
    said = recipe.origin if recipe.source == subject.source else Origin()
    revision = given.revision or said.revision
    origin = Origin(revision, given.subfolder or said.subfolder, given.variant or said.variant, family)
    return replace(subject, origin=origin)


def _base(subject: Subject) -> Checkpoint:
    origin = subject.origin
    source = resolve_source(subject.source, origin.revision, origin.subfolder, origin.variant)
    return open_checkpoint(source, origin.variant)


def _prove(
    expectation: Expectation, extended: Checkpoint, names: tuple[str, str], *, deep: bool, progress: Progress
) -> Proof:
    plan, trainable = expectation.plan, expectation.trainable
    claims = [
        check_tensors(plan, extended, progress),
        check_tables(plan, extended, trainable, expectation.how),
        check_files(plan, extended),
    ]
    if deep:
        from ctxextend.proof.loading import check_loading

        claims += check_loading(plan, extended, trainable)
    found = plan.method if claims[1].holds or expectation.how != NEAREST else None
    return Proof(*names, found, trainable, tuple(claims), expectation.notes)
