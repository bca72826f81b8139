"""The settings of all steps as dataclasses, built from command-line flags or recipe files."""

import inspect
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property, wraps
from numbers import Real
from typing import Any, get_args, get_origin

import numpy as np

from ctxextend.checkpoints.filenames import stays_inside
from ctxextend.errors import ResizeError, SourceError, did_you_mean, flag_name, raise_first
from ctxextend.families.known_types import describe_unknown, is_known, known_names
from ctxextend.length_text import (
    FORMS_WITH_FACTOR,
    IS_LENGTH,
    LENGTH_FORMS,
    is_factor,
    parse_length,
)
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import TRUNCATE, Function, method_text
from ctxextend.tables.method_parser import method_errors, read_choice, split_keep_first
from ctxextend.tables.rope_types import NONE

HUB_PREFIX = "hf:"  # of datasets on the Hub
RECIPE_FILE = "ctxextend.yaml"  # in every output
MEASURES = ("position", "context", "effective", "retrieval")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla")  # optionally followed by an index
TRAINABLE = {
    "new": "the new rows of the position table",
    "positions": "the position table",
    "all-but-positions": "all weights except the position table",
    "all": "all weights",
}
FROZEN = (None, "all-but-positions")  # values of `trainable` that leave position tables as they are
MAX_COUNT = 2**31 - 1  # maximum of integer settings, which libraries store in 32 bits
MAX_CONTEXT = 2**63 - 1  # disk space is checked before writing
MIN_WINDOW = 8  # minimum window length in tokens
# The scheme of a conversion that keeps positions, and attends in windows.
ATTENTION_WINDOWS = "window"
SCHEMES = ("rotary", "alibi", ATTENTION_WINDOWS, NONE)  # of a conversion
# Default base of the rotary frequencies after a conversion; docs/convert.md has the measurements.
DEFAULT_THETA = 1000.0
# Default attention window of a conversion; docs/convert.md has the measurements.
DEFAULT_ATTENTION_WINDOW = 256
MIN_ATTENTION_WINDOW = 4  # transformers' classes fail with 2 on an input of one token


@dataclass(frozen=True)
class CheckpointRef:
    """A reference to a checkpoint."""

    source: str  # local folder or weights file, name of a bundled checkpoint, or Hub id
    revision: str | None = None  # branch, tag or commit on the Hub
    subfolder: str | None = None  # subfolder of the source that contains the checkpoint
    variant: str | None = None  # weights variant, such as ``fp16``
    model_type: str | None = None  # overrides the config's model_type
    # Full name of the position table, for a model type that is not in the registry.
    tensor: str | None = None
    # With `tensor`: config key of the table's length, with dots for nested configs.
    config_key: str | None = None
    reserved_rows: int = 0  # with `tensor`: rows before position 0
    # Overrides the tokenizer: folder, bundled name, Hub id, or nanoGPT's meta.pkl.
    tokenizer: str | None = None
    # Of rotary positions: the length of the first training, in tokens, where the config misstates
    # it.
    trained_length: int | None = field(default=None, metadata=IS_LENGTH)

    def __post_init__(self) -> None:
        _parse_lengths(self)
        raise_first(self._errors())

    def _errors(self) -> Iterator[ResizeError]:
        """Yield every invalid or conflicting setting."""
        yield from self._tensor_errors()
        yield from _count_errors(self, 0, "reserved_rows")
        yield from _length_field_errors(self, 1, "trained_length")
        yield from self._name_errors()

    def _tensor_errors(self) -> Iterator[ResizeError]:
        """Yield an error for every setting that does not go with `tensor`, or without it."""
        if self.tensor is None:
            for key in ("reserved_rows", "config_key"):
                if getattr(self, key):
                    message = f"{flag_name(key)} requires --tensor."
                    yield ResizeError(message, "Add --tensor, or remove it.", key)
            return
        for key in ("model_type", "trained_length"):
            if getattr(self, key) is not None:
                message = f"--tensor cannot be used with {flag_name(key)}."
                yield ResizeError(message, "Remove one of them.", "tensor")

    def _name_errors(self) -> Iterator[ResizeError]:
        if self.subfolder is not None and not stays_inside(self.subfolder):
            message = f"--subfolder {self.subfolder} is not a folder inside MODEL."
            hint = "Pass a relative path, as on the Hub."
            yield ResizeError(message, hint, "subfolder")
        if self.variant is not None and not re.fullmatch(r"[\w-]+", self.variant):
            message = f"--variant {self.variant!r} must consist of letters, digits, - and _."
            yield ResizeError(message, "Pass a name such as fp16.", "variant")
        if self.model_type is not None and not is_known(self.model_type):
            hint = did_you_mean(self.model_type, known_names())
            if not hint:
                hint = "List supported model types with `ctxextend families`."
            yield ResizeError(describe_unknown(self.model_type), hint, "model_type")

    def resize_command(self, **flags: Any) -> str:
        """Return the command that resizes it, with the flags that are not None."""
        values = {key.replace("_", "-"): getattr(self, key) or None for key in REF_KEYS}
        return shlex.join(["ctxextend", "resize", self.source, *flag_words(values | flags)])


