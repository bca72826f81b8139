"""Hints in the words of the command that failed: they name its flags, or say which command has a flag."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from ctxextend.errors import flag_name, joined

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
# A whole command in a hint, with its flags: up to a mark that ends the sentence, and not a dot in a name.
COMMAND_LINE = re.compile(r"ctxextend [a-z]+.*?(?=[.,;`]?(?:\s*$)|[.,;](?=\s)|`)")
Flags = Mapping[str, Collection[str]]  # the flags of each command, by its name

# What a command does with an argument that it does not expect, {} being the argument.
EXTRA_ARGUMENTS = {
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


def in_words_of(command: str, hint: str, flags: Flags) -> str:
    """Return a hint whose flags are those of a command; of other flags, it says where they belong.

    `run` has recipe keys instead of the flags of the steps.
    """
    outside = COMMAND_LINE.sub("", hint)
    found = dict.fromkeys(FLAG.findall(outside))
    foreign = [flag for flag in found if flag not in flags[command]]
    if command == "run":
        keys = {flag: " or ".join(recipe_keys(flag)) for flag in foreign}
        keys = {flag: names for flag, names in keys.items() if names}
        if keys:
            hint = _outside_commands(
                hint, lambda text: FLAG.sub(lambda match: keys.get(match[0], match[0]), text)
            )
            hint += " These are keys of the recipe: override one with --set KEY=VALUE."
        foreign = [flag for flag in foreign if flag not in keys]
    owners = dict[str, list[str]]()
    for flag in foreign:
        having = [name for name in flags if flag in flags[name]]
        if having:  # others are flags of other programs
            owners.setdefault(joined(having), []).append(flag)
    for names, listed in owners.items():
        are = "are flags" if len(listed) > 1 else "is a flag"
        end = "" if hint.endswith((".", "`")) else "."
        hint += f"{end} {joined(listed)} {are} of ctxextend {names}."
    return hint


def _outside_commands(hint: str, change: Callable[[str], str]) -> str:
    """Return a hint with a change to all of its text except whole commands."""
    parts = list[str]()
    position = 0
    for match in COMMAND_LINE.finditer(hint):
        parts += [change(hint[position : match.start()]), match[0]]
        position = match.end()
    return "".join((*parts, change(hint[position:])))


def recipe_keys(flag: str) -> list[str]:
    """Return the keys of a recipe that a flag of its steps sets."""
    from ctxextend.recipe_file import KEYS

    return [path for path, key in KEYS.items() if flag_name(key.name) == flag]


def explain_extra(
    command: str, repeatable: Collection[str], extra: str, words: Sequence[str]
) -> str | None:
    """Return how to pass an unexpected argument, or None if that is unknown. `words`: all those of the command."""
    argument = next(
        (word for word in words if extra == word or extra.startswith(f"{word} ")), extra
    )
    place = words.index(argument) if argument in words else 0
    before = words[max(place - 2, 0) : place]
    if len(before) == 2 and before[0] in repeatable:
        flag, value = before
        return f"Repeat the flag for several values: {flag} {value} {flag} {argument}."
    hint = EXTRA_ARGUMENTS.get(command)
    return hint and hint.format(argument)
