"""Recipes as the YAML that lies beside every output."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ctxextend.checkpoints.redaction import hidden_values
from ctxextend.recipe import Resize, Run

__all__ = ["plain_text", "run_text", "run_values"]


def run_text(run: Run, provenance: Mapping[str, Any], *, makes_rows: bool = True) -> str:
    """Write what was asked for, and behind it how its output came about.

    Args:
        run: What was asked for.
        provenance: Plain values, for readers and for checks of the source.
        makes_rows: Whether the run made new rows; elsewhere the recipe must name no method.
    """
    return plain_text(run_values(run, makes_rows=makes_rows) | {"provenance": dict(provenance)})


def plain_text(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, in their order, without secrets."""
    import yaml  # at use: most commands need none

    return yaml.safe_dump(hidden_values(values), sort_keys=False, allow_unicode=True, width=120)


def run_values(run: Run, *, makes_rows: bool = True) -> dict[str, Any]:
    """Return what was asked for as plain values, in the words of a recipe; what is the default is left out."""
    content: dict[str, Any] = {"source": run.source, **_given(run.origin)}
    if run.resize is not None:
        content["resize"] = _resize_values(run.resize, makes_rows=makes_rows)
    if run.train is not None:
        content["train"] = _given(run.train) | {"trainable": run.train.trainable}  # readers ask for that
    if run.evaluate is not None:
        content["evaluate"] = _given(run.evaluate)
    return content


def _resize_values(resize: Resize, *, makes_rows: bool) -> dict[str, Any]:
    options, given = resize.options, _given(resize)
    method = {"method": options.method, "keep_first": options.kept_first, "drop_last": options.drop_last}
    described = ("part", "table", "config_key", "offset", "mend_limits", "keep_code")
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
