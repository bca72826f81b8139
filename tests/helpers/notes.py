"""The texts of the notes of a result."""

from typing import Any

from ctxextend.planned import Planned, ResizeResult


def texts(result: Planned | ResizeResult, code: str = "", level: str = "") -> tuple[str, ...]:
    """Return the texts of all notes, or of those with a code or of a level."""
    found = [note for note in result.notes if code in ("", note.code)]
    return tuple(note.text for note in found if level in ("", note.level))


def text_of(result: Planned | ResizeResult, code: str = "") -> str:
    """Return these texts as one."""
    return " ".join(texts(result, code))


def texts_in(values: dict[str, Any], code: str = "") -> list[str]:
    """Return the texts of the notes in the JSON of a result."""
    notes = [note for note in values["notes"] if code in ("", note["code"])]
    return [note["text"] for note in notes]
