"""The recipe that lies beside an output: how that came about."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError, one_line
from ctxextend.recipe import RECIPE_FILE, TRAINABLE, TRUNCATE, CheckpointRef, Resize
from ctxextend.recipe_file import NOT_PLAIN, PlainLoader, parse_recipe, yaml_text
from ctxextend.tables.apply import still_learned
from ctxextend.tables.methods import METHODS

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Provenance:
    """How an output came about, as the recipe beside it says."""

    base: CheckpointRef  # the checkpoint that it was made of
    settings: Resize  # how that was resized; where it was only trained, to the length that it had
    # What was then trained: ``new`` rows, ``positions`` or ``all``; None where nothing was.
    trainable: str | None = None
    method: str | None = None  # that made the rows; None where it names none that there is
    # The rows that each table had before and had then, and its SHA-256 before, as far as the recipe says so.
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)  # the whole of the file, as plain values
    # The same of the checkpoint that it was made of, where that is kept: of a resize that was trained later.
    before: "Provenance | None" = None

    @property
    def chain(self) -> "tuple[Provenance, ...]":
        """This and those before it, the newest first, each with all that was trained since then."""
        if self.before is None:
            return (self,)
        most = max(self.trainable, self.before.trainable, key=lambda name: TRAINABLE.index(name) if name else -1)
        return (self, *replace(self.before, trainable=most).chain)


def read_provenance(checkpoint: Checkpoint) -> Provenance | None:
    """Read the recipe that lies beside a checkpoint's weights; None where none does that can be read."""
    if RECIPE_FILE not in checkpoint.copied:
        return None
    try:
        return parse_provenance(checkpoint.text(RECIPE_FILE), RECIPE_FILE)
    except (CheckpointError, RecipeError):
        return None


@dataclass(frozen=True)
class BaseCheckpoint:
    """The base checkpoint of what was resized or trained."""

    ref: CheckpointRef
    hashes: Mapping[str, str] = field(default_factory=dict)  # SHA-256 that its tables should have, by their names
    chain: tuple[Provenance, ...] = ()  # what was made of it, the newest first; empty where the user named the base


def find_base(checkpoint: Checkpoint, named: str | None = None) -> BaseCheckpoint | None:
    """Return the base that the user named, or the first that the recipe beside a checkpoint knows; else None."""
    if named is not None:
        return BaseCheckpoint(CheckpointRef(named))
    written = read_provenance(checkpoint)
    return None if written is None else BaseCheckpoint(written.chain[-1].base, written.chain[-1].hashes, written.chain)


def parse_provenance(text: str, name: str) -> Provenance:
    """Read the text of a recipe that lies beside an output, which messages call `name`. Anybody may have written it."""
    try:
        written = parse_recipe(text, name)
        asked, facts = written.recipe, written.provenance
        method, before = facts.get("method"), facts.get("source_recipe")
        rows: dict[str, Any] = {
            key: (table.get("rows_before"), table.get("rows_after")) for key, table in _tables(facts).items()
        }
        return Provenance(
            base=asked.checkpoint,
            settings=asked.resize or Resize(facts["max_len"]),  # what was only trained has the length that it had
            trainable=asked.train.trainable if asked.train else None,
            method=method if method in (*METHODS, TRUNCATE) else None,
            rows={
                key: counts
                for key, counts in rows.items()
                if all(type(count) is int and 0 <= count < 2**63 for count in counts)
            },
            hashes=table_hashes(facts),
            values=yaml.load(text, PlainLoader),
            before=None if before is None else parse_provenance(yaml_text(before), name),
        )
    except (*NOT_PLAIN, CtxextendError) as error:
        message = f"{name} is no recipe of a resize: {one_line(error)}"
        raise RecipeError(message, "Make the output again, or move that file away.") from None


def _tables(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a file's ``provenance`` says of each table, by the table's name."""
    tables = facts.get("tables")
    listed = [table for table in tables if isinstance(table, Mapping)] if isinstance(tables, list) else []
    return {table["name"]: table for table in listed if isinstance(table.get("name"), str)}


def table_hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 that each table had before, as far as a file's ``provenance`` says so, by the table's name."""
    found = {name: str(table.get("sha256_before")) for name, table in _tables(facts).items()}
    return {name: value for name, value in found.items() if SHA256.fullmatch(value)}


def learned_before(chain: Sequence[Provenance], table: str, reserved_rows: int, most: int) -> NDArray[np.bool_] | None:
    """Return which rows of a table were learned before the resizes of a chain, the newest first: shape (positions,).

    None where the recipes do not say how many rows there were, or say that there were more than `most`.
    """
    oldest_first = chain[::-1]
    rows = [resize.rows.get(table, (0, 0)) for resize in oldest_first]
    if not rows or not all(reserved_rows < count <= most for counts in rows for count in counts):
        return None
    steps = [(after - reserved_rows, resize.settings) for (_, after), resize in zip(rows, oldest_first, strict=True)]
    try:
        return still_learned(rows[0][0] - reserved_rows, steps)
    except ResizeError:  # no such resize was ever made
        return None
