"""The recipe that lies beside an output, read back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.errors import CheckpointError, CtxextendError, RecipeError, ResizeError
from ctxextend.plainyaml import MOST_CHARACTERS, plain_loader
from ctxextend.recipe import RECIPE_FILE, TRAINABLE, TRUNCATE, CheckpointRef, Recipe, Resize
from ctxextend.recipetext import REF_KEYS, TABLE_KEYS
from ctxextend.tables.apply import still_learned
from ctxextend.tables.methods import METHODS

__all__ = ["WrittenRecipe", "learned_by", "plain_values", "read_recipe", "table_hashes", "written_recipe"]

SHA256 = re.compile(r"[0-9a-f]{64}")

# The types that values have in a file.
REF_TYPES = dict.fromkeys(REF_KEYS, str)
RESIZE_TYPES = {
    **dict.fromkeys(("to", "keep_first", "drop_last", "offset", "seed"), int),
    **dict.fromkeys(("method", "scope", "part", "table", "config_key"), str),
    **dict.fromkeys(("alpha", "sigma", "gain"), float),
    "repeat": list,
    **dict.fromkeys(("mend_limits", "keep_code"), bool),
}


@dataclass(frozen=True)
class WrittenRecipe:
    """A recipe as it lies beside an output.

    Attributes:
        recipe: What was asked for.
        settings: What was asked for of the table.
        trainable: What was then trained: ``new`` rows, ``positions`` or ``all``; None where nothing was.
        provenance: How the output came about, as it was written.
        source: The recipe that lay beside what it was made of, where that was kept: of a resize that was trained later.
    """

    recipe: Recipe
    settings: Resize
    trainable: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: "WrittenRecipe | None" = None

    @property
    def chain(self) -> "tuple[WrittenRecipe, ...]":
        """This recipe and those before it, the newest first, each with all that was trained since then."""
        if self.source is None:
            return (self,)
        most = max(self.trainable, self.source.trainable, key=lambda name: TRAINABLE.index(name) if name else -1)
        return (self, *replace(self.source, trainable=most).chain)

    @property
    def method(self) -> str | None:
        """What it says of the method that made the rows; None where that is no method."""
        method = self.provenance.get("method")
        return method if isinstance(method, str) and method in (*METHODS, TRUNCATE) else None

    @property
    def rows(self) -> Mapping[str, tuple[int, int]]:
        """The rows that each table had before and had then, as far as it says so, by the table's name."""
        rows: dict[str, Any] = {
            name: (table.get("rows_before"), table.get("rows_after")) for name, table in self._tables.items()
        }
        return {name: counts for name, counts in rows.items() if all(map(_is_count, counts))}

    @property
    def hashes(self) -> Mapping[str, str]:
        """The SHA-256 that each table had before, as far as it says so, by the table's name."""
        return table_hashes(self.provenance)

    @property
    def _tables(self) -> dict[str, Mapping[str, Any]]:
        return _tables(self.provenance)


def learned_by(chain: Sequence[WrittenRecipe], table: str, offset: int, most: int) -> NDArray[np.bool_] | None:
    """Return which rows of a table were learned before it was first resized, as recipes tell.

    Args:
        chain: The recipes by which it was made, the newest first.
        table: The table.
        offset: Its rows in front of position 0.
        most: Rows that it has at most; more are not believed.

    Returns:
        Shape (positions,), true for learned rows; None where the recipes do not say how many rows there were.
    """
    oldest_first = chain[::-1]
    rows = [recipe.rows.get(table, (0, 0)) for recipe in oldest_first]
    if not rows or not all(offset < count <= most for counts in rows for count in counts):
        return None
    steps = [(after - offset, recipe.settings.options) for (_, after), recipe in zip(rows, oldest_first, strict=True)]
    try:
        return still_learned(rows[0][0] - offset, steps)
    except ResizeError:  # no such resize was ever made
        return None


def table_hashes(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 that each table had before, as far as a provenance says so, by the table's name."""
    found = {name: table.get("sha256_before") for name, table in _tables(provenance).items()}
    return {name: value for name, value in found.items() if isinstance(value, str) and SHA256.fullmatch(value)}


def _tables(provenance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    tables = provenance.get("tables")
    listed = [table for table in tables if isinstance(table, Mapping)] if isinstance(tables, list) else []
    return {table["name"]: table for table in listed if isinstance(table.get("name"), str)}


def written_recipe(checkpoint: Checkpoint) -> WrittenRecipe | None:
    """Return the recipe that lies beside a checkpoint's weights; None where there is none.

    Raises:
        RecipeError: It cannot be read.
    """
    if RECIPE_FILE not in checkpoint.copied:
        return None
    try:
        text = checkpoint.text(RECIPE_FILE)
    except CheckpointError as error:
        raise RecipeError(error.message, error.hint) from error
    return read_recipe(text, str(checkpoint.root / RECIPE_FILE))


def read_recipe(text: str, where: str) -> WrittenRecipe:
    """Read the recipe that lies beside an output.

    Args:
        text: YAML.
        where: What to call it in messages.

    Raises:
        RecipeError: It is no YAML, or no recipe with a resize.
    """
    import yaml

    faults = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, CtxextendError)
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"it holds {len(text):,} characters, which no recipe needs")
        return _written(yaml.load(text, plain_loader()))
    except (yaml.YAMLError, *faults) as error:
        message = f"{where} is no recipe of a resize: {' '.join(str(error).split())[:200]}"
        raise RecipeError(message, "Make the output again, or move that file away.") from None


def plain_values(text: str) -> dict[str, Any]:
    """Return the plain values of a recipe that was read before."""
    import yaml

    values: dict[str, Any] = yaml.load(text, plain_loader())
    return values


def _written(content: Any) -> WrittenRecipe:
    """Return a recipe from its plain values; raise what those of another kind bring about."""
    _check_types(content, {**REF_TYPES, "resize": dict, "train": dict, "provenance": dict})
    trainable, provenance = _trainable(content.get("train")), content.get("provenance") or {}
    # What was trained and not resized has the length that it had.
    resize = content["resize"] if trainable is None or "resize" in content else {"to": provenance["max_len"]}
    _check_types(resize, RESIZE_TYPES)
    ref = {name: content.get(key) for key, name in REF_KEYS.items()}
    ref |= {name: resize[key] for key, name in TABLE_KEYS.items() if key in resize}
    settings = Resize(**{key: value for key, value in resize.items() if key not in TABLE_KEYS})
    before = provenance.get("source_recipe")
    source = None if before is None else _written(before)
    return WrittenRecipe(Recipe(CheckpointRef(**ref), settings), settings, trainable, provenance, source)


def _check_types(values: Any, types: Mapping[str, type]) -> None:
    """Raise TypeError where a value is of another type than its key asks for; what is left out may be null too."""
    if not isinstance(values, dict):
        raise TypeError(f"a {type(values).__name__} stands where a mapping should")
    for name, wanted in types.items():
        value = values.get(name)
        if value is not None and type(value) is not wanted:
            # Its type alone: a few lines of YAML can name a value that no memory holds written out.
            raise TypeError(f"{name} is a {type(value).__name__}, and should be a {wanted.__name__}")
        if wanted is int and value is not None and not _is_count(value):
            raise ValueError(f"{name} is no count")


def _is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0 on of which a computer can have so many."""
    return type(value) is int and 0 <= value < 2**63


def _trainable(train: Any) -> str | None:
    if train is None:
        return None
    trainable = train.get("trainable")
    if not isinstance(trainable, str) or trainable not in TRAINABLE:
        raise ValueError(f"train.trainable is none of {', '.join(TRAINABLE)}")
    return trainable
