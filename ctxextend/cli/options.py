"""Options that several commands share, each described once, and how they become settings."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ctxextend.errors import OutputError, ResizeError

Settings = TypeVar("Settings")

# Those of the recipe, which a test compares: importing it would bring numpy into --help.
MEASURES = ("position", "context", "passkey", "retrieval")


def heading(title: str) -> Any:
    """Return what describes an option under a heading of --help; one without names is typed as its parameter is."""

    def option(metavar: str | None, does: str, *names: str, default: str | bool = True, **more: Any) -> Any:
        return typer.Option(*names, metavar=metavar, help=does, show_default=default, rich_help_panel=title, **more)

    return option


new_rows, which, text, learning = map(heading, ("New rows", "Which table", "Text", "Learning"))
measures, running, files = map(heading, ("What to measure", "Running", "Files"))
show, printing = map(heading, ("What to show", "Printing"))


def complete_model(incomplete: str) -> list[str]:
    """Return the bundled checkpoints that begin so; where none does, shells offer files and folders."""
    from ctxextend.checkpoints.source import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def complete_model_type(incomplete: str) -> list[str]:
    """Return the model types with a learned position table that begin so."""
    from ctxextend.families.registry import FAMILIES

    return sorted(name for name in FAMILIES if name.startswith(incomplete))


def complete_names(names: tuple[str, ...]) -> Any:
    """Return what completes the last name of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def model(does: str, metavar: str = "MODEL") -> Any:
    """Describe a checkpoint among a command's arguments."""
    return typer.Argument(metavar=metavar, autocompletion=complete_model, help=does)


def output_folder(default: str | bool, does: str = "The new folder.") -> Any:
    """Describe --output of a command, and what it is where it is not given."""
    return files("DIR", does, "--output", "-o", default=default, readable=False)


Model = Annotated[str, model("A folder, a bundled name (tiny-gpt2), or a Hub id.")]

# Which table
Part = Annotated[str | None, which("PART", "Of several tables this one: encoder, decoder, ... (see families).")]
ModelType = Annotated[
    str | None,
    which("TYPE", "In place of config.json's model type.", "--family", autocompletion=complete_model_type),
]
TableName = Annotated[str | None, which("NAME", "The table's tensor, for a model type of your own.")]
ReservedRows = Annotated[int, which("K", "With --table: its rows in front of position 0.", "--offset", min=0)]
ConfigKey = Annotated[str | None, which("KEY", "With --table: the key that states its length, with dots where nested.")]

# Text
Data = Annotated[list[str], text("PATH...", "Text, .jsonl, .parquet, folders, or hf:OWNER/NAME.")]
EvalData = Annotated[
    list[str] | None, text("PATH...", "Text to measure the loss on.", default="the last 5 % of --data")
]
TextField = Annotated[str, text("KEY", "The key of a line of JSON, or the column.")]
Tokens = Annotated[int, text("T", "Measure on so many of its tokens, or one window.", min=1)]

# Learning
Trainable = Annotated[
    Literal["new", "positions", "all"] | None,
    learning(None, "Train the new rows, the whole table, or everything.", default="positions"),
]
SeqLen = Annotated[
    int | None, learning("L", "Positions that a training sequence reaches over.", default="all it has", min=8)
]
Window = Annotated[
    int | None,
    learning("W", "Train L positions by sequences of W tokens, each at a place of its own.", default="L", min=8),
]
LearningRate = Annotated[float | None, learning("X", "The highest learning rate.", default="by what is trained")]
StepBatch = Annotated[int | None, learning("B", "Sequences of a step, over all devices.", default="8", min=1)]

# What to measure
Length = Annotated[
    list[int] | None,
    measures("L...", "Contexts to measure, in tokens.", default="128, 256, ... up to the longest", min=8),
]
Measure = Annotated[
    list[str] | None,
    measures(
        "NAME...",
        f"Measure these alone: {', '.join(MEASURES)}.",
        default="all that fit",
        autocompletion=complete_names(MEASURES),
    ),
]

# Running
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    running(None, "auto: fp32 on a CPU, bf16 on an accelerator that has it."),
]
Seed = Annotated[int, running("S", "What order, masks, numbers and places are drawn with.", min=0)]

# Files
Original = Annotated[
    str | None,
    files(
        "MODEL",
        "What it was made of, to compare with or to learn from.",
        default="what ctxextend.yaml says",
        autocompletion=complete_model,
    ),
]
Revision = Annotated[str | None, files("REV", "A branch, tag or commit of the Hub.")]
Subfolder = Annotated[str | None, files("DIR", "The folder in MODEL that holds the checkpoint.")]
Variant = Annotated[str | None, files("NAME", "Which copy of the weights, such as fp16.")]
KeepCode = Annotated[
    bool, files(None, "Copy code in the folder (*.py and the like) too; it is not run.", "--keep-code")
]
Force = Annotated[bool, files(None, "Replace an existing checkpoint folder.", "--force")]
Resume = Annotated[bool, files(None, "Go on with a training that was stopped.", "--resume")]

# What to show, and how
Plot = Annotated[Path | None, show("FILE", "Write a figure (.png, .svg, .pdf); needs ctxextend[plot].", readable=False)]
DryRun = Annotated[bool, printing(None, "Print the plan and write nothing.", "--dry-run")]
AsJson = Annotated[bool, printing(None, "Print one JSON object.", "--json")]
Quiet = Annotated[bool, printing(None, "Print nothing on stderr but errors.", "--quiet", "-q")]


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
    from ctxextend.report.saving import FIGURE, REPORT, check_file, check_format

    for path, kind in ((plot, FIGURE), (report, REPORT)):
        if path is not None:
            with usage_errors():
                check_format(path, kind)
            check_file(path, kind)
