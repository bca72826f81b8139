"""Options that several commands share, each described once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ctxextend.cli.completion import complete_folder, complete_model, complete_model_type
from ctxextend.errors import OutputError, ResizeError

__all__ = [
    "FILES",
    "LEARNING",
    "RUNNING",
    "TEXT",
    "AsJson",
    "ConfigKey",
    "DryRun",
    "FamilyName",
    "Force",
    "KeepCode",
    "LearningRate",
    "Model",
    "Offset",
    "PartName",
    "Plot",
    "PrecisionName",
    "Quiet",
    "Resume",
    "Revision",
    "SeqLen",
    "Subfolder",
    "TableName",
    "TextField",
    "Trainable",
    "Variant",
    "check_plot",
    "check_report",
    "original_model",
    "output_folder",
    "report_file",
    "usage_errors",
]

TEXT = "Text"
WHICH = "Which table"
FILES = "Files"
PRINTING = "Printing"
SHOW = "What to show"
RUNNING = "Running"
LEARNING = "Learning"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_model,
        help="A folder, a bundled name (tiny-gpt2), or a Hub id.",
    ),
]
PartName = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="PART",
        help="Of several tables this one: encoder, decoder, ... (see families).",
        rich_help_panel=WHICH,
    ),
]
FamilyName = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="TYPE",
        autocompletion=complete_model_type,
        help="The model type, in place of config.json's (see families).",
        rich_help_panel=WHICH,
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="NAME", help="The table's tensor, for a model type of your own.", rich_help_panel=WHICH
    ),
]
Offset = Annotated[
    int,
    typer.Option(
        "--offset", min=0, metavar="K", help="With --table: its rows in front of position 0.", rich_help_panel=WHICH
    ),
]
ConfigKey = Annotated[
    str | None,
    typer.Option(
        "--config-key",
        metavar="KEY",
        help="With --table: the key that states its length, with dots where nested.",
        rich_help_panel=WHICH,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="REV", help="A branch, tag or commit of the Hub.", rich_help_panel=FILES),
]
Subfolder = Annotated[
    str | None,
    typer.Option(
        "--subfolder", metavar="DIR", help="The folder in MODEL that holds the checkpoint.", rich_help_panel=FILES
    ),
]
Variant = Annotated[
    str | None,
    typer.Option("--variant", metavar="NAME", help="Which copy of the weights, such as fp16.", rich_help_panel=FILES),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        readable=False,
        help="Write a figure (.png, .svg, .pdf); needs ctxextend[plot].",
        rich_help_panel=SHOW,
    ),
]
TextField = Annotated[
    str,
    typer.Option("--text-field", metavar="KEY", help="The key of a line of JSON, or the column.", rich_help_panel=TEXT),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.", rich_help_panel=PRINTING)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=PRINTING)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing on stderr but errors.", rich_help_panel=PRINTING)
]


def output_folder(default: str | bool, does: str = "The new folder.") -> Any:
    """Describe --output of a command: what it stands for, and what it is where it is not given."""
    return typer.Option(
        "--output",
        "-o",
        readable=False,
        metavar="DIR",
        autocompletion=complete_folder,
        show_default=default,
        help=does,
        rich_help_panel=FILES,
    )


def report_file(default: str | bool, does: str) -> Any:
    """Describe --report of a command: what it is, and where it is written if nothing is said."""
    return typer.Option(
        "--report", metavar="FILE.html", readable=False, show_default=default, help=does, rich_help_panel=SHOW
    )


def original_model(does: str, panel: str) -> Any:
    """Describe --original of a command: what it is for there, and among which options it stands."""
    return typer.Option(
        "--original",
        metavar="MODEL",
        autocompletion=complete_model,
        show_default="what ctxextend.yaml says",
        help=does,
        rich_help_panel=panel,
    )


def check_plot(plot: Path | None) -> None:
    """Refuse a figure that cannot be before a model is read for it.

    Raises:
        BadParameter: Its ending is no format.
        OutputError: It cannot be written, or matplotlib is not installed.
    """
    if plot is None:
        return
    from ctxextend.report.saving import check_figure, check_suffix

    try:
        check_suffix(plot)
    except OutputError as error:
        raise typer.BadParameter(str(error)) from error
    check_figure(plot)


def check_report(report: Path | None) -> None:
    """Refuse a page that cannot be before a model is read for it.

    Raises:
        BadParameter: Its ending is not that of a page.
        OutputError: It cannot be written, or the extra plot is not installed.
    """
    if report is None:
        return
    from ctxextend.report.html import check_report as check_made
    from ctxextend.report.html import check_report_suffix

    try:
        check_report_suffix(report)
    except OutputError as error:
        raise typer.BadParameter(str(error)) from error
    check_made(report)


PrecisionName = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option(
        "--precision", help="auto: fp32 on a CPU, bf16 on an accelerator that has it.", rich_help_panel=RUNNING
    ),
]
Trainable = Annotated[
    Literal["new", "positions", "all"] | None,
    typer.Option(
        "--trainable",
        show_default="positions",
        help="Train the new rows, the whole table, or everything.",
        rich_help_panel=LEARNING,
    ),
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        min=8,
        metavar="L",
        show_default="all it has",
        help="Positions that a training sequence reaches over.",
        rich_help_panel=LEARNING,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        metavar="X",
        show_default="by what is trained",
        help="The highest learning rate.",
        rich_help_panel=LEARNING,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a training that was stopped.", rich_help_panel=FILES)
]
KeepCode = Annotated[
    bool,
    typer.Option(
        "--keep-code", help="Copy code in the folder (*.py and the like) too; it is not run.", rich_help_panel=FILES
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing checkpoint folder.", rich_help_panel=FILES)]


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what the flags alone show to be wrong into a usage error."""
    try:
        yield
    except ResizeError as error:
        raise typer.BadParameter(str(error)) from error
