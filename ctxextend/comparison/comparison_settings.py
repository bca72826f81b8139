"""What a comparison of methods compares, and how."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ctxextend.errors import ResizeError, raise_first
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.recipe import MIN_WINDOW, Evaluate, Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD, method_text
from ctxextend.tables.method_parser import method_errors, parse_method
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

EVERY_METHOD = "all"  # every method of the registry with its defaults
DEFAULT_MEASURES: tuple[str, ...] = ()  # all that apply, as in `Evaluate`


@dataclass(frozen=True)
class EvaluateMethods(Evaluate):
    """How methods are evaluated; without text, on Python's documentation."""

    def _text_errors(self) -> Iterator[ResizeError]:
        if self.data or self.search is not None:
            yield from super()._text_errors()


class CandidateRequest(NamedTuple):
    """A method to compare."""

    name: str  # with its settings, if any, as `method_text` spells them
    # Whether it is left out if it does not apply to the checkpoint, which is else an error.
    can_be_skipped: bool

    def resize(self, to: int | str) -> Resize:
        """Return the resize by this method to a length."""
        return Resize(to, method=self.name)


@dataclass(frozen=True)
class Compare:
    """What to compare, and how."""

    to: int | str  # new context length in positions, as `Resize.to`
    evaluate: EvaluateMethods
    methods: tuple[CandidateRequest, ...]

    @classmethod
    def from_request(
        cls,
        to: int | str | None,
        evaluate: EvaluateMethods,
        methods: Sequence[str] = (),
    ) -> "Compare":
        """Check that the requested length, text and methods go together, and fill in defaults.

        Args:
            to: The new context length.
            evaluate: How methods are evaluated.
            methods: Methods with settings, or ``all``, the default.

        Raises:
            ResizeError: A value is invalid, or values do not go together.
            MethodError: A method is unknown.
        """
        if to is None:
            hint = "Pass a longer context length, such as --to 4x."
            raise ResizeError("--to is missing.", hint)
        return cls(
            to=_read_length(to, evaluate),
            evaluate=evaluate,
            methods=read_methods(methods),
        )

    def evaluate_for(self, kind: str, to: int) -> Evaluate:
        """Return the settings to evaluate a kind of model at a length."""
        settings = self.evaluate
        if settings.length:  # else the default lengths, of which `to` is one
            settings = replace(settings, length=(*settings.length, to))
        return with_ranking(settings, kind)


def _read_length(to: int | str, evaluate: Evaluate) -> int | str:
    """Return the new context length as `Resize` reads it; factors are not checked further.

    Raises:
        ResizeError: It is invalid, too short to compare methods, or shorter than a length to
            measure.
    """
    length = Resize(to).to
    if isinstance(length, str):  # a factor, such as ``4x``
        return length
    if length < MIN_WINDOW:
        raise ResizeError(f"--to must be at least {MIN_WINDOW} to compare methods, got {length}.")
    longest = max(evaluate.length, default=0)
    if longest > length:
        message = f"--length {longest} is more than --to {length}."
        raise ResizeError(message, "Use a larger --to.")
    return length


def with_ranking(settings: Evaluate, kind: str) -> Evaluate:
    """Return the settings with the measure that ranks a kind of models.

    The default measures include it, and a search set ranks by itself, as the effective length does
    if only this is measured.
    """
    is_complete = settings.measure == DEFAULT_MEASURES or settings.measures_effective_only
    if settings.search is not None or is_complete:
        return settings
    ranking = "retrieval" if kind == ENCODER else "position"
    return replace(settings, measure=(*settings.measure, ranking))


def read_methods(specs: Sequence[str]) -> tuple[CandidateRequest, ...]:
    """Return the requested methods, each once; by default, and for ``all``, every method.

    Methods of ``all`` can be skipped, unless they are also requested by name.

    Raises:
        ResizeError: A method is unknown, or its settings are invalid.
    """
    requests = dict[str, CandidateRequest]()
    for text in specs or [EVERY_METHOD]:
        if text.strip() == EVERY_METHOD:
            for name in _every_method():
                requests.setdefault(name, CandidateRequest(name=name, can_be_skipped=True))
        else:
            name = _full_name(text)
            requests[name] = CandidateRequest(name=name, can_be_skipped=False)
    return tuple(requests.values())


def _every_method() -> Iterator[str]:
    """Yield the names of all methods but the default one, which chooses one of the others."""
    for name in (*METHODS, *ROTARY_METHOD_NAMES):
        if name != DEFAULT_METHOD:
            yield name


def _full_name(text: str) -> str:
    """Return a method with its settings in canonical spelling.

    Raises:
        ResizeError: The method is unknown, or its settings are invalid.
    """
    raise_first(method_errors(text, keep_first=None))
    method, settings = parse_method(text)
    return method_text(method.name, settings)
