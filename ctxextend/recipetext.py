"""Recipes as the YAML that lies beside every output."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ctxextend.checkpoints.redaction import hidden_values
from ctxextend.recipe import Recipe, Resize

__all__ = ["REF_KEYS", "TABLE_KEYS", "plain_text", "recipe_text", "recipe_values"]

# Where a recipe says which checkpoint is meant: its keys, with the fields of `CheckpointRef`.
REF_KEYS = {key: key for key in ("source", "revision", "subfolder", "variant")} | {"family": "model_type"}
# The same of the keys below `resize`.
TABLE_KEYS = {"table": "table", "config_key": "config_key", "offset": "reserved_rows"}


def recipe_text(recipe: Recipe, provenance: Mapping[str, Any], *, makes_rows: bool = True) -> str:
    """Write what was asked for, and behind it how its output came about.

    Args:
        recipe: What was asked for.
        provenance: Plain values, for readers and for checks of the source.
        makes_rows: Whether the resize made new rows; elsewhere the recipe must name no method.
    """
    return plain_text(recipe_values(recipe, makes_rows=makes_rows) | {"provenance": dict(provenance)})


def plain_text(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order, without secrets."""
    import yaml  # at use: most commands need none

    return yaml.safe_dump(hidden_values(values), sort_keys=False, allow_unicode=True, width=120)


def recipe_values(recipe: Recipe, *, makes_rows: bool = True) -> dict[str, Any]:
    """Return what was asked for as plain values, in the words of a recipe; what is the default is left out."""
    ref = _given(recipe.checkpoint)
    content = {key: ref[name] for key, name in REF_KEYS.items() if name in ref}
    if recipe.resize is not None:
        content["resize"] = _resize_values(recipe.resize, ref, makes_rows=makes_rows)
    if recipe.train is not None:
        content["train"] = _given(recipe.train) | {"trainable": recipe.train.trainable}  # readers ask for that
    if recipe.evaluate is not None:
        content["evaluate"] = _given(recipe.evaluate)
    return content


def _resize_values(resize: Resize, ref: Mapping[str, Any], *, makes_rows: bool) -> dict[str, Any]:
    options, given = resize.options, _given(resize)
    method = {"method": options.method, "keep_first": options.kept_first, "drop_last": options.drop_last}
    given |= {key: ref[name] for key, name in TABLE_KEYS.items() if name in ref}
    described = ("part", *TABLE_KEYS, "mend_limits", "keep_code")
    return {
        "to": resize.to,
        **(method | dict(options.flags) if makes_rows else {}),
        **{name: given[name] for name in described if name in given},
    }


def _given(section: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their default's."""
    values = {
        field.name: getattr(section, field.name)
        for field in fields(section)
        if field.default is MISSING or getattr(section, field.name) != field.default
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
