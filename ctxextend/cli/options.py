"""Options that several commands share, each described once, and how they become settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ctxextend.errors import OutputError, ResizeError

Settings = TypeVar("Settings")

# Those of the recipe, which a test compares: importing it would bring numpy into --help.
MEASURES = ("position", "context", "passkey", "retrieval")

# An option, by the heading of --help that it is under.
new_rows = partial(typer.Option, rich_help_panel="New rows")
which = partial(typer.Option, rich_help_panel="Which table")
text = partial(typer.Option, rich_help_panel="Text")
learning = partial(typer.Option, rich_help_panel="Learning")
measures = partial(typer.Option, rich_help_panel="What to measure")
running = partial(typer.Option, rich_help_panel="Running")
files = partial(typer.Option, rich_help_panel="Files")
show = partial(typer.Option, rich_help_panel="What to show")
printing = partial(typer.Option, rich_help_panel="Printing")


def complete_model(incomplete: str) -> list[str]:
    """Return the bundled checkpoints that begin so; where none does, shells offer files and folders."""
    from ctxextend.checkpoints.source import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def complete_model_type(incomplete: str) -> list[str]:
    """Return the model types with a learned position table that begin so."""
    from ctxextend.families.registry import FAMILIES

    return sorted(name for name in FAMILIES if name.startswith(incomplete))


def complete_names(names: tuple[str, ...]) -> Any:
    """Return what completes a list with commas: its last name, to each of these that begins so."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def output_folder(default: str | bool, does: str = "The new folder.") -> Any:
    """Describe --output of a command: what it stands for, and what it is where it is not given."""
    return files("--output", "-o", readable=False, metavar="DIR", show_default=default, help=does)


def report_file(default: str | bool, does: str) -> Any:
    """Describe --report of a command: what it is, and where it is written if nothing is said."""
    return show("--report", metavar="FILE.html", readable=False, show_default=default, help=does)


def original_model(panel: Any, does: str) -> Any:
    """Describe --original of a command: among which options it is, and what it is for there."""
    default = "what ctxextend.yaml says"
    return panel("--original", metavar="MODEL", autocompletion=complete_model, show_default=default, help=does)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", autocompletion=complete_model, help="A folder, a bundled name (tiny-gpt2), or a Hub id."
    ),
]

# Which table
PartName = Annotated[
    str | None,
    which("--part", metavar="PART", help="Of several tables this one: encoder, decoder, ... (see families)."),
]
ModelType = Annotated[
    str | None,
    which(
        "--family",
        metavar="TYPE",
        autocompletion=complete_model_type,
        help="The model type, in place of config.json's (see families).",
    ),
]
TableName = Annotated[
    str | None, which("--table", metavar="NAME", help="The table's tensor, for a model type of your own.")
]
ReservedRows = Annotated[
    int, which("--offset", min=0, metavar="K", help="With --table: its rows in front of position 0.")
]
ConfigKey = Annotated[
    str | None,
    which("--config-key", metavar="KEY", help="With --table: the key that states its length, with dots where nested."),
]

# Text
Data = Annotated[
    list[str], text("--data", metavar="PATH...", help="Text, .jsonl, .parquet, folders, or hf:OWNER/NAME.")
]
EvalData = Annotated[
    list[str] | None,
    text("--eval-data", metavar="PATH...", show_default="the last 5 % of --data", help="Text to measure the loss on."),
]
TextField = Annotated[str, text("--text-field", metavar="KEY", help="The key of a line of JSON, or the column.")]
Tokens = Annotated[int, text("--tokens", min=1, metavar="T", help="Measure on so many of its tokens, or one window.")]

# Learning
Trainable = Annotated[
    Literal["new", "positions", "all"] | None,
    learning("--trainable", show_default="positions", help="Train the new rows, the whole table, or everything."),
]
SeqLen = Annotated[
    int | None,
    learning(
        "--seq-len",
        min=8,
        metavar="L",
        show_default="all it has",
        help="Positions that a training sequence reaches over.",
    ),
]
Window = Annotated[
    int | None,
    learning(
        "--window",
        min=8,
        metavar="W",
        show_default="L",
        help="Train L positions by sequences of W tokens, each at a place of its own.",
    ),
]
LearningRate = Annotated[
    float | None, learning("--lr", metavar="X", show_default="by what is trained", help="The highest learning rate.")
]
StepBatch = Annotated[
    int | None,
    learning("--batch-size", min=1, metavar="B", show_default="8", help="Sequences of a step, over all devices."),
]

# Running
PrecisionName = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    running("--precision", help="auto: fp32 on a CPU, bf16 on an accelerator that has it."),
]
Seed = Annotated[
    int, running("--seed", min=0, metavar="S", help="What order, masks, numbers and places are drawn with.")
]

# Files
Revision = Annotated[str | None, files("--revision", metavar="REV", help="A branch, tag or commit of the Hub.")]
Subfolder = Annotated[
    str | None, files("--subfolder", metavar="DIR", help="The folder in MODEL that holds the checkpoint.")
]
Variant = Annotated[str | None, files("--variant", metavar="NAME", help="Which copy of the weights, such as fp16.")]
KeepCode = Annotated[bool, files("--keep-code", help="Copy code in the folder (*.py and the like) too; it is not run.")]
Force = Annotated[bool, files("--force", help="Replace an existing checkpoint folder.")]
Resume = Annotated[bool, files("--resume", help="Go on with a training that was stopped.")]

# What to show, and how
Plot = Annotated[
    Path | None,
    show("--plot", metavar="FILE", readable=False, help="Write a figure (.png, .svg, .pdf); needs ctxextend[plot]."),
]
DryRun = Annotated[bool, printing("--dry-run", help="Print the plan and write nothing.")]
AsJson = Annotated[bool, printing("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, printing("--quiet", "-q", help="Print nothing on stderr but errors.")]


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
    """Return settings from the flags that are named as their fields; one that was not given is its field's default.

    Args:
        settings: A dataclass of ``ctxextend.recipe``.
        flags: A command's values by the names of its parameters.
        changes: Values that stand for those of the flags.

    Raises:
        BadParameter: What is given could serve no checkpoint.
    """
    with usage_errors():
        return settings(**given_flags({**flags, **changes}, settings))


def check_files(plot: Path | None = None, report: Path | None = None) -> None:
    """Refuse a figure or a report that cannot be before a model is read for it.

    Raises:
        BadParameter: Its ending is no format.
        OutputError: It cannot be written, or the extra plot is not installed.
    """
    if plot is None and report is None:
        return
    from ctxextend.report.saving import FIGURE, REPORT, check_file, check_format

    for path, kind in ((plot, FIGURE), (report, REPORT)):
        if path is not None:
            with usage_errors():
                check_format(path, kind)
            check_file(path, kind)
