"""Detect the resize that created a checkpoint without a recipe, by trying each method.

Of conversions, only that to no positions is tried: it keeps the model type.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import ResizeError, UnsupportedModelError
from ctxextend.families.lengths import position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.removed_positions import with_removed_positions
from ctxextend.plan.found_table import context_length, unstored_table
from ctxextend.plan.opened_model import OpenedModel
from ctxextend.plan.plan import Plan, plan_model, with_settings
from ctxextend.planned import Planned, prepare_convert, prepare_plan
from ctxextend.recipe import Convert, Resize
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rope_types import NONE
from ctxextend.tables.rotary_methods import ROTARY_METHODS
from ctxextend.verification.compare_rope import Mask, compare_positions
from ctxextend.verification.compare_tables import recreate_table
from ctxextend.verification.compare_tensors import TensorForm, form_of
from ctxextend.verification.expected import Expected, FoundBy, Recorded, expect, expected_rows

Forms = Mapping[str, TensorForm]  # of the position tables that are stored, by name


@dataclass(frozen=True)
class Match:
    """How much of a checkpoint a plan recreates."""

    plan: Plan
    equal: int  # rows and rotary frequencies that are equal
    total: int


def detect_resize(
    model: OpenedModel, resized: Checkpoint, recorded: Recorded, reason: str
) -> Expected:
    """Return the first method whose defaults recreate the tables, or else the closest one.

    A conversion to no positions counts too.

    `reason` says why the recipe was not used, as a sentence; `recorded` is what it states
    nevertheless.

    Raises:
        ResizeError: No resize creates tables of these dtypes and shapes, or the config does not
            tell the length of the base.
        CheckpointError: A file of the base is malformed.
    """
    _check_lengths(model)
    notes = (f"{reason} All methods were tried.",)
    removal = _find_removal(model, resized)
    if removal is not None:
        return expect(removal, FoundBy.DETECTION, recorded, notes)
    before = _table_forms(model, model.checkpoint)
    after = _table_forms(model, resized)
    best: Match | None = None
    for plan in _candidates(model, resized, before, after):
        match = _match(plan, resized)
        if match is None:
            continue
        if match.equal == match.total:
            return expect(prepare_plan(plan), FoundBy.DETECTION, recorded, notes)
        if best is None or match.equal > best.equal:
            best = match
    if best is not None:
        return expect(prepare_plan(best.plan), FoundBy.CLOSEST, recorded, notes)
    _check_model_types(model, resized, reason)
    raise _no_resize(model, before, after)


def _find_removal(model: OpenedModel, resized: Checkpoint) -> Planned | None:
    """Return the conversion to no positions, if it gives the rotary settings of a checkpoint.

    Raises:
        CheckpointError: A file of the base is malformed.
    """
    now = list[TableLocation]()
    for location in model.architecture.locations:
        now.append(replace(location, config=resized.config))
    removed = with_removed_positions(model.architecture._replace(locations=tuple(now))).locations
    if not removed or any(location.scheme != NONE for location in removed):
        return None
    length = removed[0].value(removed[0].effective_key)
    with suppress(ResizeError, UnsupportedModelError):  # the base is not a rotary model
        planned = prepare_convert(model, Convert(NONE, length))
        match = _match(planned.plan, resized)
        if match is not None and match.equal == match.total:
            return planned
    return None


def _check_lengths(model: OpenedModel) -> None:
    """Raise ResizeError if a config does not tell a length, so that no method can be tried."""
    for table in model.tables:
        if table.location.table.rope:
            lengths = position_lengths(table.location)
            if lengths.question:
                raise ResizeError(
                    f"{table.location.file} of the base: {lengths.question}.",
                    f"Pass {lengths.answer}.",
                )


def _table_forms(model: OpenedModel, checkpoint: Checkpoint) -> Forms:
    """Return dtype and shape of the position tables that a checkpoint stores, by name."""
    names = [table.name for table in model.tables]
    entries = checkpoint.weights.entries
    return {name: form_of(entries[name]) for name in names if name in entries}


def _candidates(
    model: OpenedModel, resized: Checkpoint, before: Forms, after: Forms
) -> Iterator[Plan]:
    """Yield a plan for each method that gives the tables their dtypes and shapes."""
    lengths = _lengths(model, resized, before, after)
    parts = dict.fromkeys((None, *(table.location.part or None for table in model.tables)))
    for length, part in product(lengths, parts):
        with suppress(ResizeError):
            plan = plan_model(model, Resize(length, part=part), checks_width=False)
            if {**before, **_planned_forms(plan)} == after:
                yield from _with_each_method(plan)


def _lengths(model: OpenedModel, resized: Checkpoint, before: Forms, after: Forms) -> Iterable[int]:
    """Return the context lengths that the tables of the resized checkpoint have."""
    found = dict[int, None]()
    for table in model.tables:
        name = table.name
        if not before:  # transformers computes all tables
            location = replace(table.location, config=resized.config)
            found[context_length(unstored_table(location, name))] = None
        elif name in after and after[name].shape:
            found[table.location.positions(after[name].shape[0])] = None
    return found


def _planned_forms(plan: Plan) -> Forms:
    """Return dtype and shape of the stored tables after a resize, by name."""
    return {
        table.name: TensorForm(table.dtype, (table.rows_after, table.hidden_size))
        for table in plan.stored
    }


def _with_each_method(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with the defaults of each method that applies."""
    is_rotary = any(table.rope for table in plan.tables)
    methods: Iterable[str | None] = [None]
    if is_rotary:
        methods = ROTARY_METHODS
    elif plan.creates_rows:
        methods = METHODS
    for method in methods:
        with suppress(ResizeError):
            settings = replace(plan.settings, method=method)
            if is_rotary:
                yield plan_model(plan.model, settings, checks_width=False)
            else:
                yield with_settings(plan, settings)


