"""Which resize a checkpoint is said, or seen, to have come from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CtxextendError, RecipeError, ResizeError
from ctxextend.plan.find_tables import OpenedModel, identify_model
from ctxextend.plan.plan import ResizePlan, plan_model
from ctxextend.recipe import CheckpointRef, Resize, flag_words
from ctxextend.tables.apply import MethodOptions
from ctxextend.tables.method_facts import SCOPES
from ctxextend.tables.methods import METHODS
from ctxextend.verification.rows import Read, made_rows
from ctxextend.writtenrecipe import WrittenRecipe, written_recipe

__all__ = ["NEAREST", "Expectation", "find_expectation"]

# Said of a method that does not make all rows, where none does.
NEAREST = "the nearest of all methods"


@dataclass(frozen=True)
class Expectation:
    """A resize that should have made a checkpoint.

    Attributes:
        plan: The resize, planned again from the original.
        trainable: What was trained after it, by the recipe; else None.
        how: How it is known, in a few words.
        notes: What should be known of that.
        chain: The recipe that says so and those by which the original had been made, the newest first.
    """

    plan: ResizePlan
    trainable: str | None
    how: str
    notes: tuple[str, ...] = ()
    chain: tuple[WrittenRecipe, ...] = ()


class _OtherSourceError(Exception):
    """The recipe beside a checkpoint is not of a resize of this original."""


def find_expectation(
    base: Checkpoint, ref: CheckpointRef, extended: Checkpoint, *, typed: Sequence[str] = ("verify",)
) -> Expectation:
    """Find the resize that a checkpoint came from: by the recipe beside it, or by trying each method.

    What the original is, is for the user to say: a recipe could choose what is compared, and so prove anything. That
    a table was trained is the recipe's word alone, which the proof then says. Only where the original does not tell
    its own type is the table that the recipe names taken, which a note says, and then no training is believed.

    Args:
        base: The original.
        ref: How the user named it.
        extended: What it is said to have become.
        typed: As in `open_model`.

    Raises:
        CtxextendError: The original cannot be resized at all, or not to any length that the other has.
    """
    try:
        written = written_recipe(extended)
    except RecipeError as error:
        return _by_trying(_known(base, ref, None, typed), extended, f"{error.message}.")
    known = _known(base, ref, written, typed)
    notes = () if known.ref is ref else (f"What the table is, is taken from the recipe: {_told(known.ref)}.",)
    if written is None:
        return _by_trying(known, extended, "No recipe lies beside it.")
    try:
        found = _by_chain(known, written)
    except _OtherSourceError as error:
        return _by_trying(known, extended, str(error), *notes)
    if notes and found.trainable:
        raise ResizeError(
            "The recipe alone says what the table is, and that it was trained: that proves nothing.",
            "Say yourself what it is, with --family or --table.",
        )
    return replace(found, notes=notes)


def _known(base: Checkpoint, ref: CheckpointRef, written: WrittenRecipe | None, typed: Sequence[str]) -> OpenedModel:
    """Recognise the original, by the recipe where neither the original nor the user says what it is."""
    try:
        return identify_model(base, ref, typed=typed)
    except CtxextendError:
        if written is None or ref.table is not None or ref.model_type is not None:
            raise
        named = written.recipe.checkpoint
        with suppress(CtxextendError):
            stated = replace(
                named, source=ref.source, revision=ref.revision, subfolder=ref.subfolder, variant=ref.variant
            )
            return identify_model(base, stated, typed=typed)
        raise


def _told(ref: CheckpointRef) -> str:
    return f"--table {ref.table}" if ref.table else f"--family {ref.model_type}"


def _by_chain(base: OpenedModel, written: WrittenRecipe) -> Expectation:
    """Return what the newest recipe says that is of this original; what was trained later counts too."""
    failure: _OtherSourceError | None = None
    for place, recipe in enumerate(written.chain):
        try:
            return replace(_by_recipe(base, recipe), chain=written.chain[place:])
        except _OtherSourceError as error:
            failure = failure or error
    raise failure or _OtherSourceError("No recipe lies beside it.")


def _by_recipe(base: OpenedModel, written: WrittenRecipe) -> Expectation:
    try:
        plan = plan_model(base, written.settings)
    except ResizeError as error:
        raise _OtherSourceError(f"The recipe beside it does not fit {base.ref.source}: {error.message}") from error
    for table in plan.tables:
        said, _ = written.rows.get(table.name, (table.rows_before, 0))
        if said != table.rows_before:
            raise _OtherSourceError(f"The recipe beside it is of a table that had {said} rows.")
    return Expectation(plan, written.trainable, "by its recipe")


def _by_trying(base: OpenedModel, extended: Checkpoint, *notes: str) -> Expectation:
    """Return the first resize that makes exactly the tables that are there, or that which makes the most rows."""
    notes = (f"{notes[0]} Every method was tried.", *notes[1:])
    best: tuple[int, ResizePlan] | None = None
    for plan in _plans_by_length(base, extended):
        tables = {table.name: Read.of(plan, table, extended) for table in plan.tables}
        for settings in _settings(plan, tables):
            tried = replace(plan, settings=settings)
            made = _count(tried, tables)
            if made == sum(table.rows_after for table in plan.tables):
                return Expectation(tried, None, _words(tried), notes)
            best = (made, tried) if best is None or made > best[0] else best
    if best is None:
        raise ResizeError(
            f"No resize of {base.ref.source} gives these tables: {_tables(base, extended)}.",
            "Compare both with inspect.",
        )
    return Expectation(best[1], None, NEAREST, notes)


def _tables(base: OpenedModel, extended: Checkpoint) -> str:
    """Say what each table was and is."""
    before = {name: base.checkpoint.holder(name).entries[name] for _, name in base.tables}
    after = {name: extended.holder(name).entries[name] if name in extended.names else None for name in before}
    return "; ".join(
        f"{name} was {entry.dtype} {list(entry.shape)} and is "
        + (f"{there.dtype} {list(there.shape)}" if (there := after[name]) else "missing")
        for name, entry in before.items()
    )


def _count(plan: ResizePlan, tables: Mapping[str, Read]) -> int:
    """Return how many rows are as a plan makes them; -1 where it cannot make any."""
    try:
        return sum(int(made_rows(plan, table).is_made.sum()) for table in tables.values())
    except ResizeError:
        return -1


def _words(plan: ResizePlan) -> str:
    given = flag_words(plan.settings.options.typed) if plan.makes_rows else []
    return " ".join(["found by trying", *given])


def _plans_by_length(base: OpenedModel, extended: Checkpoint) -> Iterator[ResizePlan]:
    """Yield the resizes, by `copy`, that give every table of the original the rows that it has in the other."""
    before = {name: base.checkpoint.holder(name).entries[name] for _, name in base.tables}
    there = {name: extended.holder(name).entries[name] for name in before if name in extended.names}
    after = {name: entry.shape[0] for name, entry in there.items() if len(entry.shape) == 2}
    lengths = dict.fromkeys(place.positions(after[name]) for place, name in base.tables if name in after)
    parts = (
        dict.fromkeys((None, *(place.part or None for place, _ in base.tables))) if base.ref.table is None else (None,)
    )
    for to in lengths:
        for part in parts:
            with suppress(ResizeError):
                plan = plan_model(base, Resize(to, part=part))
                given = {name: entry.shape[0] for name, entry in before.items()}
                given |= {table.name: table.rows_after for table in plan.tables}
                if given == after and all(there[name].dtype == before[name].dtype for name in after):
                    yield plan


def _settings(plan: ResizePlan, tables: Mapping[str, Read]) -> Iterator[Resize]:
    """Yield what may have been asked for: every method, and the flags of which its rows show traces."""
    settings = plan.settings
    if not plan.makes_rows:
        yield settings
        return
    for options in _options(next(iter(tables.values()))):
        yield replace(settings, **asdict(options))


def _options(table: Read) -> Iterator[MethodOptions]:
    is_kept = _leading_equal(*table.behind) == table.shared - table.plan.offset
    flags: Iterable[tuple[int | None, int]] = dict.fromkeys([(None, 0), *_traces(table)])
    for keep_first, drop_last in flags:
        for method in METHODS.values():
            if method.tolerance and method.keeps_learned_rows and not is_kept:
                continue  # too slow to be tried in vain
            for scope in SCOPES if "scope" in method.flags else (None,):
                with suppress(ResizeError):
                    yield MethodOptions(method.name, keep_first, drop_last, scope)


def _traces(table: Read) -> Iterator[tuple[int, int]]:
    """Yield counts of rows that may have been kept first and dropped last, as the rows themselves show.

    Under `copy` the first new row is the learned one behind those that were dropped, counted from the first that was
    not kept, and where the copies begin anew the last source row has just stood. Under `last` it is the last source
    row itself. Under `mirror` new rows go back from the row that lies as far before the last source row as the first
    new one lies behind it, down to the first that was not kept. Under `linear` and its kin the kept rows and the first
    source row stay, and the last row is the last source row.
    """
    before, after = table.behind
    learned = len(before)
    places = {row.tobytes(): place for place, row in reversed(list(enumerate(before)))}
    found = [places.get(row.tobytes()) for row in after[learned : 2 * learned + 1]]
    first = found[0] if found else None
    if first is not None:
        yield 0, learned - 1 - first
        yield min(place for place in found if place is not None), (learned - 2 - first) // 2
        breaks = (step for step in range(1, len(found)) if found[step] != first + step)
        run = next(breaks, None)
        start = found[run] if run is not None else first
        if start is not None:
            yield start, learned - first - run if run is not None and first + run <= learned else 0
            yield start, first - start
    same = _leading_equal(before, after)
    last = places.get(after[-1].tobytes())
    dropped = learned - 1 - last if last is not None else 0
    yield from ((kept, dropped) for kept in (0, same - 1, same) if 0 <= kept < learned)
    yield from ((kept, 0) for kept in (1, same - 1, same) if 0 <= kept <= learned)


def _leading_equal(before: NDArray[Any], after: NDArray[Any]) -> int:
    ours, theirs = (np.ascontiguousarray(rows).view(np.uint8) for rows in (before, after[: len(before)]))
    differing = np.flatnonzero((ours != theirs).any(axis=1))
    return int(differing[0]) if differing.size else len(before)