@dataclass(frozen=True)
class Convert:
    """How to convert a model to another position scheme, or to attention windows."""

    # ``rotary`` or ``alibi`` instead of learned positions, ``none`` instead of rotary ones, or
    # ``window`` for learned positions and attention to tokens near by.
    scheme: str
    # Context length of the output, as in `Resize`; defaults to the old one with scheme ``none``.
    to: int | str | None = field(default=None, metadata=IS_LENGTH)
    # Base of the rotary frequencies: the slowest turns once in about 2 pi x theta tokens. Defaults
    # to `DEFAULT_THETA`.
    theta: float | None = None
    encoder_only: bool = False  # drop the head, for heads that the new model type does not have
    # With scheme ``window``: tokens that each one attends to, half of them on either side, next to
    # itself; even. Defaults to `DEFAULT_ATTENTION_WINDOW`.
    attention_window: int | None = field(default=None, metadata=IS_LENGTH)
    # With scheme ``window``: the method that creates new rows, as in `Resize`; defaults to `COPY`.
    method: str | None = None

    def __post_init__(self) -> None:
        _parse_lengths(self)
        raise_first(self._errors())

    def _errors(self) -> Iterator[ResizeError]:
        yield from _choice_errors("scheme", self.scheme, SCHEMES)
        yield from self._required_errors()
        yield from self._window_errors()
        if self.encoder_only and self.scheme == NONE:
            message = (
                f"--encoder-only cannot be used with --scheme {NONE}, which keeps all weights."
            )
            yield ResizeError(message, "Remove --encoder-only.", "encoder_only")
        if self.theta is None:
            return
        if not is_number(self.theta):
            yield _number_error("theta", self.theta)
        elif not 1 < self.theta < math.inf:
            message = f"--theta must be above 1, got {self.theta:g}."
            yield ResizeError(message, setting="theta")
        if self.scheme != "rotary":
            message = f"--theta applies to --scheme rotary, not to --scheme {self.scheme}."
            yield ResizeError(message, "Remove --theta.", "theta")

    def _required_errors(self) -> Iterator[ResizeError]:
        """Yield an error for an invalid length, or for a missing one that has no default."""
        if self.to is not None:
            yield from _length_errors(self)
        elif self.scheme != NONE:
            message = f"--scheme {self.scheme} requires --to."
            hint = "Add the context length of the output: --to N."
            yield ResizeError(message, hint, "scheme")

    @property
    def half_window(self) -> int:
        """Tokens that each one attends to on either side; only with a window."""
        assert self.attention_window is not None
        return self.attention_window // 2

    def _window_errors(self) -> Iterator[ResizeError]:
        """Yield an error for an invalid window, and for settings that need windows."""
        if self.scheme != ATTENTION_WINDOWS:
            for key in ("attention_window", "method"):
                if getattr(self, key) is not None:
                    flag = flag_name(key)
                    message = (
                        f"{flag} applies to --scheme {ATTENTION_WINDOWS}, not to --scheme "
                        f"{self.scheme}."
                    )
                    yield ResizeError(message, f"Remove {flag}.", key)
            return
        yield from method_errors(self.method, None)
        yield from _length_field_errors(self, MIN_ATTENTION_WINDOW, "attention_window")
        window = self.attention_window
        if isinstance(window, int) and window % 2:
            message = (
                f"--attention-window must be even, got {window}: half of it is on either side."
            )
            hint = f"Use --attention-window {window + 1}."
            yield ResizeError(message, hint, "attention_window")
        if isinstance(window, int) and isinstance(self.to, int) and window > self.to:
            message = f"--attention-window {window} is above --to {self.to}."
            hint = "Lower it, or use ctxextend resize, which attends to all."
            yield ResizeError(message, hint, "attention_window")

    @property
    def positions(self) -> int:
        """The context length of the output; only if `to` is a number."""
        assert isinstance(self.to, int)
        return self.to


