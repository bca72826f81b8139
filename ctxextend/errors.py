"""The exceptions that ctxextend raises on purpose, and formatting of messages.

Any other exception is a bug.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

MAX_NAMES = 5  # of a list in messages
TOKEN = re.compile(r"hf_(?:(?:oauth|jwt)_[\w.-]+|[A-Za-z0-9]{16,})")  # Hub access tokens
# Control characters, bidirectional controls, and lone surrogates (invalid UTF-8): checkpoints may
# have them in names.
HIDDEN = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Libraries that a plain installation does not have, as they are imported, by the extra that
# installs them.
EXTRAS = {
    "train": ("accelerate", "datasets", "peft", "sentence_transformers"),
    "plot": ("jinja2", "matplotlib"),
}


class CtxextendError(Exception):
    """Base class of known errors.

    Args:
        message: What was found and where. Settings are named as flags: ``--to 512``.
        hint: What to do next, if anything.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)  # both, so that pickling works
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class SourceError(CtxextendError):
    """The checkpoint reference does not exist, cannot be reached, or is not accessible."""


class CheckpointError(CtxextendError):
    """A file of the checkpoint is missing, truncated, malformed or unsafe."""


class UnsupportedModelError(CtxextendError):
    """The model has no position table, cannot be converted, or its model type is unknown."""


class ResizeError(CtxextendError):
    """A length, method or flag is invalid; `others` are further errors in the same settings.

    Args:
        message: As of `CtxextendError`.
        hint: As of `CtxextendError`.
        setting: The name of the setting that is invalid, such as ``keep_first``, if it is only one.
    """

    others: tuple["ResizeError", ...] = ()

    def __init__(self, message: str, hint: str | None = None, setting: str | None = None) -> None:
        super().__init__(message, hint)
        self.setting = setting


class MethodError(ResizeError):
    """The method or flag does not apply to the model; exit code 2."""


class OutputError(CtxextendError):
    """The output exists, cannot be written, does not fit on the disk, or is the source."""


class RecipeError(CtxextendError):
    """A recipe cannot be read, or contains invalid keys or values: a line of the message each."""


class RecipeChangeError(RecipeError):
    """A recipe is valid, but not the changes of its values; exit code 2."""


class DataError(CtxextendError):
    """Text cannot be read, or is too short."""


class TrainingError(CtxextendError):
    """Training failed to start, resume or finish."""


class TrainingInterrupted(KeyboardInterrupt):
    """A signal, such as Ctrl-C, interrupted a training run after `step`.

    Its state is saved in `folder`.
    """

    def __init__(self, signal: int, step: int, folder: Path) -> None:
        super().__init__(f"interrupted after step {step}; state saved in {folder}")
        self.signal = signal
        self.step = step
        self.folder = folder


class RemoteWeightsError(CheckpointError):
    """Values of a tensor are needed, of a file of which only the header was downloaded."""

    def __init__(self, file: str, tensor: str) -> None:
        super().__init__(f"{tensor} in {file} was not downloaded.", "Download the whole file.")
        self.file = file


class VerificationError(CtxextendError):
    """An output failed a check; exit code 3."""


def raise_first(errors: Iterable[ResizeError]) -> None:
    """Raise the first error, with the rest in its `others`; do nothing if there are none."""
    listed = tuple(errors)
    if listed:
        listed[0].others = listed[1:]
        raise listed[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean X?`` with the closest known name; empty if none is close."""
    from difflib import get_close_matches  # imported here because only errors need it

    near = get_close_matches(name.lower(), list(known), 1)
    return f"Did you mean {near[0]}?" if near else ""


def install_command(library: str) -> str:
    """Return the command that installs a library, with the extra that contains it, if any."""
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return f"pip install 'ctxextend[{extra}]'"
    return f"pip install {library}"


def flag_name(name: str) -> str:
    """Return the command line flag of a settings field."""
    return f"--{name.replace('_', '-')}"


def joined(names: Sequence[str], word: str = "and") -> str:
    """Return names as a list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    if more > 0:
        return f"{text} and {more} more"
    return text


def counted(number: int, noun: str) -> str:
    """Return a number with a noun: ``1 window``, ``1,024 windows``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def not_an_option(path: str) -> str:
    """Return a path that no program takes for an option."""
    if path.startswith("-"):
        return f"./{path}"
    return path


def size_text(count: float) -> str:
    """Format a number of bytes: ``512 bytes``, ``4.0 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return counted(int(count), "byte")


def time_text(seconds: float) -> str:
    """Format a duration: ``13 ms``, ``4.0 s``, ``2.5 min``."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:,.1f} min"


def one_line(error: object, maximum: int = 300) -> str:
    """Return another library's error message on one line, cut to `maximum` characters."""
    return " ".join(str(error).split())[:maximum]


def without_tokens(text: str) -> str:
    """Replace Hub access tokens in a text with ``***``."""
    return TOKEN.sub("***", text)


def printable(text: str) -> str:
    """Return a text as one line, without Hub access tokens and with control characters escaped."""
    return HIDDEN.sub(_escaped, TOKEN.sub("***", text))


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if "\udc80" <= character <= "\udcff":  # an undecodable byte of a file name (surrogateescape)
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
