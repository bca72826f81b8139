"""The settings of all commands, each declared once.

A field says what a setting is: its kind, default, flag, help and heading. The flags of the command
line, the keyword arguments of Python and the keys of recipes all follow from the fields, and so
does the check of a value, when the settings are created.
"""

import inspect
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from ctxextend import kinds
from ctxextend.errors import ResizeError, did_you_mean, flag_name, raise_first
from ctxextend.kinds import Factor, Kind, TableName

if TYPE_CHECKING:
    from ctxextend.tables.method_facts import MethodChoice


class Heading(StrEnum):
    """The headings of --help, in order."""

    OPTIONS = "Options"
    TEXT = "Text"
    MEASURES = "Measures"
    TRAINING = "Training"
    OUTPUT = "Output"
    ADVANCED = "Advanced"  # options that few need: only --help-all lists them


# The measures of `evaluate`: one module each, whose import would take time.
MEASURES = tuple(
    sorted(path.stem for path in (Path(__file__).parent / "lab/measures").glob("[a-z]*.py"))
)
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
TRAINABLE = {
    "new": "the new rows of the position table",
    "positions": "the position table",
    "all-but-positions": "all weights except the position table",
    "all": "all weights",
}
FROZEN = (None, "all-but-positions")  # values of `trainable` that leave position tables as they are
MIN_WINDOW = 8  # minimum window length in tokens
WITHOUT_POSITIONS = "none"  # the scheme of a conversion that removes rotary positions
# The scheme of a conversion that keeps positions, and attends in windows.
ATTENTION_WINDOWS = "window"
# Of a conversion: what its output has instead.
SCHEMES = {
    "rotary": "rotary positions",
    "alibi": "ALiBi positions",
    ATTENTION_WINDOWS: "attention windows",
    WITHOUT_POSITIONS: "no positions",
}
# Default base of the rotary frequencies after a conversion; docs/convert.md has the measurements.
DEFAULT_THETA = 1000.0
# Default attention window of a conversion; docs/convert.md has the measurements.
DEFAULT_ATTENTION_WINDOW = 256
MIN_ATTENTION_WINDOW = 4  # transformers' classes fail with 2 on an input of one token
TUNING_SECONDS = 60


Kept = TypeVar("Kept", bound="Settings")


class Option(NamedTuple):
    """What is known of a setting, besides its name and default, which its field has."""

    kind: Kind
    help: str
    metavar: str = ""  # of its value, in --help
    heading: str = Heading.OPTIONS
    flag: str = ""  # such as ``--output -o``; empty: the name of the field
    shown: str | bool = True  # the default that --help shows; True: that of the field
    is_repeated: bool = False  # whether it has several values, a tuple
    is_argument: bool = False  # whether it is an argument of the command, not an option
    in_cli: bool = True  # whether it is a flag
    in_python: bool = True  # whether it is a keyword argument
    in_recipe: bool = True  # whether it is a key of recipes
    depends_on_machine: bool = False  # recipes do not state it


def setting(
    kind: Kind,
    help: str,
    metavar: str = "",
    *,
    default: Any = None,
    kw_only: bool = True,
    **known: Any,
) -> Any:
    """Return the field of a setting.

    Args:
        kind, help, metavar: As in `Option`.
        default: The value if it is not given; ``MISSING`` if it must be.
        kw_only: Whether it is not a positional argument of the settings.
        known: Other fields of `Option`.
    """
    facts = Option(kind, help, metavar, **known)
    return field(default=default, kw_only=kw_only, metadata={"setting": facts})


advanced = partial(setting, heading=Heading.ADVANCED)


def flag(help: str, **known: Any) -> Any:
    """Return the field of a setting that is either given or not; `known` is as in `setting`."""
    return setting(kinds.FLAG, help, default=False, **known)


def option_of(item: Field[Any]) -> Option:
    """Return what is known of the setting that a field declares."""
    option: Option = item.metadata["setting"]
    return option


