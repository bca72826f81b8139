"""Where values stand in a picture: axes with round numbers on them, and the frame that two of them span."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Frame", "doublings", "places", "positions", "round_numbers", "top"]

# Numbers along an axis at most, and the steps between them, times a power of ten.
TICKS = 6
STEPS = (1.0, 2.0, 5.0, 10.0)
# Ends of an axis that are closer, by a share of their size, are one value.
CLOSE = 1e-9


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: What its values are, with their unit.
        low: The value at its start.
        high: The value at its end.
        ticks: The values that are written along it.
        is_log: Whether equal factors are equal steps; both ends are above 0 then.
        names: What is written at the ticks, where that is not their values.
    """

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False
    names: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """What is written at each tick."""
        return self.names or tuple(f"{value:.10g}" for value in self.ticks)

    def share(self, value: float) -> float:
        """Return how far along the axis a value stands, 0 at its start and 1 at its end."""
        low, high, at = (math.log2(one) if self.is_log else one for one in (self.low, self.high, value))
        return (at - low) / (high - low)


@dataclass(frozen=True)
class Frame:
    """The place in a picture that two axes span, in the picture's own units.

    Attributes:
        x: The axis from left to right.
        y: The axis from the bottom up.
        width: Of the whole picture.
        height: Of the whole picture.
        margins: What is left free for labels: at the top, right, bottom and left.
    """

    x: Axis
    y: Axis
    width: int = 520
    height: int = 300
    margins: tuple[int, int, int, int] = (12, 16, 48, 64)

    @property
    def inner(self) -> tuple[int, int, int, int]:
        """Where it begins, from the left and from the top, and how wide and high it is."""
        up, right, down, left = self.margins
        return left, up, self.width - left - right, self.height - up - down

    def across(self, value: float) -> float:
        """Return the place of a value of `x`, from the left."""
        left, _, width, _ = self.inner
        return left + width * self.x.share(value)

    def down(self, value: float) -> float:
        """Return the place of a value of `y`, from the top."""
        _, up, _, height = self.inner
        return up + height * (1 - self.y.share(value))


def round_numbers(label: str, low: float, high: float, most: int = TICKS) -> Axis:
    """Return an axis from a round number at or below one value to a round number at or above another."""
    if high - low <= CLOSE * abs(high):
        room = max(abs(low) / 1000, 0.5)
        low, high = low - room, low + room
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(step for step in STEPS if step * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(label, first * step, last * step, tuple(number * step for number in range(first, last + 1)))


def positions(label: str, length: int, most: int = 8) -> Axis:
    """Return an axis of positions, with numbers that are powers of two apart, as lengths mostly are."""
    step = 2 ** max(math.ceil(math.log2(max(length, 1) / most)), 0)
    return Axis(label, 0.0, float(max(length, 1)), tuple(float(place) for place in range(0, length + 1, step)))


def doublings(label: str, lengths: Sequence[int]) -> Axis:
    """Return an axis on which lengths twice as long are as far apart as any others, with a little room at its ends."""
    low, high = min(lengths, default=1), max(lengths, default=2)
    return Axis(label, low / 2**0.25, high * 2**0.25, tuple(map(float, lengths)), is_log=True)


def places(label: str, names: Sequence[str]) -> Axis:
    """Return an axis on which each name has a place one wide, with the name in its middle."""
    count = len(names)
    return Axis(label, 0.0, float(max(count, 1)), tuple(place + 0.5 for place in range(count)), names=tuple(names))


def top(values: Iterable[float], leading: Iterable[float]) -> tuple[float, float, bool]:
    """Return where an axis of losses begins and ends, and whether higher values are cut off.

    Losses of hopeless methods would press those of all others together: the axis ends where the values that matter
    take a third of it at least.

    Args:
        values: All values.
        leading: Those that matter.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0]
    chosen = [value for value in leading if math.isfinite(value)] or found
    low, high = min(found), max(found)
    most = max(chosen) + 2 * max(max(chosen) - low, 1e-9)
    return low, min(high, most), high > most
