"""One typed description of a run, and the YAML in which it is written beside every output."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.tables.options import MethodOptions

__all__ = [
    "DEFAULT_METHOD",
    "LEAST_LENGTH",
    "MEASURES",
    "PRECISIONS",
    "RECIPE_FILE",
    "TRAINABLE",
    "TRUNCATE",
    "Evaluate",
    "Origin",
    "Recipe",
    "Resize",
    "Run",
    "Subject",
    "Train",
    "flag_words",
]

DEFAULT_METHOD = "copy"

# What lies beside every output.
RECIPE_FILE = "ctxextend.yaml"

# What `evaluate` measures: loss by position, loss by available context, numbers found again, documents found.
MEASURES = ("position", "context", "passkey", "retrieval")

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

# What is trained: new rows, whole tables, or everything.
TRAINABLE = ("new", "positions", "all")

# A window of fewer tokens holds no text to speak of.
LEAST_LENGTH = 8

# What shortened tables are said to be made by.
TRUNCATE = "truncate"


@dataclass(frozen=True)
class Resize:
    """What to make of a position table.

    Attributes:
        to: Usable token positions wanted, ≥ 1; offset rows come on top.
        method: How new rows are made; None is `copy`, and all that a shorter table allows.
        keep_first: Positions at the start that the method neither reads nor changes; None is the method's default.
        drop_last: Positions at the end that are no source for new rows.
        scope: For `sinusoidal`: ``new`` rows or ``all``; None is the method's default, as of the next two.
        alpha: For `hierarchical`: the weight of the first digit, above 0, below 1 and not 0.5.
        seed: For `random`: the seed of what is drawn, ≥ 0.
        part: Which of a model's tables, as its plan names them: encoder, decoder, text, …; None is all of them.
        table: The whole name of the table, for a model type that the registry does not know.
        config_key: The key that states its length, with dots where configs are nested; goes with `table`.
        offset: Its rows in front of position 0; goes with `table`.
        mend_limits: Whether config, tokenizer and side files must state the table's length even where it stays, and
            whatever they state now.

    Raises:
        ResizeError: A value that no checkpoint could serve.
    """

    to: int
    method: str | None = None
    keep_first: int | None = None
    drop_last: int = 0
    scope: str | None = None
    alpha: float | None = None
    seed: int | None = None
    part: str | None = None
    table: str | None = None
    config_key: str | None = None
    offset: int = 0
    mend_limits: bool = False

    def __post_init__(self) -> None:
        if self.table is not None and self.part is not None:
            raise ResizeError("--table names one table, and --part chooses among several.", "Leave one of them out.")
        for name in ("to", "keep_first", "drop_last", "seed", "offset"):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        if self.alpha is not None and hasattr(self.alpha, "__float__"):
            object.__setattr__(self, "alpha", float(self.alpha))  # numpy's too
        if isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 1:
            raise ResizeError(f"--to {self.to!r} is no length.", "Give a whole number of token positions, 1 or more.")
        _ = self.options

    @property
    def options(self) -> MethodOptions:
        """The method and its flags, checked."""
        method = self.method or DEFAULT_METHOD
        return MethodOptions(method, self.keep_first, self.drop_last, self.scope, self.alpha, self.seed)

    @property
    def method_flags(self) -> tuple[str, ...]:
        """The flags that were given and mean something only where new rows are made."""
        given = {
            "--method": self.method is not None,
            "--keep-first": bool(self.keep_first),
            "--drop-last": self.drop_last > 0,
            "--scope": self.scope is not None,
            "--alpha": self.alpha is not None,
            "--seed": self.seed is not None,
        }
        return tuple(flag for flag, is_given in given.items() if is_given)


def _whole(value: Any) -> Any:
    """Return numpy's whole numbers as Python's; anything else as it is."""
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return flags as they are typed, by their names and values; those whose value is None are left out."""
    return [word for flag, value in values.items() if value is not None for word in (f"--{flag}", str(value))]


def _given(values: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(values, name) for name in names if getattr(values, name) is not None}


@dataclass(frozen=True)
class Origin:
    """What has to be said of a source beside its name.

    Attributes:
        revision: A branch, tag or commit of the Hub.
        subfolder: The folder below it that holds the checkpoint.
        variant: The part of the weights' file names that tells one copy from another, such as ``fp16``.
        family: The model type to take it for; None is what its config says.
    """

    revision: str | None = None
    subfolder: str | None = None
    variant: str | None = None
    family: str | None = None


