"""Match the position tables of an architecture to the names of a model's tensors."""

from collections.abc import Collection
from typing import NoReturn

from ctxextend.errors import CheckpointError
from ctxextend.families.lookup import Architecture
from ctxextend.positions.positions import Positions
from ctxextend.positions.sinusoids import Sinusoids

CHECK_TYPE = (
    "Check that the weights match model_type in config.json, or the one passed with --model-type."
)


def match_names(
    architecture: Architecture, names: Collection[str], where: str
) -> list[tuple[Positions, str]]:
    """Return the positions of a model, and their names among its tensors; there may be none.

    They are in registry order.

    Args:
        architecture: That of the model.
        names: The names of its tensors.
        where: The model, for errors.

    Raises:
        CheckpointError: Two tensors may be the same table.
    """
    is_only = len(architecture.locations) == 1
    matches = list[tuple[Positions, str]]()
    for location in architecture.locations:
        found = _names_of(location, names, is_only=is_only)
        if len(found) > 1:
            message = f"{where}: found two candidate position tables, {' and '.join(found)}."
            raise CheckpointError(
                message, "Save the model again with save_pretrained, which writes one."
            )
        for name in found:
            matches.append((location, name))
    return matches


def _names_of(location: Positions, names: Collection[str], *, is_only: bool) -> list[str]:
    """Return the names that one table has; `is_only`: whether the model has no other tables."""
    if not location.has_rows:
        return [location.usual_name]
    stored = [name for name in location.names if name in names]
    if stored:
        return stored
    if isinstance(location, Sinusoids) and location.is_computed:
        return _computed_names(location, location, names, is_only=is_only)
    return []


def _computed_names(
    location: Positions, table: Sinusoids, names: Collection[str], *, is_only: bool
) -> list[str]:
    """Return the name of a table that transformers computes in models with tensors next to it."""
    prefixes = list[str]()
    for prefix in location.prefixes:
        if any(name.startswith(prefix + table.neighbor_prefix) for name in names):
            prefixes.append(prefix)
    if prefixes:
        return [prefixes[-1] + table.name]
    if is_only:  # the file may use other names
        return [location.usual_name]
    return []


def refuse_without_table(
    architecture: Architecture, where: str, cause: str = "", hint: str = CHECK_TYPE
) -> NoReturn:
    """Refuse a model whose tensors contain none of its position tables.

    Args:
        architecture: That of the model.
        where: The model.
        cause: A sentence on the likely cause.
        hint: What to do.

    Raises:
        CheckpointError: The tables are missing.
        UnsupportedModelError: A part of the model has none.
    """
    if architecture.unsupported:
        architecture.refuse()
    expected = " or ".join(expected_names(architecture))
    message = (
        f"{where}: no position table found; in a {architecture.family.model_type} model it is "
        f"{expected}. {cause}"
    )
    raise CheckpointError(message.rstrip(), hint)


def expected_names(architecture: Architecture) -> list[str]:
    """Return the names that the position tables of a model can have."""
    names = dict[str, None]()
    for location in architecture.locations:
        names |= dict.fromkeys(location.names)
    return list(names)
