"""The wavelengths of rotary positions, compared with those before any scaling."""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctxextend.positions.position_report import RopeReport, SchemeReport, report_scheme
from ctxextend.positions.rotary_lengths import layer_lengths
from ctxextend.positions.rotary_settings import RopeLayers, rotary_dim
from ctxextend.provenance import Step
from ctxextend.tables.frequencies import frequencies, ntk_base
from ctxextend.tables.rope_types import NTK_ALPHA, THETA, TYPE

if TYPE_CHECKING:
    from ctxextend.positions.rotary import Rotary

ROUNDING = 1e-9  # relative


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
    # A resize by `theta`: settings state only the new base, and the recipe the rest. A recipe of
    # another length is out of date; an edited one may lack the factor.
    before = 0
    factor = 1.0
    if recipe is not None:
        before, after = recipe.rows.get(positions.name, (0, 0))
        method = recipe.methods.get(positions.name, recipe.settings.method)
        is_current = 0 < before < after == positions.lengths.context
        if is_current and method is not None and method.name == "theta":
            factor = method.settings.get("factor") or after / before
        else:
            before = 0
    layers = [_report_layers(positions, item, before, factor) for item in positions.layers]
    return report_scheme(positions, tuple(layers))


def _report_layers(
    positions: "Rotary", layers: RopeLayers, trained: int, factor: float
) -> RopeReport:
    """Report the layers of one type: compare their settings with those before any scaling.

    Args:
        positions: The positions.
        layers: The layers and their settings.
        trained: The length before a resize that only changed their base; 0 if none did.
        factor: By which it was resized.
    """
    lengths = layer_lengths(positions, layers)
    settings = layers.parameters
    dim = rotary_dim(positions, settings)
    served = lengths.served
    unscaled = {**settings, TYPE: "default"}
    if settings[TYPE] == NTK_ALPHA:  # the model was trained with the scaled base
        unscaled = {**settings}
    if layers.is_local:  # they read the same inputs as the others, and are not resized
        served = positions.lengths.served
    elif trained:
        unscaled[THETA] = ntk_base(settings[THETA], 1 / factor, dim)
    if layers.is_local or not trained:
        trained = lengths.first_trained

    scaled = positions.frequencies(settings, served)
    rotates = scaled.inverse > 0  # other pairs are the same at every position
    wavelengths = 2 * math.pi / scaled.inverse[rotates]
    stated = positions.value(positions.effective_key)
    before = 2 * math.pi / frequencies(unscaled, dim, stated).inverse[rotates]
    turns = served / wavelengths
    trained_turns = trained / before
    was_partial = _is_less(trained_turns, 1)
    return RopeReport(
        layers=layers.layer_type,
        is_local=layers.is_local,
        parameters=settings,
        trained_length=trained,
        positions=served,
        attention_factor=scaled.attention_factor,
        wavelengths=wavelengths,
        unscaled_wavelengths=before,
        slowed=int(_is_less(before, wavelengths).sum()),
        slowdown=float((wavelengths / before).max(initial=1)),
        untrained=int((was_partial & _is_less(trained_turns, turns)).sum()),
    )


def _is_less(values: NDArray[np.float64], limits: NDArray[np.float64] | int) -> NDArray[np.bool_]:
    """Whether each value is below its limit by more than rounding."""
    return np.asarray(values * (1 + ROUNDING) < limits)