@dataclass(frozen=True)
class Subject:
    """A checkpoint as a command names it.

    Attributes:
        source: A folder, a weights file, a bundled checkpoint's name, or a Hub id.
        origin: Which part of it, and what it is, where that needs saying.
        table: As in `Resize`.
        config_key: As in `Resize`.
        offset: As in `Resize`.
        command: What the user typed behind ``ctxextend``.
        flags: What else was typed, to be repeated in advice.

    Raises:
        ResizeError: Flags that have no meaning together.
    """

    source: str
    origin: Origin = Origin()
    table: str | None = None
    config_key: str | None = None
    offset: int = 0
    command: str = "inspect"
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.table is None and (self.config_key is not None or self.offset):
            raise ResizeError(
                "--offset and --config-key describe the table that --table names.", "Add --table, or leave them out."
            )
        if self.table is not None and self.origin.family is not None:
            raise ResizeError(
                "--table describes a model by hand, and --family names a known one.", "Leave one of them out."
            )


@dataclass(frozen=True)
class Evaluate:
    """How to measure what a context length is worth.

    Attributes:
        data: Files, folders and data sets of the Hub that hold the text.
        original: What the model was made of; None is what the recipe beside it says.
        alone: Whether the original is left out, wherever it may be.
        length: Contexts to measure; empty is doublings up to the model's length.
        tokens: Tokens of the text to use, at most.
        batch_size: Windows that are read at once; None is as many as hold 4,096 tokens.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
        seed: What masks and numbers are drawn with.
        measure: Which measures to take, of `MEASURES`; empty is all that the model allows.
        text_field: The key of a line of JSONL, or the column, that holds the text.

    Raises:
        ResizeError: A value that no model could serve.
    """

    data: tuple[str, ...]
    original: str | None = None
    alone: bool = False
    length: tuple[int, ...] = ()
    tokens: int = 65_536
    batch_size: int | None = None
    precision: str = "auto"
    seed: int = 0
    measure: tuple[str, ...] = ()
    text_field: str = "text"

    def __post_init__(self) -> None:
        if self.alone and self.original is not None:
            raise ResizeError("--alone leaves out the original that --original names.", "Leave one of them out.")
        if self.alone and "retrieval" in self.measure:
            raise ResizeError(
                "--alone leaves out the original that --measure retrieval needs.", "Leave one of them out."
            )
        for value in self.length:
            _check_count("length", value, LEAST_LENGTH)
        for name in ("tokens", "batch_size"):
            _check_count(name, getattr(self, name), 1)
        _check_count("seed", self.seed, 0)
        _check_name("precision", self.precision, PRECISIONS)
        for name in self.measure:
            _check_name("measure", name, MEASURES)


