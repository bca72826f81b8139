"""Options shared by several commands, and how flags become settings."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ctxextend.errors import CtxextendError, OutputError, ResizeError
from ctxextend.recipe_names import builtin_recipes
from ctxextend.runtimes.runtimes import RUNTIME_KEYS
from ctxextend.tables.method_names import rotary_method_names, table_method_names

Settings = TypeVar("Settings")
# Duplicates ctxextend.recipe.MEASURES (a test compares them), which would load numpy for --help.
MEASURES = ("position", "context", "effective", "retrieval")
# Duplicates ctxextend.recipe.SCHEMES too.
SCHEMES = ("rotary", "alibi", "window", "none")
COMMON_DEVICES = ("cpu", "cuda", "mps")  # that completion offers
ADVANCED = "Advanced"  # options that few need: only --help-all lists them
# Option groups of --help, in order.
PANELS = ("Options", "Text", "Measures", "Training", "Output", ADVANCED)


def heading(title: str) -> Any:
    """Return a factory of options under a heading of --help, declared as ``--name METAVAR``."""

    def option(
        declaration: str, about: str, default: str | bool = True, complete: Any = None, **more: Any
    ) -> Any:
        words = declaration.split()
        names = [word for word in words if word.startswith("-")]
        metavar = " ".join(words[len(names) :]) or None
        return typer.Option(
            *names,
            metavar=metavar,
            help=about,
            show_default=default,
            rich_help_panel=title,
            autocompletion=complete,
            **more,
        )

    return option


class WrongFlags(typer.BadParameter):
    """Flags or values that cannot be used, and what to do instead."""

    def __init__(self, message: str, hint: str | None) -> None:
        super().__init__(message)
        self.hint = hint

    def format_message(self) -> str:
        """Return the message, without the flag that Typer would add."""
        return self.message


def read_length(text: str) -> int | str:
    """Read a length, such as 4096 or 4k; another text stays as it is."""
    from ctxextend.length_text import parse_length

    length: int | str = parse_length(text)
    return length


basic = heading("Options")
text = heading("Text")
measures = heading("Measures")
learning = heading("Training")
files = heading("Output")
advanced = heading(ADVANCED)


def rarely(option: Any) -> Any:
    """Return the declaration of a shared option that few need in this command."""
    declared = copy(option.__metadata__[0])
    declared.rich_help_panel = ADVANCED
    return declared


def completing(names: Callable[[], Iterable[str]]) -> Any:
    """Return a shell completion callback for names; without a match, shells offer files."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return built-in recipes and recipe files that a text may become.

    Of files, those in its folder and, once a folder is typed, those of outputs in it.
    """
    names = [*builtin_recipes()]
    folder, _ = os.path.split(incomplete)
    patterns = ["*.yaml", "*.yml"]
    if folder:
        patterns.append("*/ctxextend.yaml")
    for pattern in patterns:
        for path in sorted(Path(folder).glob(pattern)):
            names.append(str(path))
    return [name for name in names if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Return bundled models, and with one that matches also the folders that a text may become.

    Without a bundled model that matches, the shell offers files and folders itself.
    """
    bundled = import_module("ctxextend.checkpoints.source").BUNDLED
    names = [name for name in bundled if name.startswith(incomplete)]
    if not names:
        return []
    folders = [path.name for path in Path().iterdir() if path.is_dir()]
    names += sorted(name for name in folders if name.startswith(incomplete) and name[0] != ".")
    return list(dict.fromkeys(names))


complete_runtime = completing(lambda: RUNTIME_KEYS)
complete_scheme = completing(lambda: SCHEMES)
complete_builtin_recipe = completing(builtin_recipes)
complete_measure = completing(lambda: MEASURES)
complete_table_method = completing(table_method_names)
complete_method = completing(lambda: dict.fromkeys([*table_method_names(), *rotary_method_names()]))
complete_device = completing(lambda: COMMON_DEVICES)
complete_model_type = completing(
    lambda: sorted(import_module("ctxextend.families.known_types").known_names())
)


def argument(metavar: str, help_text: str, default: str | bool = True, complete: Any = None) -> Any:
    """Return an argument, and how shells complete it."""
    return typer.Argument(
        metavar=metavar, help=help_text, show_default=default, autocompletion=complete
    )


