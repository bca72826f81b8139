"""Options that several commands share, each described once, and how they become settings."""

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ctxextend.errors import CtxextendError, OutputError, ResizeError
from ctxextend.tables.method_facts import METHOD_NAMES

Settings = TypeVar("Settings")
# Those of the recipe, which a test compares: importing it would bring numpy into --help.
MEASURES = ("position", "context", "passkey", "retrieval")
# The groups of a command's --help, in their order.
PANELS = ("Options", "Text", "Measures", "Training", "Output", "Advanced")


def heading(title: str) -> Any:
    """Return what describes an option under a heading of --help: how it is typed, what it does, and its default."""

    def option(typed: str, does: str, default: str | bool = True, **more: Any) -> Any:
        names = [word for word in typed.split() if word.startswith("-")]
        metavar = " ".join(typed.split()[len(names) :]) or None
        return typer.Option(*names, metavar=metavar, help=does, show_default=default, rich_help_panel=title, **more)

    return option


basic, text, measures, learning, files, advanced = map(heading, PANELS)


def completing(names: Callable[[], Iterable[str]]) -> Any:
    """Return what completes a name; where none begins so, shells offer files."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def hub_id(repo: str | None) -> str | None:
    """Return the name of a repository; one that the Hub cannot have is a usage error."""
    if repo is not None and not re.fullmatch(r"(?:[\w][\w.-]*/)?[\w][\w.-]*", repo):
        raise typer.BadParameter(f"{repo} is not a repository of the Hub: write OWNER/NAME.")
    return repo


complete_method = completing(lambda: METHOD_NAMES)
complete_model = completing(lambda: import_module("ctxextend.checkpoints.source").BUNDLED)
complete_model_type = completing(lambda: sorted(import_module("ctxextend.families.registry").FAMILIES))


def model(does: str, metavar: str = "MODEL") -> Any:
    """Describe a checkpoint among a command's arguments."""
    return typer.Argument(metavar=metavar, autocompletion=complete_model, help=does)


def output_folder(default: str | bool, does: str = "The new folder.") -> Any:
    """Describe --output of a command, and what it is where it is not given."""
    return files("--output -o DIR", does, default, readable=False)


Model = Annotated[str, model("A folder, a bundled name (tiny-gpt2), or a Hub id.")]
To = Annotated[str, basic("--to N", "New context length: 4096, 4k, or 4x the old.")]
Part = Annotated[str | None, basic("--part PART", "Only this table: encoder, decoder, ... (see families).")]
Base = Annotated[
    str | None, basic("--base MODEL", "Base checkpoint.", "that of ctxextend.yaml", autocompletion=complete_model)
]

# Text
Data = Annotated[list[str], text("--data PATH", ".txt .jsonl .csv .parquet, folder or hf:OWNER/ID.")]
EvalData = Annotated[list[str] | None, text("--eval-data PATH", "Held-out text.", "5 % of --data")]
TextField = Annotated[str, text("--text-field KEY", "Name of the text field or column.")]
Tokens = Annotated[int, text("--tokens T", "Maximum number of tokens to use.")]

# Measures
Length = Annotated[list[int] | None, measures("--length L", "Context length to measure.", "128, 256, ...")]
Measure = Annotated[
    list[str] | None,
    measures("--measure NAME", f"{', '.join(MEASURES)}.", "all that fit", autocompletion=completing(lambda: MEASURES)),
]

# Training
Trainable = Annotated[
    Literal["new", "positions", "all"] | None,
    learning("--trainable WHAT", "new (rows), positions or all.", "positions"),
]
SeqLen = Annotated[int | None, learning("--seq-len L", "Sequence length in positions.", "all")]
Window = Annotated[int | None, learning("--window W", "Tokens per window, placed at random.", "L")]
LearningRate = Annotated[float | None, learning("--lr X", "Peak learning rate.", "by --trainable")]
StepBatch = Annotated[int | None, learning("--batch-size B", "Sequences per step, over all devices.", "8")]

