"""Rotary settings of a config: read them in either dialect, and write changes in the dialect of the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.families.lookup import Keys, TableLocation

Parameters = Mapping[str, Any]  # rotary settings as in transformers 5: ``rope_type``, ``rope_theta``, ``factor``, …


@dataclass(frozen=True)
class RopeLayers:
    """The rotary settings that all layers of one type share."""

    layers: str  # layer type, such as ``full_attention``; empty: all layers
    parameters: Parameters  # as transformers uses them, with its defaults for missing keys
    is_local: bool = False  # whether the layers have a sliding window, so that they are not scaled


def read_rope(location: TableLocation) -> tuple[RopeLayers, ...]:
    """Return the rotary settings in a model's config, those of local layers last.

    Raises:
        CheckpointError: A setting is malformed, or both dialects are used and disagree.
    """
    stated = location.stated("rope_parameters") or {}
    assert location.table.rope is not None
    defaults = {"rope_type": "default", "rope_theta": location.table.rope.theta[""]}
    return (RopeLayers("", {**defaults, **stated}),)


def rope_length(location: TableLocation) -> int:
    """Return the context length that a model's rotary settings serve, in tokens."""
    return location.value(location.effective_key)


def rotary_dim(location: TableLocation, parameters: Parameters) -> int:
    """Return the number of rotated values per head."""
    return location.value("hidden_size") // location.value("num_attention_heads")


def rope_changes(location: TableLocation, layers: RopeLayers, after: Parameters) -> dict[Keys, Any]:
    """Return the config values, by path of keys, that give these layers other settings, in the file's dialect."""
    changed = {key: value for key, value in after.items() if layers.parameters.get(key) != value}
    return {(*location.path, "rope_parameters", key): value for key, value in changed.items()}
