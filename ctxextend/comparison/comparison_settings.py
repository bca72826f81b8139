"""What a comparison of methods compares, and how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from ctxextend.errors import MethodError, ResizeError, flag_name
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.recipe import MIN_WINDOW, Evaluate, Resize, Train
from ctxextend.tables.method_facts import DEFAULT_METHOD, method_text
from ctxextend.tables.method_parser import parse_method
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

EVERY_METHOD = "all"  # every method of the registry with its defaults

# Fields of `Evaluate` that `Compare.from_flags` accepts.
EVALUATE_FIELDS = {item.name for item in fields(Evaluate)} - {
    "data",
    "base",
    "no_base",
    "batch_size",
}
# Settings that methods cannot be compared with on held-out rows.
NOT_WITH_HELD_OUT_ROWS = ("steps", "length", "measure", "corpus")


class CandidateRequest(NamedTuple):
    """A method to compare."""

    name: str  # with its settings, if any
    resize: Resize  # to `Compare.to`, or any length if that is None
    is_named: bool  # whether the user named it, so that it cannot be skipped


@dataclass(frozen=True)
class Compare:
    """What to compare, and how."""

    # New context length in positions, as `Resize.to`, of the cut tables with `hold_out`; None: the
    # checkpoint's own.
    to: int | str | None
    evaluate: Evaluate  # on windows held out of `train.data`, unless `train.eval_data` is given
    methods: tuple[CandidateRequest, ...]
    train: Train | None  # None: no training
    # The first held-out row, a position; None: extend the tables as they are.
    hold_out: int | None = None
    # Of a quick comparison: time for reading text, which sets the number of windows. None: a full
    # comparison.
    seconds: float | None = None

    @classmethod
    def from_flags(
        cls,
        to: int | str | None,
        data: Sequence[str] = (),
        methods: Sequence[str] = (),
        steps: int = 0,
        hold_out: int | None = None,
        is_named: bool = True,
        **flags: Any,
    ) -> "Compare":
        """Build the settings from fields of `Evaluate` and `Train` by name; None is the default.

        Raises:
            ResizeError: A value is invalid, or values do not go together.
            MethodError: A method is unknown, or `hold_out` is too short.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        of_evaluation = {name: value for name, value in given.items() if name in EVALUATE_FIELDS}
        of_training = {name: value for name, value in given.items() if name not in of_evaluation}
        if not steps:
            _check_untrained(of_training)
        evaluated = _evaluated_text(data, given, trains=steps > 0)
        evaluate = Evaluate(evaluated, **of_evaluation)
        if hold_out is None:
            _check_length_given(to)
        else:
            _check_hold_out(hold_out, {**given, "steps": steps})
        length = _read_length(to, evaluate)
        if not steps:
            compared = read_methods(methods, length, is_named=is_named)
            return cls(
                to=length, evaluate=evaluate, methods=compared, train=None, hold_out=hold_out
            )
        return cls(
            to=length,
            evaluate=evaluate,
            methods=read_methods(methods or [DEFAULT_METHOD], length, is_named=is_named),
            train=_read_train(data, steps, of_evaluation, of_training),
            hold_out=hold_out,
        )

    @property
    def is_quick(self) -> bool:
        """Whether little text is read, for advice."""
        return self.seconds is not None

    def evaluate_for(self, kind: str, to: int) -> Evaluate:
        """Return the settings to evaluate a kind of model at a length."""
        if self.is_quick:
            measure = () if kind == ENCODER else ("position",)
            return replace(self.evaluate, length=(to,), measure=measure)
        settings = self.evaluate
        if settings.length:  # else the default lengths, of which `to` is one
            settings = replace(settings, length=(*settings.length, to))
        return with_ranking(settings, kind)


def _evaluated_text(
    data: Sequence[str], given: Mapping[str, Any], *, trains: bool
) -> tuple[str, ...]:
    """Return the text to evaluate on: the one given for it, or the one to train on."""
    if given.get("eval_data"):
        return tuple(given["eval_data"])
    if trains and "corpus" in given:
        return ()  # the search set is evaluated, and all text is left to training
    return tuple(data)


