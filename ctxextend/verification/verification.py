"""Proof, from the files of two checkpoints, that one is the other with resized position tables."""

import os
from collections.abc import Callable
from pathlib import Path

from ctxextend.checkpoints.contents import holds
from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.source import Source, resolve_source
from ctxextend.checkpoints.weightnames import READABLE, VARIANT_FILE
from ctxextend.errors import CheckpointError, CtxextendError, ResizeError, VerificationError
from ctxextend.plan.find_tables import open_reference
from ctxextend.plan.plan import ResizePlan
from ctxextend.recipe import CheckpointRef
from ctxextend.verification.claims import Claim, Proof
from ctxextend.verification.expectations import NEAREST, Expectation, find_expectation
from ctxextend.verification.files import check_files
from ctxextend.verification.rows import check_tables
from ctxextend.verification.tensors import check_tensors

__all__ = ["prove_output", "verify", "verify_subject"]

# Called with the bytes compared since the last call, and all that there are.
Progress = Callable[[int, int], None]

NOTHING_KEPT = "Nothing was kept. Run the same command again; if it fails again, please report it with this message."
TRAINED = "That it was trained, and what, is its recipe's word alone."
PURE = "its recipe says that everything was trained, so it is not a pure resize"


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
        extended: The resized checkpoint: a folder, a weights file, a bundled name, or a Hub id.
        deep: Also load both in transformers, run the new length, and compare what they give at old lengths.
        table: As in `plan_resize`, of the original.
        config_key: As in `plan_resize`, of the original.
        offset: As in `plan_resize`, of the original.
        revision: As in `plan_resize`, of the original.
        subfolder: As in `plan_resize`, of the original.
        variant: As in `plan_resize`, of the original.
        family: As in `plan_resize`, of the original; where its own type is not known, what the recipe says, which
            then stands among the notes.

    Raises:
        SourceError: Nothing is at one of the references.
        CheckpointError: A file of the original is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: The original has no learned position table that is known here.
        ResizeError: Flags have no meaning together.
    """
    ref = CheckpointRef(os.fspath(base), revision, subfolder, variant, family, table, config_key, offset)
    return verify_subject(ref, os.fspath(extended), deep=deep)


def verify_subject(
    ref: CheckpointRef, reference: str, *, deep: bool = False, progress: Progress = lambda moved, total: None
) -> Proof:
    """Prove what a command names; see `verify`.

    Args:
        ref: The original.
        reference: The resized checkpoint.
        deep: As in `verify`.
        progress: Called with the bytes compared since the last call, and with all that there are.

    Raises:
        CtxextendError: As `verify`.
    """
    base = open_reference(ref)
    names = ref.source, reference
    try:
        extended = _open(resolve_source(reference, variant=None), base)
    except CheckpointError as error:
        return Proof(*names, None, None, (Claim("readable", False, _said(error)),))
    try:
        expectation = find_expectation(base, ref, extended, typed=("verify", reference))
    except ResizeError as error:
        return Proof(*names, None, None, (Claim("table", False, _said(error)),))
    return _prove(expectation, extended, names, deep=deep, progress=progress)


def _said(error: CtxextendError) -> tuple[str, ...]:
    return tuple(filter(None, (error.message, error.hint)))


def prove_output(plan: ResizePlan, folder: Path, *, progress: Progress = lambda moved, total: None) -> None:
    """Prove what a plan has written, before it takes its name.

    Args:
        plan: The plan.
        folder: What it wrote, finished.
        progress: As in `verify_subject`.

    Raises:
        VerificationError: It is not what was planned.
    """
    names = plan.ref.source, "the output"
    try:
        extended = _open(Source(str(folder), "folder", folder, folder.name), plan.checkpoint)
        proof = _prove(Expectation(plan, None, "as planned"), extended, names, deep=False, progress=progress)
    except CtxextendError as error:
        raise VerificationError(f"The output could not be verified: {error.message}", NOTHING_KEPT) from error
    failed = [f"{claim.name}: {claim.evidence[0]}" for claim in proof.claims if not claim.holds]
    if failed:
        raise VerificationError(f"The output is not what was planned. {'; '.join(failed)}.", NOTHING_KEPT)


def _open(source: Source, base: Checkpoint) -> Checkpoint:
    """Open the resized checkpoint: the variant that the original is, or else the one that it holds, or its one file."""
    model = source.folder / base.model
    files = [path for path in model.glob("*.*") if path.suffix in READABLE] if source.file is None else []
    found = {match["variant"] for path in files if (match := VARIANT_FILE.fullmatch(path.name))}
    wanted = base.stored.variant if base.stored.variant in found else None
    plain = [path for path in files if VARIANT_FILE.fullmatch(path.name) is None]
    if wanted is None and len(found) == 1 and not plain:
        wanted = found.pop()
    if len(files) == 1 and not base.has_config and not base.is_adapter:
        holds(source, files[0])  # nobody named that file: it may be no link to anywhere
        source = resolve_source(files[0])
    return open_checkpoint(source, wanted)


def _prove(
    expectation: Expectation, extended: Checkpoint, names: tuple[str, str], *, deep: bool, progress: Progress
) -> Proof:
    plan, trainable = expectation.plan, expectation.trainable
    tensors = check_tensors(plan, extended, progress)
    if trainable == "all":
        tensors = Claim("tensors", False, (PURE, *tensors.evidence))
    tables = check_tables(plan, extended, trainable, expectation.how, expectation.chain)
    claims = [tensors, tables, check_files(plan, extended)]
    if deep:
        from ctxextend.verification.loading import check_loading

        claims += check_loading(plan, extended, trainable)
    method = plan.method if tables.holds or expectation.how != NEAREST else None
    notes = (*expectation.notes, *(TRAINED,) * (trainable is not None))
    what = "resized" if plan.is_changed else "mended" if plan.edits else "same"
    return Proof(*names, method, trainable, tuple(claims), notes, what)