def flag_of(item: Field[Any]) -> str:
    """Return the flag, argument or key of the setting that a field declares."""
    option = option_of(item)
    if option.is_argument:
        return option.metavar
    if not option.in_cli:
        return item.name
    names = option.flag or flag_name(item.name)
    return names.partition(" ")[0]


class Conflict(NamedTuple):
    """Settings that exclude or need each other."""

    names: tuple[str, ...]  # of the settings; errors are about the first
    is_broken: Callable[[Any], bool]
    message: str  # with the values of settings in braces
    hint: str = "Remove one of them."
    given: tuple[str, ...] = ()  # settings without which it does not apply
    missing: tuple[str, ...] = ()  # settings with which it does not apply


def excludes(one: str, other: str, why: str = "") -> Conflict:
    """Return the rule that two settings cannot be used together; `why` is a clause."""
    message = f"{flag_name(one)} cannot be used with {flag_name(other)}{why}."
    return Conflict((one, other), lambda given: True, message, given=(one, other))


def requires(one: str, other: str) -> Conflict:
    """Return the rule that a setting is only used with another one."""
    message = f"{flag_name(one)} requires {flag_name(other)}."
    hint = f"Add {flag_name(other)}, or remove {flag_name(one)}."
    return Conflict((one, other), lambda given: True, message, hint, given=(one,), missing=(other,))


def _only_with(name: str, scheme: str) -> Conflict:
    return Conflict(
        (name, "scheme"),
        lambda given: given.scheme != scheme,
        f"{flag_name(name)} applies to --scheme {scheme}, not to --scheme {{scheme}}.",
        f"Remove {flag_name(name)}.",
        given=(name,),
    )


