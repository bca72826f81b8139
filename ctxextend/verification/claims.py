"""What is claimed of a resized checkpoint, and whether it was found to hold."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Claim", "Proof"]


@dataclass(frozen=True)
class Claim:
    """One claim with its evidence.

    Attributes:
        name: ``readable``, ``tensors``, ``table``, ``files``, or with ``--deep`` also ``loads``, ``runs``, ``outputs``.
        holds: Whether it was found to be true.
        evidence: What was found, in sentences; what speaks against it first.
    """

    name: str
    holds: bool
    evidence: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"claim": self.name, "holds": self.holds, "evidence": list(self.evidence)}


@dataclass(frozen=True)
class Proof:
    """What was found of two checkpoints.

    Attributes:
        base: The original, as the user named it.
        extended: The resized one, as the user named it.
        method: What made its rows: a method's name, ``truncate``, or None where none is found.
        trainable: What was trained after the resize, by its recipe: ``new``, ``positions`` or ``all``; else None.
        claims: Every claim, in the order in which it was looked at.
        notes: What else should be known, such as how the rows' method was found.
        what: Whether a table was ``resized``, limits alone were ``mended``, or all is the ``same``.
    """

    base: str
    extended: str
    method: str | None
    trainable: str | None
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()
    what: str = "resized"

    @property
    def is_proved(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims)

    def __bool__(self) -> bool:
        return self.is_proved

    @property
    def conclusion(self) -> str:
        """What was proved or not, in a sentence."""
        if not self.is_proved:
            failed = ", ".join(claim.name for claim in self.claims if not claim.holds)
            what = "a pure resize" if self.trainable else f"{self.base} with a resized table and nothing else"
            return f"NOT PROVED ({failed}): {self.extended} is not {what}."
        if self.what != "resized" and not self.trainable:
            but = " with limits that agree with its tables" if self.what == "mended" else ": nothing was resized"
            return f"Proved: {self.extended} is {self.base}{but}."
        rows = "new rows" if self.trainable == "new" else "rows"
        if self.trainable and self.what != "resized":
            return f"Proved: {self.extended} is {self.base}, but for the table, whose {rows} were trained."
        but = f", but for the table, whose {rows} were then trained" if self.trainable else ""
        return f"Proved: {self.extended} is {self.base} with a resized table and nothing else{but}."

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, in the words of ``--json``."""
        return {
            "base": self.base,
            "extended": self.extended,
            "proved": self.is_proved,
            "method": self.method,
            "trainable": self.trainable,
            "claims": [claim.as_dict() for claim in self.claims],
            "conclusion": self.conclusion,
            "notes": list(self.notes),
        }
