"""Positions without a table of rows: rotary, ALiBi or relative, and the wavelengths of rotary ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rope_length, rotary_dim
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.find_tables import FoundTable
from ctxextend.recipe_file import Provenance
from ctxextend.tables.apply import read_method
from ctxextend.tables.rotary import Parameters, frequencies, ntk_base, trained_length

ROUNDING = 1e-9  # relative


@dataclass(frozen=True, eq=False, repr=False)
class PositionReport(Result, shows="name positions"):
    """Positions of a model or of one of its parts: a table of rows, or another scheme."""

    name: str  # tensor name in the checkpoint; without a table, config key of the settings
    part: str  # ``encoder``, ``decoder``, ``text``, ... if the model has several, else empty
    config_key: str  # config key of the length, dotted for nested configs
    positions: int  # usable positions
    key_value: int = field(metadata=not_in_json)  # value of the config key that fits the positions
    stated_in: str = field(metadata=not_in_json)  # file and key, or tensor, that set the length
    location: TableLocation = field(metadata=not_in_json)  # its registry entry


@dataclass(frozen=True, eq=False)
class RopeReport:
    """Wavelengths of all layers of one type: tokens per turn of each pair of values that rotates."""

    layers: str  # layer type, such as ``full_attention``; empty: all layers
    is_local: bool  # whether the layers have a sliding window, so that they are not scaled
    parameters: Parameters  # rotary settings as transformers uses them
    trained_length: int  # in tokens, before any scaling
    positions: int  # length that the settings serve, in tokens
    attention_factor: float  # by which cosines and sines are multiplied
    wavelengths: NDArray[np.float64]  # in inputs of `positions` tokens, shape (pairs,)
    unscaled_wavelengths: NDArray[np.float64]  # in inputs of the trained length, shape (pairs,)
    partial_turns: int  # pairs that never complete a turn
    trained_partial_turns: int  # pairs that never completed a turn within the trained length
    slowed: int  # pairs whose wavelength has grown
    slowdown: float  # largest ratio of a pair's wavelength to the unscaled one
    untrained: int  # pairs that reach angles they never reached within the trained length


@dataclass(frozen=True, eq=False, repr=False)
class SchemeReport(PositionReport, shows="name scheme positions"):
    """Positions without a table of rows."""

    scheme: str  # ``rotary``, ``ALiBi`` or ``relative``
    layers: tuple[RopeReport, ...]  # of rotary positions with settings, those of local layers last

    @property
    def kinds(self) -> Iterator[str]:
        """The scheme, and the rope types of layers that are scaled."""
        types = (rope.parameters["rope_type"] for rope in self.layers if not rope.is_local)
        return (kind for kind in dict.fromkeys((self.scheme, *types)) if kind != "default")


def report_scheme(table: FoundTable, recipe: Provenance | None) -> SchemeReport:
    """Report positions without a table of rows; `recipe` made the checkpoint."""
    location, name = table
    facts = location.table.rope  # without methods, the classes ignore the settings
    settings = read_rope(location) if facts and facts.methods else ()
    positions, key = rope_length(location), location.config_key
    before, after = recipe.rows.get(name, (0, 0)) if recipe else (0, 0)
    method = recipe.methods.get(name, recipe.settings.method) if recipe and 0 < before < after == positions else None
    stated = location.value(location.effective_key)
    lengths = before if method else stated, positions
    layers = tuple(_report_layers(location, item, lengths, method) for item in settings)
    shared = name, location.part, key, positions, stated, f"config.json {key}", location
    return SchemeReport(*shared, location.scheme, layers)


def _report_layers(
    location: TableLocation, layers: RopeLayers, lengths: tuple[int, int], method: str | None
) -> RopeReport:
    """Report the layers of one type, which `method` resized from the first length to the second, if it is known."""
    rope, max_len, positions = layers.parameters, location.value(location.effective_key), lengths[1]
    dim, (name, given, _) = rotary_dim(location, rope), read_method(method)
    plain: dict[str, Any] = {**rope, "rope_type": "default"}
    if name == "theta" and not layers.is_local:
        plain["rope_theta"] = ntk_base(rope["rope_theta"], 1 / given["factor"], dim)
    inverse, attention_factor = frequencies(rope, dim, max_len, positions)
    rotates, trained = inverse > 0, trained_length(rope, lengths[0])  # other pairs are the same at every position
    after, before = (2 * math.pi / values[rotates] for values in (inverse, frequencies(plain, dim, max_len).inverse))
    turns, trained_turns = positions / after, trained / before * (1 + ROUNDING)
    is_partial, was_partial, is_slowed = turns < 1, trained_turns < 1, after > before * (1 + ROUNDING)
    settings = layers.layers, layers.is_local, rope, trained, positions, attention_factor
    counts = int(is_partial.sum()), int(was_partial.sum()), int(is_slowed.sum())
    untrained = int((was_partial & (turns > trained_turns)).sum())
    return RopeReport(*settings, after, before, *counts, float((after / before).max(initial=1)), untrained)
