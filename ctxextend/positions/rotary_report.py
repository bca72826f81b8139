"""The wavelengths of rotary positions, compared with those before any scaling."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctxextend.positions.position_report import RopeReport, SchemeReport, report_scheme
from ctxextend.positions.rotary_lengths import layer_lengths
from ctxextend.positions.rotary_settings import RopeLayers, rotary_dim
from ctxextend.provenance import Step
from ctxextend.tables.frequencies import frequencies, ntk_base
from ctxextend.tables.rope_types import NTK_ALPHA, Parameters

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary

ROUNDING = 1e-9  # relative


@dataclass(frozen=True)
class ThetaResize:
    """A resize by method ``theta``: settings state only the new base, and the recipe the rest."""

    factor: float
    length_before: int  # in tokens


def report_rotary(positions: "Rotary", recipe: Step | None) -> SchemeReport:
    """Report rotary positions.

    Args:
        positions: The positions.
        recipe: The resize that made the checkpoint, if any.

    Raises:
        CheckpointError: The settings are invalid.
    """
    if not positions.methods:
        return report_scheme(positions)
    theta = _theta_resize(positions, recipe, positions.lengths.context)
    layers = [_report_layers(positions, item, theta) for item in positions.layers]
    return report_scheme(positions, tuple(layers))


def _theta_resize(positions: "Rotary", recipe: Step | None, length: int) -> ThetaResize | None:
    """Return the resize by ``theta`` that gave rotary positions a length; None if none did.

    Args:
        positions: The positions, whose rows in a recipe are tokens.
        recipe: The resize that made the checkpoint, if any.
        length: The context length, in tokens. A recipe of another length is out of date.
    """
    if recipe is None:
        return None
    before, after = recipe.rows.get(positions.name, (0, 0))
    is_longer = 0 < before < after
    is_current = after == length
    if not is_longer or not is_current:
        return None
    method = recipe.methods.get(positions.name, recipe.settings.method)
    if method is None or method.name != "theta":
        return None
    # An edited recipe may lack the factor; the method's default serves the new length.
    factor = method.settings.get("factor") or after / before
    return ThetaResize(factor=factor, length_before=before)


def _report_layers(
    positions: "Rotary", layers: RopeLayers, theta: ThetaResize | None
) -> RopeReport:
    """Report the layers of one type: compare their settings with those before any scaling.

    Args:
        positions: The positions.
        layers: The layers and their settings.
        theta: The resize that changed their base, if one did: the settings then state only the new
            length, and the recipe the old one.
    """
    lengths = layer_lengths(positions, layers)
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
    dim = rotary_dim(positions, settings)
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