def _read_train(
    data: Sequence[str],
    steps: int,
    of_evaluation: Mapping[str, Any],
    of_training: Mapping[str, Any],
) -> Train:
    """Return the settings of training, with those that it shares with the evaluation."""
    names = {item.name for item in fields(Train)}
    shared = {name: value for name, value in of_evaluation.items() if name in names}
    # With "best", the step would be selected on the text that methods are evaluated on.
    return Train(tuple(data), steps, save="last", **of_training, **shared)


def _check_untrained(training: Mapping[str, Any]) -> None:
    """Raise ResizeError if a setting of training has another value than its default."""
    defaults = {item.name: item.default for item in fields(Train)}
    for name, value in training.items():
        if value != defaults.get(name):
            flag = flag_name(name)
            raise ResizeError(f"{flag} requires --steps.", f"Add --steps, or remove {flag}.")


def _check_length_given(to: int | str | None) -> None:
    """Raise ResizeError if a new length is missing. Only --hold-out works without one."""
    if to is None:
        hint = "Pass a longer context length, such as --to 4x."
        raise ResizeError("--to or --hold-out is missing.", hint)


def _check_hold_out(hold_out: int, given: Mapping[str, Any]) -> None:
    """Check that there are enough rows, and that the settings apply to held-out rows.

    Raises:
        MethodError: `hold_out` is too short.
        ResizeError: A setting does not apply.
    """
    if hold_out < MIN_WINDOW:
        raise MethodError(f"--hold-out must be at least {MIN_WINDOW}, got {hold_out}.")
    for name in NOT_WITH_HELD_OUT_ROWS:
        if given.get(name):
            reason = (
                f"--{name} cannot be used with --hold-out, which measures untrained methods "
                "its own way."
            )
            raise ResizeError(reason, "Remove one of them.")


def _read_length(to: int | str | None, evaluate: Evaluate) -> int | str | None:
    """Return the new context length as `Resize` reads it; raise ResizeError if it is too short."""
    if to is None:
        return None
    to = Resize(to).to
    if isinstance(to, str):
        return to
    if to < MIN_WINDOW:
        raise ResizeError(f"--to must be at least {MIN_WINDOW} to compare methods, got {to}.")
    longest = max(evaluate.length, default=0)
    if longest > to:
        raise ResizeError(f"--length {longest} is more than --to {to}.", "Use a larger --to.")
    return to


def with_ranking(settings: Evaluate, kind: str) -> Evaluate:
    """Add the measure that ranks a kind of models to the requested ones, if any."""
    if settings.corpus is not None or not settings.measure:
        return settings
    ranking = "retrieval" if kind == ENCODER else "position"
    return replace(settings, measure=(*settings.measure, ranking))


def read_methods(
    specs: Sequence[str], to: int | str | None, *, is_named: bool = True
) -> tuple[CandidateRequest, ...]:
    """Return the requested methods, each once; by default, and for ``all``, every method.

    Raises:
        ResizeError: A method is unknown, or its settings are invalid.
    """
    length = MIN_WINDOW if to is None else to
    found = dict[str, CandidateRequest]()
    for text in specs or [EVERY_METHOD]:
        if text.strip() == EVERY_METHOD:
            for spec in _every_method(length):
                found.setdefault(spec.name, spec)
        else:
            resize = Resize(length, method=text)
            method, given = parse_method(text)
            full_name = method_text(method.name, given)
            found[full_name] = CandidateRequest(name=full_name, resize=resize, is_named=is_named)
    return tuple(found.values())


def _every_method(to: int | str) -> Iterator[CandidateRequest]:
    for name in (*METHODS, *ROTARY_METHOD_NAMES):
        if name != DEFAULT_METHOD:  # it chooses one of the others
            yield CandidateRequest(name=name, resize=Resize(to, method=name), is_named=False)