@dataclass(frozen=True)
class Train:
    """How to train a checkpoint for a short while.

    Attributes:
        data: Files, folders and data sets of the Hub that hold the text.
        steps: Optimizer steps, ≥ 1.
        text_field: The key or column of a document's text, where a file holds several.
        seq_len: Positions that a sequence reaches over; None is all that the model has.
        window: Tokens of a sequence, where they are fewer than the positions: each sequence then stands at a place of
            its own; None is as many as there are positions.
        window_skip: Whether the positions of a window jump once, as the tokens that it is cut from do.
        trainable: ``new`` rows, ``positions`` (the whole table) or ``all``.
        lr: The highest learning rate; None is chosen by what is trained.
        weight_decay: Of AdamW, ≥ 0.
        batch_size: Sequences of an optimizer step, over all devices.
        micro_batch: Sequences that a device holds at once; None is chosen by its memory.
        precision: As in `Evaluate`.
        seed: What the order of the text, masks and places are drawn with.
        eval_data: Text to measure the loss on; empty is a twentieth of `data`, which is then not trained on.
        eval_every: Steps between two such measurements; None is before the first step and after the last alone.
        save_every: Steps between two saves; None is a tenth of all.
        report_to: Where else the losses are shown, as transformers calls it: ``none``, ``tensorboard``, …
        original: What the model was made of, which an encoder learns from; None is what the recipe beside it says.
        dtype: The dtype of the weights written: ``fp32``, ``bf16`` or ``fp16``; None is the source's.

    Raises:
        ResizeError: A value that no training could have.
    """

    data: tuple[str, ...]
    steps: int
    text_field: str = "text"
    seq_len: int | None = None
    window: int | None = None
    window_skip: bool = False
    trainable: str = "positions"
    lr: float | None = None
    weight_decay: float = 0.0
    batch_size: int = 8
    micro_batch: int | None = None
    precision: str = "auto"
    seed: int = 0
    eval_data: tuple[str, ...] = ()
    eval_every: int | None = None
    save_every: int | None = None
    report_to: str = "none"
    original: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not self.data:
            raise ResizeError("No text to train on was named.", "Name some: --data book.txt.")
        for name in ("seq_len", "window"):
            _check_count(name, getattr(self, name), LEAST_LENGTH)
        for name in ("steps", "batch_size", "micro_batch", "eval_every", "save_every"):
            _check_count(name, getattr(self, name), 1)
        _check_count("seed", self.seed, 0)
        _check_rate("lr", self.lr, above=True)
        _check_rate("weight_decay", self.weight_decay, above=False)
        _check_name("trainable", self.trainable, TRAINABLE)
        _check_name("precision", self.precision, PRECISIONS)
        _check_name("dtype", self.dtype, PRECISIONS[1:])
        if self.window is not None and self.seq_len is not None and self.window > self.seq_len:
            raise ResizeError(
                f"--window {self.window} is more than the {self.seq_len} positions of --seq-len.",
                "Make the window shorter, or leave it out.",
            )
        if self.window_skip and self.window is None:
            raise ResizeError("--window-skip says how a window is cut, and --window is not given.", "Add --window.")
        if self.micro_batch is not None and self.batch_size % self.micro_batch:
            raise ResizeError(
                f"--batch-size {self.batch_size} is no multiple of --micro-batch {self.micro_batch}.",
                "Make it one: a step takes whole micro-batches.",
            )


def _check_count(name: str, value: Any, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise ResizeError(f"{_flag(name)} {value!r} is no count.", f"Give a whole number, {least} or more.")


def _check_rate(name: str, value: Any, *, above: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (above and value == 0):
        raise ResizeError(f"{_flag(name)} {value!r} is no rate.", "Give a number above 0, such as 0.001.")


def _check_name(name: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        raise ResizeError(f"There is no {_flag(name)} {value}.", f"There are {', '.join(known)}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Run:
    """The whole of what a recipe file asks for, one step behind the other.

    Attributes:
        source: As in `Recipe`.
        origin: As in `Recipe`.
        resize: What to make of its position table; None leaves it.
        train: How to train it then; None does not.
        evaluate: How to measure it then; None does not.
        output: The folder that is made; None is named after the source and the length.
    """

    source: str
    origin: Origin = Origin()
    resize: Resize | None = None
    train: Train | None = None
    evaluate: Evaluate | None = None
    output: str | None = None


@dataclass(frozen=True)
class Recipe:
    """What to make of the position table of what source.

    Attributes:
        source: A folder, a bundled checkpoint's name, or a Hub id.
        resize: What to make of its position table.
        origin: Which part of it, and what it is, where that needs saying.
    """

    source: str
    resize: Resize
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        _ = self.subject

    @property
    def subject(self) -> Subject:
        """Its source as `resize` names it."""
        settings = self.resize
        flags = {"to": settings.to, "method": settings.method, **settings.options.typed}
        described = settings.table, settings.config_key, settings.offset
        return Subject(self.source, self.origin, *described, "resize", tuple(flag_words(flags)))

    def to_yaml(self, makes_rows: bool, provenance: dict[str, Any]) -> str:
        """Write the recipe, and behind it how its output came about.

        Args:
            makes_rows: Whether the run made new rows; elsewhere the recipe must name no method.
            provenance: Plain values, for readers and for checks of the source.
        """
        import yaml  # at use: most commands need none

        content: dict[str, Any] = {"source": self.source}
        content |= _given(self.origin, "revision", "subfolder", "variant", "family")
        content["resize"] = {"to": self.resize.to} | (self._flags() if makes_rows else {})
        content["resize"] |= _given(self.resize, "part", "table", "config_key")
        content["resize"] |= {"offset": self.resize.offset} if self.resize.offset else {}
        content["resize"] |= {"mend_limits": True} if self.resize.mend_limits else {}
        content["provenance"] = provenance
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)

    def _flags(self) -> dict[str, Any]:
        options = self.resize.options
        flags = {"method": options.method, "keep_first": options.kept_first, "drop_last": options.drop_last}
        return flags | options.flags
