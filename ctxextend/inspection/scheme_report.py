"""Positions without a table of rows: rotary with its wavelengths, ALiBi or relative."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxextend.families.lengths import layer_lengths, position_lengths
from ctxextend.families.lookup import TableLocation
from ctxextend.families.rope import RopeLayers, read_rope, rotary_dim
from ctxextend.json_output import Result, not_in_json
from ctxextend.plan.found_table import FoundTable
from ctxextend.provenance import Provenance
from ctxextend.tables.method_parser import parse_method
from ctxextend.tables.rope_types import NTK_ALPHA, Parameters
from ctxextend.tables.rotary import frequencies, ntk_base

ROUNDING = 1e-9  # relative


@dataclass(frozen=True, eq=False, repr=False)
class PositionReport(Result, shows=("name", "positions")):
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
    """Wavelengths of all layers of one type: tokens per turn of each pair that rotates."""

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
class SchemeReport(PositionReport, shows=("name", "scheme", "positions")):
    """Positions without a table of rows."""

    scheme: str  # ``rotary``, ``ALiBi`` or ``relative``
    first_trained: int  # length of the first training, in tokens, before any scaling
    stated: int  # length that the config key states, in tokens
    served: int  # length up to which the settings need no further scaling, in tokens
    layers: tuple[RopeReport, ...]  # of rotary positions with settings, those of local layers last
    # What the settings do not tell, and how to say it; empty if they tell all.
    question: str = field(default="", metadata=not_in_json)

    @property
    def lengths(self) -> str:
        """The three lengths, as a sentence; empty if the config states what the settings serve."""
        if self.stated == self.served:
            return ""
        trained = f"first trained at {self.first_trained} tokens"
        return f"{trained}; the config states {self.stated}, the settings serve {self.served}"

    @property
    def kinds(self) -> Iterator[str]:
        """The scheme, and the rope types of layers that are scaled."""
        types = (rope.parameters["rope_type"] for rope in self.layers if not rope.is_local)
        return (kind for kind in dict.fromkeys((self.scheme, *types)) if kind != "default")


def report_scheme(table: FoundTable, recipe: Provenance | None) -> SchemeReport:
    """Report positions without a table of rows.

    Args:
        table: The positions.
        recipe: The resize that made the checkpoint, if any.

    Raises:
        CheckpointError: The rotary settings are invalid.
    """
    location = table.location
    lengths = position_lengths(location)
    key_length = lengths.context
    if lengths.key_is_first_trained:
        key_length = lengths.stated
    method, resized_from = _resized_by(table, recipe, lengths.context)
    layers = list[RopeReport]()
    facts = location.table.rope
    if facts is not None and facts.methods:  # other classes ignore the settings
        for item in read_rope(location):
            layers.append(_report_layers(location, item, method, resized_from))
    question = ""
    if lengths.question:
        question = f"{lengths.question}. To resize it, pass {lengths.answer}."
    return SchemeReport(
        name=table.name,
        part=location.part,
        config_key=location.config_key,
        positions=lengths.context,
        key_value=location.key_value(key_length),
        stated_in=f"config.json {location.config_key}",
        location=location,
        scheme=location.scheme,
        first_trained=lengths.first_trained,
        stated=lengths.stated,
        served=lengths.served,
        layers=tuple(layers),
        question=question,
    )


def _resized_by(
    table: FoundTable, recipe: Provenance | None, length: int
) -> tuple[str | None, int]:
    """Return the method that made positions of a length, and the length before, in tokens.

    The method is None if no recipe tells.
    """
    if recipe is None:
        return None, 0
    location = table.location
    before, after = recipe.rows.get(table.name, (0, 0))
    if 0 < before < after == location.rows(location.key_value(length)):
        return recipe.methods.get(table.name, recipe.settings.method), before
    return None, before


def _report_layers(
    location: TableLocation, layers: RopeLayers, method: str | None, resized_from: int
) -> RopeReport:
    """Report the layers of one type.

    Args:
        location: The positions.
        layers: The layers and their settings.
        method: The method that resized them, if known.
        resized_from: The length before, in tokens.
    """
    rope = layers.parameters
    lengths = layer_lengths(location, layers)
    positions = lengths.served
    factor = _theta_factor(method)
    if layers.is_local:  # sliding windows are not resized
        positions = position_lengths(location).served
        factor = None
    dim = rotary_dim(location, rope)
    max_len = location.value(location.effective_key)
    trained = lengths.first_trained
    plain: dict[str, Any] = {**rope, "rope_type": "default"}
    if rope["rope_type"] == NTK_ALPHA:
        plain = dict(rope)  # the model was trained with this base
    if factor is not None:
        plain["rope_theta"] = ntk_base(rope["rope_theta"], 1 / factor, dim)
        trained = resized_from
    inverse, attention_factor = frequencies(rope, dim, max_len, positions)
    unscaled_inverse = frequencies(plain, dim, max_len).inverse
    rotates = inverse > 0  # other pairs are the same at every position
    after = 2 * math.pi / inverse[rotates]
    before = 2 * math.pi / unscaled_inverse[rotates]
    turns = positions / after
    trained_turns = trained / before * (1 + ROUNDING)
    was_partial = trained_turns < 1
    is_slowed = after > before * (1 + ROUNDING)
    return RopeReport(
        layers=layers.layer_type,
        is_local=layers.is_local,
        parameters=rope,
        trained_length=trained,
        positions=positions,
        attention_factor=attention_factor,
        wavelengths=after,
        unscaled_wavelengths=before,
        partial_turns=int((turns < 1).sum()),
        trained_partial_turns=int(was_partial.sum()),
        slowed=int(is_slowed.sum()),
        slowdown=float((after / before).max(initial=1)),
        untrained=int((was_partial & (turns > trained_turns)).sum()),
    )


def _theta_factor(method: str | None) -> float | None:
    """Return the factor of method ``theta``, which leaves no trace in settings; None of others."""
    resized_by, given = parse_method(method)
    if resized_by.name != "theta":
        return None
    return float(given["factor"])