def _match(plan: Plan, resized: Checkpoint) -> Match | None:
    """Compare the rows and rotary frequencies of a plan with those of a checkpoint.

    None if the method does not apply to the base, for example since it needs more rows.
    """
    masks = list[Mask]()
    try:
        rows = expected_rows(plan)
        for table in plan.stored:
            found = recreate_table(rows[table.name], table, plan.checkpoint, resized)
            masks.append(found.matches)
    except ResizeError:
        return None
    for table in plan.tables:
        if not table.has_rows:
            masks.append(compare_positions(table, resized).matches)
    return Match(
        plan=plan,
        equal=sum(int(mask.sum()) for mask in masks),
        total=sum(len(mask) for mask in masks),
    )


def _check_model_types(model: OpenedModel, resized: Checkpoint, reason: str) -> None:
    """Raise ResizeError if both have different model types, as a conversion without its recipe."""
    before = str(model.checkpoint.config.get("model_type"))
    after = str(resized.config.get("model_type"))
    if before != after:
        hint = (
            "Keep the recipe of a conversion, ctxextend.yaml: it is verified only with it, and "
            "against its base."
        )
        raise ResizeError(
            f"The base is a {before} model, the other one a {after} model. {reason}", hint
        )


def _no_resize(model: OpenedModel, before: Forms, after: Forms) -> ResizeError:
    """Return the error for tables that no resize of the base gives."""
    source = model.ref.source
    hint = "Compare both with `ctxextend inspect`."
    names = [table.name for table in model.tables]
    if not before and not after:
        message = f"No resize of {source} gives {', '.join(names)} these settings and this context "
        return ResizeError(f"{message}length.", hint)
    changes = list[str]()
    for name in names:
        old = _form_text(before.get(name), "not stored")
        new = _form_text(after.get(name), "missing")
        changes.append(f"{name} was {old} and is {new}")
    return ResizeError(f"No resize of {source} creates these tables: {'; '.join(changes)}.", hint)


def _form_text(form: TensorForm | None, missing: str) -> str:
    if form is None:
        return missing
    return f"{form.dtype} {list(form.shape)}"
