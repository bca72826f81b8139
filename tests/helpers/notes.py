"""The texts of the notes of a result."""

from ctxextend.planned import Planned, ResizeResult


def texts(result: Planned | ResizeResult, code: str = "", level: str = "") -> tuple[str, ...]:
    """Return the texts of all notes, or of those with a code or of a level."""
    found = [note for note in result.notes if code in ("", note.code)]
    return tuple(note.text for note in found if level in ("", note.level))


def text_of(result: Planned | ResizeResult, code: str = "") -> str:
    """Return these texts as one."""
    return " ".join(texts(result, code))
