"""Hints in the words of the command that failed.

They name its flags, or say which command has a flag.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ctxextend.errors import flag_name, joined
from ctxextend.length_text import is_length
from ctxextend.python_words import COMMAND_LINE

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])")
Flags = Mapping[str, Collection[str]]  # the flags of each command, by its name

# What a command does with an argument that it does not expect, {} being the argument.
ADVICE_ON_EXTRA_ARGUMENTS = {
    "resize": "Pass the output folder with --output {0}.",
    "convert": "Pass the output folder with --output {0}.",
    "train": "Pass text with --data {0}, or the base checkpoint with --base {0}.",
    "verify": "Pass the base checkpoint with --base {0}.",
    "evaluate": "Pass text with --data {0}, or the base checkpoint with --base {0}.",
    "run": "Change a value of the recipe with --set KEY=VALUE, or pass the output folder with "
    "--output {0}.",
    "recipes": "Print one recipe at a time.",
    "demo": "To keep the trained checkpoint, pass a folder with --output {0}.",
}


# The flag of each command that an argument with the form of a length was meant for.
LENGTH_FLAGS = {
    "resize": "--to",
    "convert": "--to",
    "compare": "--to",
    "evaluate": "--length",
}


def in_words_of(command: str, hint: str, flags: Flags) -> str:
    """Return a hint whose flags are those of a command; of other flags, it says where they belong.

    `run` has recipe keys instead of the flags of the steps.
    """
    named = dict.fromkeys(FLAG.findall(COMMAND_LINE.sub("", hint)))
    foreign = []
    for flag in named:
        is_placed = f"{flag} is a flag of ctxextend" in hint
        if flag not in flags[command] and not is_placed:
            foreign.append(flag)
    if command == "run":
        keys = _keys_instead(foreign)
        hint = _with_keys(hint, keys)
        foreign = [flag for flag in foreign if flag not in keys]
    return _with_owners(hint, foreign, flags)


def _keys_instead(foreign: Iterable[str]) -> dict[str, str]:
    """Return the recipe keys of those flags that have any."""
    keys = {}
    for flag in foreign:
        names = recipe_keys(flag)
        if names:
            keys[flag] = " or ".join(names)
    return keys


def _with_keys(hint: str, keys: Mapping[str, str]) -> str:
    """Return a hint that names recipe keys instead of flags."""
    if not keys:
        return hint

    def replace(text: str) -> str:
        return FLAG.sub(lambda match: keys.get(match[0], match[0]), text)

    changed = _outside_commands(hint, replace)
    return f"{changed} These are keys of the recipe: override one with --set KEY=VALUE."


def _with_owners(hint: str, foreign: Iterable[str], flags: Flags) -> str:
    """Return a hint that says which commands have the flags that this command does not have."""
    owners: dict[str, list[str]] = {}
    for flag in foreign:
        commands = [name for name in flags if flag in flags[name]]
        if commands:  # others are flags of other programs
            owners.setdefault(joined(commands), []).append(flag)
    for commands_text, listed in owners.items():
        are = "are flags" if len(listed) > 1 else "is a flag"
        if not hint.endswith((".", "`")):
            hint += "."
        hint += f" {joined(listed)} {are} of ctxextend {commands_text}."
    return hint


def _outside_commands(hint: str, change: Callable[[str], str]) -> str:
    """Return a hint with a change to all of its text except whole commands."""
    parts: list[str] = []
    position = 0
    for match in COMMAND_LINE.finditer(hint):
        parts.append(change(hint[position : match.start()]))
        parts.append(match[0])
        position = match.end()
    parts.append(change(hint[position:]))
    return "".join(parts)


def recipe_keys(flag: str) -> list[str]:
    """Return the keys of a recipe that a flag of its steps sets."""
    from ctxextend.recipe_file import KEYS

    return [path for path, key in KEYS.items() if flag_name(key.name) == flag]


def explain_extra(
    command: str, repeatable: Collection[str], extra: str, words: Sequence[str]
) -> str | None:
    """Return how to pass an unexpected argument, or None if that is unknown.

    Args:
        command: The name of the command.
        repeatable: Its flags that can be repeated.
        extra: The unexpected arguments, joined by spaces.
        words: All arguments of the command.
    """
    argument = _first_word(extra, words)
    if command in LENGTH_FLAGS and is_length(argument):
        return with_length_flag(command, argument, words)
    place = words.index(argument) if argument in words else 0
    before = words[max(place - 2, 0) : place]
    if len(before) == 2 and before[0] in repeatable:
        flag, value = before
        return f"Repeat the flag for several values: {flag} {value} {flag} {argument}."
    if command not in ADVICE_ON_EXTRA_ARGUMENTS:
        return None
    return ADVICE_ON_EXTRA_ARGUMENTS[command].format(argument)


def with_length_flag(command: str, length: str, words: Sequence[str]) -> str:
    """Return the hint for a length that was passed without its flag: the whole command.

    Args:
        command: The name of the command.
        length: The argument.
        words: All arguments of the command.
    """
    flag = LENGTH_FLAGS[command]
    if any(word.partition("=")[0] == flag for word in words):
        return f"{flag} is given already: remove {length}."
    place = words.index(length)
    before = list(words[:place])
    # As in `resize MODEL to 512`; a flag before the word takes it as its value.
    if len(before) > 1 and before[-1] == flag.lstrip("-") and not before[-2].startswith("-"):
        before.pop()
    meant = [*before, flag, length, *words[place + 1 :]]
    return f"Did you mean: {shlex.join(['ctxextend', command, *meant])}"


def find_length(words: Sequence[str], flags_with_values: Collection[str]) -> str | None:
    """Return the argument that has the form of a length; None if there is none besides a model.

    Args:
        words: All arguments of a command.
        flags_with_values: Those of its flags that the next word is the value of.
    """
    arguments = list[str]()
    previous = ""
    for word in words:
        if previous not in flags_with_values and not word.startswith("-"):
            arguments.append(word)
        previous = word
    lengths = [argument for argument in arguments if is_length(argument)]
    if len(arguments) < 2 or not lengths:
        return None
    return lengths[-1]


def _first_word(extra: str, words: Sequence[str]) -> str:
    """Return the word that the unexpected arguments begin with; it may contain spaces."""
    for word in words:
        if extra == word or extra.startswith(f"{word} "):
            return word
    return extra
