"""Every exception that ctxextend raises on purpose; anything else that escapes is a bug and keeps its traceback."""

import re
from collections.abc import Iterable

# Ends a hint, with flags that say which tensor is the table; the command line shows the whole command.
SAY_WHICH = "Say which it is: "
TOKEN = re.compile(r"hf_(?:(?:oauth|jwt)_[\w.-]+|[A-Za-z0-9]{16,})")  # tokens of the Hub
# Control characters, those that turn the order of letters, and halves of surrogate pairs.
HIDDEN = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class CtxextendError(Exception):
    """A known failure: `message` says what was found and where, `hint` what to type or change next, or is None."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)  # which copies are made with
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class SourceError(CtxextendError):
    """Nothing is at that reference, or it cannot be reached, or it is not permitted."""


class CheckpointError(CtxextendError):
    """A file of the checkpoint is missing, truncated, malformed or unsafe."""


class UnsupportedModelError(CtxextendError):
    """The model has no learned position table, or its family is not known."""


class ResizeError(CtxextendError):
    """A length, a method or a flag that cannot be served; `others` are further faults of the same settings."""

    others: tuple["ResizeError", ...] = ()


class OutputError(CtxextendError):
    """The output exists, cannot be written, does not fit, or is the source."""


class RecipeError(CtxextendError):
    """A recipe cannot be read, or says what no recipe says."""


class DataError(CtxextendError):
    """Text cannot be read, or there is too little of it."""


class TrainingError(CtxextendError):
    """A training cannot be begun, resumed, or finished."""


class VerificationError(CtxextendError):
    """An output is not what it should be; exit 3."""


def refuse(faults: Iterable[ResizeError]) -> None:
    """Raise the first of the faults, which carries the others."""
    found = tuple(faults)
    if found:
        found[0].others = found[1:]
        raise found[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question that names what is nearest to a name; empty if nothing is near."""
    from difflib import get_close_matches  # at use: only errors need it

    near = get_close_matches(name.lower(), list(known), 1)
    return f"Did you mean {near[0]}?" if near else ""


def flag_name(name: str) -> str:
    """Return the flag of a field of settings."""
    return f"--{name.replace('_', '-')}"


def counted(number: int, noun: str) -> str:
    """Return how many there are of something: ``1 window``, ``1,024 windows``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def size_text(count: float) -> str:
    """Return a number of bytes as people read it: ``512 bytes``, ``4.0 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return counted(int(count), "byte")


def time_text(seconds: float) -> str:
    """Return a duration as people read it: ``13 ms``, ``4.0 s``, ``2.5 min``."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:,.1f} min"


def one_line(error: object, maximum: int = 300) -> str:
    """Return what another library's exception says, in one line of so many characters at most."""
    return " ".join(str(error).split())[:maximum]


def without_tokens(text: str) -> str:
    """Return a text to be shown, with ``***`` in the place of any token of the Hub."""
    return TOKEN.sub("***", text)


def printable(text: str) -> str:
    """Return a text as one line without tokens of the Hub; what is not shown where it stands is written out.

    Names in a checkpoint may hold what moves the cursor, recolours the terminal, turns letters, or is no text.
    """

    def written_out(found: re.Match[str]) -> str:
        is_byte = "\udc80" <= found[0] <= "\udcff"  # as Python holds the bytes of a name that are no text
        return f"\\x{ord(found[0]) - 0xDC00:02x}" if is_byte else found[0].encode("unicode_escape").decode("ascii")

    return HIDDEN.sub(written_out, without_tokens(text))
