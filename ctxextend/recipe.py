"""The settings of all steps as dataclasses, built from command-line flags or recipe files."""

import inspect
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, get_origin

import numpy as np

from ctxextend.checkpoints.filenames import stays_inside
from ctxextend.errors import ResizeError, did_you_mean, flag_name, raise_first
from ctxextend.families.registry import FAMILIES
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.tables.choice import MethodChoice
from ctxextend.tables.method_facts import COUNTS, TRUNCATE, Function, method_text
from ctxextend.tables.method_parser import method_errors, read_choice, split_counts

HUB_PREFIX = "hf:"  # of datasets on the Hub
RECIPE_FILE = "ctxextend.yaml"  # in every output
MEASURES = ("position", "context", "passkey", "retrieval", "shift")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla")  # optionally followed by an index
TRAINABLE = {
    "new": "the new rows of the position table",
    "positions": "the position table",
    "all-but-positions": "all weights except the position table",
    "all": "all weights",
}
FROZEN = (None, "all-but-positions")  # values of `trainable` that leave position tables as they are
MAX_INT = 2**31 - 1  # maximum of integer settings, which libraries store in 32 bits
LENGTH = re.compile(r"(?!0+x)([0-9]{1,18})([kx]?)")  # format of `Resize.to`
MIN_LENGTH = 8  # minimum window length in tokens
# default base of the rotary frequencies after a conversion; docs/convert.md has the measurements
THETA = 1000.0


@dataclass(frozen=True)
class CheckpointRef:
    """A reference to a checkpoint."""

    source: str  # local folder or weights file, name of a bundled checkpoint, or Hub id
    revision: str | None = None  # branch, tag or commit on the Hub
    subfolder: str | None = None  # subfolder of the source that contains the checkpoint
    variant: str | None = None  # weights variant, such as ``fp16``
    model_type: str | None = None  # overrides the config's model_type
    tensor: str | None = (
        None  # full name of the position table, for a model type that is not in the registry
    )
    config_key: str | None = (
        None  # with `tensor`: config key of the table's length, with dots for nested configs
    )
    reserved_rows: int = 0  # with `tensor`: rows before position 0
    tokenizer: str | None = (
        None  # overrides the tokenizer: folder, bundled name, Hub id, or nanoGPT's meta.pkl
    )
    # Of rotary positions: the length of the first training, in tokens, where the config misstates
    # it.
    trained_length: int | None = None

    def __post_init__(self) -> None:
        if self.tensor is None and (self.config_key is not None or self.reserved_rows):
            raise ResizeError(
                "--reserved-rows and --config-key require --tensor.",
                "Add --tensor, or remove them.",
            )
        if self.tensor is not None and self.model_type is not None:
            raise ResizeError("--tensor cannot be used with --model-type.", "Remove one of them.")
        if self.tensor is not None and self.trained_length is not None:
            raise ResizeError(
                "--tensor cannot be used with --trained-length.", "Remove one of them."
            )
        raise_first(_count_errors(self, 0, "reserved_rows"))
        raise_first(_count_errors(self, 1, "trained_length"))
        if self.subfolder is not None and not stays_inside(self.subfolder):
            hint = "Pass a relative path, as on the Hub."
            raise ResizeError(f"--subfolder {self.subfolder} is not a folder inside MODEL.", hint)
        if self.variant is not None and not re.fullmatch(r"[\w-]+", self.variant):
            hint = "Pass a name such as fp16."
            raise ResizeError(
                f"--variant {self.variant!r} must consist of letters, digits, - and _.", hint
            )
        if self.model_type is not None and self.model_type not in (*FAMILIES, *POSITION_SCHEMES):
            hint = (
                did_you_mean(self.model_type, FAMILIES)
                or "List supported model types with `ctxextend families`."
            )
            raise ResizeError(f"Unknown model type {self.model_type!r}.", hint)

    def resize_command(self, **flags: Any) -> str:
        """Return the command that resizes it, with the flags that are not None."""
        values = {key.replace("_", "-"): getattr(self, key) or None for key in REF_KEYS}
        return shlex.join(["ctxextend", "resize", self.source, *flag_words(values | flags)])


