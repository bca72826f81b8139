"""What a comparison of methods compares, and how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from ctxextend.errors import ResizeError, flag_name, raise_first
from ctxextend.evaluation.eval_model import ENCODER
from ctxextend.recipe import MIN_WINDOW, SEARCH_SECONDS, Evaluate, Resize, Train
from ctxextend.tables.method_facts import DEFAULT_METHOD, method_text
from ctxextend.tables.method_parser import (
    TUNED_SUFFIX,
    method_errors,
    parse_method,
    split_tuned,
)
from ctxextend.tables.methods import METHODS
from ctxextend.tables.rotary_methods import ROTARY_METHOD_NAMES

EVERY_METHOD = "all"  # every method of the registry with its defaults
DEFAULT_MEASURES: tuple[str, ...] = ()  # all that apply, as in `Evaluate`

TRAIN_FIELDS = {item.name for item in fields(Train)}
# Fields of `Evaluate` that a comparison sets; ``batch_size`` is that of training.
EVALUATE_FIELDS = {item.name for item in fields(Evaluate)} - {
    "data",
    "base",
    "no_base",
    "batch_size",
}


class CandidateRequest(NamedTuple):
    """A method to compare."""

    # With its settings, if any, as `method_text` spells them, and ``+tuned`` if it is tuned.
    name: str
    # Whether it is left out if it does not apply to the checkpoint, which is else an error.
    can_be_skipped: bool

    @property
    def method(self) -> str:
        """The method with its settings, as `resize` accepts it."""
        return split_tuned(self.name)[0]

    @property
    def is_tuned(self) -> bool:
        """Whether the table of the method is trained on the text for a while."""
        return split_tuned(self.name)[1]

    def resize(self, to: int | str) -> Resize:
        """Return the resize by this method to a length."""
        return Resize(to, method=self.method)


@dataclass(frozen=True)
class TunedText:
    """What the tables of tuned candidates are trained on, and for how long."""

    data: tuple[str, ...]
    eval_data: tuple[str, ...] = ()  # held-out text; empty: windows of `data`
    seconds: int = SEARCH_SECONDS  # for each candidate
    device: str | None = None  # as in `evaluate`
    threads: int | None = None  # as in `evaluate`


class TextUse(NamedTuple):
    """How methods are evaluated on text, and trained on text if they are."""

    evaluate: Evaluate
    train: Train | None  # None: no training
    tuned: TunedText | None = None  # None: no candidate is tuned

    @classmethod
    def from_values(
        cls,
        data: Sequence[str],
        steps: int,
        values: Mapping[str, Any],
        methods: Sequence[str] = (),
    ) -> "TextUse":
        """Build the settings from fields of `Evaluate` and `Train` by name; None is the default.

        Fields that both have are set in both.

        Args:
            data: Text to evaluate on, or, with `steps`, to train on.
            steps: Optimizer steps; 0: no training.
            values: The other fields.
            methods: The candidates, of which some may be tuned.

        Raises:
            ResizeError: A value is invalid, is one of training without `steps`, or does not apply
                to tuned candidates.
        """
        given = {name: value for name, value in values.items() if value is not None}
        if any(split_tuned(method)[1] for method in methods):
            return cls._with_tuned(data, steps, given)
        if steps == 0:
            _check_untrained(given)
        evaluate = _read_evaluate(data, given, is_training=steps != 0)
        if steps == 0:
            return cls(evaluate=evaluate, train=None)
        return cls(evaluate=evaluate, train=_read_train(data, steps, given))

    @classmethod
    def _with_tuned(cls, data: Sequence[str], steps: int, given: Mapping[str, Any]) -> "TextUse":
        """Build the settings if some candidates are tuned.

        Raises:
            ResizeError: As `from_values`.
        """
        _check_tuned(steps, given)
        others = {name: value for name, value in given.items() if name != "eval_data"}
        _check_untrained(others)
        if not data:
            message = f"{TUNED_SUFFIX} requires text to train on."
            raise ResizeError(message, "Pass some with --data, such as --data book.txt.")
        tuned = TunedText(
            data=tuple(data),
            eval_data=tuple(given.get("eval_data", ())),
            seconds=given.get("budget", SEARCH_SECONDS),
            device=given.get("device"),
            threads=given.get("threads"),
        )
        evaluate = _read_evaluate(data, given, is_training=True)
        return cls(evaluate=evaluate, train=None, tuned=tuned)


@dataclass(frozen=True)
class Compare:
    """What to compare, and how."""

    to: int | str  # new context length in positions, as `Resize.to`
    evaluate: Evaluate  # on windows held out of `train.data`, unless `train.eval_data` is given
    methods: tuple[CandidateRequest, ...]
    train: Train | None  # None: no training
    tuned: TunedText | None = None  # None: no candidate is tuned
    # Time for reading text, which sets the number of windows; `compare_quickly` sets it. None: a
    # full comparison.
    seconds: float | None = None
    # Time for reading text to search settings that methods leave open; None: they are not searched.
    search_seconds: float | None = None

    @classmethod
    def from_request(
        cls,
        to: int | str | None,
        text_use: TextUse,
        methods: Sequence[str] = (),
        *,
        can_skip_methods: bool = False,
        search_seconds: float | None = None,
    ) -> "Compare":
        """Check that the requested length, text and methods go together, and fill in defaults.

        Args:
            to: The new context length.
            text_use: How methods are evaluated and trained.
            methods: Methods with settings, or ``all``; by default all, or `DEFAULT_METHOD` if
                methods are trained.
            can_skip_methods: Whether `methods` may include some that do not apply to the
                checkpoint.
            search_seconds: Time to search settings that methods leave open.

        Raises:
            ResizeError: A value is invalid, or values do not go together.
            MethodError: A method is unknown.
        """
        if to is None:
            hint = "Pass a longer context length, such as --to 4x."
            raise ResizeError("--to is missing.", hint)
        if search_seconds is not None:
            _check_search(text_use)
        length = _read_length(to, text_use.evaluate)
        if text_use.train is not None and not methods:
            methods = [DEFAULT_METHOD]
        return cls(
            to=length,
            evaluate=text_use.evaluate,
            methods=read_methods(methods, can_be_skipped=can_skip_methods),
            train=text_use.train,
            tuned=text_use.tuned,
            search_seconds=search_seconds,
        )

    @property
    def is_quick(self) -> bool:
        """Whether little text is read, for advice."""
        return self.seconds is not None

    def evaluate_for(self, kind: str, to: int) -> Evaluate:
        """Return the settings to evaluate a kind of model at a length."""
        if self.is_quick:
            measure = DEFAULT_MEASURES if kind == ENCODER else ("position",)
            return replace(self.evaluate, length=(to,), measure=measure)
        settings = self.evaluate
        if settings.length:  # else the default lengths, of which `to` is one
            settings = replace(settings, length=(*settings.length, to))
        return with_ranking(settings, kind)


def _check_untrained(given: Mapping[str, Any]) -> None:
    """Raise ResizeError if a setting of training has another value than its default."""
    defaults = {item.name: item.default for item in fields(Train)}
    for name, value in given.items():
        if name not in EVALUATE_FIELDS and value != defaults[name]:
            flag = flag_name(name)
            raise ResizeError(f"{flag} requires --steps.", f"Add --steps, or remove {flag}.")


def _check_tuned(steps: int, given: Mapping[str, Any]) -> None:
    """Raise ResizeError if a setting cannot be combined with tuned candidates."""
    is_set = {
        "--steps": steps != 0,
        "--corpus": "corpus" in given,
        # `resize --data`, which makes the same table, cannot read another field.
        "--text-field": given.get("text_field", "text") != "text",
    }
    for flag, value in is_set.items():
        if value:
            message = f"{TUNED_SUFFIX} in --method cannot be used with {flag}."
            raise ResizeError(message, "Remove one of them.")


def _read_evaluate(data: Sequence[str], given: Mapping[str, Any], *, is_training: bool) -> Evaluate:
    """Return the settings of the evaluation."""
    values = {name: value for name, value in given.items() if name in EVALUATE_FIELDS}
    return Evaluate(_evaluated_text(data, given, is_training=is_training), **values)


def _evaluated_text(
    data: Sequence[str], given: Mapping[str, Any], *, is_training: bool
) -> tuple[str, ...]:
    """Return the text to evaluate on: the one given for it, or the one to train on."""
    if given.get("eval_data"):
        return tuple(given["eval_data"])
    if is_training and "corpus" in given:
        return ()  # the search set is evaluated, and all text is left to training
    return tuple(data)


def _read_train(data: Sequence[str], steps: int, given: Mapping[str, Any]) -> Train:
    """Return the settings of training."""
    only_of_evaluation = EVALUATE_FIELDS - TRAIN_FIELDS
    values = {name: value for name, value in given.items() if name not in only_of_evaluation}
    # With "best", the step would be selected on the text that methods are evaluated on.
    return Train(tuple(data), steps, save="last", **values)


def _check_search(text_use: TextUse) -> None:
    """Raise ResizeError for what a search for settings cannot be combined with."""
    is_set = {
        "--steps": text_use.train is not None,
        "--corpus": text_use.evaluate.corpus is not None,
    }
    for flag, value in is_set.items():
        if value:
            raise ResizeError(f"--tune cannot be used with {flag}.", "Remove one of them.")


def search_time(*, tune: bool, budget: int | None) -> float | None:
    """Return the seconds for a search for settings, by default `SEARCH_SECONDS`; None without."""
    if not tune:
        return None
    return budget or SEARCH_SECONDS


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
    if settings.corpus is not None or is_complete:
        return settings
    ranking = "retrieval" if kind == ENCODER else "position"
    return replace(settings, measure=(*settings.measure, ranking))


def read_methods(
    specs: Sequence[str], *, can_be_skipped: bool = False
) -> tuple[CandidateRequest, ...]:
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
            requests[name] = CandidateRequest(name=name, can_be_skipped=can_be_skipped)
    return tuple(requests.values())


def _every_method() -> Iterator[str]:
    """Yield the names of all methods but the default one, which chooses one of the others."""
    for name in (*METHODS, *ROTARY_METHOD_NAMES):
        if name != DEFAULT_METHOD:
            yield name


def _full_name(text: str) -> str:
    """Return a method with its settings, and ``+tuned`` if it is tuned, in canonical spelling.

    Raises:
        ResizeError: The method is unknown, or its settings are invalid.
    """
    untuned, is_tuned = split_tuned(text)
    if is_tuned and untuned == EVERY_METHOD:
        message = f"--method {EVERY_METHOD}{TUNED_SUFFIX}: each tuned method takes a whole budget."
        raise ResizeError(message, f"Name those to tune, such as --method bands{TUNED_SUFFIX}.")
    raise_first(method_errors(untuned, keep_first=None))
    method, settings = parse_method(untuned)
    name = method_text(method.name, settings)
    if is_tuned:
        name += TUNED_SUFFIX
    return name
