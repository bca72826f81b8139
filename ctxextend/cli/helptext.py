"""How help looks: what a command does, examples of it, then its arguments and options by group.

It is plain text, with colours on a terminal alone. Typer's boxes of rich's would double the time that help takes, and
need wide windows that can draw them.
"""

import inspect
import re
from typing import Any

import typer
from typer.core import TyperCommand

from ctxextend.cli.arguments import repeated
from ctxextend.cli.conversion import convert_less
from ctxextend.cli.output import in_colour, terminal_width

__all__ = ["ExamplesFirst", "sections", "summary", "write_help"]

Rows = list[tuple[str, str]]

WORDED_DEFAULT = re.compile(r"default: \((.*)\)")


class ExamplesFirst(TyperCommand):
    """A command with such help, whose flags for several values take them one behind the other."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        convert_less(self.get_params(ctx))
        return super().parse_args(ctx, repeated(self, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        write_help(self, ctx, formatter)


def write_help(command: Any, context: Any, formatter: Any) -> None:
    """Write a command's help, or the app's, to one of Typer's formatters."""
    formatter.width = terminal_width()
    command.format_usage(context, formatter)
    for paragraph in _paragraphs(command):
        _write_paragraph(paragraph, formatter)
    for heading, rows in sections(command, context).items():
        with formatter.section(_styled(heading, bold=True)):
            # A column for names that leaves room for the text, even in a narrow window.
            formatter.write_dl([(_styled(name, fg="cyan"), text) for name, text in rows], formatter.width // 3)


def summary(command: Any) -> str:
    """Return the line that says what a command does."""
    return _paragraphs(command)[0].replace("\n", " ")


def sections(command: Any, context: Any) -> dict[str, Rows]:
    """Return what a command takes, by group: names as they are typed, and what they mean, with the default."""
    found: dict[str, Rows] = {}
    for name, inner in getattr(command, "commands", {}).items():
        found.setdefault("Commands", []).append((name, summary(inner)))
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context)
        if row:
            # Typer puts a default that is given in words into parentheses.
            text = WORDED_DEFAULT.sub(r"default: \1", row[1])
            found.setdefault(_group(parameter), []).append((_name(parameter, row[0]), text))
    return found


def _group(parameter: Any) -> str:
    return parameter.rich_help_panel or ("Arguments" if parameter.param_type_name == "argument" else "Options")


def _name(parameter: Any, shown: str) -> str:
    """Return an argument's name alone; Typer puts its type in Python behind it."""
    return parameter.metavar or shown if parameter.param_type_name == "argument" else shown


def _paragraphs(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _write_paragraph(text: str, formatter: Any) -> None:
    """Write a paragraph, wrapped, or a heading and the indented lines below it, which stay lines of their own."""
    heading, *lines = text.splitlines()
    if not lines or not lines[0].startswith(" "):
        formatter.write_paragraph()
        formatter.write_text(text)
        return
    with formatter.section(_styled(heading.removesuffix(":"), bold=True)):
        formatter.write("".join(f"  {line.strip()}\n" for line in lines))


def _styled(text: str, **style: Any) -> str:
    return typer.style(text, **style) if in_colour() else text