class Settings:
    """Base class of settings: reads each value as its kind, and checks the conflicts."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    conflicts: ClassVar[Sequence[Conflict]] = ()

    if TYPE_CHECKING:  # any value: it is read as the kind of its field

        def __init__(self, *values: Any, **named: Any) -> None: ...

    def __post_init__(self) -> None:
        errors = list[ResizeError]()
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or value is item.default:
                if item.default is MISSING:
                    errors.append(ResizeError(f"{flag_of(item)} is missing.", None, item.name))
                else:
                    object.__setattr__(self, item.name, item.default)
                continue
            object.__setattr__(self, item.name, _read(item, value, errors))
        invalid = {error.setting for error in errors}
        given = set[str]()
        for name, value in vars(self).items():
            if value is not None and value is not False and value != ():
                given.add(name)
        for conflict in self.conflicts:
            applies = given.issuperset(conflict.given) and given.isdisjoint(conflict.missing)
            if applies and invalid.isdisjoint(conflict.names) and conflict.is_broken(self):
                message = conflict.message.format_map(vars(self))
                errors.append(ResizeError(message, conflict.hint, conflict.names[0]))
        if errors:
            raise_first(errors)


def settings_class(kind: type[Kept]) -> type[Kept]:
    """Make a class of settings a frozen dataclass; its arguments may have any type."""
    return dataclass(frozen=True)(kind)


def _read(item: Field[Any], value: Any, errors: list[ResizeError]) -> Any:
    """Return the value of a field as its kind; what is wrong with it is added to the errors."""
    option: Option = item.metadata["setting"]
    values: Iterable[Any] = (value,)
    is_one = isinstance(value, str | bytes | os.PathLike | Mapping)
    if option.is_repeated and isinstance(value, Iterable) and not is_one:
        values = value
    results = list[Any]()
    for one in values:
        try:
            results.append(option.kind.read(one))
        except ResizeError as error:
            for wrong in (error, *error.others):
                wrong.setting = wrong.setting or item.name
                errors.append(wrong)
        except ValueError as error:
            shown = one if isinstance(one, str) and one else repr(one)
            message = f"{flag_of(item)} must be {error}, got {shown:.100}."
            hint = did_you_mean(str(one), option.kind.names)
            errors.append(ResizeError(message, hint or None, item.name))
    if option.is_repeated or not results:
        return tuple(results)
    return results[0]


def read_settings(
    kinds: Iterable[type[Settings]], given: Mapping[str, Any], without: Collection[str]
) -> list[Settings]:
    """Return settings of several classes, with values by name of the field.

    Args:
        kinds: The classes.
        given: Values, each for all fields of its name; others have their default.
        without: Fields that are empty if they have no default.

    Raises:
        ResizeError: A value is invalid or missing.
    """
    settings = list[Settings]()
    for kind in kinds:
        values = dict[str, Any]()
        for item in fields(kind):
            if item.name in given:
                values[item.name] = given[item.name]
            elif item.name in without and item.default is MISSING:
                values[item.name] = ""
        settings.append(kind(**values))
    return settings


@settings_class
class CheckpointRef(Settings):
    """A reference to a checkpoint."""

    source: str = setting(
        kinds.CHECKPOINT,
        "Folder, file, Hub id or bundled tiny-gpt2.",
        "MODEL",
        default=MISSING,
        is_argument=True,
        kw_only=False,
    )
    revision: str | None = advanced(kinds.ANY_TEXT, "Branch, tag or commit on the Hub.", "REV")
    subfolder: str | None = advanced(
        kinds.SUBFOLDER,
        "Subfolder of MODEL that contains the checkpoint.",
        "DIR",
    )
    variant: str | None = advanced(kinds.VARIANT, "Weights variant, e.g. fp16.", "NAME")
    model_type: str | None = advanced(
        kinds.MODEL_TYPE,
        "Override the model type in config.json.",
        "TYPE",
    )
    table: TableName | None = advanced(
        kinds.TABLE,
        "Position table of an unknown model type: tensor, dotted config key of its length, rows "
        "before position 0.",
        "NAME:KEY:RESERVED",
    )
    tokenizer: str | None = advanced(
        kinds.CHECKPOINT,
        "Tokenizer: folder, Hub id or nanoGPT's meta.pkl.",
        "NAME",
    )
    trained_length: int | None = advanced(
        kinds.length(1),
        "First trained length, if the config misstates it (rotary).",
        "L",
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        excludes("table", "model_type"),
        excludes("table", "trained_length"),
    )

    def resize_command(self, **flags: Any) -> str:
        """Return the command that resizes it, with the flags that are not None."""
        words = ["ctxextend", "resize", self.source]
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not option_of(item).is_argument:
                words += [flag_of(item), str(value)]
        for name, value in flags.items():
            if value is not None:
                words += [flag_name(name), str(value)]
        return shlex.join(words)


def output_setting(help: str, shown: str) -> Any:
    """Return the field of ``--output``; `shown` is the default that --help shows."""
    return setting(
        kinds.OUTPUT_PATH,
        help,
        "DIR",
        flag="--output -o",
        heading=Heading.OUTPUT,
        shown=shown,
        in_recipe=False,
    )


@settings_class
class Saving(Settings):
    """Where an output is saved."""

    output: Path | None = output_setting("Output folder or GGUF file.", "<name>-<N>")
    force: bool = flag(
        "Replace an existing checkpoint folder.",
        heading=Heading.OUTPUT,
        in_recipe=False,
    )
    dry_run: bool = flag(
        "Print the plan and write nothing.",
        heading=Heading.OUTPUT,
        in_recipe=False,
        in_python=False,
    )


@settings_class
class Writing(Saving):
    """How `resize` and `convert` write an output; recipes state none of it."""

    link: bool = flag(
        "Link unchanged weights files instead of copying them.",
        heading=Heading.OUTPUT,
        in_recipe=False,
    )
    verify: bool = flag(
        "Verify the output before moving it into place.",
        heading=Heading.OUTPUT,
        in_recipe=False,
    )

    if TYPE_CHECKING:
        to: int | Factor | None

    @property
    def length(self) -> int:
        """The new context length; only if `to` is a number."""
        assert isinstance(self.to, int)
        return self.to


@settings_class
class Resize(Writing):
    """How to resize a position table."""

    # New context length in usable positions, ≥ 1, without reserved rows. A factor of the present
    # length becomes a number in `Plan.settings`.
    to: int | Factor = setting(
        kinds.NEW_LENGTH,
        "New context length, e.g. 4096, 4k, 1m or 4x.",
        "N",
        default=MISSING,
        kw_only=False,
    )
    # None is `DEFAULT_METHOD` for a longer table; for a shorter one, only None and `TRUNCATE` are
    # allowed.
    method: "MethodChoice | None" = setting(
        kinds.METHOD,
        "E.g. linear or bands:gain=1.2 (see methods).",
        "NAME",
        shown="auto",
        kw_only=False,
    )
    tune: tuple[str, ...] = setting(
        kinds.FILE,
        "Train the rows of the table on this text.",
        "TEXT",
        default=(),
        is_repeated=True,
        in_recipe=False,
    )
    budget: int | None = setting(
        kinds.integer(),
        "With --tune: seconds for it.",
        "S",
        shown=str(TUNING_SECONDS),
        in_recipe=False,
    )
    # Positions at the start that the method does not change; None is the method's default.
    keep_first: int | None = setting(
        kinds.integer(0, kinds.MAX_CONTEXT),
        "Keep the first K rows.",
        "K",
        shown="0; stretch: 20",
    )
    part: str | None = setting(
        kinds.ANY_TEXT, "Only this table: encoder, decoder, ... (see families).", "PART"
    )
    engine: str | None = setting(
        kinds.ENGINE,
        "Make it right in vllm, llama.cpp, ...",
        "ENGINE",
        flag="--for",
        in_recipe=False,
    )
    fix_limits: bool = flag(
        "Make all length limits agree with the table.",
    )
    edit_only: bool = flag(
        "Write the edited small files, and no weights.",
        heading=Heading.OUTPUT,
        in_recipe=False,
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        requires("budget", "tune"),
        excludes("edit_only", "verify", ", which needs weights"),
        excludes("link", "edit_only", ", which writes no weights"),
        excludes("edit_only", "tune", ", which trains the position table"),
        excludes("link", "tune", ", which trains the position table"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        method = self.method
        if method is None:
            return
        default = method.facts.keep_first or 0
        if method.keep_first != default:  # it is one of the settings in the method's text
            if self.keep_first not in (None, method.keep_first):
                message = f"--keep-first {self.keep_first} contradicts --method {method}."
                raise ResizeError(message, "Remove one of them.", "keep_first")
            object.__setattr__(self, "keep_first", method.keep_first)
            object.__setattr__(self, "method", replace(method, keep_first=default))
        method.keeping(self.keep_first or 0)

    @cached_property
    def choice(self) -> "MethodChoice":
        """The requested method with all of its settings."""
        choice = self.method
        if choice is None:
            choice = import_module("ctxextend.tables.methods").METHODS["auto"].choice()
        if self.keep_first is None:
            return choice
        return choice.keeping(self.keep_first)

    @property
    def method_flags(self) -> tuple[str, ...]:
        """Flags that were passed and apply only when new rows are created."""
        flags = []
        if self.method is not None and self.method.name != "truncate":
            flags.append("--method")
        if self.keep_first:
            flags.append("--keep-first")
        return tuple(flags)


@settings_class
class Convert(Writing):
    """How to convert a model to another position scheme, or to attention windows."""

    output: Path | None = output_setting("Output folder.", "<name>-<scheme>-<N>")
    # ``rotary`` or ``alibi`` instead of learned positions, ``none`` instead of rotary ones, or
    # ``window`` for learned positions and attention to tokens near by.
    scheme: str = setting(
        kinds.choice(*SCHEMES),
        "rotary, alibi, window or none.",
        "NAME",
        default=MISSING,
        kw_only=False,
    )
    to: int | Factor | None = setting(
        kinds.NEW_LENGTH,
        "New context length, e.g. 4096, 4k or 4x.",
        "N",
        shown="unchanged",
        kw_only=False,
    )
    # The slowest frequency turns once in about 2 pi x theta tokens.
    theta: float | None = setting(
        kinds.number("above 1", lambda value: value > 1),
        "Base of the rotary frequencies.",
        "T",
        shown=f"{DEFAULT_THETA:g}",
    )
    # Half of them on either side, next to the token itself; even.
    attention_window: int | None = setting(
        kinds.length(MIN_ATTENTION_WINDOW),
        "With window: tokens each attends to.",
        "W",
        shown=str(DEFAULT_ATTENTION_WINDOW),
    )
    method: "MethodChoice | None" = setting(
        kinds.METHOD, "With window: method of new rows.", "NAME", shown="copy"
    )
    # For heads that the new model type does not have.
    encoder_only: bool = flag(
        "Drop the head, if it cannot be converted.",
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        Conflict(
            ("scheme", "to"),
            lambda given: given.to is None and given.scheme != WITHOUT_POSITIONS,
            "--scheme {scheme} requires --to.",
            "Add the context length of the output: --to N.",
        ),
        _only_with("theta", "rotary"),
        _only_with("attention_window", ATTENTION_WINDOWS),
        _only_with("method", ATTENTION_WINDOWS),
        Conflict(
            ("encoder_only", "scheme"),
            lambda given: given.encoder_only and given.scheme == WITHOUT_POSITIONS,
            "--encoder-only cannot be used with --scheme none, which keeps all weights.",
            "Remove --encoder-only.",
        ),
        Conflict(
            ("attention_window",),
            lambda given: (given.attention_window or 0) % 2 == 1,
            "--attention-window must be even, got {attention_window}: half of it is on either "
            "side.",
            "Use an even number.",
        ),
        Conflict(
            ("attention_window", "to"),
            lambda given: isinstance(given.to, int) and (given.attention_window or 0) > given.to,
            "--attention-window {attention_window} is above --to {to}.",
            "Lower it, or use ctxextend resize, which attends to all.",
        ),
    )

    @property
    def result(self) -> str:
        """What the output has instead, with its settings: ``rotary positions, theta 1000``."""
        text = SCHEMES[self.scheme]
        if self.theta is not None:
            text += f", theta {self.theta:g}"
        if self.attention_window is not None:
            text += f" of {self.attention_window} tokens"
        return text

    @property
    def half_window(self) -> int:
        """Tokens that each one attends to on either side; only with a window."""
        assert self.attention_window is not None
        return self.attention_window // 2


TEXT_HELP = "Text file, folder or hf:OWNER/NAME."


@settings_class
class Reading(Settings):
    """How `evaluate` and `train` read text, and what they compute on."""

    text_field: str = advanced(
        kinds.ANY_TEXT,
        "Name of the text field or column.",
        "KEY",
        default="text",
    )
    # bf16 with ``auto`` if the accelerator supports it, else fp32
    precision: str = advanced(
        kinds.choice(*PRECISIONS),
        "auto, fp32, bf16 or fp16.",
        "P",
        default="auto",
    )
    # Of masks and needles; in training, of data order, masking and positions.
    seed: int = advanced(kinds.integer(0), "Random seed.", "S", default=0)
    device: str | None = advanced(
        kinds.DEVICE,
        "Device: cpu, cuda, cuda:1 or mps.",
        "NAME",
        shown="GPU, else CPU",
        depends_on_machine=True,
    )
    # By default as ``OMP_NUM_THREADS`` says, else one for small models and all CPUs for others.
    threads: int | None = advanced(
        kinds.integer(),
        "CPU threads.",
        "N",
        shown="depends on the model",
        depends_on_machine=True,
    )


NO_BASE = "none"  # instead of a base checkpoint


@settings_class
class Evaluate(Reading):
    """What to measure of models, and on which text; without any, on Python's documentation."""

    data: tuple[str, ...] = setting(
        kinds.FILE,
        TEXT_HELP,
        "PATH",
        default=(),
        heading=Heading.TEXT,
        shown="Python's documentation",
        is_repeated=True,
        kw_only=False,
    )
    search: str | None = setting(
        kinds.FILE,
        "Folder of a search set, as in BEIR.",
        "DIR",
        heading=Heading.TEXT,
    )
    base: str | None = setting(
        kinds.CHECKPOINT, "Base checkpoint, or none.", "MODEL", shown="from ctxextend.yaml"
    )
    # By default doublings up to the model's length.
    length: tuple[int, ...] = setting(
        kinds.length(MIN_WINDOW),
        "Context length.",
        "L",
        default=(),
        heading=Heading.MEASURES,
        shown="128, 256, ...",
        is_repeated=True,
    )
    tokens: int = setting(
        kinds.integer(),
        "Maximum number of tokens to use.",
        "T",
        default=65_536,
        heading=Heading.TEXT,
    )
    batch_size: int | None = advanced(
        kinds.integer(),
        "Windows per batch.",
        "B",
        shown="up to 4,096 tokens",
    )
    measure: tuple[str, ...] = setting(
        kinds.choice(*MEASURES),
        "E.g. position, context, retrieval or effective.",
        "NAME",
        default=(),
        heading=Heading.MEASURES,
        shown="all that apply",
        is_repeated=True,
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        Conflict(
            ("base", "measure"),
            lambda given: given.base == NO_BASE and "retrieval" in given.measure,
            "--base none cannot be used with --measure retrieval, which requires a base.",
        ),
        Conflict(
            ("measure", "search"),
            lambda given: "search" in given.measure,
            "--measure search requires --search.",
            "Add --search DIR.",
            missing=("search",),
        ),
    )


