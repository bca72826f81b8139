"""Verify, from the files of two checkpoints, that they differ only in their position tables."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ctxextend.checkpoints.filenames import READABLE, VARIANT_FILE
from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.json_edit import read_text
from ctxextend.checkpoints.source import Source, has_file, resolve_source
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError, SourceError, VerificationError
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.find_tables import OpenedModel, identify_model, open_reference
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Resize, takes
from ctxextend.recipe_file import find_base, parse_provenance, read_provenance
from ctxextend.tables.methods import METHODS
from ctxextend.verification.checks import Check, ExpectedResize, check_files, check_tables, check_tensors, compare_table

NOTHING_KEPT = "Nothing was kept. Run the same command again; if it fails again, please report it with this message."
TRAINED = "That it was trained, and what, is its recipe's word alone."
# Said of a method that does not make all rows, where none does.
NEAREST = "the nearest of all methods"


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result, shows="conclusion"):
    """What was found of two checkpoints."""

    base: str  # as the user named it
    resized: str  # as the user named it
    method: str | None  # what made its rows: a method's name, ``truncate``, or None where none is found
    trainable: str | None  # what was then trained, by its recipe: ``new``, ``positions`` or ``all``; else None
    checks: tuple[Check, ...]  # in the order in which they were made
    notes: tuple[str, ...] = ()  # such as how the rows' method was found
    # Whether a table was ``resized``, only limits were ``fixed``, or all is the ``same``.
    what: str = field(default="resized", metadata=not_in_json)

    json_properties: ClassVar = ("passed", "conclusion")

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def conclusion(self) -> str:
        """The result in a sentence."""
        is_resized = self.what == "resized"
        if not self.passed:
            failures = [check for check in self.checks if not check.passed]
            failed = ", ".join(check.name for check in failures)
            if all(check.is_unchecked for check in failures):
                return f"Not verified ({failed}): method {self.method} is not registered here."
            what = "a pure resize" if self.trainable else f"{self.base} with a resized table and nothing else"
            return f"FAILED ({failed}): {self.resized} is not {what}."
        what = " with a resized table and nothing else" if is_resized else ""
        if self.trainable:
            rows = "new rows" if self.trainable == "new" else "rows"
            what += f", but for the table, whose {rows} were {'then ' * is_resized}trained"
        elif not is_resized:
            what = " with limits that agree with its tables" if self.what == "fixed" else ": nothing was resized"
        return f"Verified: {self.resized} is {self.base}{what}."


@takes(CheckpointRef)
def verify(
    reference: str | os.PathLike[str], base: str | os.PathLike[str] | None = None, *, deep: bool = False, **ref: Any
) -> Verification:
    """Verify that a checkpoint is its base checkpoint with resized position tables, and nothing else.

    Every byte of every other tensor is read and compared; the tables are made again from the base checkpoint, by the
    recipe beside the resized one or, without a recipe, by trying each method with its default settings; config,
    tokenizer and side files are compared with what the resize should have made of them.

    Args:
        reference: The resized checkpoint: a folder, a weights file, a bundled name, or a Hub id.
        base: The base checkpoint, as in `plan_resize`; None is what the recipe beside the resized one names.
        deep: Also load both in transformers, run the new length, and compare what they give at old lengths.
        ref: Which checkpoint the base is, as in `plan_resize`, in place of what that recipe says.

    Raises:
        SourceError: Nothing is at one of the references.
        CheckpointError: A file of the base is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: The base has no learned position table that is known here.
        ResizeError: Flags have no meaning together.
    """
    return verify_resized(os.fspath(reference), None if base is None else os.fspath(base), ref, deep=deep)


def verify_resized(
    reference: str, named: str | None, settings: Mapping[str, Any], *, deep: bool, progress: Progress = no_progress
) -> Verification:
    """Verify the resized checkpoint at a reference, as `verify` does; `progress` is called with the bytes compared."""
    written, source = None, resolve_source(reference)
    with suppress(CheckpointError, RecipeError):  # what says nothing of a base is as good as none
        if has_file(source, path := source.folder / RECIPE_FILE):
            written = parse_provenance(read_text(path), RECIPE_FILE, source.folder)
    known = find_base(written, named)
    if known is None:
        raise SourceError(f"No recipe in {reference} names its base checkpoint.", "Name it with --base.")
    ref = replace(known.ref, **settings)
    base = open_reference(ref)
    try:
        resized = _open_resized(source, base)
    except CheckpointError as error:
        return _failed(ref, reference, "readable", error)
    try:
        expected = find_expected_resize(identify_model(base, ref), resized)
    except ResizeError as error:
        return _failed(ref, reference, "table", error)
    checks = _run_checks(expected, resized, progress)
    if deep:
        from ctxextend.verification.deep import check_loading

        checks += check_loading(expected, resized)
    plan, trainable = expected.plan, expected.trainable
    method = None if expected.how == NEAREST else expected.unregistered or plan.method
    notes = (*expected.notes, TRAINED) if trainable else expected.notes
    what = "resized" if plan.is_changed else "fixed" if plan.edits else "same"
    return Verification(ref.source, reference, method, trainable, tuple(checks), notes, what)


def _failed(ref: CheckpointRef, reference: str, name: str, error: CtxextendError) -> Verification:
    check = Check(name, False, tuple(filter(None, (error.message, error.hint))))
    return Verification(ref.source, reference, None, None, (check,))


def check_output(plan: ResizePlan, folder: Path) -> None:
    """Verify the finished folder that a plan has written, before it takes its name."""
    try:
        resized = _open_resized(Source(str(folder), "folder", folder, folder.name), plan.checkpoint)
        checks = _run_checks(ExpectedResize(plan, None, "as planned"), resized, no_progress)
    except CtxextendError as error:
        raise VerificationError(f"The output could not be verified: {error.message}", NOTHING_KEPT) from error
    failed = [f"{check.name}: {check.evidence[0]}" for check in checks if not check.passed]
    if failed:
        raise VerificationError(f"The output is not what was planned. {'; '.join(failed)}.", NOTHING_KEPT)


def _run_checks(expected: ExpectedResize, resized: Checkpoint, progress: Progress) -> list[Check]:
    tensors = check_tensors(expected.plan, resized, progress)
    if expected.trainable == "all":
        impure = "its recipe says that everything was trained, so it is not a pure resize"
        tensors = Check("tensors", False, (impure, *tensors.evidence))
    return [tensors, check_tables(expected, resized), check_files(expected.plan, resized)]


def _open_resized(source: Source, base: Checkpoint) -> Checkpoint:
    """Open the resized checkpoint: the variant that the base is, or else the one that it holds, or its one file."""
    model = source.folder / base.model
    files = [path for path in model.glob("*.*") if path.suffix in READABLE] if source.file is None else []
    found = {match["variant"] for path in files if (match := VARIANT_FILE.fullmatch(path.name))}
    wanted = base.variant if base.variant in found else None
    plain = [path for path in files if VARIANT_FILE.fullmatch(path.name) is None]
    if wanted is None and len(found) == 1 and not plain:
        wanted = found.pop()
    if len(files) == 1 and not base.has_config and not base.adapter_of:
        has_file(source, files[0])  # nobody named that file: it may be no link to anywhere
        source = resolve_source(files[0])
    return open_checkpoint(source, wanted)


def find_expected_resize(model: OpenedModel, resized: Checkpoint) -> ExpectedResize:
    """Find the resize that a checkpoint came from: by the recipe beside it, or by trying each method."""
    recipe, reasons = read_provenance(resized), list[str]()
    # The newest recipe that is of this base counts, and what was trained since then.
    chain = recipe.chain if recipe else ()
    for place, step in enumerate(chain):
        try:
            plan = plan_model(model, step.settings, step.methods)
        except ResizeError as error:
            reasons.append(f"The recipe beside it does not fit {model.ref.source}: {error.message}")
            continue
        rows = [(step.rows.get(table.name, (table.rows_before, 0))[0], table.rows_before) for table in plan.tables]
        other = [said for said, actual in rows if said != actual]
        if not other:
            return ExpectedResize(plan, step.trainable, "by its recipe", (), chain[place:], step.unregistered)
        reasons.append(f"The recipe beside it is of a table that had {other[0]} rows.")
    reason = reasons[0] if reasons else "No recipe of a resize lies beside it."
    return _try_methods(model, resized, (f"{reason} Every method was tried.",))


def _try_methods(model: OpenedModel, resized: Checkpoint, notes: tuple[str, ...]) -> ExpectedResize:
    """Return the first method whose defaults make exactly the tables that are there, or the one that comes nearest."""
    names = [name for _, name in model.tables]
    before, after = (
        {name: (one.entries[name].dtype, list(one.entries[name].shape)) for name in names if name in one.entries}
        for one in (model.checkpoint, resized)
    )
    lengths = {
        place.positions(after[name][1][0]): None for place, name in model.tables if name in after and after[name][1]
    }
    parts = dict.fromkeys((None, *(place.part or None for place, _ in model.tables)))
    plans: list[ResizePlan] = []  # that give every table the shape and dtype that it has now
    for to, part in product(lengths, parts):
        with suppress(ResizeError):
            plan = plan_model(model, Resize(to, part=part))
            planned = {table.name: (table.dtype, [table.rows_after, table.hidden_size]) for table in plan.tables}
            if before | planned == after:
                methods = METHODS if plan.creates_rows else (None,)
                plans += (replace(plan, settings=replace(plan.settings, method=method)) for method in methods)
    best, maximum = None, -1
    for plan in plans:
        with suppress(ResizeError):  # this method needs more rows
            matches = np.concatenate([compare_table(plan, table, resized).matches for table in plan.tables])
            if matches.all():
                first = plan.settings.kept_first if plan.creates_rows else 0
                return ExpectedResize(plan, None, "found by trying" + f" --keep-first {first}" * bool(first), notes)
            if matches.sum() > maximum:
                best, maximum = plan, matches.sum()
    if best is not None:
        return ExpectedResize(best, None, NEAREST, notes)
    was, now = ({name: f"{dtype} {shape}" for name, (dtype, shape) in tables.items()} for tables in (before, after))
    shown = "; ".join(f"{name} was {was[name]} and is {now.get(name, 'missing')}" for name in names)
    raise ResizeError(f"No resize of {model.ref.source} gives these tables: {shown}.", "Compare both with inspect.")
