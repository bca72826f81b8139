"""Everything that a user can ask for, as dataclasses: flags build them, and recipe files hold them."""

import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from typing import Any, TypeVar, get_origin

from ctxextend.checkpoints.filenames import stays_inside
from ctxextend.errors import ResizeError, did_you_mean, flag_name, refuse
from ctxextend.families.registry import FAMILIES
from ctxextend.families.unsupported import POSITION_SCHEMES
from ctxextend.tables.apply import COUNTS, MethodOptions
from ctxextend.tables.method_facts import TRUNCATE

Function = TypeVar("Function", bound=Callable[..., Any])

HUB = "hf:"  # how the name of a data set of the Hub begins
RECIPE_FILE = "ctxextend.yaml"  # what lies beside every output
# What `evaluate` measures: loss by position, loss by available context, numbers found again, documents found.
MEASURES = ("position", "context", "passkey", "retrieval")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla")  # before a number
SAVES = ("best", "last")  # which weights a training writes
TRAINABLE = ("new", "positions", "all")  # what is trained: new rows, whole tables, or everything
MAX_INT = 2**31 - 1  # the greatest whole number that a setting takes: libraries hold them in 32 bits
LENGTH = re.compile(r"(?!0+x)([0-9]{1,18})([kx]?)")  # how `Resize.to` is typed
MIN_LENGTH = 8  # a window of fewer tokens holds no text to speak of


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint as a user names it."""

    source: str  # a folder, a weights file, a bundled checkpoint's name, or a Hub id
    revision: str | None = None  # a branch, tag or commit of the Hub
    subfolder: str | None = None  # the folder below the source that holds the checkpoint
    variant: str | None = None  # the part of the weights' file names that tells one copy from another, such as ``fp16``
    model_type: str | None = None  # the model type to take it for; None is what its config says
    tensor: str | None = None  # the whole name of its position table, for a model type that the registry does not know
    config_key: str | None = None  # of the table's length, with dots where configs are nested; goes with `tensor`
    reserved_rows: int = 0  # the table's rows before position 0; goes with `tensor`
    tokenizer: str | None = None  # in place of its own: a folder, a bundled name, a Hub id, or a meta.pkl of nanoGPT

    def __post_init__(self) -> None:
        if self.tensor is None and (self.config_key is not None or self.reserved_rows):
            what = "--reserved-rows and --config-key describe the table that --tensor names."
            raise ResizeError(what, "Add --tensor, or leave them out.")
        if self.tensor is not None and self.model_type is not None:
            what = "--tensor describes a model by hand, and --model-type names a known one."
            raise ResizeError(what, "Leave one of them out.")
        refuse(_wrong_counts(self, 0, "reserved_rows"))
        if self.subfolder is not None and not stays_inside(self.subfolder):
            raise ResizeError(f"--subfolder {self.subfolder} is not below MODEL.", "Name it as the Hub does.")
        if self.variant is not None and not re.fullmatch(r"[\w-]+", self.variant):
            raise ResizeError(f"--variant {self.variant!r} is not part of a file name.", "Give a name such as fp16.")
        if self.model_type is not None and self.model_type not in (*FAMILIES, *POSITION_SCHEMES):
            hint = did_you_mean(self.model_type, FAMILIES) or "`ctxextend families` lists what is."
            raise ResizeError(f"--model-type {self.model_type} is not in ctxextend's registry.", hint)


@dataclass(frozen=True, kw_only=True)
class Resize(MethodOptions):
    """What to make of a position table: how long, and how its new rows are made."""

    # Usable token positions wanted, ≥ 1; reserved rows come on top. ``4k`` is 4,096, and ``4x`` four times those of the
    # table, which `ResizePlan.settings` holds as a number.
    to: int | str = field(kw_only=False)
    part: str | None = None  # which of a model's tables, as its plan names them: encoder, text, …; None is all of them
    fix_limits: bool = False  # whether all files must state the table's length even where it stays
    copy_code: bool = False  # whether code that lies in the folder is copied, and not left out

    def __post_init__(self) -> None:
        if isinstance(self.to, str) and (typed := LENGTH.fullmatch(self.to)) and typed[2] != "x":
            object.__setattr__(self, "to", int(typed[1]) * (1024 if typed[2] else 1))
        super().__post_init__()

    def faults(self) -> Iterator[ResizeError]:
        """Yield everything that is wrong."""
        if not isinstance(self.to, str):
            yield from _wrong_counts(self, 1, "to", maximum=2**63 - 1)  # what its table needs is told by the disk
        elif not LENGTH.fullmatch(self.to):
            yield ResizeError(f"--to must be a number, such as 4096 or 4k, or a factor, such as 4x, got {self.to}.")
        yield from super().faults()

    @property
    def positions(self) -> int:
        """The positions wanted, where `to` is a number."""
        assert isinstance(self.to, int)
        return self.to

    @property
    def method_flags(self) -> tuple[str, ...]:
        """The flags that were given and mean something only where new rows are made."""
        given = {"method": self.method != TRUNCATE and self.method} | {name: getattr(self, name) for name in COUNTS}
        return tuple(flag_name(name) for name, value in given.items() if value)


# What `CheckpointRef` is called by, but for the source itself.
REF_KEYS = tuple(known.name for known in fields(CheckpointRef) if known.name != "source")


def split_ref(reference: str | os.PathLike[str], settings: Mapping[str, Any]) -> tuple[CheckpointRef, dict[str, Any]]:
    """Return the checkpoint that a call names, and its other settings: paths as text, lists as tuples."""
    ref = CheckpointRef(os.fspath(reference), **{key: value for key, value in settings.items() if key in REF_KEYS})
    others = {key: value for key, value in settings.items() if key not in REF_KEYS}
    others = {key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in others.items()}
    # One value is taken for a list of one where settings hold several.
    several = {known.name for kind in (Evaluate, Train) for known in fields(kind) if get_origin(known.type) is tuple}
    others |= {key: (others[key],) for key in several & others.keys() if isinstance(others[key], str | int)}
    return ref, {key: tuple(value) if isinstance(value, list) else value for key, value in others.items()}


def takes(*kinds: type, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Have a function with ``**settings`` take the fields of these dataclasses only, and show them in its signature."""

    def show(function: Function) -> Function:
        signature = inspect.signature(function)
        *named, _ = signature.parameters.values()
        settings = dict[str, inspect.Parameter]()
        for known in (known for kind in kinds for known in fields(kind) if known.default is not MISSING):
            if known.name not in {*signature.parameters, *without}:
                kind = inspect.Parameter.KEYWORD_ONLY
                settings[known.name] = inspect.Parameter(known.name, kind, default=known.default, annotation=known.type)
        shown = signature.replace(parameters=[*named, *settings.values()])

        @wraps(function)
        def call(*given: Any, **settings: Any) -> Any:
            if unknown := settings.keys() - shown.parameters.keys():
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}")
            return function(*given, **settings)

        call.__signature__ = shown  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return show


