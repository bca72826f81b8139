"""The checks of `verify`, and what they found."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ctxextend.json_output import json_key, not_in_json

if TYPE_CHECKING:
    from ctxextend.plan.plan import ResizePlan
    from ctxextend.provenance import Provenance


@dataclass(frozen=True)
class ExpectedResize:
    """The resize, and the training after it, that a checkpoint should have come from."""

    plan: "ResizePlan"  # planned again from the base checkpoint
    trainable: str | None  # what its recipe says was trained: ``new`` rows, ``positions``, ``all``, or nothing
    how: str  # how it is known, in a few words
    notes: tuple[str, ...] = ()
    chain: "tuple[Provenance, ...]" = ()  # that recipe and those of the base checkpoint, the newest first


@dataclass(frozen=True)
class Check:
    """One check and its evidence."""

    # ``readable``, ``tensors``, ``table``, ``files``, or with ``--deep`` also ``loads``, ``runs``, ``outputs``.
    name: str = field(metadata=json_key("claim"))
    passed: bool = field(metadata=json_key("holds"))
    evidence: tuple[str, ...]  # what was found, in sentences; failures first


@dataclass(frozen=True)
class Verification:
    """What was found of two checkpoints."""

    base: str  # as the user named it
    resized: str = field(metadata=json_key("extended"))  # as the user named it
    method: str | None  # what made its rows: a method's name, ``truncate``, or None where none is found
    trainable: str | None  # what was then trained, by its recipe: ``new``, ``positions`` or ``all``; else None
    checks: tuple[Check, ...] = field(metadata=json_key("claims"))  # in the order in which they were made
    notes: tuple[str, ...] = ()  # such as how the rows' method was found
    # Whether a table was ``resized``, limits alone were ``mended``, or all is the ``same``.
    what: str = field(default="resized", metadata=not_in_json)

    json_properties: ClassVar = {"proved": "passed", "conclusion": "conclusion"}

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
            failed = ", ".join(check.name for check in self.checks if not check.passed)
            what = "a pure resize" if self.trainable else f"{self.base} with a resized table and nothing else"
            return f"NOT PROVED ({failed}): {self.resized} is not {what}."
        what = " with a resized table and nothing else" if is_resized else ""
        if self.trainable:
            rows = "new rows" if self.trainable == "new" else "rows"
            what += f", but for the table, whose {rows} were {'then ' * is_resized}trained"
        elif not is_resized:
            what = " with limits that agree with its tables" if self.what == "mended" else ": nothing was resized"
        return f"Proved: {self.resized} is {self.base}{what}."