@settings_class
class Candidates(Settings):
    """What is measured side by side: models as they are, or one model resized by methods."""

    models: tuple[str, ...] = setting(
        kinds.CHECKPOINT,
        "Folders, files, Hub ids or bundled tiny-gpt2.",
        "MODEL",
        default=MISSING,
        is_repeated=True,
        is_argument=True,
        in_recipe=False,
    )
    to: int | Factor | None = setting(
        kinds.NEW_LENGTH, "Compare methods that resize to N, e.g. 4096 or 4x.", "N"
    )
    # ``all``: every method with its defaults
    method: "tuple[MethodChoice | str, ...]" = setting(
        kinds.METHOD_OR_ALL,
        "With --to: a method, e.g. stretch:keep-first=5.",
        "NAME",
        default=(),
        shown="all",
        is_repeated=True,
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        requires("method", "to"),
        Conflict(
            ("to", "models"),
            lambda given: given.to is not None and len(given.models) > 1,
            "--to is for one MODEL, got several.",
            "Remove it to measure them as they are.",
        ),
        Conflict(
            ("to",),
            lambda given: isinstance(given.to, int) and given.to < MIN_WINDOW,
            f"--to must be at least {MIN_WINDOW} to measure methods, got {{to}}.",
            "Use a larger --to.",
        ),
    )