def model(help_text: str) -> Any:
    """Return a checkpoint argument."""
    return argument("MODEL", help_text, complete=complete_model)


def output_folder(default: str | bool, help_text: str = "Output folder.") -> Any:
    """Return --output with the default shown in --help."""
    return files("--output -o DIR", help_text, default, readable=False)


Model = Annotated[str, model("Local folder, bundled model (tiny-gpt2) or Hub id.")]
To = Annotated[str, basic("--to N", "New context length, e.g. 4096, 4k, 1m or 4x.")]
Part = Annotated[
    str | None, basic("--part PART", "Only this table: encoder, decoder, ... (see families).")
]
ForRuntime = Annotated[
    str | None,
    basic("--for ENGINE", "Make it right in vllm, llama.cpp, ...", None, complete_runtime),
]
Base = Annotated[
    str | None, basic("--base MODEL", "Base checkpoint.", "from ctxextend.yaml", complete_model)
]

Data = Annotated[
    list[str],
    text("--data PATH", "Text: .txt, .jsonl, .csv or .parquet file, folder or hf:OWNER/NAME."),
]
OptionalData = Annotated[list[str] | None, text("--data PATH", Data.__metadata__[0].help)]
Search = Annotated[str | None, text("--search DIR", "Search set in the layout of BEIR.")]
EvalData = Annotated[list[str] | None, text("--eval-data PATH", "Held-out text.", "5 % of --data")]
TextField = Annotated[str, advanced("--text-field KEY", "Name of the text field or column.")]
Tokens = Annotated[int | None, text("--tokens T", "Maximum number of tokens to use.", "65536")]

Length = Annotated[
    list[int] | None, measures("--length L", "Context length.", "128, 256, ...", parser=read_length)
]
Measure = Annotated[
    list[str] | None,
    measures(
        "--measure NAME",
        f"One of {', '.join(MEASURES)}.",
        "all that apply",
        complete_measure,
    ),
]
Budget = Annotated[int | None, measures("--budget SECONDS", "Time for --measure effective.", "120")]

Trainable = Annotated[
    Literal["new", "positions", "all-but-positions", "all"] | None,
    learning("--trainable P", "new, positions, all-but-positions, all.", "by table"),
]
Lora = Annotated[int | None, learning("--lora R", "Also train adapters of rank R (LoRA).")]
SeqLen = Annotated[
    int | None, learning("--seq-len L", "Sequence length in positions.", "all", parser=read_length)
]
Window = Annotated[
    int | None,
    learning("--window W", "Tokens per window, placed at random.", "L", parser=read_length),
]
LearningRate = Annotated[
    float | None, learning("--lr X", "Peak learning rate.", "set by --trainable")
]
StepBatch = Annotated[
    int | None, learning("--batch-size B", "Sequences per step (all devices).", "8")
]

Force = Annotated[bool, files("--force", "Replace an existing checkpoint folder.")]
Resume = Annotated[bool, files("--resume", "Resume an interrupted training run.")]
Report = Annotated[
    Path | None, files("--report FILE.html", "Write an HTML report.", readable=False)
]
Plot = Annotated[
    Path | None, files("--plot FILE", "Write a figure: .png, .svg or .pdf.", readable=False)
]
DryRun = Annotated[bool, files("--dry-run", "Print the plan and write nothing.")]
AsJson = Annotated[bool, files("--json", "Print one JSON object.")]
Quiet = Annotated[bool, files("--quiet -q", "Suppress all stderr output except errors.")]

Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"], advanced("--precision P", "auto, fp32, bf16 or fp16.")
]
Device = Annotated[
    str | None,
    advanced(
        "--device NAME", "Device: cpu, cuda, cuda:1 or mps.", "GPU, else CPU", complete_device
    ),
]
Threads = Annotated[int | None, advanced("--threads N", "CPU threads.", "depends on the model")]
Seed = Annotated[int, advanced("--seed S", "Random seed.")]
ModelType = Annotated[
    str | None,
    advanced(
        "--model-type TYPE", "Override the model type in config.json.", complete=complete_model_type
    ),
]
Tokenizer = Annotated[
    str | None, advanced("--tokenizer NAME", "Tokenizer: folder, Hub id or nanoGPT's meta.pkl.")
]
TensorName = Annotated[
    str | None, advanced("--tensor NAME", "Name of the position table, for an unknown model type.")
]
ReservedRows = Annotated[
    int, advanced("--reserved-rows K", "With --tensor: rows before position 0.")
]
ConfigKey = Annotated[
    str | None, advanced("--config-key KEY", "With --tensor: dotted config key of its length.")
]
TrainedLength = Annotated[
    int | None,
    advanced(
        "--trained-length L",
        "First trained length, if the config misstates it (rotary).",
        parser=read_length,
    ),
]
Revision = Annotated[str | None, advanced("--revision REV", "Branch, tag or commit on the Hub.")]
Subfolder = Annotated[
    str | None, advanced("--subfolder DIR", "Subfolder of MODEL that contains the checkpoint.")
]
Variant = Annotated[str | None, advanced("--variant NAME", "Weights variant, e.g. fp16.")]
Link = Annotated[bool, files("--link", "Link unchanged weights files instead of copying them.")]