@dataclass(frozen=True)
class Convert:
    """How to convert learned positions to another position scheme."""

    scheme: str  # ``rotary`` or ``alibi``
    to: int | str  # context length of the output, as in `Resize`
    # Base of the rotary frequencies: the slowest turns once in about 2 pi x theta tokens. Defaults
    # to `THETA`.
    theta: float | None = None
    encoder_only: bool = False  # drop the head, for heads that the new model type does not have

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", parse_length(self.to))
        errors = [
            *_choice_errors("scheme", self.scheme, ("rotary", "alibi")),
            *_length_errors(self),
        ]
        if self.theta is not None and not 1 < self.theta < math.inf:
            errors.append(ResizeError(f"--theta must be above 1, got {self.theta:g}."))
        if self.theta is not None and self.scheme != "rotary":
            errors.append(
                ResizeError(
                    f"--theta applies to --scheme rotary, not {self.scheme}.", "Remove --theta."
                )
            )
        raise_first(errors)


def parse_length(to: int | str) -> int | str:
    """Return a length as a number unless it is a factor, such as ``4x``, or invalid."""
    match = LENGTH.fullmatch(to := to.lower()) if isinstance(to, str) else None
    return int(match[1]) * (1024 if match[2] else 1) if match and match[2] != "x" else to


def _length_errors(settings: "Convert | Resize") -> Iterator[ResizeError]:
    if not isinstance(settings.to, str):
        yield from _count_errors(
            settings, 1, "to", maximum=2**63 - 1
        )  # disk space is checked before writing
    elif not LENGTH.fullmatch(settings.to):
        yield ResizeError(
            "--to must be a number, such as 4096 or 4k, or a factor, such as 4x, got "
            f"{settings.to}."
        )


@dataclass(frozen=True, kw_only=True)
class Resize:
    """How to resize a position table."""

    # New context length in usable positions, ≥ 1, without reserved rows. ``4k`` is 4,096; ``4x`` is
    # four times the current length, which `ResizePlan.settings` contains as a number.
    to: int | str = field(kw_only=False)
    # A method with settings, such as ``bands:sigma=4,gain=1.2``, or `TRUNCATE`, which creates no
    # rows. None is `DEFAULT_METHOD` for a longer table; for a shorter one, only None and `TRUNCATE`
    # are allowed.
    method: str | None = None
    # Positions at the start that the method does not change; None is the method's default.
    keep_first: int | None = None
    drop_last: int = 0  # positions at the end that are not used to create new rows
    part: str | None = None  # resize only this table (encoder, text, …); defaults to all
    # Make all length limits in config and tokenizer files agree with the table.
    fix_limits: bool = False
    copy_code: bool = False  # also copy code files (*.py, …); they are never run

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, setting.name, value.item())
        object.__setattr__(self, "to", parse_length(self.to))
        errors = list(_length_errors(self))
        errors += method_errors(self.method, self.keep_first, self.drop_last)
        raise_first(errors)
        if self.method is not None:
            method, counts = split_counts(self.method)
            object.__setattr__(self, "method", method)
            for key, count in counts.items():
                object.__setattr__(self, key, count)

    @cached_property
    def choice(self) -> MethodChoice:
        """The requested method with all of its settings."""
        return read_choice(self.method, self.keep_first, self.drop_last)

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
        flags += [flag_name(key) for key in COUNTS if getattr(self, key)]
        return tuple(flags)


REF_KEYS = tuple(setting.name for setting in fields(CheckpointRef) if setting.name != "source")


def split_ref(
    reference: str | os.PathLike[str], settings: Mapping[str, Any]
) -> tuple[CheckpointRef, dict[str, Any]]:
    """Split keyword arguments into a checkpoint reference and other settings, with paths as str and
    lists as tuples.
    """
    ref = CheckpointRef(
        os.fspath(reference), **{key: value for key, value in settings.items() if key in REF_KEYS}
    )
    others = {key: value for key, value in settings.items() if key not in REF_KEYS}
    others = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in others.items()
    }
    # A single value is accepted for settings with several values.
    multi_valued = {
        item.name
        for kind in (Evaluate, Train)
        for item in fields(kind)
        if get_origin(item.type) is tuple
    }
    others |= {
        key: (others[key],)
        for key in multi_valued & others.keys()
        if isinstance(others[key], str | int)
    }
    return ref, {
        key: tuple(value) if isinstance(value, list) else value for key, value in others.items()
    }


