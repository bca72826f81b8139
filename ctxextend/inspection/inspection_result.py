"""Results of `inspect`: position tables, other schemes, and all length limits of a checkpoint."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ctxextend.errors import counted
from ctxextend.json_output import Result, not_in_json
from ctxextend.positions.position_report import PositionReport, SchemeReport
from ctxextend.positions.table_report import RowReport, TableReport, describe_defects, report_rows
from ctxextend.settings import FROZEN

MAX_LISTED_LIMITS = 2  # in a verdict
# Levels, as annotations of GitHub name them.
FAILS = "error"  # a limit that disagrees: `--check` fails
WARNS = "warning"  # rows that look wrong
NOTED = "notice"  # what else to know
# Appended to a key that is missing in the config, so that transformers uses its default.
NOT_SET = " (not set)"
# The limit of a library, and what happens to longer inputs.
BEYOND_LIMIT = {
    "cut": "{}, longer inputs are truncated",
    "fails": "{}, longer inputs fail",
    "last position": "{}, tokens beyond share the last position",
    "more rows": "{}, transformers computes more rows for longer inputs",
    "untrained": "{}, longer inputs reach angles that were never trained",
    "any length": "{}, longer inputs run as well",
    "not cut": "no limit",
    "not loaded": "the model does not load",
}


@dataclass(frozen=True)
class FixChoice:
    """A command that makes limits agree, and when it is the right one, which no file tells."""

    condition: str  # as a clause after "if"
    command: str


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
    # The command that fixes it; None if it agrees or cannot be fixed, or if there are `choices`.
    fix: str | None = None
    choices: tuple[FixChoice, ...] = ()  # of which one fixes it, and only the user knows which
    remark: str = ""  # what else to know about it, whether it agrees or not
    fixed_length: int | None = field(default=None, metadata=not_in_json)  # in tokens, after `fix`
    is_blocking: bool = field(default=False, metadata=not_in_json)  # if so, no model loads

    json_properties: ClassVar = ("agrees",)

    @property
    def agrees(self) -> bool:
        """Whether it agrees with its table."""
        return not self.reason


@dataclass(frozen=True)
class LibraryLimit:
    """The effective limit in one library."""

    # ``transformers`` (with truncation=True), ``sentence-transformers`` or ``tokenizers``.
    name: str
    tokens: int | None  # maximum input length; None if unlimited, 0 if the model does not load
    decided_by: str  # file and key that set it
    # Longer inputs: ``cut``, ``fails``, ``last position`` (all further tokens share it), ``more
    # rows`` (computed when needed), ``untrained`` (rotary angles that were never trained), ``any
    # length``, ``not cut`` or ``not loaded``.
    beyond: str

    @property
    def text(self) -> str:
        """The limit, and what happens to longer inputs."""
        return BEYOND_LIMIT[self.beyond].format(self.tokens)


@dataclass(frozen=True)
class Finding:
    """One finding in a file of a checkpoint."""

    level: str  # ``error``, ``warning`` or ``notice``
    file: str  # relative to the checkpoint folder; empty if no file states it
    key: str  # dotted path of keys, or a tensor name
    found: Any  # the value in the file; what is wrong with rows
    expected: Any  # the value that would agree; None if there is not one such value
    message: str  # what it means, without a period
    # The command to type next; None if there is none, or if there are `choices`.
    fix: str | None
    choices: tuple[FixChoice, ...] = ()  # of which one is right, and only the user knows which

    @property
    def is_stated(self) -> bool:
        """Whether the file has the key, so that there is a line to point at."""
        return not self.key.endswith(NOT_SET)


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Result, shows=("source", "model_type", "verdict")):
    """The result of `inspect` for one checkpoint.

    Its `to_json` returns everything; `inspect --json` leaves out the lists that have a value for
    each row or pair.
    """

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
    libraries: tuple[LibraryLimit, ...]  # the effective limit per library
    notes: tuple[str, ...]  # how the reference was resolved, and about the recipe

    json_properties: ClassVar = ("verdict", "agrees", "findings")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What to act on: errors (limits that disagree), then warnings, then notices."""
        return tuple(_findings(self))

    @property
    def rows(self) -> dict[str, list[RowReport]]:
        """The statistics of every row, by table name; ``inspect --json`` has those of --rows."""
        return {table.name: [*report_rows(table, slice(None))] for table in self.tables}

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


# Findings


def _findings(inspection: Inspection) -> Iterator[Finding]:
    """Yield the findings of an inspection: errors, then warnings, then notices."""
    reports: dict[str, PositionReport] = {}
    reports |= {report.name: report for report in inspection.tables}
    reports |= {report.name: report for report in inspection.schemes}
    for limit in inspection.limits:
        if not limit.agrees:
            yield _disagreement(limit, reports[limit.table])
    if inspection.has_untrained_new_rows:
        yield from _untrained_rows(inspection)
    else:
        for table in inspection.tables:
            yield from _defects(table)
    for limit in inspection.limits:
        if limit.agrees and limit.remark:
            yield _remark(limit)


def _disagreement(limit: Limit, report: PositionReport) -> Finding:
    """Return the error of a limit that disagrees with its positions."""
    message = limit.reason
    if limit.remark:
        message += f"; {limit.remark}"
    return Finding(
        level=FAILS,
        file=limit.file,
        key=limit.key,
        found=limit.value,
        expected=_expected(limit, report),
        message=message,
        fix=limit.fix,
        choices=limit.choices,
    )


def _expected(limit: Limit, report: PositionReport) -> Any:
    """Return the value with which a limit would agree; None if others must change with it."""
    if limit.choices or limit.fixed_length not in (None, report.positions):
        return None
    if limit.key.removesuffix(NOT_SET) == report.config_key:
        return report.key_value
    is_number = isinstance(limit.value, int) and not isinstance(limit.value, bool)
    if is_number and limit.tokens is not None:
        reserved = limit.value - limit.tokens  # some values count reserved rows too
        return report.positions + reserved
    return report.positions


def _untrained_rows(inspection: Inspection) -> Iterator[Finding]:
    """Yield a notice for each table with new rows that were not trained."""
    fix = None
    if inspection.trainable is None:
        fix = f"ctxextend train {shlex.quote(inspection.source)} --data TEXT --steps 200"
    for table in inspection.tables:
        count = sum(stop - start for start, stop in table.new_rows or ())
        if count:
            yield Finding(
                level=NOTED,
                file=table.file,
                key=table.name,
                found=f"{count} new rows",
                expected=None,
                message=f"method {inspection.method} created them, and they were not trained",
                fix=fix,
            )


def _defects(table: TableReport) -> Iterator[Finding]:
    """Yield a warning for everything that is wrong with the rows of a table."""
    for defect in describe_defects(table):
        yield Finding(
            level=WARNS,
            file=table.file,
            key=table.name,
            found=defect,
            expected=None,
            message="these positions may not work as the others do",
            fix=None,
        )


def _remark(limit: Limit) -> Finding:
    """Return the notice of a limit that agrees, but does more than that."""
    return Finding(
        level=NOTED,
        file=limit.file,
        key=limit.key,
        found=limit.value,
        expected=None,
        message=limit.remark,
        fix=None,
    )


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
