"""A method and its flags, checked against each other."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.tables.registry import METHODS, Method

__all__ = ["OWN_FLAGS", "SCOPES", "MethodOptions"]

SCOPES = ("new", "all")

# Rows below which a Gaussian reaches no other row.
LEAST_SIGMA = 0.5

# Flags that only some methods take.
OWN_FLAGS = ("scope", "alpha", "seed", "sigma", "repeat", "gain")


@dataclass(frozen=True)
class MethodOptions:
    """A method and its flags, checked against each other.

    Attributes:
        method: A key of `METHODS`.
        keep_first: As it was given; `kept_first` is what holds.
        drop_last: Positions at the end that are no source for new rows.
        scope: ``new`` or ``all``, for methods that take it; None means the method's default.
        alpha: Above 0, below 1 and not 0.5, for methods that take it; None means the method's default.
        seed: 0 or more, for methods that take it; None means the method's default.
        sigma: Rows, 0 or more, for methods that take it; None is chosen from the table, as the next two.
        repeat: The first row of those that repeat and one behind the last, for methods that take it.
        gain: Above 0, for methods that take it.

    Raises:
        ResizeError: No such method, a value out of range, or a flag that has no meaning for the method.
    """

    method: str = "copy"
    keep_first: int | None = None
    drop_last: int = 0
    scope: str | None = None
    alpha: float | None = None
    seed: int | None = None
    sigma: float | None = None
    repeat: tuple[int, int] | None = None
    gain: float | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ResizeError(f"There is no method {self.method!r}.", f"Methods: {', '.join(METHODS)}.")
        counts = {"--keep-first": self.keep_first, "--drop-last": self.drop_last, "--seed": self.seed}
        for flag, value in counts.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ResizeError(f"{flag} must be 0 or more, not {value!r}.")
        for flag in self._meaningless():
            raise ResizeError(f"--{flag} has no meaning for --method {self.method}.", "Leave it out.")
        self._check_values()

    def _meaningless(self) -> Iterator[str]:
        if self.keep_first and METHODS[self.method].keep_first is None:
            yield "keep-first"
        for flag in OWN_FLAGS:
            if getattr(self, flag) is not None and flag not in METHODS[self.method].flags:
                yield flag

    def _check_values(self) -> None:
        if self.scope not in (None, *SCOPES):
            raise ResizeError(f"There is no scope {self.scope!r}.", f"Scopes: {', '.join(SCOPES)}.")
        if self.scope == "all" and self.drop_last:
            raise ResizeError("--drop-last has no meaning with --scope all: no learned row is read.", "Leave it out.")
        if self.seed is not None and self.seed >= 2**63:
            raise ResizeError(f"--seed must be below 2**63, not {self.seed}.")
        if self.alpha is not None:
            self._check_alpha()
        self._check_bands()

    def _check_alpha(self) -> None:
        if not isinstance(self.alpha, float) or not 0 < self.alpha < 1:
            raise ResizeError(f"--alpha must be above 0 and below 1, not {self.alpha!r}.", "0.4 is the usual choice.")
        if self.alpha == 0.5:
            raise ResizeError(
                "--alpha 0.5 gives two positions one row: their first and second digit would count alike.",
                "0.4 is the usual choice.",
            )

    def _check_bands(self) -> None:
        if self.sigma is not None and self.sigma != 0 and not LEAST_SIGMA <= self.sigma < math.inf:
            raise ResizeError(
                f"--sigma must be 0, or {LEAST_SIGMA} or more, not {self.sigma!r}.", "8 is a usual choice."
            )
        if self.gain is not None and not 0 < self.gain < math.inf:
            raise ResizeError(f"--gain must be above 0, not {self.gain!r}.", "1 moves nothing.")
        if self.repeat is not None and not 0 <= self.repeat[0] < self.repeat[1]:
            first, stop = self.repeat
            raise ResizeError(f"--repeat {first}:{stop} holds no rows.", "Give A:B for rows A to B-1.")
        if self.repeat is not None and self.sigma == 0:
            raise ResizeError("--repeat has no meaning with --sigma 0: nothing is repeated.", "Leave one of them out.")

    @property
    def kept_first(self) -> int:
        """Positions at the start that the method neither reads nor changes."""
        return (self._data.keep_first or 0) if self.keep_first is None else self.keep_first

    @property
    def flags(self) -> dict[str, Any]:
        """The method's own flags with their values."""
        given = {flag: getattr(self, flag) for flag in self._data.flags}
        return {flag: self._data.flags[flag] if value is None else value for flag, value in given.items()}

    @property
    def typed(self) -> dict[str, Any]:
        """The flags as they are typed, by name; None for those that were left out and have nothing to say."""
        keeps = self.kept_first or self._data.keep_first
        named = {"keep-first": self.kept_first if keeps else None, "drop-last": self.drop_last or None}
        given = {flag: getattr(self, flag) for flag in OWN_FLAGS}
        return named | given | {"repeat": self.repeat and "{}:{}".format(*self.repeat)}

    @property
    def keeps_learned_rows(self) -> bool:
        """Whether every learned row stays as it is, bit for bit, of a table of any length."""
        return self._data.keeps_learned_rows and self.scope != "all"

    def kept_of(self, learned: int) -> int:
        """Return how many of so many learned rows stay as they are, bit for bit, at the start."""
        return learned if self.keeps_learned_rows else min(self.kept_first, learned)

    @property
    def _data(self) -> Method:
        return METHODS[self.method]