def accepts_settings(*kinds: type, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Restrict a function's ``**settings`` to the fields of these dataclasses, and add them to its
    signature.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, _ = signature.parameters.values()
        added = dict[str, inspect.Parameter]()
        for setting in (
            item for kind in kinds for item in fields(kind) if item.default is not MISSING
        ):
            if (name := setting.name) not in {*signature.parameters, *without}:
                kind = inspect.Parameter.KEYWORD_ONLY
                added[name] = inspect.Parameter(
                    name, kind, default=setting.default, annotation=setting.type
                )
        extended = signature.replace(parameters=[*named, *added.values()])

        @wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            if unknown := settings.keys() - extended.parameters.keys():
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}"
                )
            return function(*args, **settings)

        call.__signature__ = extended  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


@dataclass(frozen=True)
class Evaluate:
    """How to evaluate a checkpoint at its context length."""

    data: tuple[str, ...] = ()  # text files, folders, or Hub datasets (``hf:OWNER/NAME``)
    corpus: str | None = None  # documents of a search set for encoders, as in BEIR: .jsonl or .tsv
    queries: str | None = None  # queries of the search set
    qrels: str | None = None  # relevance judgements of the search set
    base: str | None = (
        None  # base checkpoint to compare against; defaults to the one in the model's recipe
    )
    no_base: bool = False  # do not compare against the base checkpoint
    length: tuple[
        int, ...
    ] = ()  # context lengths to measure; defaults to doublings up to the model's length
    tokens: int = 65_536  # maximum number of tokens to use
    batch_size: int | None = None  # windows per batch; defaults to as many as fit 4,096 tokens
    # ``fp32``, ``bf16``, ``fp16``, or ``auto``: bf16 if the accelerator supports it, else fp32
    precision: str = "auto"
    seed: int = 0  # random seed for masks and passkeys
    # ``position`` (loss by position), ``context`` (loss by context length), ``passkey`` (passkey
    # retrieval), ``retrieval`` (document retrieval) and ``shift`` (one text at growing positions);
    # default: all others that apply.
    measure: tuple[str, ...] = ()
    text_field: str = "text"  # name of the text field (JSONL) or column
    device: str | None = None  # ``cpu``, ``cuda:1``, …; defaults to the accelerator if there is one
    threads: int | None = (
        # CPU threads; defaults to ``OMP_NUM_THREADS``, else to one for small models or all CPUs
        None
    )

    def __post_init__(self) -> None:
        errors = [
            *_count_errors(self, MIN_LENGTH, "length"),
            *_count_errors(self, 1, "tokens", "batch_size", "threads"),
            *_count_errors(self, 0, "seed"),
            *_choice_errors("precision", self.precision, PRECISIONS),
            *_choice_errors("device", (self.device or "cpu").partition(":")[0], DEVICES),
            *_choice_errors("measure", self.measure, MEASURES),
        ]
        if self.no_base and (self.base is not None or "retrieval" in self.measure):
            flag = (
                "--base"
                if self.base is not None
                else "--measure retrieval, which requires the base checkpoint"
            )
            errors.append(
                ResizeError(f"--no-base cannot be used with {flag}.", "Remove one of them.")
            )
        files = (self.corpus, self.queries, self.qrels)
        if any(files) and not all(files):
            errors.append(
                ResizeError(
                    "--corpus, --queries and --qrels belong together.", "Pass all three, or none."
                )
            )
        if not self.data and (self.measure or not any(files)):
            message = "--measure applies to text." if self.measure else "No text given."
            errors.append(
                ResizeError(
                    message, "Pass files or folders: --data book.txt --data articles.jsonl."
                )
            )
        raise_first(errors)


