"""What a command does before it prints: a line on a terminal, or the text of its bar."""

import os
import shutil
import sys
from collections.abc import Callable

from ctxextend.progress import show_status_with, working_on

# Libraries whose import takes long enough to wonder what happens.
SLOW_IMPORTS = {
    "accelerate",
    "datasets",
    "matplotlib",
    "peft",
    "sentence_transformers",
    "torch",
    "transformers",
}
CLEAR_LINE = "\r\x1b[K"


class Status:
    """Shows what a command does, if it is on a terminal and not quiet."""

    def __init__(self) -> None:
        self.show_in_bar: Callable[[str], None] | None = None  # set while a bar is shown
        self._is_shown = False

    def show(self, text: str) -> None:
        """Show a text in the bar, or in a line that the next output replaces."""
        if self.show_in_bar is not None:
            self.show_in_bar(f"{text} ...")
            return
        if os.environ.get("TERM") == "dumb":  # cannot clear a line
            return
        width = shutil.get_terminal_size((80, 24)).columns
        line = f"{text} ..."[: width - 1]
        self._is_shown = _write(f"{CLEAR_LINE}{line}")

    def clear(self) -> None:
        """Remove the line before something else is printed."""
        if self._is_shown:
            self._is_shown = False
            _write(CLEAR_LINE)


class SlowImports:
    """A finder of modules that finds none, and shows which slow library is imported."""

    def __init__(self) -> None:
        self.waiting = set(SLOW_IMPORTS)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Show the import of a slow library."""
        if name in self.waiting:
            self.waiting.remove(name)
            working_on(f"Loading {name}")


def start_status(status: Status) -> None:
    """Show what a command does from now on."""
    show_status_with(status.show)
    if not any(isinstance(finder, SlowImports) for finder in sys.meta_path):
        sys.meta_path.insert(0, SlowImports())


def _write(text: str) -> bool:
    """Write to stderr, and return whether that worked."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # closed
        return False
    return True
