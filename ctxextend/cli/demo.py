"""`ctxextend demo`."""

from typing import TYPE_CHECKING

from ctxextend.cli import options
from ctxextend.cli.console import Console, Page
from ctxextend.errors import install_command

if TYPE_CHECKING:
    from ctxextend.demo import Demo


def demo(as_json: options.AsJson = False, quiet: options.Quiet = False) -> None:
    """Run a guided demo on the bundled model.

    Examples:
        ctxextend demo
        ctxextend demo --json

    Asks for a word that the model cannot see, makes its context longer, and asks again. With the
    extra ctxextend[train], also trains it for a minute. Keeps nothing.
    """
    from ctxextend.demo import run_demo

    console = Console(as_json, quiet)
    with console.progress("Training", unit="tokens") as progress:
        result = run_demo(progress)
    page = Page.for_stdout()
    add_demo(page, result)
    console.screen(page.lines)
    console.result("demo", result)


def add_demo(page: Page, result: "Demo") -> None:
    """Add the text with its question, the answers, and what comes next."""
    source = result.source
    before = result.max_len_before
    after = result.max_len_after
    asked = f"{result.question} {result.expected}"
    page.text(
        f"{source} reads {before} tokens. This text has {after}; its end asks for the word after "
        f"{result.question} at its start, which is {result.expected}.",
        "title",
    )
    page.line()
    lines = [line for line in result.text.splitlines() if line.strip()]
    place = lines.index(asked)
    _add_lines(page, lines[place - 2 : place])
    page.line((f"  {asked}", "right"))
    hidden = f"[{len(lines) - place - 5} more lines]"
    _add_lines(page, [*lines[place + 1 : place + 3], hidden, *lines[-2:]])
    page.line((f"  {result.question}", "new"))
    page.line()
    names = {
        "base": f"{source}, last {before} tokens",
        "resized": f"resized to {after} by {result.method}",
        "trained": f"and trained for {result.steps} steps",
    }
    header = ("", "answer", f"right of {result.beyond} far", f"of {result.within} near")
    rows = list[tuple[str | tuple[str, str], ...]]()
    for reader in result.readers:
        style = "right" if reader.answer == result.expected else "wrong"
        answer = (reader.answer, style)
        rows.append((names[reader.name], answer, f"{reader.beyond:.0%}", f"{reader.within:.0%}"))
    page.table(header, rows, left=(0, 1))
    page.line()
    page.text(
        f"Far words are more than {before} tokens back, so no window of the base has both the word "
        "and the question. A resize moves positions, which costs near words until the model is "
        "trained, here on other texts of this kind."
    )
    if not result.steps:
        page.text("To see what a minute of training adds:")
        page.line(f"  {install_command('accelerate')}")
    page.line()
    page.text("Next, on your model and text:", "title")
    page.line("  ctxextend resize MODEL --to 4x --output longer")
    page.line("  ctxextend train longer --data TEXT --steps 150 --trainable all")


def _add_lines(page: Page, lines: list[str]) -> None:
    for line in lines:
        page.line((f"  {line}"[: page.width], "faint"))
