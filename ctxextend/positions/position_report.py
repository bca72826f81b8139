"""Positions without a table of rows: rotary with its wavelengths, ALiBi or relative."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import Result, not_in_json
from ctxextend.positions.rotary_settings import RopeLayers
from ctxextend.provenance import Step
from ctxextend.tables.frequencies import frequencies, ntk_base

if TYPE_CHECKING:
    from ctxextend.positions.positions import Positions
from ctxextend.tables.rope_types import NTK_ALPHA, Parameters

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
    location: "Positions" = field(metadata=not_in_json)

    group: ClassVar = "tables"  # of an inspection
    kinds: ClassVar[tuple[str, ...]] = ()  # the scheme, and the rope types of scaled layers
    trained_positions: ClassVar[int | None] = None  # of rows, if any are untrained

    @property
    def question(self) -> str:
        """What the settings do not tell, and how to say it; empty if they tell all."""
        lengths = self.location.lengths
        if not lengths.question:
            return ""
        return f"{lengths.question}. To resize it, pass {lengths.answer}."


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
    slowed_for_short: int  # of these, pairs that are slowed in inputs up to the trained length too
    slowdown: float  # largest ratio of a pair's wavelength to the unscaled one
    untrained: int  # pairs that reach angles they never reached within the trained length

    json_properties: ClassVar = ("pairs", "wavelength")

    @property
    def pairs(self) -> int:
        """The number of pairs that rotate."""
        return len(self.wavelengths)

    @property
    def wavelength(self) -> dict[str, float | None]:
        """The shortest (``min``) and the longest (``max``) wavelength; None without pairs."""
        if not self.pairs:
            return {"min": None, "max": None}
        return {"min": float(self.wavelengths.min()), "max": float(self.wavelengths.max())}


@dataclass(frozen=True, eq=False, repr=False)
class SchemeReport(PositionReport, shows=("name", "scheme", "positions")):
    """Positions without a table of rows that can be read."""

    group: ClassVar = "schemes"

    # ``rotary``, ``ALiBi``, ``relative``, ``none``, or ``learned`` if the rows are quantised.
    scheme: str
    first_trained: int  # length of the first training, in tokens, before any scaling
    stated: int  # length that the config key states, in tokens
    served: int  # length up to which the settings need no further scaling, in tokens
    layers: tuple[RopeReport, ...]  # of rotary positions with settings, those of local layers last
    # The dialects that state the rotary settings, each completely: ``rope_parameters``, which
    # transformers 5 reads, and ``rope_scaling`` with the keys next to it, which others read.
    rope_dialects: tuple[str, ...]

    @property
    def lengths_text(self) -> str:
        """The three lengths, as a sentence; empty if the config states what the settings serve."""
        if self.stated == self.served:
            return ""
        trained = f"first trained at {self.first_trained} tokens"
        return f"{trained}; the config states {self.stated}, the settings serve {self.served}"

    @property
    def dialects_text(self) -> str:
        """For which readers the settings are stated; empty without any in the config."""
        if not self.rope_dialects:
            return ""
        readers = " and of ".join(self.rope_dialects)
        if len(self.rope_dialects) == 1:
            return f"rotary settings are stated only for readers of {readers}"
        return f"rotary settings are stated for readers of {readers}"

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """The scheme, and the rope types of layers that are scaled."""
        kinds = [self.scheme]
        for rope in self.layers:
            rope_type = rope.parameters["rope_type"]
            if not rope.is_local and rope_type != "default":
                kinds.append(rope_type)
        return tuple(dict.fromkeys(kinds))


@dataclass(frozen=True)
class ThetaResize:
    """A resize by method ``theta``: settings state only the new base, and the recipe the rest."""

    factor: float
    length_before: int  # in tokens


def report_scheme(positions: "Positions", recipe: Step | None) -> SchemeReport:
    """Report positions without a table of rows.

    Args:
        positions: The positions.
        recipe: The resize that made the checkpoint, if any.

    Raises:
        CheckpointError: The rotary settings are invalid.
    """
    lengths = positions.lengths
    length_to_state = lengths.context
    if lengths.key_is_first_trained:
        length_to_state = lengths.stated
    layers = tuple[RopeReport, ...]()
    if positions.may_scale:
        theta = _theta_resize(positions, recipe, lengths.context)
        layers = tuple(_report_layers(positions, item, theta) for item in positions.layers)
    return SchemeReport(
        name=positions.name,
        part=positions.part,
        config_key=positions.length_key,
        positions=lengths.context,
        key_value=positions.key_value(length_to_state),
        stated_in=f"{positions.file} {positions.length_key}",
        location=positions,
        scheme=positions.scheme,
        first_trained=lengths.first_trained,
        stated=lengths.stated,
        served=lengths.served,
        layers=layers,
        rope_dialects=positions.dialects if positions.may_scale else (),
    )


def _theta_resize(table: "Positions", recipe: Step | None, length: int) -> ThetaResize | None:
    """Return the resize by ``theta`` that gave rotary positions a length; None if none did.

    Args:
        table: The positions, whose rows in a recipe are tokens.
        recipe: The resize that made the checkpoint, if any.
        length: The context length, in tokens. A recipe of another length is out of date.
    """
    if recipe is None:
        return None
    before, after = recipe.rows.get(table.name, (0, 0))
    is_longer = 0 < before < after
    is_current = after == length
    if not is_longer or not is_current:
        return None
    method = recipe.methods.get(table.name, recipe.settings.method)
    if method is None or method.name != "theta":
        return None
    # An edited recipe may lack the factor; the method's default serves the new length.
    factor = method.settings.get("factor") or after / before
    return ThetaResize(factor=factor, length_before=before)


def _report_layers(
    positions: "Positions", layers: RopeLayers, theta: ThetaResize | None
) -> RopeReport:
    """Report the layers of one type: compare their settings with those before any scaling.

    Args:
        positions: The positions.
        layers: The layers and their settings.
        theta: The resize that changed their base, if one did: the settings then state only the new
            length, and the recipe the old one.
    """
    lengths = positions.layer_lengths(layers)
    served = lengths.served
    trained = lengths.first_trained
    if layers.is_local:  # they read the same inputs as the others, and are not resized
        theta = None
        served = positions.lengths.served
    if theta is not None:
        trained = theta.length_before
    settings = layers.parameters
    scaled = positions.frequencies(settings, served)
    short = positions.frequencies(settings, 1)
    dim = positions.rotated_values(settings)
    before = _unscaled_settings(settings, dim, theta)
    unscaled = frequencies(before, dim, positions.value(positions.effective_key))
    rotates = scaled.inverse > 0  # other pairs are the same at every position
    return _compare_wavelengths(
        layers=layers,
        attention_factor=scaled.attention_factor,
        scaled=2 * math.pi / scaled.inverse[rotates],
        short=2 * math.pi / short.inverse[rotates],
        unscaled=2 * math.pi / unscaled.inverse[rotates],
        served=served,
        trained=trained,
    )


def _unscaled_settings(rope: Parameters, dim: int, theta: ThetaResize | None) -> Parameters:
    """Return the settings before any scaling: of type ``default``, with the base of the training.

    Settings with alpha stay as they are: the model was trained with the scaled base.

    Args:
        rope: The scaled settings.
        dim: The number of rotated values per head.
        theta: The resize that changed the base, if one did.
    """
    unscaled = dict(rope)
    if rope["rope_type"] != NTK_ALPHA:
        unscaled["rope_type"] = "default"
    if theta is not None:
        unscaled["rope_theta"] = ntk_base(rope["rope_theta"], 1 / theta.factor, dim)
    return unscaled


def _compare_wavelengths(
    *,
    layers: RopeLayers,
    attention_factor: float,
    scaled: NDArray[np.float64],
    short: NDArray[np.float64],
    unscaled: NDArray[np.float64],
    served: int,
    trained: int,
) -> RopeReport:
    """Compare the wavelengths of layers with those before any scaling.

    Args:
        layers: The layers and their settings.
        attention_factor: By which cosines and sines are multiplied.
        scaled: The wavelengths at the served length, in tokens, shape (pairs,).
        short: Those in the shortest inputs.
        unscaled: The wavelengths at the trained length, in tokens, shape (pairs,).
        served: The length that the settings serve, in tokens.
        trained: The length before any scaling, in tokens.
    """
    turns = served / scaled
    trained_turns = trained / unscaled
    is_partial = _is_less(turns, 1)
    was_partial = _is_less(trained_turns, 1)
    turns_further = _is_less(trained_turns, turns)
    is_slowed = _is_less(unscaled, scaled)
    return RopeReport(
        layers=layers.layer_type,
        is_local=layers.is_local,
        parameters=layers.parameters,
        trained_length=trained,
        positions=served,
        attention_factor=attention_factor,
        wavelengths=scaled,
        unscaled_wavelengths=unscaled,
        partial_turns=int(is_partial.sum()),
        trained_partial_turns=int(was_partial.sum()),
        slowed=int(is_slowed.sum()),
        slowed_for_short=int(_is_less(unscaled, short).sum()),
        slowdown=float((scaled / unscaled).max(initial=1)),
        untrained=int((was_partial & turns_further).sum()),
    )


def _is_less(values: NDArray[np.float64], limits: NDArray[np.float64] | int) -> NDArray[np.bool_]:
    """Whether each value is below its limit by more than rounding."""
    return np.asarray(values * (1 + ROUNDING) < limits)


def report_quantised(table: "Positions") -> SchemeReport:
    """Report a table whose rows are quantised: their number, and nothing about their values."""
    location = table
    return SchemeReport(
        name=table.name,
        part=location.part,
        config_key=location.length_key,
        positions=table.rows,
        key_value=location.key_value(table.rows),
        stated_in=f"{table.weights_file} {table.name}",
        location=location,
        scheme=location.scheme,
        first_trained=table.rows,
        stated=location.value(location.effective_key),
        served=table.rows,
        layers=(),
        rope_dialects=(),
    )