def _parse_lengths(settings: Any) -> None:
    """Turn the lengths in settings into numbers, except factors, such as ``4x``."""
    for setting in fields(settings):
        if setting.metadata == IS_LENGTH:
            value = getattr(settings, setting.name)
            if isinstance(value, str | tuple):
                object.__setattr__(settings, setting.name, parse_length(value))


def _length_errors(settings: "Convert | Resize") -> Iterator[ResizeError]:
    if settings.to is None:
        yield ResizeError(f"--to must be {FORMS_WITH_FACTOR}, got None.", setting="to")
    elif not isinstance(settings.to, str):
        yield from _count_errors(settings, 1, "to", maximum=MAX_CONTEXT)
    elif not is_factor(settings.to):
        message = f"--to must be {FORMS_WITH_FACTOR}, got {settings.to}."
        yield ResizeError(message, setting="to")


def _length_field_errors(settings: Any, minimum: int, *names: str) -> Iterator[ResizeError]:
    """Yield an error for every value of length fields that is out of range, or no length.

    A field has one value, several, or None.
    """
    for name in names:
        value = getattr(settings, name)
        for length in value if isinstance(value, tuple) else (value,):
            if isinstance(length, str):
                message = f"{flag_name(name)} must be {LENGTH_FORMS}, got {length}."
                yield ResizeError(message, setting=name)
            elif length is not None:
                yield from _number_errors(name, length, minimum, MAX_COUNT)


@dataclass(frozen=True, kw_only=True)
class Resize:
    """How to resize a position table."""

    # New context length in usable positions, ≥ 1, without reserved rows. ``4k`` is 4,096; ``4x`` is
    # four times the current length, which `Plan.settings` contains as a number.
    to: int | str = field(kw_only=False, metadata=IS_LENGTH)
    # A method with settings, such as ``bands:sigma=4,gain=1.2``, or `TRUNCATE`, which creates no
    # rows. None is `DEFAULT_METHOD` for a longer table; for a shorter one, only None and `TRUNCATE`
    # are allowed.
    method: str | None = None
    # Positions at the start that the method does not change; None is the method's default.
    keep_first: int | None = None
    part: str | None = None  # resize only this table (encoder, text, …); defaults to all
    # Make all length limits in config and tokenizer files agree with the table.
    fix_limits: bool = False

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, setting.name, value.item())
        _parse_lengths(self)
        errors = list(_length_errors(self))
        errors += method_errors(self.method, self.keep_first)
        raise_first(errors)
        if self.method is not None:
            method, keep_first = split_keep_first(self.method)
            object.__setattr__(self, "method", method)
            if keep_first is not None:
                object.__setattr__(self, "keep_first", keep_first)

    @cached_property
    def choice(self) -> MethodChoice:
        """The requested method with all of its settings."""
        return read_choice(self.method, self.keep_first)

    def with_settings(self, **changes: Any) -> "Resize":
        """Return a copy with changed settings of the method; None unsets one."""
        settings = {**self.choice.settings, **changes}
        return replace(self, method=method_text(self.choice.name, settings))

    @property
    def positions(self) -> int:
        """The new context length; only if `to` is a number."""
        assert isinstance(self.to, int)
        return self.to

    @property
    def method_flags(self) -> tuple[str, ...]:
        """Flags that were passed and apply only when new rows are created."""
        flags = []
        if self.method is not None and self.method != TRUNCATE:
            flags.append("--method")
        if self.keep_first:
            flags.append("--keep-first")
        return tuple(flags)


REF_KEYS = tuple(setting.name for setting in fields(CheckpointRef) if setting.name != "source")
# Fields of `CheckpointRef` that are keys of `resize`, because they describe the table.
TENSOR_KEYS = ("tensor", "config_key", "reserved_rows")
TABLE_KEYS = (*TENSOR_KEYS, "trained_length")
# Settings that depend on the machine, and are not written into recipes.
MACHINE_KEYS = ("device", "threads", "fsdp")


