"""Positions without a table of rows: rotary with its wavelengths, ALiBi or relative."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ctxextend.json_output import Result, not_in_json

if TYPE_CHECKING:
    from ctxextend.positions.positions import Positions
from ctxextend.tables.rope_types import NONE, Parameters


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
    # In inputs of `positions` tokens, and of the trained length, shape (pairs,).
    wavelengths: NDArray[np.float64] = field(metadata=not_in_json)
    unscaled_wavelengths: NDArray[np.float64] = field(metadata=not_in_json)
    slowed: int  # pairs whose wavelength has grown
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
    """Positions without a table of rows."""

    group: ClassVar = "schemes"

    scheme: str  # ``rotary``, ``ALiBi``, ``relative`` or ``none``
    first_trained: int  # length of the first training, in tokens, before any scaling
    stated: int  # length that the config key states, in tokens
    served: int  # length up to which the settings need no further scaling, in tokens
    layers: tuple[RopeReport, ...]  # of rotary positions with settings, those of local layers last

    @property
    def text(self) -> str:
        """What is known of the lengths, as a sentence; empty for rotary settings with only one.

        They have three if the config states another than its settings serve.
        """
        if not self.layers:
            runs = "any length runs once the limits below allow it"
            if self.scheme == NONE:
                return f"no positions: {runs}; first trained at {self.first_trained} tokens"
            return f"{self.scheme} positions: {runs}"
        if self.stated == self.served:
            return ""
        trained = f"first trained at {self.first_trained} tokens"
        return f"{trained}; the config states {self.stated}, the settings serve {self.served}"

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """The scheme, and the rope types of layers that are scaled."""
        kinds = [self.scheme]
        for rope in self.layers:
            rope_type = rope.parameters["rope_type"]
            if not rope.is_local and rope_type != "default":
                kinds.append(rope_type)
        return tuple(dict.fromkeys(kinds))


def report_scheme(positions: "Positions", layers: tuple[RopeReport, ...] = ()) -> SchemeReport:
    """Report positions without a table of rows.

    Args:
        positions: The positions.
        layers: The wavelengths of rotary ones.

    Raises:
        CheckpointError: The rotary settings are invalid.
    """
    lengths = positions.lengths
    length_to_state = lengths.context
    if lengths.key_is_first_trained:
        length_to_state = lengths.stated
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
    )
