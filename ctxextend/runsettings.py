"""How a checkpoint is trained and measured, as a command's flags or a recipe say it."""

import math
from dataclasses import dataclass
from typing import Any

from ctxextend.errors import ResizeError

__all__ = ["LEAST_LENGTH", "MEASURES", "PRECISIONS", "TRAINABLE", "Evaluate", "Train"]

# What `evaluate` measures: loss by position, loss by available context, numbers found again, documents found.
MEASURES = ("position", "context", "passkey", "retrieval")

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

# What is trained: new rows, whole tables, or everything.
TRAINABLE = ("new", "positions", "all")

# A window of fewer tokens holds no text to speak of.
LEAST_LENGTH = 8


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
        keep_code: As in `Resize`.

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
    keep_code: bool = False

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