@settings_class
class Train(Reading):
    """How to fine-tune a checkpoint."""

    data: tuple[str, ...] = setting(
        kinds.FILE,
        TEXT_HELP,
        "PATH",
        default=MISSING,
        is_repeated=True,
        kw_only=False,
    )
    steps: int = setting(
        kinds.integer(),
        "Optimizer steps.",
        "N",
        default=MISSING,
        heading=Heading.TRAINING,
        kw_only=False,
    )
    # By default as many as `steps` need, and at least 1.3 million.
    tokens: int | None = setting(
        kinds.integer(), "Maximum number of tokens of --data to read.", in_cli=False
    )
    seq_len: int | None = setting(
        kinds.length(MIN_WINDOW),
        "Sequence length in positions.",
        "L",
        heading=Heading.TRAINING,
        shown="all",
    )
    window: int | None = advanced(
        kinds.length(MIN_WINDOW),
        "Tokens per window, placed at random.",
        "W",
        shown="L",
    )
    # Together with the text in between.
    window_skip: bool = flag(
        "Skip positions once in each window (PoSE).",
        heading=Heading.ADVANCED,
    )
    # By default the table; with fixed sinusoids ``all-but-positions``, and with rotary positions,
    # which have no rows, ``all``.
    trainable: str | None = setting(
        kinds.choice(*TRAINABLE),
        "new, positions, all-but-positions, all.",
        "P",
        heading=Heading.TRAINING,
        shown="by table",
    )
    lora: int | None = setting(
        kinds.integer(), "Also train adapters of rank R (LoRA).", "R", heading=Heading.TRAINING
    )
    lr: float | None = setting(
        kinds.ABOVE_ZERO,
        "Peak learning rate.",
        "X",
        heading=Heading.TRAINING,
        shown="set by --trainable",
    )
    weight_decay: float = setting(kinds.WEIGHT, "AdamW's weight decay.", default=0.0, in_cli=False)
    batch_size: int = setting(
        kinds.integer(),
        "Sequences per step.",
        "B",
        default=8,
        heading=Heading.TRAINING,
    )
    per_device_batch_size: int | None = setting(
        kinds.integer(), "Micro-batch size; by default as memory allows.", in_cli=False
    )
    eval_every: int | None = advanced(kinds.integer(), "Evaluate every K steps.", "K", shown="N/4")
    save: str = advanced(
        kinds.choice("best", "last"),
        "best (by held-out loss) or last.",
        "WHAT",
        default="best",
    )
    # The teacher.
    base: str | None = setting(
        kinds.CHECKPOINT, "Base checkpoint.", "MODEL", shown="from ctxextend.yaml"
    )
    # Besides another objective. By default 4 in language models that were converted, 5 in
    # contrastive training, else 0. Where only the table of a language model is trained, it is the
    # share of distillation, from 0 to 1: by default 1 in windows that the base can read, else 0.
    distill: float | None = advanced(
        kinds.WEIGHT,
        "Weight of distillation from the base.",
        "W",
        shown="by model",
    )
    # ``passages``: find a document by one of its passages; ``pairs``: find the positive of an
    # anchor in .jsonl or .tsv files (anchor, positive and maybe negative).
    contrastive: str | None = advanced(
        kinds.choice("passages", "pairs"),
        "Train encoders to find texts: passages or pairs.",
        "BY",
    )

    conflicts: ClassVar[Sequence[Conflict]] = (
        Conflict(
            ("data",),
            lambda given: given.data == (),
            "No training text.",
            "Pass some with --data, such as --data book.txt.",
        ),
        requires("window_skip", "window"),
        Conflict(
            ("window", "seq_len"),
            lambda given: bool(given.seq_len and given.window and given.window > given.seq_len),
            "--window must be at most --seq-len {seq_len}, got {window}.",
            "Lower --window, or remove it.",
        ),
        excludes("window_skip", "contrastive"),
        Conflict(
            ("batch_size", "contrastive"),
            lambda given: given.contrastive is not None and given.batch_size < 2,
            "--batch-size must be at least 2 to compare texts, got {batch_size}.",
            "Raise --batch-size.",
        ),
        Conflict(
            ("lora", "trainable"),
            lambda given: given.lora is not None and given.trainable == "all",
            "--lora trains adapters instead of all weights, so it cannot be used with "
            "--trainable all.",
        ),
        Conflict(
            ("per_device_batch_size", "batch_size"),
            lambda given: given.batch_size % (given.per_device_batch_size or 1) != 0,
            "--batch-size must be a multiple of per_device_batch_size, which is "
            "{per_device_batch_size}, got {batch_size}.",
            "Change one of them: a step consists of whole micro-batches.",
        ),
    )

    @property
    def trains_weights(self) -> bool:
        """Whether parameters other than position tables are trained."""
        return self.lora is not None or self.trainable in ("all-but-positions", "all")

    @property
    def compares_tables(self) -> bool:
        """Whether only position rows are trained, by distillation or in windows.

        Held-out text is then read whole, to tell which table reads long texts better.
        """
        is_only_table = self.trainable in ("new", "positions") and self.lora is None
        is_distilled = self.window is not None or bool(self.distill)
        return is_only_table and is_distilled and not self.contrastive

    @property
    def trained_text(self) -> str:
        """What is trained, as text; `trainable` is set."""
        text = TRAINABLE[str(self.trainable)]
        if not self.lora:
            return text
        adapters = f"adapters of rank {self.lora}"
        if self.trainable in FROZEN:
            return adapters
        return f"{text} and {adapters}"


