"""Verify from their files that two checkpoints differ only in their position tables."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ctxextend import errors
from ctxextend.checkpoints.filenames import READABLE, VARIANT_FILE
from ctxextend.checkpoints.folder import Checkpoint, open_checkpoint
from ctxextend.checkpoints.json_edit import read_text
from ctxextend.checkpoints.source import Source, has_file, resolve_source
from ctxextend.conversion.convert import ConversionPlan, plan_conversion
from ctxextend.families.lengths import position_lengths
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.find_tables import OpenedModel, computed_shape, identify_model, open_reference
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.progress import Progress, no_progress
from ctxextend.recipe import RECIPE_FILE, CheckpointRef, Resize, accepts_settings
from ctxextend.recipe_file import Provenance, find_base, parse_provenance
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHODS
from ctxextend.verification.checks import (
    Check,
    ExpectedResize,
    compare_rope,
    compare_table,
    make_check,
    run_checks,
)

NO_OUTPUT = (
    "No output was written. Run the same command again; if it fails again, please report this "
    "message."
)
TRAINING_UNVERIFIED = "The recipe states what was trained; this was not verified."
CHANGED = {  # by `Verification.what`
    "resized": "position table",
    "rotary": "rotary settings and length limits",
    "fixed": "length limits",
}
MODEL_CHECKS = ("loads", "runs", "outputs")  # the checks of ``--deep``; the others read files only
CLOSEST = "closest of all methods"  # `ExpectedResize.how` if no method recreates all rows


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result, shows="conclusion"):
    """The result of `verify`."""

    base: str  # as given by the user
    resized: str  # as given by the user
    method: str | None  # method that created the rows, ``truncate``, or None if unknown
    trainable: str | None  # what was trained according to the recipe: one of `TRAINABLE`, or None
    checks: tuple[Check, ...]  # in the order they ran
    adapted: tuple[
        str, ...
    ] = ()  # tensors that adapters changed according to the recipe, with ``*`` for layers
    notes: tuple[str, ...] = ()  # for example how the method was determined
    what: str = field(
        default="resized", metadata=not_in_json
    )  # a key of `CHANGED`, ``converted`` or ``same``

    json_properties: ClassVar = ("passed", "conclusion")

    @property
    def passed(self) -> bool:
        """Whether no check failed, all files were checked and, with ``--deep``, anything of the
        models.
        """
        models = [check for check in self.checks if check.name in MODEL_CHECKS]
        files = [check for check in self.checks if check.name not in MODEL_CHECKS]
        if any(check.failed for check in models):
            return False
        if models and not any(check.passed for check in models):
            return False
        return all(check.passed for check in files)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def conclusion(self) -> str:
        """The result in one sentence, and another one if something could not be checked in the
        models.
        """
        return " ".join((self._verdict, *self._not_checked()))

    def _not_checked(self) -> Iterator[str]:
        """Yield which checks of models were not made, and why: in their first finding."""
        checks = [
            check
            for check in self.checks
            if check.status == "not checked" and check.name in MODEL_CHECKS
        ]
        names: dict[str, list[str]] = {}
        for check in checks:
            names.setdefault(check.evidence[0], []).append(check.name)
        reasons = [f"{', '.join(group)} ({reason})" for reason, group in names.items()]
        if reasons:
            yield f"Not checked: {'; '.join(reasons)}."

    @property
    def _verdict(self) -> str:
        if not self.passed:
            failed = ", ".join(check.name for check in self.checks if check.failed)
            files = [check for check in self.checks if check.name not in MODEL_CHECKS]
            if not failed and all(check.passed for check in files):
                return (
                    f"Not verified: the files of {self.resized} are right, but nothing of the "
                    "models was checked."
                )
            if not failed:
                unchecked = ", ".join(check.name for check in self.checks if not check.passed)
                return (
                    f"Not verified: method {self.method} is not registered (not checked: "
                    f"{unchecked})."
                )
            kind = "conversion" if self.what == "converted" else "resize"
            if all(check.passed for check in files):
                right = f"the files of {self.resized} are those of a pure {kind} of {self.base}"
                return (
                    f"Not verified: {right}, but the model in transformers is not right (failed: "
                    f"{failed})."
                )
            return (
                f"Not verified: {self.resized} is not a pure {kind} of {self.base} (failed: "
                f"{failed})."
            )
        if self.trainable:
            rows = "new rows" if self.trainable == "new" else "rows"
            changes = (
                f" only in its position table ({'resized, ' * (self.what == 'resized')}{rows} "
                "trained)"
            )
        elif self.what == "converted":
            kind = "every tensor without an adapter" if self.adapted else "every tensor"
            tensors = f"{kind} is the stated rearrangement or sum of the base's"
            return f"Verified: {self.resized} is a conversion of {self.base}: {tensors}."
        elif self.what == "same" and not self.adapted:
            return f"Verified: {self.resized} matches {self.base} (nothing was resized)."
        else:
            changes = f" only in its {CHANGED[self.what]}" if self.what != "same" else " only"
        adapters = (
            " and" * (changes != " only") + " in tensors with adapters" if self.adapted else ""
        )
        return f"Verified: {self.resized} differs from {self.base}{changes}{adapters}."


@accepts_settings(CheckpointRef)
def verify(
    reference: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    *,
    deep: bool = False,
    **ref: Any,
) -> Verification:
    """Verify that a resized checkpoint differs from its base only in its position tables.

    Other tensors are compared byte by byte. Tables and rotary settings are recreated from the base
    with the recipe's settings, or else with each method's defaults; other files are compared with
    what the resize should have written.

    Args:
        reference: The resized checkpoint: a folder, weights file, bundled name or Hub id.
        base: The base checkpoint, as in `resize`. Defaults to the one named in the recipe.
        deep: Also load both in transformers, run the resized model at its new length, and compare
            outputs.
        ref: Fields of the base's checkpoint reference, as in `resize`; they override the recipe.

    Raises:
        SourceError: A reference does not exist.
        CheckpointError: A file of the base is missing or malformed, or transformers cannot load it.
        UnsupportedModelError: The base has no supported position table.
        ResizeError: The arguments conflict.
    """
    return verify_resized(
        os.fspath(reference), None if base is None else os.fspath(base), ref, deep=deep
    )


def verify_resized(
    reference: str,
    base_name: str | None,
    settings: Mapping[str, Any],
    *,
    deep: bool,
    progress: Progress = no_progress,
) -> Verification:
    """Verify a resized checkpoint like `verify`; `progress` is called with the bytes compared."""
    source = resolve_source(reference)
    recipe, unusable = _read_recipe(source)
    stated_base = find_base(recipe, base_name)
    if stated_base is None:
        message = unusable or f"{reference} has no recipe that names its base checkpoint."
        raise errors.SourceError(message, "Pass --base MODEL.")
    ref = replace(stated_base.ref, **settings)
    base = open_reference(ref)
    try:
        resized = _open_resized(source, base)
    except errors.CheckpointError as error:
        return _failed(ref, reference, "readable", error)
    try:
        expected = find_expected_resize(identify_model(base, ref), resized, recipe, unusable)
        expected = replace(expected, written=recipe.written if recipe else {})
    except errors.ResizeError as error:
        return _failed(ref, reference, "table", error)
    checks = run_checks(expected, resized, progress)
    if deep:
        from ctxextend.verification.deep import check_loading

        checks += check_loading(expected, resized)
    plan, trainable = expected.plan, expected.trainable
    is_conversion = isinstance(plan, ConversionPlan)
    method = (
        None if expected.how == CLOSEST or is_conversion else expected.unregistered or plan.method
    )
    adapted = tuple(sorted(expected.adapted))
    notes = (*expected.notes, TRAINING_UNVERIFIED) if trainable or adapted else expected.notes
    what = (
        "resized"
        if any(table.is_changed for table in plan.stored)
        else "fixed"
        if plan.edits
        else "same"
    )
    what = "rotary" if what == "fixed" and any(table.rope for table in plan.tables) else what
    what = "converted" if is_conversion else what
    return Verification(
        ref.source, reference, method, trainable, tuple(checks), adapted, notes, what
    )


def _read_recipe(source: Source) -> tuple[Provenance | None, str]:
    """Return the recipe in the folder of an output, also of weights without a config.json, or why
    it is not used.

    An invalid recipe is treated like a missing one. Without a file, the reason is empty.
    """
    path = source.folder / RECIPE_FILE
    try:
        if has_file(source, path):
            return parse_provenance(read_text(path), RECIPE_FILE, source.folder), ""
    except (errors.CheckpointError, errors.RecipeError) as error:
        return None, f"{error.message.removesuffix('.')}."
    return None, ""


def _failed(
    ref: CheckpointRef, reference: str, name: str, error: errors.CtxextendError
) -> Verification:
    check = make_check(name, failures=tuple(filter(None, (error.message, error.hint))))
    return Verification(ref.source, reference, None, None, (check,))


def check_output(plan: ResizePlan, folder: Path) -> None:
    """Verify the folder that a plan has written, before it is moved into place; raise
    VerificationError if it fails.
    """
    try:
        resized = _open_resized(Source(str(folder), "folder", folder, folder.name), plan.checkpoint)
        checks = run_checks(ExpectedResize(plan, None, "as planned"), resized, no_progress)
    except errors.CtxextendError as error:
        raise errors.VerificationError(
            f"The output could not be verified: {error.message}", NO_OUTPUT
        ) from error
    failed = [f"{check.name}: {check.evidence[0]}" for check in checks if not check.passed]
    if failed:
        raise errors.VerificationError(
            f"The output does not match the plan. {'; '.join(failed)}.", NO_OUTPUT
        )


def _open_resized(source: Source, base: Checkpoint) -> Checkpoint:
    """Open the resized checkpoint in the base's variant, or else its only variant or its only
    file.
    """
    model = source.folder / base.model
    files = (
        [path for path in model.glob("*.*") if path.suffix in READABLE]
        if source.file is None
        else []
    )
    variants = {match["variant"] for path in files if (match := VARIANT_FILE.fullmatch(path.name))}
    variant = base.variant if base.variant in variants else None
    if (
        variant is None
        and len(variants) == 1
        and all(VARIANT_FILE.fullmatch(path.name) for path in files)
    ):
        variant = variants.pop()
    if len(files) == 1 and not base.has_config and not base.adapter_of:
        has_file(
            source, files[0]
        )  # rejects a link that points outside, since the user did not name this file
        source = resolve_source(files[0])
    return open_checkpoint(source, variant)


def find_expected_resize(
    model: OpenedModel, resized: Checkpoint, recipe: Provenance | None, unusable: str = ""
) -> ExpectedResize:
    """Find the resize that created a checkpoint: from its recipe, or by trying each method.

    `unusable` says why the recipe in the folder was not read.
    """
    reasons = [unusable] if unusable else list[str]()
    chain = recipe.chain if recipe else ()  # the newest recipe that applies to this base counts
    for index, step in enumerate(chain):
        recorded = (
            step.trainable,
            "from the recipe",
            (),
            chain[index:],
            step.unregistered,
            step.adapted,
        )
        try:
            if step.convert is not None:
                conversion = plan_conversion(model, step.convert)
                return ExpectedResize(conversion, *recorded)
            plan = plan_model(model, step.settings, step.methods, checks_width=False)
            _ = plan.chosen  # raises if the rows do not equal the recorded formula
        except (errors.ResizeError, errors.UnsupportedModelError) as error:
            reasons.append(f"The recipe does not apply to {model.ref.source}: {error.message}")
            continue
        unknown = {table.name: (0 if step.rows else table.rows_before, 0) for table in plan.tables}
        rows = [
            ((unknown | {**step.rows})[table.name][0], table.rows_before) for table in plan.tables
        ]
        other = [stated for stated, actual in rows if stated != actual]
        if not other:
            return ExpectedResize(plan, *recorded)
        reasons.append(f"The recipe is for a table with {other[0]} rows.")
    return _try_methods(
        model, resized, (f"{[*reasons, 'No recipe found.'][0]} All methods were tried.",)
    )


def _try_methods(model: OpenedModel, resized: Checkpoint, notes: tuple[str, ...]) -> ExpectedResize:
    """Return the first method whose defaults recreate the tables, or else the one that matches most
    rows.
    """
    for location, _ in model.tables:
        found = position_lengths(location) if location.table.rope else None
        if found is not None and found.question:  # no method can be tried
            raise errors.ResizeError(
                f"config.json of the base: {found.question}.", f"Pass {found.answer}."
            )
    names = [name for _, name in model.tables]
    before, after = (
        {
            name: (entries[name].dtype, list(entries[name].shape))
            for name in names
            if name in entries
        }
        for entries in (model.checkpoint.entries, resized.entries)
    )
    lengths = {
        one.positions(after[name][1][0]): None
        for one, name in model.tables
        if name in after and after[name][1]
    }
    if not before:  # transformers computes all tables
        tables = [replace(location, config=resized.config) for location, _ in model.tables]
        lengths = {table.positions(computed_shape(table)[0][0]): None for table in tables}
    parts = dict.fromkeys((None, *(table.part or None for table, _ in model.tables)))
    plans: list[ResizePlan] = []  # those that produce the tables' shapes and dtypes
    for to, part in product(lengths, parts):
        with suppress(errors.ResizeError):
            plan = plan_model(model, Resize(to, part=part), checks_width=False)
            planned = {
                table.name: (table.dtype, [table.rows_after, table.hidden_size])
                for table in plan.stored
            }
            is_rotary = any(table.rope for table in plan.tables)
            methods = ROTARY_METHODS if is_rotary else METHODS if plan.creates_rows else (None,)
            for method in methods if before | planned == after else ():
                with suppress(errors.ResizeError):
                    settings = replace(plan.settings, method=method)
                    if is_rotary:
                        plans.append(plan_model(model, settings, checks_width=False))
                    else:
                        plans.append(replace(plan, settings=settings))
    best = None
    maximum = -1
    for plan in plans:
        with suppress(errors.ResizeError):  # the method needs more rows
            masks = [compare_table(plan, table, resized).matches for table in plan.stored]
            masks += [
                compare_rope(table, resized).matches for table in plan.tables if not table.has_rows
            ]
            matches = np.concatenate([np.ones(1, np.bool_), *masks])
            if matches.all():
                first = plan.settings.choice.keep_first if plan.creates_rows else 0
                return ExpectedResize(
                    plan, None, "detected" + f", --keep-first {first}" * bool(first), notes
                )
            if matches.sum() > maximum:
                best = plan
                maximum = matches.sum()
    if best is not None:
        return ExpectedResize(best, None, CLOSEST, notes)
    stated = [str(item.config.get("model_type")) for item in (model.checkpoint, resized)]
    if stated[0] != stated[1]:
        message = f"The base is a {stated[0]} model, the other one a {stated[1]} model."
        hint = (
            "Keep the recipe of a conversion, ctxextend.yaml: it is verified only with it, and "
            "against its base."
        )
        raise errors.ResizeError(
            f"{message} {notes[0].removesuffix(' All methods were tried.')}".strip(), hint
        )
    old, new = (
        {name: f"{dtype} {shape}" for name, (dtype, shape) in tables.items()}
        for tables in (before, after)
    )
    hint = "Compare both with `ctxextend inspect`."
    if not (old or new):
        listed = ", ".join(names)
        raise errors.ResizeError(
            f"No resize of {model.ref.source} gives {listed} this context length.", hint
        )
    shapes = "; ".join(
        f"{name} was {old.get(name, 'not stored')} and is {new.get(name, 'missing')}"
        for name in names
    )
    raise errors.ResizeError(
        f"No resize of {model.ref.source} creates these tables: {shapes}.", hint
    )
