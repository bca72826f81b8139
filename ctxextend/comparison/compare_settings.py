"""What is compared, as a command's flags or a call say it: methods as they are typed, and how they are measured."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from ctxextend.errors import ResizeError
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.recipe import LEAST_LENGTH, Evaluate, Resize, Train, flag_words
from ctxextend.tables.methods import METHODS

ALL = "all"  # every method of the registry with its defaults
CHOICE = "auto"  # among all methods it would be one of them twice

# Flags of a measurement, and those of them that a training has too.
MEASURING = ("length", "tokens", "measure", "precision", "seed", "text_field")
COMMON = ("precision", "seed", "text_field")
DEFAULTS = {known.name: known.default for known in fields(Train)}

# What stands between a method, its flags and their values; a colon inside a value does not: bands:repeat=40:128.
BETWEEN = re.compile(r":(?=-*[a-z])|=")
# The flags of methods, and what reads their values.
FLAGS: Mapping[str, Callable[[str], Any]] = {
    "keep_first": int,
    "drop_last": int,
    "scope": str,
    "alpha": float,
    "seed": int,
    "sigma": float,
    "repeat": lambda text: tuple(map(int, text.split(":"))),
    "gain": float,
}
EXAMPLE = "Write flags as stretch:keep-first=5, several of them as linear:keep-first=1:drop-last=2."


class MethodSpec(NamedTuple):
    """A method that is to be compared with others."""

    name: str  # with its flags as `resize` takes them where any were given
    resize: Resize
    is_named: bool  # whether it was asked for by its name, and not among all


@dataclass(frozen=True)
class Compare:
    """How methods are compared.

    Raises:
        ResizeError: A length that no window has, or is longer than the methods give, or a method that there is not.
    """

    to: int  # usable token positions that each method gives
    # On what text they are measured, and how; where `train` names no text to measure on, that which training leaves out
    # of its own is taken.
    evaluate: Evaluate
    methods: tuple[str, ...] = ()  # as `read_methods` takes them; empty is all
    train: Train | None = None  # how each is trained then; None is not at all

    @classmethod
    def from_flags(
        cls, to: int, data: Sequence[str], methods: Sequence[str] = (), steps: int = 0, **flags: Any
    ) -> "Compare":
        """Return how methods are compared, from flags: those of `Evaluate` and `Train`, by their fields' names.

        With steps, `data` is trained on and ``eval_data`` measured on. None is a flag's default.

        Raises:
            ResizeError: A value that nothing could have, or a flag of a training without one.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        measuring = {name: given[name] for name in MEASURING if name in given}
        training = {name: value for name, value in given.items() if name not in MEASURING}
        if not steps and (idle := [name for name, value in training.items() if value != DEFAULTS.get(name)]):
            raise ResizeError(f"--{idle[0].replace('_', '-')} belongs to a training.", "Add --steps, or leave it out.")
        training |= {name: measuring[name] for name in COMMON if name in measuring}
        evaluate = Evaluate(training.get("eval_data") or tuple(data), **measuring)
        return cls(to, evaluate, tuple(methods), Train(tuple(data), steps, **training) if steps else None)

    def __post_init__(self) -> None:
        if self.to < LEAST_LENGTH:
            raise ResizeError(
                f"--to {self.to} is shorter than any window that is measured.", f"Give {LEAST_LENGTH} or more."
            )
        for length in self.evaluate.length:
            if length > self.to:
                raise ResizeError(f"--length {length} is more than the {self.to} of --to.", "Give a greater --to.")
        read_methods(self.methods, self.to)

    def evaluate_for(self, kind: str) -> Evaluate:
        """Return what is measured of a model of a kind: what was asked for, and what methods are ranked by."""
        ranked_by = "retrieval" if kind == ENCODER else "position"
        length, measure = self.evaluate.length, self.evaluate.measure
        return replace(
            self.evaluate,
            length=tuple(dict.fromkeys((*length, self.to))) if length else (),
            measure=tuple(dict.fromkeys((*measure, ranked_by))) if measure else (),
        )


def read_methods(typed: Sequence[str], to: int) -> tuple[MethodSpec, ...]:
    """Return the methods that were asked for, each once, at a length of `to` positions.

    Each is a name with its flags where it has any, ``stretch:keep-first=5``, or as for `resize`, ``stretch
    --keep-first 5``. ``all`` is every method with its defaults, and so is nothing.

    Raises:
        ResizeError: There is no such method, or a flag that it does not take.
    """
    found: dict[str, MethodSpec] = {}
    for text in typed or [ALL]:
        if text.strip() == ALL:
            for name in METHODS:
                if name != CHOICE:
                    found.setdefault(name, MethodSpec(name, Resize(to, method=name), is_named=False))
        else:
            spec = _read_method(text, to)
            found[spec.name] = spec
    return tuple(found.values())


def _read_method(text: str, to: int) -> MethodSpec:
    name, *words = BETWEEN.sub(" ", text).split() or [""]
    if len(words) % 2:
        raise ResizeError(f"{text!r}: a flag stands there without its value.", EXAMPLE)
    typed = {word.lstrip("-").replace("_", "-"): value for word, value in zip(words[::2], words[1::2], strict=True)}
    given: dict[str, Any] = {}
    for flag, value in typed.items():
        field = flag.replace("-", "_")
        if field not in FLAGS:
            known = ", ".join(f"--{name}".replace("_", "-") for name in FLAGS)
            raise ResizeError(f"No method has a flag --{flag}.", f"There are {known}. {EXAMPLE}")
        try:
            given[field] = FLAGS[field](value)
        except ValueError:
            raise ResizeError(f"--{flag} {value} is no number.", EXAMPLE) from None
    return MethodSpec(" ".join([name, *flag_words(typed)]), Resize(to, method=name, **given), is_named=True)
