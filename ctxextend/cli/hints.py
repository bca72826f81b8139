"""Hints in the words of the command that failed: they name its flags, or say which command has a flag."""

import re
from collections.abc import Collection, Mapping, Sequence

from ctxextend.errors import flag_name

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
COMMAND_LINE = re.compile(r"ctxextend ([a-z]+)[^.,;`]*")  # a whole command in a hint, with its flags
Flags = Mapping[str, Collection[str]]  # the flags of each command, by its name

# What a command does with an argument that it does not expect, {} being the argument.
EXTRA_ARGUMENTS = {
    "resize": "Pass the output folder with --output {0}.",
    "convert": "Pass the output folder with --output {0}.",
    "train": "Pass text with --data {0}, or the base checkpoint with --base {0}.",
    "verify": "Pass the base checkpoint with --base {0}.",
    "evaluate": "Pass text with --data {0}, or the base checkpoint with --base {0}.",
    "run": "Change a value of the recipe with --set KEY=VALUE, or pass the output folder with --output {0}.",
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
            hint = FLAG.sub(lambda match: keys.get(match[0], match[0]), hint)
            hint += " These are keys of the recipe: override one with --set KEY=VALUE."
        foreign = [flag for flag in foreign if flag not in keys]
    owners = dict[str, list[str]]()
    for flag in foreign:
        having = [name for name in flags if flag in flags[name]]
        if having:  # others are flags of other programs
            owners.setdefault(_joined(having), []).append(flag)
    for names, listed in owners.items():
        are = "are flags" if len(listed) > 1 else "is a flag"
        hint += f" {_joined(listed)} {are} of ctxextend {names}."
    return hint


def recipe_keys(flag: str) -> list[str]:
    """Return the keys of a recipe that a flag of its steps sets."""
    from dataclasses import fields

    from ctxextend.recipe import CheckpointRef, Convert, Evaluate, Resize, Train

    sections = {"": CheckpointRef, "resize.": Resize, "convert.": Convert, "train.": Train, "evaluate.": Evaluate}
    return [
        f"{section}{item.name}"
        for section, kind in sections.items()
        for item in fields(kind)
        if flag_name(item.name) == flag
    ]


def explain_extra(command: str, repeatable: Collection[str], extra: str, words: Sequence[str]) -> str | None:
    """Return how to pass an unexpected argument, or None if that is unknown. `words`: all those of the command."""
    argument = next((word for word in words if extra == word or extra.startswith(f"{word} ")), extra)
    place = words.index(argument) if argument in words else 0
    before = words[max(place - 2, 0) : place]
    if len(before) == 2 and before[0] in repeatable:
        flag, value = before
        return f"Repeat the flag for several values: {flag} {value} {flag} {argument}."
    hint = EXTRA_ARGUMENTS.get(command)
    return hint and hint.format(argument)


def _joined(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