def accepted_type(setting: Field[Any]) -> Any:
    """Return the type of the values that a settings field accepts; a length may be text."""
    kind: Any = setting.type
    if setting.metadata != IS_LENGTH:
        return kind
    if get_origin(kind) is tuple:
        return tuple[int | str, ...]
    if type(None) in get_args(kind):
        return int | str | None
    return int | str


def split_ref(
    reference: str | os.PathLike[str], settings: Mapping[str, Any]
) -> tuple[CheckpointRef, dict[str, Any]]:
    """Split keyword arguments into a checkpoint reference and other settings.

    Of the others, paths become text, lists become tuples, and so does the single value of a setting
    that can have several.
    """
    stated = {key: value for key, value in settings.items() if key in REF_KEYS}
    others = {key: value for key, value in settings.items() if key not in REF_KEYS}
    multi_valued = _multi_valued(Evaluate) | _multi_valued(Train)
    for key, value in others.items():
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, list):
            value = tuple(value)
        if key in multi_valued and isinstance(value, str | int):
            value = (value,)
        others[key] = value
    return CheckpointRef(reference_name(reference), **stated), others


def reference_name(reference: str | os.PathLike[str]) -> str:
    """Return a reference to a checkpoint as text.

    Raises:
        SourceError: It is neither text nor a path.
    """
    if isinstance(reference, str | os.PathLike):
        return os.fspath(reference)
    message = f"reference must be text or a path, got {_shown(reference)}."
    raise SourceError(message, "Pass one folder, file, bundled name or Hub id.")


def path_names(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], name: str = "data"
) -> tuple[str, ...]:
    """Return one or several paths as strings.

    Args:
        paths: The paths.
        name: The argument that they are the value of, for errors.

    Raises:
        ResizeError: They are something else.
    """
    if isinstance(paths, str | os.PathLike):
        return (os.fspath(paths),)
    is_several = isinstance(paths, Iterable) and not isinstance(paths, bytes)
    listed: list[Any] = list(paths) if is_several else [paths]
    for path in listed:
        if not isinstance(path, str | os.PathLike):
            message = f"{flag_name(name)} must be text, a path or a list of them, got"
            raise ResizeError(f"{message} {_shown(path)}.", "Pass files or folders.")
    return tuple(os.fspath(path) for path in listed)


def _shown(value: object) -> str:
    """Return a value of a wrong type as Python writes it, if that is short."""
    return f"{value!r:.100}"


def _multi_valued(kind: type) -> set[str]:
    """Return the names of the fields that are tuples."""
    return {item.name for item in fields(kind) if get_origin(item.type) is tuple}


