"""Options that several commands share, each described once, and how they become settings."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ctxextend.errors import OutputError, ResizeError

Settings = TypeVar("Settings")

# Those of the recipe, which a test compares: importing it would bring numpy into --help.
MEASURES = ("position", "context", "passkey", "retrieval")


def heading(title: str) -> Any:
    """Return what describes an option under a heading of --help: how it is typed, what it does, and its default."""

    def option(typed: str, does: str, default: str | bool = True, **more: Any) -> Any:
        names = [word for word in typed.split() if word.startswith("-")]
        metavar = " ".join(typed.split()[len(names) :]) or None
        return typer.Option(*names, metavar=metavar, help=does, show_default=default, rich_help_panel=title, **more)

    return option


new_rows, which, text, learning = map(heading, ("New rows", "Which table", "Text", "Learning"))
measures, running, files = map(heading, ("What to measure", "Running", "Files"))
show, printing = map(heading, ("What to show", "Printing"))


def completing(names: Callable[[], Iterable[str]]) -> Any:
    """Return what completes a name; where none begins so, shells offer files."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


complete_model = completing(lambda: import_module("ctxextend.checkpoints.source").BUNDLED)
complete_model_type = completing(lambda: sorted(import_module("ctxextend.families.registry").FAMILIES))


def model(does: str, metavar: str = "MODEL") -> Any:
    """Describe a checkpoint among a command's arguments."""
    return typer.Argument(metavar=metavar, autocompletion=complete_model, help=does)


def output_folder(default: str | bool, does: str = "The new folder.") -> Any:
    """Describe --output of a command, and what it is where it is not given."""
    return files("--output -o DIR", does, default, readable=False)


Model = Annotated[str, model("A folder, a bundled name (tiny-gpt2), or a Hub id.")]

# Which table
Part = Annotated[str | None, which("--part PART", "Of several tables this one: encoder, decoder, ... (see families).")]
ModelType = Annotated[
    str | None,
    which("--model-type TYPE", "In place of config.json's model type.", autocompletion=complete_model_type),
]
TensorName = Annotated[str | None, which("--tensor NAME", "The table's tensor, for a model type of your own.")]
ReservedRows = Annotated[int, which("--reserved-rows K", "With --tensor: its rows in front of position 0.", min=0)]
ConfigKey = Annotated[
    str | None, which("--config-key KEY", "With --tensor: the key that states its length, with dots.")
]

# Text
Data = Annotated[list[str], text("--data PATH", "Text, .jsonl, .parquet, .csv, folders, or hf:OWNER/NAME.")]
EvalData = Annotated[list[str] | None, text("--eval-data PATH", "Held-out text.", "5 % of --data")]
TextField = Annotated[str, text("--text-field KEY", "The key of a line of JSON, or the column.")]
Tokens = Annotated[int, text("--tokens T", "Measure on so many of its tokens, or one window.", min=1)]

# Learning
Trainable = Annotated[
    Literal["new", "positions", "all"] | None,
    learning("--trainable", "Train the new rows, the whole table, or everything.", "positions"),
]
SeqLen = Annotated[int | None, learning("--seq-len L", "Positions of a training sequence.", "all it has", min=8)]
Window = Annotated[int | None, learning("--window W", "Train L positions by windows of W tokens.", "L", min=8)]
LearningRate = Annotated[float | None, learning("--lr X", "The highest learning rate.", "by what is trained")]
StepBatch = Annotated[int | None, learning("--batch-size B", "Sequences of a step, over all devices.", "8", min=1)]

# What to measure
Length = Annotated[list[int] | None, measures("--length L", "Contexts, in tokens.", "128, 256, ...", min=8)]
Measure = Annotated[
    list[str] | None,
    measures(
        "--measure NAME",
        f"Measure these alone: {', '.join(MEASURES)}.",
        "all that fit",
        autocompletion=completing(lambda: MEASURES),
    ),
]

# Running
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    running("--precision", "auto: fp32 on a CPU, bf16 on an accelerator that has it."),
]
Seed = Annotated[int, running("--seed S", "What order, masks, numbers and places are drawn with.", min=0)]

# Files
Base = Annotated[
    str | None,
    files(
        "--base MODEL",
        "What it was made of: to compare with, or to learn from.",
        "what ctxextend.yaml says",
        autocompletion=complete_model,
    ),
]
Revision = Annotated[str | None, files("--revision REV", "A branch, tag or commit of the Hub.")]
Subfolder = Annotated[str | None, files("--subfolder DIR", "The folder in MODEL that holds the checkpoint.")]
Variant = Annotated[str | None, files("--variant NAME", "Which copy of the weights, such as fp16.")]
CopyCode = Annotated[bool, files("--copy-code", "Copy code in the folder (*.py and the like) too; it is not run.")]
Force = Annotated[bool, files("--force", "Replace an existing checkpoint folder.")]
Resume = Annotated[bool, files("--resume", "Go on with a training that was stopped.")]

# What to show, and how
Plot = Annotated[
    Path | None, show("--plot FILE", "Write a figure (.png, .svg, .pdf); needs ctxextend[plot].", readable=False)
]
DryRun = Annotated[bool, printing("--dry-run", "Print the plan and write nothing.")]
AsJson = Annotated[bool, printing("--json", "Print one JSON object.")]
Quiet = Annotated[bool, printing("--quiet -q", "Print nothing on stderr but errors.")]


def read_range(text: str | None) -> tuple[int | None, int | None] | None:
    """Read A:B, A:, :B or : as the ends of a slice."""
    if text is None:
        return None
    found = re.fullmatch(r"(-?\d+)?:(-?\d+)?", text)
    if found is None:
        raise typer.BadParameter(f"{text} is no range of rows: write A:B for rows A to B-1.")
    start, stop = (int(end) if end else None for end in found.groups())
    return start, stop


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what the flags alone show to be wrong into a usage error."""
    try:
        yield
    except (ResizeError, OutputError) as error:
        raise typer.BadParameter(str(error)) from error


def given_flags(flags: Mapping[str, Any], *settings: type) -> dict[str, Any]:
    """Return those of a command's values that were given and are named as fields of settings, lists as tuples."""
    names = [field.name for kind in settings for field in fields(kind)]
    given = {name: flags[name] for name in names if flags.get(name) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def from_flags(settings: type[Settings], flags: Mapping[str, Any], **changes: Any) -> Settings:
    """Return settings of ``ctxextend.recipe`` from a command's values, by the names of its parameters.

    What could serve no checkpoint is a usage error.
    """
    with usage_errors():
        return settings(**given_flags({**flags, **changes}, settings))


def check_files(plot: Path | None = None, report: Path | None = None) -> None:
    """Refuse a figure or a report that cannot be written before a model is read for it."""
    if plot is None and report is None:
        return
    from ctxextend.report.figures import FIGURE, REPORT, check_file, check_format

    for path, kind in ((plot, FIGURE), (report, REPORT)):
        if path is not None:
            with usage_errors():
                check_format(path, kind)
            check_file(path, kind)