def read_range(text: str | None) -> tuple[int | None, int | None] | None:
    """Parse A:B, A:, :B or : into the ends of a slice.

    Raises:
        typer.BadParameter: The text has another form, or selects nothing.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(-?\d+)?:(-?\d+)?", text)
    if match is None:
        raise _invalid_range(text)
    start = int(match[1]) if match[1] else None
    stop = int(match[2]) if match[2] else None
    if start is not None and stop is not None and 0 <= stop <= start:
        raise _invalid_range(text)
    return start, stop


def _invalid_range(text: str) -> typer.BadParameter:
    return WrongFlags(f"--rows {text} is not a valid range.", "Use A:B for rows A to B-1, or all.")


def command_line() -> str:
    """Return the command line of this run, with local paths shortened to names."""
    from ctxextend.checkpoints.source import public_name

    words = []
    for word in sys.argv[1:]:
        flag, equals, value = word.rpartition("=")
        words.append(f"{flag}{equals}{public_name(value)}")
    return shlex.join(["ctxextend", *words])


@contextmanager
def usage_errors(*kinds: type[CtxextendError]) -> Iterator[None]:
    """Turn errors in flags, and the given kinds of errors, into usage errors."""
    caught: tuple[type[CtxextendError], ...] = (ResizeError, OutputError, *kinds)
    try:
        yield
    except caught as error:
        raise WrongFlags(error.message, error.hint) from error


def given(context: typer.Context) -> dict[str, Any]:
    """Return the values of a command's arguments and flags by name.

    Repeated ones are tuples; None stands for those that were not given.
    """
    values: dict[str, Any] = {}
    for name, value in context.params.items():
        if isinstance(value, list | tuple):
            values[name] = tuple(value) or None
        else:
            values[name] = value
    return values


def given_flags(flags: Mapping[str, Any], *settings: type) -> dict[str, Any]:
    """Return the values that are set and match a field of the settings, with lists as tuples."""
    matching: dict[str, Any] = {}
    for kind in settings:
        for field in fields(kind):
            value = flags.get(field.name)
            if isinstance(value, list):
                value = tuple(value)
            if value is not None:
                matching[field.name] = value
    return matching


def from_flags(settings: type[Settings], flags: Mapping[str, Any], **changes: Any) -> Settings:
    """Build settings of ``ctxextend.recipe`` from a command's values.

    Raises:
        typer.BadParameter: A value is invalid.
    """
    if flags.get("tensor") and flags.get("part"):
        raise WrongFlags(
            "--part cannot be used with --tensor, which already selects one table.",
            "Remove --part.",
        )
    with usage_errors():
        return settings(**given_flags({**flags, **changes}, settings))


def check_files(plot: Path | None = None, report: Path | None = None) -> None:
    """Check early that a figure and a report can be written.

    Raises:
        typer.BadParameter: Their format is not supported.
        OutputError: They cannot be written here, or a library is missing.
    """
    if plot is None and report is None:
        return
    from ctxextend.report import figures

    for path, kind in ((plot, figures.FIGURE), (report, figures.REPORT)):
        if path is None:
            continue
        if path.suffix.lower() not in kind.formats:
            *others, last = kind.formats
            raise WrongFlags(
                f"{path} has an unsupported {kind.name} format.",
                f"Use {', '.join(others)} or {last}.",
            )
        figures.check_file(path, kind)
