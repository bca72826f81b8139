"""Everything that a user can ask for, as dataclasses: flags build them, and recipe files hold them."""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ctxextend.errors import ResizeError
from ctxextend.tables.apply import OWN_FLAGS, MethodOptions

DEFAULT_METHOD = "copy"

# More rows than any file holds: a longer number may even be one that Python refuses to print.
MOST_POSITIONS = 2**63

# What lies beside every output.
RECIPE_FILE = "ctxextend.yaml"

# What shortened tables are said to be made by.
TRUNCATE = "truncate"


# What `evaluate` measures: loss by position, loss by available context, numbers found again, documents found.
MEASURES = ("position", "context", "passkey", "retrieval")

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

# What is trained: new rows, whole tables, or everything.
TRAINABLE = ("new", "positions", "all")

# A window of fewer tokens holds no text to speak of.
LEAST_LENGTH = 8


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint as a user names it.

    Raises:
        ResizeError: Flags that have no meaning together.
    """

    source: str  # a folder, a weights file, a bundled checkpoint's name, or a Hub id
    revision: str | None = None  # a branch, tag or commit of the Hub
    subfolder: str | None = None  # the folder below the source that holds the checkpoint
    variant: str | None = None  # the part of the weights' file names that tells one copy from another, such as ``fp16``
    model_type: str | None = None  # the model type to take it for; None is what its config says
    table: str | None = None  # the whole name of its position table, for a model type that the registry does not know
    # The key that states the table's length, with dots where configs are nested; goes with `table`.
    config_key: str | None = None
    reserved_rows: int = 0  # the table's rows before position 0; goes with `table`

    def __post_init__(self) -> None:
        object.__setattr__(self, "reserved_rows", _whole(self.reserved_rows))
        if self.table is None and (self.config_key is not None or self.reserved_rows):
            raise ResizeError(
                "--offset and --config-key describe the table that --table names.", "Add --table, or leave them out."
            )
        if self.table is not None and self.model_type is not None:
            raise ResizeError(
                "--table describes a model by hand, and --family names a known one.", "Leave one of them out."
            )


@dataclass(frozen=True)
class Resize:
    """What to make of a position table.

    Raises:
        ResizeError: A value that no checkpoint could serve.
    """

    to: int  # usable token positions wanted, ≥ 1; offset rows come on top
    method: str | None = None  # how new rows are made; None is `copy`, and all that a shorter table allows
    # Positions at the start that the method neither reads nor changes; None is the method's default.
    keep_first: int | None = None
    drop_last: int = 0  # positions at the end that are no source for new rows
    # For `sinusoidal`: ``new`` rows or ``all``; None is the method's default, as of the next two.
    scope: str | None = None
    alpha: float | None = None  # for `hierarchical`: the weight of the first digit, above 0, below 1 and not 0.5
    seed: int | None = None  # for `random`: the seed of what is drawn, ≥ 0
    # For `bands`: rows of the Gaussian that parts slow from fast, ≥ 0; None is chosen, as the next two.
    sigma: float | None = None
    # For `bands`: the first of the rows that repeat, and one behind the last, offset rows not counted.
    repeat: tuple[int, int] | None = None
    gain: float | None = None  # for `bands`: by how much rows are moved away from their mean, above 0
    # Which of a model's tables, as its plan names them: encoder, decoder, text, …; None is all of them.
    part: str | None = None
    # Whether config, tokenizer and side files must state the table's length even where it stays, and whatever they
    # state now.
    mend_limits: bool = False
    keep_code: bool = False  # whether code that lies in the folder is copied, and not left out

    def __post_init__(self) -> None:
        for name in ("to", "keep_first", "drop_last", "seed"):
            object.__setattr__(self, name, _whole(getattr(self, name)))
        for name in ("alpha", "sigma", "gain"):
            object.__setattr__(self, name, _number(getattr(self, name)))
        if self.repeat is not None:
            object.__setattr__(self, "repeat", _span(self.repeat))
        faults = []
        if isinstance(self.to, bool) or not isinstance(self.to, int) or self.to < 1:
            hint = "Give a whole number of token positions, 1 or more."
            faults.append(ResizeError(f"--to {self.to!r} is no length.", hint))
        elif self.to >= MOST_POSITIONS:
            faults.append(ResizeError("--to is more positions than any table can have.", "Give a smaller --to."))
        try:
            _ = self.options
        except ResizeError as error:
            faults.append(error)
        _refuse(faults)

    @property
    def options(self) -> MethodOptions:
        """The method and its flags, checked."""
        flags = {field.name: getattr(self, field.name) for field in fields(MethodOptions)}
        return MethodOptions(**flags | {"method": self.method or DEFAULT_METHOD})

    @property
    def typed(self) -> tuple[str, ...]:
        """The command and the flags that ask for the same, as they are typed behind ``ctxextend``."""
        return ("resize", *flag_words({"to": self.to, "method": self.method, **self.options.typed}))

    @property
    def method_flags(self) -> tuple[str, ...]:
        """The flags that were given and mean something only where new rows are made."""
        names = ("method", "keep_first", "drop_last", *OWN_FLAGS)
        values = {name: getattr(self, name) for name in names}
        given = [name for name, value in values.items() if value or (value is not None and name in OWN_FLAGS)]
        return tuple(map(_flag, given))


@dataclass(frozen=True)
class Evaluate:
    """How to measure what a context length is worth.

    Raises:
        ResizeError: A value that no model could serve.
    """

    data: tuple[str, ...]  # files, folders and data sets of the Hub that hold the text
    original: str | None = None  # what the model was made of; None is what the recipe beside it says
    alone: bool = False  # whether the original is left out, wherever it may be
    length: tuple[int, ...] = ()  # contexts to measure; empty is doublings up to the model's length
    tokens: int = 65_536  # tokens of the text to use, at most
    batch_size: int | None = None  # windows that are read at once; None is as many as hold 4,096 tokens
    # ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 on an accelerator that has it.
    precision: str = "auto"
    seed: int = 0  # what masks and numbers are drawn with
    measure: tuple[str, ...] = ()  # which measures to take, of `MEASURES`; empty is all that the model allows
    text_field: str = "text"  # the key of a line of JSONL, or the column, that holds the text

    def __post_init__(self) -> None:
        faults = [
            *(_wrong_count("length", value, LEAST_LENGTH) for value in self.length),
            *(_wrong_count(name, getattr(self, name), 1) for name in ("tokens", "batch_size")),
            _wrong_count("seed", self.seed, 0),
            _wrong_name("precision", self.precision, PRECISIONS),
            *(_wrong_name("measure", name, MEASURES) for name in self.measure),
        ]
        if self.alone and self.original is not None:
            why = "--alone leaves out the original that --original names."
            faults.append(ResizeError(why, "Leave one of them out."))
        if self.alone and "retrieval" in self.measure:
            why = "--alone leaves out the original that --measure retrieval needs."
            faults.append(ResizeError(why, "Leave one of them out."))
        _refuse(faults)


@dataclass(frozen=True)
class Train:
    """How to train a checkpoint for a short while.

    Raises:
        ResizeError: A value that no training could have.
    """

    data: tuple[str, ...]  # files, folders and data sets of the Hub that hold the text
    steps: int  # optimizer steps, ≥ 1
    text_field: str = "text"  # the key or column of a document's text, where a file holds several
    seq_len: int | None = None  # positions that a sequence reaches over; None is all that the model has
    # Tokens of a sequence, where they are fewer than the positions: each sequence then stands at a place of its own;
    # None is as many as there are positions.
    window: int | None = None
    window_skip: bool = False  # whether the positions of a window jump once, as the tokens that it is cut from do
    trainable: str = "positions"  # ``new`` rows, ``positions`` (the whole table) or ``all``
    lr: float | None = None  # the highest learning rate; None is chosen by what is trained
    weight_decay: float = 0.0  # of AdamW, ≥ 0
    batch_size: int = 8  # sequences of an optimizer step, over all devices
    micro_batch: int | None = None  # sequences that a device holds at once; None is chosen by its memory
    precision: str = "auto"  # as in `Evaluate`
    seed: int = 0  # what the order of the text, masks and places are drawn with
    # Text to measure the loss on; empty is a twentieth of `data`, which is then not trained on.
    eval_data: tuple[str, ...] = ()
    # Steps between two such measurements; None is before the first step and after the last alone.
    eval_every: int | None = None
    save_every: int | None = None  # steps between two saves; None is a tenth of all
    report_to: str = "none"  # where else the losses are shown, as transformers calls it: ``none``, ``tensorboard``, …
    # What the model was made of, which an encoder learns from; None is what the recipe beside it says.
    original: str | None = None
    dtype: str | None = None  # the dtype of the weights written: ``fp32``, ``bf16`` or ``fp16``; None is the source's
    keep_code: bool = False  # as in `Resize`

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "micro_batch", "eval_every", "save_every")
        faults = [
            None if self.data else ResizeError("No text to train on was named.", "Name some: --data book.txt."),
            *(_wrong_count(name, getattr(self, name), LEAST_LENGTH) for name in ("seq_len", "window")),
            *(_wrong_count(name, getattr(self, name), 1) for name in counts),
            _wrong_count("seed", self.seed, 0),
            _wrong_rate("lr", self.lr, above=True),
            _wrong_rate("weight_decay", self.weight_decay, above=False),
            _wrong_name("trainable", self.trainable, TRAINABLE),
            _wrong_name("precision", self.precision, PRECISIONS),
            _wrong_name("dtype", self.dtype, PRECISIONS[1:]),
        ]
        if not any(faults):
            faults = self._conflicts()
        _refuse(faults)

    def _conflicts(self) -> list[ResizeError | None]:
        """Return what is wrong with several values together, each of which may be right."""
        conflicts = list[ResizeError | None]()
        if self.window is not None and self.seq_len is not None and self.window > self.seq_len:
            why = f"--window {self.window} is more than the {self.seq_len} positions of --seq-len."
            conflicts.append(ResizeError(why, "Make the window shorter, or leave it out."))
        if self.window_skip and self.window is None:
            why = "--window-skip says how a window is cut, and --window is not given."
            conflicts.append(ResizeError(why, "Add --window."))
        if self.micro_batch is not None and self.batch_size % self.micro_batch:
            why = f"--batch-size {self.batch_size} is no multiple of --micro-batch {self.micro_batch}."
            conflicts.append(ResizeError(why, "Make it one: a step takes whole micro-batches."))
        return conflicts


@dataclass(frozen=True)
class Recipe:
    """Everything that a user asks for: a checkpoint, and the steps to take with it, in their order.

    Raises:
        ResizeError: Flags that have no meaning together.
    """

    checkpoint: CheckpointRef  # the checkpoint to begin with
    resize: Resize | None = None  # how to resize its position table; None leaves it
    train: Train | None = None  # how to train it then; None does not
    evaluate: Evaluate | None = None  # how to measure it then; None does not
    output: str | None = None  # the new folder; None is named after the source and the length

    def __post_init__(self) -> None:
        if self.checkpoint.table is not None and self.resize is not None and self.resize.part is not None:
            raise ResizeError("--table names one table, and --part chooses among several.", "Leave one of them out.")

    @property
    def keeps_code(self) -> bool:
        """Whether code that lies beside what is resized or trained is copied."""
        return any(step is not None and step.keep_code for step in (self.resize, self.train))

    @property
    def typed(self) -> tuple[str, ...]:
        """The command that asks for the first of its steps, as it is typed behind ``ctxextend``."""
        return self.resize.typed if self.resize is not None else ("train" if self.train is not None else "run",)


def flag_words(values: Mapping[str, Any]) -> list[str]:
    """Return flags as they are typed, by their names and values; those whose value is None are left out."""
    return [word for flag, value in values.items() if value is not None for word in (f"--{flag}", str(value))]


def _whole(value: Any) -> Any:
    """Return numpy's whole numbers as Python's; anything else as it is."""
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)


def _number(value: Any) -> Any:
    """Return whatever is a number, numpy's too, as Python's; anything else as it is."""
    try:
        return float(value) if hasattr(value, "__float__") and not isinstance(value, bool) else value
    except OverflowError:
        return math.inf


def _span(value: Any) -> tuple[int, int]:
    """Return two whole numbers.

    Raises:
        ResizeError: It is something else.
    """
    found = tuple(map(_whole, value)) if isinstance(value, list | tuple) else ()
    if len(found) != 2 or not all(type(end) is int for end in found):
        raise ResizeError(f"--repeat {value!r} is no stretch of rows.", "Give A:B for rows A to B-1.")
    return found


def _wrong_count(name: str, value: Any, least: int) -> ResizeError | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return None
    return ResizeError(f"{_flag(name)} {value!r} is no count.", f"Give a whole number, {least} or more.")


def _wrong_rate(name: str, value: Any, *, above: bool) -> ResizeError | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is None or (is_number and (value > 0 or (value == 0 and not above))):
        return None
    return ResizeError(f"{_flag(name)} {value!r} is no rate.", "Give a number above 0, such as 0.001.")


def _wrong_name(name: str, value: str | None, known: tuple[str, ...]) -> ResizeError | None:
    if value is None or value in known:
        return None
    return ResizeError(f"There is no {_flag(name)} {value}.", f"There are {', '.join(known)}.")


def _refuse(faults: Iterable[ResizeError | None]) -> None:
    """Raise the first of the faults, which carries the others."""
    found = [fault for fault in faults if fault is not None]
    if found:
        found[0].others = tuple(found[1:])
        raise found[0]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