@settings_class
class Run(Saving):
    """How a training run or a recipe is run, and where its output is saved."""

    output: Path | None = output_setting("Output folder.", "<name>-trained")
    resume: bool = flag(
        "Resume an interrupted training run.",
        heading=Heading.OUTPUT,
        in_recipe=False,
    )


@settings_class
class RunRecipe(Run):
    """Which recipe to run."""

    output: Path | None = output_setting("Output folder.", "from the recipe")
    recipe: str = setting(
        kinds.RECIPE,
        "Recipe file, or a name from `ctxextend recipes`.",
        "RECIPE",
        default=MISSING,
        is_argument=True,
        kw_only=False,
    )
    changes: tuple[str, ...] = setting(
        kinds.ANY_TEXT,
        "Override a value of the recipe.",
        "KEY=VALUE",
        default=(),
        flag="--set",
        is_repeated=True,
    )


@settings_class
class Figures(Settings):
    """The files that a measurement is drawn in."""

    report: Path | None = setting(
        kinds.drawing(".html", ".htm"), "Write an HTML report.", "FILE.html", heading=Heading.OUTPUT
    )
    plot: Path | None = setting(
        kinds.drawing(".png", ".svg", ".pdf"),
        "Write a figure: .png, .svg or .pdf.",
        "FILE",
        heading=Heading.OUTPUT,
    )


