"""Wrap messages at words, and keep what a user may copy on one line.

A path, a name or a command is never split: a terminal that is too narrow for it continues it on the
next row, and a copy of it is one line.
"""

import re
import textwrap

# Programs of commands in messages, up to a word that only commands have.
COMMAND_START = re.compile(
    r"(?<![\w/.-])(?:ctxextend [a-z]+|torchrun -|python (?:-c|-m) |pip install |hf download |cp -)"
)
# A word of a command: it may contain quoted spaces.
COMMAND_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
IN_BACKTICKS = re.compile(r"`[^`\n]+`")
# Words after a command that continue the sentence.
AFTER_COMMANDS = {
    "a",
    "and",
    "as",
    "for",
    "has",
    "if",
    "in",
    "instead",
    "is",
    "of",
    "or",
    "passed",
    "prints",
    "says",
    "then",
    "to",
    "with",
}
ENDS = (".", ",", ";", ":", ")")  # of a part of a sentence
# Keep a number with its unit on one line, and outside of columns also with its error.
UNIT = re.compile(r" %")
ERROR = re.compile(r" (?:±|\+-) ")
UNBROKEN = "\0"  # a space that is not broken; texts are printable, so they have no other
INDENT = "  "  # of lines after the first


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text at words; lines after the first are indented by two more characters.

    Words and commands that are longer than a line stay in one piece.
    """
    lines = textwrap.wrap(
        _with_unbroken_parts(ERROR.sub(_unbroken, text)),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}{INDENT}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(UNBROKEN, " ") for line in lines]


def wrap_column(text: str, width: int) -> list[str]:
    """Wrap a text of a column; spaces before it stay, and an empty text is one empty line."""
    lines = textwrap.wrap(
        _with_unbroken_indent(text), width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(UNBROKEN, " ") for line in lines] or [""]


def longest_part(text: str) -> int:
    """Return the length of the longest part of a text that is not split."""
    return max((len(part) for part in _with_unbroken_indent(text).split()), default=0)


def wrap_message(text: str, width: int) -> list[str]:
    """Wrap a message; an indented one is a command, and stays."""
    if text.startswith(INDENT):
        return [text]
    return wrap(text, width) or [""]


def _with_unbroken_indent(text: str) -> str:
    """Return a text whose spaces before the first word belong to it, as do unbroken parts."""
    words = text.lstrip(" ")
    return UNBROKEN * (len(text) - len(words)) + _with_unbroken_parts(words)


def _with_unbroken_parts(text: str) -> str:
    """Return a text whose commands and numbers are single words."""
    text = UNIT.sub(_unbroken, text)
    text = IN_BACKTICKS.sub(_unbroken, text)
    parts = list[str]()
    position = 0
    for match in COMMAND_START.finditer(text):
        if match.start() < position:  # inside a command
            continue
        end = _end_of_command(text, match.end())
        parts.append(text[position : match.start()])
        parts.append(text[match.start() : end].replace(" ", UNBROKEN))
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _end_of_command(text: str, position: int) -> int:
    """Return where a command ends whose first words end at a position."""
    end = position
    while not text[:end].endswith(ENDS):
        start = end
        while text[start : start + 1] == " ":
            start += 1
        match = COMMAND_WORD.match(text, start)
        if match is None or match[0].strip("".join(ENDS)) in AFTER_COMMANDS:
            break
        end = match.end()
    return end


def _unbroken(match: re.Match[str]) -> str:
    return match[0].replace(" ", UNBROKEN)
