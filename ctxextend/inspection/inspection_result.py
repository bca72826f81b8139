"""Results of `inspect`: position tables, other schemes, and all length limits of a checkpoint."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ctxextend.errors import counted
from ctxextend.json_output import Result
from ctxextend.positions.position_report import SchemeReport
from ctxextend.positions.table_report import TableReport, describe_defects
from ctxextend.settings import FROZEN

MAX_LISTED_LIMITS = 2  # in a verdict
# Appended to a key that is missing in the config, so that transformers uses its default.
NOT_SET = " (not set)"


@dataclass(frozen=True)
class Limit:
    """One length limit in a file of a checkpoint."""

    file: str  # relative to the checkpoint folder
    key: str  # dotted path of keys, or a tensor name
    # A number, a tensor's length, a padding strategy, or any other value as text; None if not set.
    value: Any
    tokens: int | None  # the value in tokens; None if it sets no limit
    used_by: str  # the libraries that use it, or ``none``
    table: str  # the position table that it refers to
    reason: str = ""  # the effect if it disagrees with that table
    fix: str | None = None  # the command that fixes it; None if it agrees or cannot be fixed
    remark: str = ""  # which other command is right, and when

    json_properties: ClassVar = ("agrees",)

    @property
    def agrees(self) -> bool:
        """Whether it agrees with its table."""
        return not self.reason


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Result, shows=("source", "model_type", "verdict")):
    """The result of `inspect` for one checkpoint."""

    source: str  # as given by the user
    folder: str  # local path
    model_type: str
    parameters: int  # number of parameters, without position buffers
    method: str | None  # method that created the table's rows, from the recipe
    # What was trained afterwards, from the recipe: one of `TRAINABLE`, or None.
    trainable: str | None
    tables: tuple[TableReport, ...]
    # Positions without a table of rows: rotary, ALiBi or relative.
    schemes: tuple[SchemeReport, ...]
    limits: tuple[Limit, ...]  # all length limits in the checkpoint
    notes: tuple[str, ...]  # how the reference was resolved, and about the recipe

    json_properties: ClassVar = ("verdict", "agrees")

    @property
    def has_untrained_new_rows(self) -> bool:
        """Whether a resize created rows that need training, and no row has a worse defect."""
        return bool(_count_new_rows(self)) and _need_training(self)

    @property
    def agrees(self) -> bool:
        """Whether every limit agrees with its table."""
        return all(limit.agrees for limit in self.limits)

    @property
    def verdict(self) -> str:
        """One sentence: number of positions, whether all limits agree, and state of the rows."""
        counts = ", ".join(_counts(self))
        kinds = dict.fromkeys(kind for report in self.schemes for kind in report.kinds)
        positions = f"{counts} positions"
        if kinds:
            positions += f" ({', '.join(kinds)})"
        clauses = [f"{positions}, {_agreement(self)}"]
        if self.tables:
            clauses.append(_state(self))
        return f"{'; '.join(clauses)}."


# Clauses of the verdict


def _counts(inspection: Inspection) -> Iterator[str]:
    """Yield the number of positions, with the name of each part if they differ."""
    positions = {report.part: report.positions for report in inspection.tables}
    positions |= {report.part: report.positions for report in inspection.schemes}
    counts = set(positions.values())
    if len(counts) == 1:
        yield str(counts.pop())
        return
    for part, count in positions.items():
        yield f"{part} {count}"


def _agreement(inspection: Inspection) -> str:
    """Say whether all limits agree, or which do not."""
    wrong = [limit for limit in inspection.limits if not limit.agrees]
    if not wrong:
        return "all files agree"
    listed = list[str]()
    for limit in wrong[:MAX_LISTED_LIMITS]:
        value = "unset" if limit.value is None else limit.value
        listed.append(f"{limit.file} {limit.key} is {value}")
    text = ", ".join(listed)
    more = len(wrong) - MAX_LISTED_LIMITS
    if more > 0:
        text += f" and {more} more"
    return f"but limits disagree ({text})"


def _state(inspection: Inspection) -> str:
    """Say what the rows need, in this order.

    1. New rows that need training.
    2. The first defect of the first table that has any.
    3. None of these: rows are sinusoidal, or look trained.
    """
    if inspection.has_untrained_new_rows:
        new_rows = _count_new_rows(inspection)
        how = "frozen in training" if inspection.trainable else "not trained yet"
        return f"{counted(new_rows, 'new row')} created by {inspection.method}, {how}"
    for table in inspection.tables:
        for defect in describe_defects(table):
            return defect
    if _are_sinusoidal(inspection):
        return "rows are sinusoidal"
    return "rows look trained"


def _count_new_rows(inspection: Inspection) -> int:
    count = 0
    for table in inspection.tables:
        count += sum(stop - start for start, stop in table.new_rows or ())
    return count


def _need_training(inspection: Inspection) -> bool:
    """Whether new rows, if there are any, need training, and no row has a worse defect."""
    were_rows_trained = inspection.trainable not in FROZEN
    if were_rows_trained:
        return False
    if _are_sinusoidal(inspection):
        return False  # rows of a formula are right as they are
    has_broken_rows = any(table.stats.nonfinite or table.stats.zeros for table in inspection.tables)
    return not has_broken_rows


def _are_sinusoidal(inspection: Inspection) -> bool:
    """Whether a formula gives every row of every table."""
    return all(table.sinusoidal for table in inspection.tables)


# Several models

ModelTable = tuple[Inspection, TableReport]  # a model and one of its tables


def short_names(inspections: Sequence[Inspection]) -> dict[int, str]:
    """Return a display name by `id` of each inspection.

    It is the last path component, or the whole source if that is not unique.
    """
    short = [inspection.source.rstrip("/").rpartition("/")[2] for inspection in inspections]
    is_unique = len(set(short)) == len(short)
    if not is_unique:
        return {id(inspection): inspection.source for inspection in inspections}
    return {id(inspection): name for inspection, name in zip(inspections, short, strict=True)}


def tables_by_part(inspections: Sequence[Inspection]) -> list[list[ModelTable]]:
    """Return the tables of all models, grouped by part."""
    groups = defaultdict[str, list[ModelTable]](list)
    for inspection in inspections:
        for table in inspection.tables:
            groups[table.part].append((inspection, table))
    return list(groups.values())