@dataclass(frozen=True)
class Evaluate:
    """How to measure what a context length is worth."""

    data: tuple[str, ...]  # files, folders and data sets of the Hub that hold the text
    base: str | None = None  # what the model was made of; None is what the recipe beside it says
    no_base: bool = False  # whether the base is left out, wherever it may be
    length: tuple[int, ...] = ()  # contexts to measure; empty is doublings up to the model's length
    tokens: int = 65_536  # tokens of the text to use, at most
    batch_size: int | None = None  # windows that are read at once; None is as many as hold 4,096 tokens
    precision: str = "auto"  # one of `PRECISIONS`; ``auto`` is fp32 on a CPU, bf16 on an accelerator that has it
    seed: int = 0  # what masks and numbers are drawn with
    measure: tuple[str, ...] = ()  # which measures to take, of `MEASURES`; empty is all that the model allows
    text_field: str = "text"  # the key of a line of JSONL, or the column, that holds the text
    device: str | None = None  # as torch calls it: ``cpu``, ``cuda:1``, …; None is the accelerator, where there is one
    threads: int | None = None  # of the CPU; None is as many as help

    def __post_init__(self) -> None:
        faults = [
            *_wrong_counts(self, MIN_LENGTH, "length"),
            *_wrong_counts(self, 1, "tokens", "batch_size", "threads"),
            *_wrong_counts(self, 0, "seed"),
            *_wrong_names("precision", self.precision, PRECISIONS),
            *_wrong_names("device", (self.device or "cpu").partition(":")[0], DEVICES),
            *_wrong_names("measure", self.measure, MEASURES),
        ]
        if self.no_base and (self.base is not None or "retrieval" in self.measure):
            flag = "--base names" if self.base is not None else "--measure retrieval needs"
            faults.append(ResizeError(f"--no-base leaves out the base that {flag}.", "Leave one of them out."))
        refuse(faults)