# Output
Force = Annotated[bool, files("--force", "Replace an existing checkpoint folder.")]
Resume = Annotated[bool, files("--resume", "Resume an interrupted training run.")]
Report = Annotated[Path | None, files("--report FILE.html", "Write an HTML report.", readable=False)]
Plot = Annotated[Path | None, files("--plot FILE", "Write a figure: .png, .svg or .pdf.", readable=False)]
PushToHub = Annotated[str | None, files("--push-to-hub REPO", "Upload to this model repository.", callback=hub_id)]
DryRun = Annotated[bool, files("--dry-run", "Print the plan and write nothing.")]
AsJson = Annotated[bool, files("--json", "Print one JSON object.")]
Quiet = Annotated[bool, files("--quiet -q", "Print only errors on stderr.")]

# Advanced
Precision = Annotated[Literal["auto", "fp32", "bf16", "fp16"], advanced("--precision P", "auto, fp32, bf16 or fp16.")]
Device = Annotated[str | None, advanced("--device NAME", "cpu, cuda, cuda:1 or mps.", "accelerator, else cpu")]
Threads = Annotated[int | None, advanced("--threads N", "CPU threads.", "as many as help")]
Seed = Annotated[int, advanced("--seed S", "Random seed.")]
ModelType = Annotated[
    str | None,
    advanced("--model-type TYPE", "Model type, in place of config.json's.", autocompletion=complete_model_type),
]
Tokenizer = Annotated[str | None, advanced("--tokenizer NAME", "Tokenizer: folder, Hub id, or nanoGPT's meta.pkl.")]
TensorName = Annotated[str | None, advanced("--tensor NAME", "Name of the position table, for an unknown model type.")]
ReservedRows = Annotated[int, advanced("--reserved-rows K", "With --tensor: rows before position 0.")]
ConfigKey = Annotated[str | None, advanced("--config-key KEY", "With --tensor: the key of its length, with dots.")]
Revision = Annotated[str | None, advanced("--revision REV", "Branch, tag or commit on the Hub.")]
Subfolder = Annotated[str | None, advanced("--subfolder DIR", "Folder in MODEL that holds the checkpoint.")]
Variant = Annotated[str | None, advanced("--variant NAME", "Weights variant, e.g. fp16.")]
CopyCode = Annotated[bool, advanced("--copy-code", "Also copy code files (*.py, ...); they are never executed.")]


def read_range(text: str | None) -> tuple[int | None, int | None] | None:
    """Read A:B, A:, :B or : as the ends of a slice."""
    if text is None:
        return None
    found = re.fullmatch(r"(-?\d+)?:(-?\d+)?", text)
    start, stop = (int(end) if end else None for end in found.groups()) if found else (0, 0)
    if start is not None and stop is not None and 0 <= stop <= start:
        raise typer.BadParameter(f"--rows {text} is not a range: write A:B for rows A to B-1.")
    return start, stop


def command_line() -> str:
    """Return the command as it was typed, with names in place of paths."""
    from ctxextend.report.figures import public_name

    words = (word.rpartition("=") for word in sys.argv[1:])
    return shlex.join(["ctxextend", *(f"{flag}{equals}{public_name(value)}" for flag, equals, value in words)])


@contextmanager
def usage_errors(*kinds: type[CtxextendError]) -> Iterator[None]:
    """Turn what the flags alone show to be wrong, and other kinds of errors, into a usage error."""
    caught: tuple[type[CtxextendError], ...] = (ResizeError, OutputError, *kinds)
    try:
        yield
    except caught as error:
        raise typer.BadParameter(str(error)) from error


def given_flags(flags: Mapping[str, Any], *settings: type) -> dict[str, Any]:
    """Return those of a command's values that were given and are named as fields of settings, lists as tuples."""
    names = [field.name for kind in settings for field in fields(kind)]
    given = {name: flags[name] for name in names if flags.get(name) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def from_flags(settings: type[Settings], flags: Mapping[str, Any], **changes: Any) -> Settings:
    """Return settings of ``ctxextend.recipe`` from a command's values; what serves no checkpoint is a usage error."""
    if flags.get("tensor") and flags.get("part"):
        raise typer.BadParameter("--tensor names the one table: leave --part out.")
    with usage_errors():
        return settings(**given_flags({**flags, **changes}, settings))


def check_files(plot: Path | None = None, report: Path | None = None) -> None:
    """Refuse a figure or a report that cannot be written before a model is read for it."""
    for path, name in ((plot, "FIGURE"), (report, "REPORT")):
        if path is not None:
            figures = import_module("ctxextend.report.figures")
            with usage_errors():
                figures.check_format(path, getattr(figures, name))
            figures.check_file(path, getattr(figures, name))
