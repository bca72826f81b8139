"""Which resize a checkpoint is said, or seen, to have come from."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CtxextendError, RecipeError, ResizeError
from ctxextend.inspection.reports import written_recipe
from ctxextend.plan import ResizePlan, plan_checkpoint
from ctxextend.proof.rows import rows_made
from ctxextend.recipe import Recipe, Resize, Subject, WrittenRecipe
from ctxextend.recognition import recognize
from ctxextend.tableplan import find_tables
from ctxextend.tables.methods import METHODS, SCOPES, MethodOptions

__all__ = ["NEAREST", "Expectation", "find_expectation"]

# Said of a method that does not make all rows, where none does.
NEAREST = "the nearest of all methods"

# How many rows at either end a method may have left out, where no recipe says it.
FIRST_TRIED = (0, 1, 20)
LAST_TRIED = (0, 1, 2)


@dataclass(frozen=True)
class Expectation:
    """A resize that should have made a checkpoint.

    Attributes:
        plan: The resize, planned again from the original.
        trainable: What was trained after it, by the recipe; else None.
        how: How it is known, in a few words.
        notes: What should be known of that.
    """

    plan: ResizePlan
    trainable: str | None
    how: str
    notes: tuple[str, ...] = ()


def find_expectation(base: Checkpoint, subject: Subject, extended: Checkpoint) -> Expectation:
    """Find the resize that a checkpoint came from: by the recipe beside it, or by trying each method.

    Args:
        base: The original.
        subject: How the user named it.
        extended: What it is said to have become.

    Raises:
        CtxextendError: The original cannot be resized at all, or not to any length that the other has.
    """
    notes: tuple[str, ...] = ()
    try:
        written = written_recipe(extended)
        if written is not None:
            return _by_recipe(base, subject, extended, written)
        notes = ("No recipe lies beside it: every method was tried.",)
    except RecipeError as error:
        notes = (f"{error.message}. Every method was tried.",)
    except _OtherSourceError as error:
        notes = (f"{error} Every method was tried.",)
    return replace(_by_trying(base, subject, extended), notes=notes)


class _OtherSourceError(Exception):
    """The recipe beside a checkpoint is not of a resize of this original."""


def _by_recipe(base: Checkpoint, subject: Subject, extended: Checkpoint, written: WrittenRecipe) -> Expectation:
    settings = written.recipe.resize
    if subject.table is not None:
        settings = replace(settings, table=subject.table, config_key=subject.config_key, offset=subject.offset)
    try:
        plan = plan_checkpoint(Recipe(subject.source, settings, subject.origin), base)
    except CtxextendError as error:
        raise _OtherSourceError(f"The recipe beside it does not fit {subject.source}: {error.message}") from error
    for table in plan.tables:
        said = written.tables.get(table.name, {})
        if said.get("rows_before", table.rows_before) != table.rows_before:
            raise _OtherSourceError(f"The recipe beside it is of a table that had {said['rows_before']} rows.")
    return Expectation(plan, written.trainable, "by its recipe")


def _by_trying(base: Checkpoint, subject: Subject, extended: Checkpoint) -> Expectation:
    """Return the first resize that makes exactly the tables that are there, or that which makes the most rows."""
    best: tuple[int, ResizePlan] | None = None
    for settings in _lengths(base, subject, extended):
        for plan in _plans(base, subject, settings):
            made = rows_made(plan, extended)
            if made == sum(table.rows_after for table in plan.tables):
                return Expectation(plan, None, f"found by trying: {_words(plan.recipe.resize)}")
            best = (made, plan) if best is None or made > best[0] else best
    if best is None:
        raise ResizeError("No resize gives tables of these lengths.")
    return Expectation(best[1], None, NEAREST)


def _words(settings: Resize) -> str:
    return " ".join(["--method", settings.options.method, *_flag_words(settings)])


def _flag_words(settings: Resize) -> Iterator[str]:
    options = settings.options
    for flag, value in (("keep-first", options.keep_first), ("drop-last", options.drop_last), ("scope", options.scope)):
        if value:
            yield f"--{flag} {value}"


def _lengths(base: Checkpoint, subject: Subject, extended: Checkpoint) -> Iterator[Resize]:
    """Yield the lengths, and the parts, that would give the tables the rows that they have."""
    architecture = recognize(base, subject)
    described = subject.table, subject.config_key, subject.offset
    found = find_tables(architecture, frozenset(base.names), str(base.root))
    there = [(place, extended.holder(name).entries[name].shape[0]) for place, name in found if name in extended.names]
    for to in dict.fromkeys(place.positions(rows) for place, rows in there if place.positions(rows) > 0):
        for part in dict.fromkeys((None, *(place.part or None for place, _ in found))):
            if part is None or subject.table is None:
                yield Resize(to, None, 0, 0, None, part, *described)


def _plans(base: Checkpoint, subject: Subject, settings: Resize) -> Iterator[ResizePlan]:
    """Yield the plan for every method and its flags; for a table that gets no new rows the one that there is."""
    for wanted in (settings, *(replace(settings, **asdict(options)) for options in _options())):
        with suppress(CtxextendError):
            yield plan_checkpoint(Recipe(subject.source, wanted, subject.origin), base)


def _options() -> Iterator[MethodOptions]:
    """Yield every method, first as it is without flags, then with those that leave rows out."""
    flags = [(first, last) for first in FIRST_TRIED for last in LAST_TRIED]
    for first, last in sorted(flags, key=sum):
        for method in METHODS.values():
            for scope in SCOPES if "scope" in method.flags else (None,):
                if scope != "all" or not last:
                    yield MethodOptions(method.name, first, last, scope)