@dataclass(frozen=True)
class Train:
    """How to fine-tune a checkpoint."""

    data: tuple[str, ...]  # text files, folders, or Hub datasets (``hf:OWNER/NAME``)
    steps: int  # number of optimizer steps, ≥ 1
    text_field: str = "text"  # name of the text field (JSONL) or column
    seq_len: int | None = (
        None  # sequence length in positions; defaults to the model's context length
    )
    # Tokens per sequence, placed at random positions within `seq_len`; defaults to `seq_len`.
    window: int | None = None
    window_skip: bool = (
        False  # skip positions once in each window, together with the text in between (PoSE)
    )
    # ``new`` (rows), ``positions`` (the table; default), ``all-but-positions`` (default of fixed
    # sinusoids) or ``all`` (default of rotary positions, which have no rows)
    trainable: str | None = None
    lora: int | None = (
        # rank of low-rank adapters (LoRA), trained with the table or, with all-but-positions, only
        None
    )
    save_adapter: bool = (
        False  # with `lora`: save a PEFT adapter for the checkpoint instead of merged weights
    )
    lr: float | None = None  # peak learning rate; the default depends on `trainable`
    weight_decay: float = 0.0  # weight decay of AdamW, ≥ 0
    batch_size: int = 8  # sequences per optimizer step, over all devices
    per_device_batch_size: int | None = (
        None  # micro-batch size per device; defaults to what fits its memory
    )
    precision: str = "auto"  # as in `evaluate`
    seed: int = 0  # random seed for data order, masking and positions
    eval_data: tuple[
        str, ...
    ] = ()  # held-out text; defaults to one window in 20 of `data`, not used for training
    eval_every: int | None = (
        None  # steps between evaluations after the initial one; defaults to a quarter of `steps`
    )
    save_every: int | None = None  # steps between saved states; defaults to a tenth of `steps`
    save: str = "best"  # weights to save: the ``best`` by held-out loss, or the ``last``
    report_to: str = "none"  # experiment tracker, as in transformers: ``tensorboard``, ``wandb``, …
    base: str | None = (
        None  # base checkpoint, the teacher; defaults to the one in the model's recipe
    )
    # Weight of distillation from the base besides another objective, ≥ 0; defaults to 4 in language
    # models that were converted, to 5 in contrastive training, else to 0.
    distill: float | None = None
    # Train a sentence encoder to find the text of a pair among those of a batch: a document by one
    # of its ``passages``, or the positive of an anchor in ``pairs``, .jsonl or .tsv files (anchor,
    # positive and maybe negative) in `data`.
    contrastive: str | None = None
    dtype: str | None = (
        None  # dtype of the saved weights: ``fp32``, ``bf16`` or ``fp16``; defaults to the source's
    )
    copy_code: bool = False  # as in `resize`
    fsdp: bool = (
        False  # shard the model across processes, which are started by torchrun or accelerate
    )
    device: str | None = None  # as in `evaluate`
    threads: int | None = None  # as in `evaluate`

    @property
    def trains_weights(self) -> bool:
        """Whether parameters other than position tables are trained."""
        return self.lora is not None or self.trainable in ("all-but-positions", "all")

    @property
    def trained_text(self) -> str:
        """What is trained, as text; `trainable` is set."""
        text = TRAINABLE[str(self.trainable)]
        adapters = f"adapters of rank {self.lora}"
        return (
            text
            if not self.lora
            else adapters
            if self.trainable in FROZEN
            else f"{text} and {adapters}"
        )

    def __post_init__(self) -> None:
        errors = [
            *_count_errors(self, MIN_LENGTH, "seq_len", "window"),
            *_count_errors(self, 1, "steps", "batch_size", "per_device_batch_size"),
            *_count_errors(self, 1, "eval_every", "save_every", "threads", "lora"),
            *_count_errors(self, 0, "seed"),
            *_choice_errors("trainable", self.trainable, (*TRAINABLE,)),
            *_choice_errors("precision", self.precision, PRECISIONS),
            *_choice_errors("device", (self.device or "cpu").partition(":")[0], DEVICES),
            *_choice_errors("dtype", self.dtype, PRECISIONS[1:]),
            *_choice_errors("save", self.save, ("best", "last")),
            *_choice_errors("contrastive", self.contrastive or "pairs", ("passages", "pairs")),
        ]
        if not self.data:
            errors.append(
                ResizeError("No training text.", "Pass some with --data, such as --data book.txt.")
            )
        if self.lr is not None and not 0 < self.lr < math.inf:
            errors.append(ResizeError(f"--lr must be positive, got {self.lr:g}."))
        for name in ("weight_decay", "distill"):
            if not 0 <= (getattr(self, name) or 0.0) < math.inf:
                errors.append(
                    ResizeError(
                        f"{flag_name(name)} must be at least 0, got {getattr(self, name):g}."
                    )
                )
        raise_first(errors)
        # Combinations of values that are valid by themselves.
        if self.window is not None and self.seq_len is not None and self.window > self.seq_len:
            reason = f"--window must be at most --seq-len {self.seq_len}, got {self.window}."
            errors.append(ResizeError(reason, "Lower --window, or remove it."))
        if self.window_skip and self.contrastive:
            errors.append(
                ResizeError(
                    "--window-skip cannot be used with --contrastive or --pairs.", "Remove it."
                )
            )
        if self.contrastive and self.batch_size < 2:
            errors.append(
                ResizeError(
                    f"--batch-size must be at least 2 to compare texts, got {self.batch_size}."
                )
            )
        if self.lora is not None and self.trainable == "all":
            message = (
                "--lora trains adapters instead of all weights, so it cannot be used with "
                "--trainable all."
            )
            errors.append(ResizeError(message, "Remove one of them."))
        if self.save_adapter and (self.lora is None or self.dtype):
            problem = "cannot be used with --dtype" if self.lora else "requires --lora"
            errors.append(
                ResizeError(
                    f"--save-adapter {problem}.", "Remove it." if self.lora else "Add --lora R."
                )
            )
        if self.window_skip and self.window is None:
            errors.append(ResizeError("--window-skip requires --window.", "Add --window."))
        if self.per_device_batch_size is not None and self.batch_size % self.per_device_batch_size:
            size = f"--per-device-batch-size {self.per_device_batch_size}"
            reason = f"--batch-size must be a multiple of {size}, got {self.batch_size}."
            errors.append(
                ResizeError(reason, "Change one of them: a step consists of whole micro-batches.")
            )
        raise_first(errors)