@settings_class
class Inspect(Figures):
    """What to show of checkpoints."""

    models: tuple[str, ...] = setting(
        kinds.CHECKPOINT,
        "Folders, weights or GGUF files, bundled models (tiny-gpt2) or Hub ids.",
        "MODEL",
        default=MISSING,
        is_repeated=True,
        is_argument=True,
        kw_only=False,
    )
    check: bool = flag(
        "Print only the verdict; exit 3 if limits disagree.",
    )
    format: str | None = setting(
        kinds.choice("github"),
        "With --check: annotations of a GitHub workflow.",
        "github",
        heading=Heading.OUTPUT,
        shown=False,
    )
    part: str | None = setting(
        kinds.ANY_TEXT, "Only this table: encoder, decoder, ... (see families).", "PART"
    )

    conflicts: ClassVar[Sequence[Conflict]] = (requires("format", "check"),)


@settings_class
class Verify(Settings):
    """What to verify a checkpoint against, and how."""

    resized: str = setting(
        kinds.CHECKPOINT,
        "Resized or converted checkpoint: folder, weights or GGUF file, or Hub id.",
        "MODEL",
        default=MISSING,
        is_argument=True,
        kw_only=False,
    )
    base: str | None = setting(
        kinds.CHECKPOINT, "Base checkpoint.", "MODEL", shown="from ctxextend.yaml", kw_only=False
    )
    deep: bool = flag(
        "Also run both in transformers and compare outputs.",
    )


# The steps of a recipe by their names in it.
RECIPE_STEPS: Mapping[str, type[Settings]] = {
    "convert": Convert,
    "resize": Resize,
    "train": Train,
    "evaluate": Evaluate,
}


def ordered_fields(kind: type[Settings]) -> Iterator[Field[Any]]:
    """Yield the fields of settings in the order of all listings: their own, then shared ones."""
    declared = {item.name: item for item in fields(kind)}
    for owner in kind.__mro__:
        for name in inspect.get_annotations(owner):
            if name in declared:
                yield declared.pop(name)
