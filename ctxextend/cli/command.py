"""What every command has in common: plain help with examples first, and flags that take several values at once.

Typer's own help draws boxes, which double the time that help takes and need wide windows that can draw them.
"""

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand

from ctxextend.cli.output import in_colour
from ctxextend.cli.tables import Page

# Typer puts a default that is given in words into parentheses.
WORDED_DEFAULT = re.compile(r"default: \((.*)\)")


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command or of the app: what it does, examples, then arguments and options by group."""

    def coloured(text: str, **style: Any) -> str:
        return typer.style(text, **style) if in_colour() else text

    formatter.width = Page.of_stdout().width
    command.format_usage(ctx, formatter)
    for paragraph in _paragraphs(command):
        first, *lines = paragraph.splitlines()
        if lines and lines[0].startswith(" "):  # examples, which stay lines of their own
            with formatter.section(coloured(first.removesuffix(":"), bold=True)):
                formatter.write("".join(f"  {line.strip()}\n" for line in lines))
        else:
            formatter.write_paragraph()
            formatter.write_text(paragraph)
    for group, rows in sections(command, ctx).items():
        with formatter.section(coloured(group, bold=True)):
            # A third leaves room for the text even in a narrow window.
            formatter.write_dl([(coloured(name, fg="cyan"), text) for name, text in rows], formatter.width // 3)


class Command(TyperCommand):
    """A command of the app."""

    format_help = write_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; ``--data one two``, as a shell writes ``--data *.txt``, is ``--data one --data two``.

        Only behind the first argument that is no flag's: before it, what follows a value may be that argument.
        """
        options: list[Any] = [one for one in self.params if one.param_type_name == "option"]
        several = {name for option in options if option.multiple for name in option.opts}
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        words: list[str] = []
        flag, is_value, has_argument = "", False, False
        for word in args:
            if is_value:  # of the flag just before it
                is_value = False
            elif word.startswith("-") and word != "-":
                name, equals, _ = word.partition("=")
                flag = name if name in several and not equals else ""
                is_value = not equals and name in with_value
            elif flag and has_argument:
                words.append(flag)
            else:
                has_argument = True
            words.append(word)
        return super().parse_args(ctx, words)


def sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return what a command takes, by group: names as they are typed, and what they mean, with the default."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, inner in getattr(command, "commands", {}).items():
        found.setdefault("Commands", []).append((name, summary(inner)))
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if row is not None:
            is_argument = parameter.param_type_name == "argument"
            group = parameter.rich_help_panel or ("Arguments" if is_argument else "Options")
            name = parameter.metavar or row[0] if is_argument else row[0]  # without its type in Python
            found.setdefault(group, []).append((name, WORDED_DEFAULT.sub(r"default: \1", row[1])))
    return found


def summary(command: Any) -> str:
    """Return the line that says what a command does."""
    return _paragraphs(command)[0].replace("\n", " ")


def _paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")