def accepts_settings(*kinds: type, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Restrict a function's ``**settings`` to fields of dataclasses, and list them as arguments.

    Args:
        kinds: The dataclasses; fields without a default are not settings.
        without: Fields that the function does not accept.

    Returns:
        A decorator. The function raises TypeError for other keyword arguments.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, _ = signature.parameters.values()
        added = dict[str, inspect.Parameter]()
        for kind in kinds:
            for setting in fields(kind):
                is_named = setting.name in signature.parameters or setting.name in without
                if setting.default is not MISSING and not is_named:
                    added[setting.name] = inspect.Parameter(
                        setting.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=setting.default,
                        annotation=accepted_type(setting),
                    )
        extended = signature.replace(parameters=[*named, *added.values()])

        @wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            unknown = settings.keys() - extended.parameters.keys()
            if unknown:
                name = min(unknown)
                message = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                hint = did_you_mean(name, extended.parameters)
                raise TypeError(f"{message}. {hint}" if hint else message)
            return function(*args, **settings)

        call.__signature__ = extended  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


@dataclass(frozen=True)
class Evaluate:
    """How to evaluate a checkpoint at its context length."""

    data: tuple[str, ...] = ()  # text files, folders, or Hub datasets (``hf:OWNER/NAME``)
    search: str | None = None  # folder of a search set for encoders, as in BEIR
    # Base checkpoint to compare against; defaults to the one in the model's recipe.
    base: str | None = None
    no_base: bool = False  # do not compare against the base checkpoint
    # Context lengths to measure; defaults to doublings up to the model's length.
    length: tuple[int, ...] = field(default=(), metadata=IS_LENGTH)
    tokens: int = 65_536  # maximum number of tokens to use
    batch_size: int | None = None  # windows per batch; defaults to as many as fit 4,096 tokens
    # ``fp32``, ``bf16``, ``fp16``, or ``auto``: bf16 if the accelerator supports it, else fp32.
    precision: str = "auto"
    seed: int = 0  # random seed for masks and needles
    # ``position`` (loss by position), ``context`` (loss by context length), ``effective`` (how far
    # it reads) and ``retrieval`` (document retrieval); default: all that apply.
    measure: tuple[str, ...] = ()
    budget: int = 120  # seconds for measuring how far it reads
    text_field: str = "text"  # name of the text field (JSONL) or column
    device: str | None = None  # ``cpu``, ``cuda:1``, …; defaults to the accelerator if there is one
    # CPU threads; defaults to ``OMP_NUM_THREADS``, else to one for small models or all CPUs.
    threads: int | None = None

    @property
    def measures_effective_only(self) -> bool:
        """Whether only the effective length is measured, which needs no base."""
        return self.measure == ("effective",)

    def __post_init__(self) -> None:
        if isinstance(self.measure, tuple):
            object.__setattr__(self, "measure", tuple(dict.fromkeys(self.measure)))
        _parse_lengths(self)
        raise_first(self._errors())

    def _errors(self) -> Iterator[ResizeError]:
        """Yield every invalid or conflicting setting."""
        yield from _length_field_errors(self, MIN_WINDOW, "length")
        yield from _count_errors(self, 1, "tokens", "batch_size", "threads", "budget")
        yield from _count_errors(self, 0, "seed")
        yield from _choice_errors("precision", self.precision, PRECISIONS)
        yield from _device_errors(self.device)
        yield from _choice_errors("measure", self.measure, MEASURES)
        yield from self._base_errors()
        yield from self._text_errors()

    def _base_errors(self) -> Iterator[ResizeError]:
        if not self.no_base:
            return
        if self.base is not None:
            message = "--no-base cannot be used with --base."
            yield ResizeError(message, "Remove one of them.", "no_base")
        elif "retrieval" in self.measure:
            flag = "--measure retrieval, which requires the base checkpoint"
            message = f"--no-base cannot be used with {flag}."
            yield ResizeError(message, "Remove one of them.", "no_base")

    def _text_errors(self) -> Iterator[ResizeError]:
        hint = "Pass files or folders: --data book.txt --data articles.jsonl."
        if self.measure and not self.data:
            yield ResizeError("--measure applies to text.", hint, "measure")
        elif not self.data and self.search is None:
            yield ResizeError("No text given.", hint)


@dataclass(frozen=True)
class Train:
    """How to fine-tune a checkpoint."""

    data: tuple[str, ...]  # text files, folders, or Hub datasets (``hf:OWNER/NAME``)
    steps: int  # number of optimizer steps, ≥ 1
    text_field: str = "text"  # name of the text field (JSONL) or column
    # Maximum number of tokens of `data` to read; defaults to as many as `steps` need, and at least
    # 1.3 million.
    tokens: int | None = None
    # Sequence length in positions; defaults to the model's context length.
    seq_len: int | None = field(default=None, metadata=IS_LENGTH)
    # Tokens per sequence, placed at random positions within `seq_len`; defaults to `seq_len`.
    window: int | None = field(default=None, metadata=IS_LENGTH)
    # Skip positions once in each window, together with the text in between (PoSE).
    window_skip: bool = False
    # ``new`` (rows), ``positions`` (the table; default), ``all-but-positions`` (default of fixed
    # sinusoids) or ``all`` (default of rotary positions, which have no rows).
    trainable: str | None = None
    # Rank of low-rank adapters (LoRA), trained with the table or, with all-but-positions, only.
    lora: int | None = None
    # With `lora`: save a PEFT adapter for the checkpoint instead of merged weights.
    save_adapter: bool = False
    lr: float | None = None  # peak learning rate; the default depends on `trainable`
    weight_decay: float = 0.0  # weight decay of AdamW, ≥ 0
    batch_size: int = 8  # sequences per optimizer step, over all devices
    # Micro-batch size per device; defaults to what fits its memory.
    per_device_batch_size: int | None = None
    precision: str = "auto"  # as in `evaluate`
    seed: int = 0  # random seed for data order, masking and positions
    # Held-out text; defaults to one window in 20 of `data`, not used for training.
    eval_data: tuple[str, ...] = ()
    # Steps between evaluations after the initial one; defaults to a quarter of `steps`.
    eval_every: int | None = None
    save_every: int | None = None  # steps between saved states; defaults to a tenth of `steps`
    save: str = "best"  # weights to save: the ``best`` by held-out loss, or the ``last``
    report_to: str = "none"  # experiment tracker, as in transformers: ``tensorboard``, ``wandb``, …
    # Base checkpoint, the teacher; defaults to the one in the model's recipe.
    base: str | None = None
    # Weight of distillation from the base besides another objective, ≥ 0; defaults to 4 in language
    # models that were converted, to 5 in contrastive training, else to 0. Where only the table of a
    # language model is trained, it is the share of distillation, from 0 to 1: by default 1 in
    # windows that the base can read, else 0.
    distill: float | None = None
    # Train a sentence encoder to find the text of a pair among those of a batch: a document by one
    # of its ``passages``, or the positive of an anchor in ``pairs``, .jsonl or .tsv files (anchor,
    # positive and maybe negative) in `data`.
    contrastive: str | None = None
    # Dtype of the saved weights: ``fp32``, ``bf16`` or ``fp16``; defaults to the source's.
    dtype: str | None = None
    # Shard the model across processes, which are started by torchrun or accelerate.
    fsdp: bool = False
    device: str | None = None  # as in `evaluate`
    threads: int | None = None  # as in `evaluate`

    @property
    def trains_weights(self) -> bool:
        """Whether parameters other than position tables are trained."""
        return self.lora is not None or self.trainable in ("all-but-positions", "all")

    @property
    def compares_tables(self) -> bool:
        """Whether only position rows are trained, by distillation or in windows.

        Held-out text is then read whole, to tell which table reads long texts better.
        """
        is_only_table = self.trainable in ("new", "positions") and self.lora is None
        is_distilled = self.window is not None or bool(self.distill)
        return is_only_table and is_distilled and not self.contrastive

    @property
    def trained_text(self) -> str:
        """What is trained, as text; `trainable` is set."""
        text = TRAINABLE[str(self.trainable)]
        if not self.lora:
            return text
        adapters = f"adapters of rank {self.lora}"
        if self.trainable in FROZEN:
            return adapters
        return f"{text} and {adapters}"

    def __post_init__(self) -> None:
        _parse_lengths(self)
        raise_first(self._value_errors())
        raise_first(self._conflicts())

    def _value_errors(self) -> Iterator[ResizeError]:
        """Yield every value that is invalid by itself."""
        yield from _length_field_errors(self, MIN_WINDOW, "seq_len", "window")
        yield from _count_errors(self, 1, "steps", "batch_size", "per_device_batch_size")
        yield from _count_errors(self, 1, "eval_every", "save_every", "threads", "lora", "tokens")
        yield from _count_errors(self, 0, "seed")
        yield from _choice_errors("trainable", self.trainable, tuple(TRAINABLE))
        yield from _choice_errors("precision", self.precision, PRECISIONS)
        yield from _device_errors(self.device)
        yield from _choice_errors("dtype", self.dtype, PRECISIONS[1:])
        yield from _choice_errors("save", self.save, ("best", "last"))
        yield from _choice_errors("contrastive", self.contrastive or None, ("passages", "pairs"))
        if not self.data:
            hint = "Pass some with --data, such as --data book.txt."
            yield ResizeError("No training text.", hint)
        yield from _positive_errors("lr", self.lr)
        yield from _weight_errors("weight_decay", self.weight_decay)
        yield from _weight_errors("distill", self.distill)

    def _conflicts(self) -> Iterator[ResizeError]:
        """Yield values that cannot be combined, each valid by itself."""
        yield from _contrastive_conflicts(self)
        yield from _adapter_conflicts(self)
        yield from _window_conflicts(self)
        yield from _batch_conflicts(self)


def _window_conflicts(train: Train) -> Iterator[ResizeError]:
    if train.window is None:
        if train.window_skip:
            message = "--window-skip requires --window."
            yield ResizeError(message, "Add --window.", "window_skip")
        return
    if train.seq_len is not None and train.window > train.seq_len:
        message = f"--window must be at most --seq-len {train.seq_len}, got {train.window}."
        yield ResizeError(message, "Lower --window, or remove it.", "window")


def _contrastive_conflicts(train: Train) -> Iterator[ResizeError]:
    if not train.contrastive:
        return
    if train.window_skip:
        message = "--window-skip cannot be used with --contrastive or --pairs."
        yield ResizeError(message, "Remove it.", "window_skip")
    if train.batch_size < 2:
        message = f"--batch-size must be at least 2 to compare texts, got {train.batch_size}."
        yield ResizeError(message, setting="batch_size")


def _adapter_conflicts(train: Train) -> Iterator[ResizeError]:
    if train.lora is not None and train.trainable == "all":
        purpose = "--lora trains adapters instead of all weights"
        message = f"{purpose}, so it cannot be used with --trainable all."
        yield ResizeError(message, "Remove one of them.", "lora")
    if train.save_adapter and train.lora is None:
        message = "--save-adapter requires --lora."
        yield ResizeError(message, "Add --lora R.", "save_adapter")
    elif train.save_adapter and train.dtype:
        message = "--save-adapter cannot be used with --dtype."
        yield ResizeError(message, "Remove it.", "save_adapter")


def _batch_conflicts(train: Train) -> Iterator[ResizeError]:
    size = train.per_device_batch_size
    if size is not None and train.batch_size % size:
        expected = f"a multiple of --per-device-batch-size {size}"
        message = f"--batch-size must be {expected}, got {train.batch_size}."
        hint = "Change one of them: a step consists of whole micro-batches."
        yield ResizeError(message, hint, "per_device_batch_size")


@dataclass(frozen=True)
class Recipe:
    """A checkpoint and the steps to run on it, in this order; None skips a step."""

    checkpoint: CheckpointRef
    resize: Resize | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    # Output folder; defaults to ``<name>-<length>``, or ``<name>-trained`` without `resize`.
    output: str | None = None
    convert: Convert | None = None  # instead of `resize`


# The steps of a recipe by their names in it.
SECTIONS: Mapping[str, Any] = {
    "convert": Convert,
    "resize": Resize,
    "train": Train,
    "evaluate": Evaluate,
}


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return command-line arguments for flags with values, without those that are None.

    A flag with several values is repeated.
    """
    words = list[str]()
    for flag, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None:
                words += [f"--{flag}", str(one)]
    return words


def _count_errors(
    settings: Any, minimum: int, *names: str, maximum: int = MAX_COUNT
) -> Iterator[ResizeError]:
    """Yield an error for every value of integer fields that is out of range.

    A field has one value, several, or None.
    """
    for name in names:
        value = getattr(settings, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None:
                yield from _number_errors(name, number, minimum, maximum)


def _number_errors(name: str, number: Any, minimum: int, maximum: int) -> Iterator[ResizeError]:
    flag = flag_name(name)
    if type(number) is not int:
        message = f"{flag} must be an integer, got {number!r}."
        yield ResizeError(message, setting=name)
    elif number < minimum:
        message = f"{flag} must be at least {minimum}, got {number!r}."
        yield ResizeError(message, setting=name)
    elif number > maximum:
        message = f"{flag} must be at most {maximum:,}, got {number:,}."
        yield ResizeError(message, setting=name)


def is_number(value: object) -> bool:
    """Whether a value is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _number_error(name: str, value: object) -> ResizeError:
    message = f"{flag_name(name)} must be a number, got {_shown(value)}."
    return ResizeError(message, setting=name)


def _positive_errors(name: str, value: float | None) -> Iterator[ResizeError]:
    if value is None:
        return
    if not is_number(value):
        yield _number_error(name, value)
    elif not 0 < value < math.inf:
        message = f"{flag_name(name)} must be positive, got {value:g}."
        yield ResizeError(message, setting=name)


def _weight_errors(name: str, value: float | None) -> Iterator[ResizeError]:
    if value is None:
        return
    if not is_number(value):
        yield _number_error(name, value)
    elif not 0 <= value < math.inf:
        message = f"{flag_name(name)} must be at least 0, got {value:g}."
        yield ResizeError(message, setting=name)


def _device_errors(device: str | None) -> Iterator[ResizeError]:
    if device:
        yield from _choice_errors("device", str(device).partition(":")[0], DEVICES)


def _choice_errors(
    name: str, value: str | Sequence[str] | None, choices: tuple[str, ...]
) -> Iterator[ResizeError]:
    """Yield an error for every value of a field that is not one of its choices.

    A field has one value, several, or None.
    """
    values: Iterable[object] = () if value is None else (value,)
    if isinstance(value, tuple | list):
        values = value
    for item in values:
        if item not in choices:
            message = f"{flag_name(name)} must be one of {', '.join(choices)}, got {item}."
            yield ResizeError(message, did_you_mean(str(item), choices) or None, name)