@dataclass(frozen=True)
class Train:
    """How to train a checkpoint for a short while."""

    data: tuple[str, ...]  # files, folders and data sets of the Hub that hold the text
    steps: int  # optimizer steps, ≥ 1
    text_field: str = "text"  # the key or column of a document's text, where a file holds several
    seq_len: int | None = None  # positions that a sequence reaches over; None is all that the model has
    # Tokens of a sequence, which stands at a place of its own where they are fewer than the positions; None is as many.
    window: int | None = None
    window_skip: bool = False  # whether the positions of a window jump once, as the tokens that it is cut from do
    trainable: str = "positions"  # ``new`` rows, ``positions`` (the whole table) or ``all``
    lr: float | None = None  # the highest learning rate; None is chosen by what is trained
    weight_decay: float = 0.0  # of AdamW, ≥ 0
    batch_size: int = 8  # sequences of an optimizer step, over all devices
    per_device_batch_size: int | None = None  # sequences that a device holds at once; None is chosen by its memory
    precision: str = "auto"  # as in `Evaluate`
    seed: int = 0  # what the order of the text, masks and places are drawn with
    eval_data: tuple[str, ...] = ()  # to measure the loss on; empty is one window in 20 of `data`, held out of training
    eval_every: int | None = None  # steps between two such measurements; None is a quarter of all; one comes before all
    save_every: int | None = None  # steps between two saves; None is a tenth of all
    save: str = "best"  # which weights are written: of the ``best`` step by the held-out loss, or of the ``last``
    report_to: str = "none"  # where else the losses are shown, as transformers calls it: ``none``, ``tensorboard``, …
    base: str | None = None  # what the model was made of, which an encoder learns from; None is what its recipe says
    dtype: str | None = None  # the dtype of the weights written: ``fp32``, ``bf16`` or ``fp16``; None is the source's
    copy_code: bool = False  # as in `Resize`
    device: str | None = None  # as in `Evaluate`, as is the next
    threads: int | None = None

    def __post_init__(self) -> None:
        faults = [
            *_wrong_counts(self, MIN_LENGTH, "seq_len", "window"),
            *_wrong_counts(self, 1, "steps", "batch_size", "per_device_batch_size"),
            *_wrong_counts(self, 1, "eval_every", "save_every", "threads"),
            *_wrong_counts(self, 0, "seed"),
            *_wrong_names("trainable", self.trainable, TRAINABLE),
            *_wrong_names("precision", self.precision, PRECISIONS),
            *_wrong_names("device", (self.device or "cpu").partition(":")[0], DEVICES),
            *_wrong_names("dtype", self.dtype, PRECISIONS[1:]),
            *_wrong_names("save", self.save, SAVES),
        ]
        if not self.data:
            faults.append(ResizeError("No text to train on was named.", "Name some: --data book.txt."))
        if self.lr is not None and not 0 < self.lr < math.inf:
            faults.append(ResizeError(f"--lr must be positive, got {self.lr:g}."))
        if not 0 <= self.weight_decay < math.inf:
            faults.append(ResizeError(f"--weight-decay must be at least 0, got {self.weight_decay:g}."))
        refuse(faults)
        # What is wrong with several values together, each of which is right.
        if self.window is not None and self.seq_len is not None and self.window > self.seq_len:
            reason = f"--window {self.window} is more than the {self.seq_len} positions of --seq-len."
            faults.append(ResizeError(reason, "Make the window shorter, or leave it out."))
        if self.window_skip and self.window is None:
            reason = "--window-skip says how a window is cut, and --window is not given."
            faults.append(ResizeError(reason, "Add --window."))
        if self.per_device_batch_size is not None and self.batch_size % self.per_device_batch_size:
            size = f"--per-device-batch-size {self.per_device_batch_size}"
            reason = f"--batch-size {self.batch_size} is no multiple of {size}."
            faults.append(ResizeError(reason, "Make it one: a step takes whole micro-batches."))
        refuse(faults)


@dataclass(frozen=True)
class Recipe:
    """Everything that a user asks for: a checkpoint, and the steps to take with it, in their order."""

    checkpoint: CheckpointRef  # the checkpoint to begin with
    resize: Resize | None = None  # how to resize its position table; None leaves it
    train: Train | None = None  # how to train it then; None does not
    evaluate: Evaluate | None = None  # how to measure it then; None does not
    output: str | None = None  # the new folder; None is named after the source and the length

    @property
    def copies_code(self) -> bool:
        """Whether code that lies beside what is resized or trained is copied."""
        return any(step is not None and step.copy_code for step in (self.resize, self.train))


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return flags as they are typed, by their names and values; those whose value is None are left out."""
    return [word for flag, value in values.items() if value is not None for word in (f"--{flag}", str(value))]


def _wrong_counts(settings: Any, minimum: int, *names: str, maximum: int = MAX_INT) -> Iterator[ResizeError]:
    """Yield what is wrong with fields that hold whole numbers, or several of them, or None."""
    for name in names:
        value = getattr(settings, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and (type(number) is not int or number < minimum):
                wanted = f"at least {minimum}" if type(number) is int else "a whole number"
                yield ResizeError(f"{flag_name(name)} must be {wanted}, got {number!r}.")
            elif number is not None and number > maximum:
                yield ResizeError(f"{flag_name(name)} must be at most {maximum:,}, got {number:,}.")


def _wrong_names(name: str, given: str | Sequence[str] | None, known: tuple[str, ...]) -> Iterator[ResizeError]:
    for one in (given,) if isinstance(given, str) else given or ():
        if one not in known:
            hint = did_you_mean(str(one), known) or f"There are {', '.join(known)}."
            yield ResizeError(f"There is no {flag_name(name)} {one}.", hint)