@dataclass(frozen=True)
class Recipe:
    """A checkpoint and the steps to run on it, in this order; None skips a step."""

    checkpoint: CheckpointRef
    resize: Resize | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    output: str | None = (
        # output folder; defaults to ``<name>-<length>``, or ``<name>-trained`` without `resize`
        None
    )
    convert: Convert | None = None  # instead of `resize`

    @property
    def copies_code(self) -> bool:
        """Whether code files are copied to the output."""
        return any(step is not None and step.copy_code for step in (self.resize, self.train))


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return command-line arguments for flags with values, without those that are None."""
    return [
        word
        for flag, value in values.items()
        if value is not None
        for word in (f"--{flag}", str(value))
    ]


def _count_errors(
    settings: Any, minimum: int, *names: str, maximum: int = MAX_INT
) -> Iterator[ResizeError]:
    """Yield an error for every value of integer fields (one, several or None) that is out of
    range.
    """
    for name in names:
        value = getattr(settings, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and (type(number) is not int or number < minimum):
                expected = f"at least {minimum}" if type(number) is int else "an integer"
                yield ResizeError(f"{flag_name(name)} must be {expected}, got {number!r}.")
            elif number is not None and number > maximum:
                yield ResizeError(f"{flag_name(name)} must be at most {maximum:,}, got {number:,}.")


def _choice_errors(
    name: str, value: str | Sequence[str] | None, choices: tuple[str, ...]
) -> Iterator[ResizeError]:
    for item in (value,) if isinstance(value, str) else value or ():
        if item not in choices:
            message = f"{flag_name(name)} must be one of {', '.join(choices)}, got {item}."
            yield ResizeError(message, did_you_mean(str(item), choices) or None)
