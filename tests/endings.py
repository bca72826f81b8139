"""Trainings that end early, each in a process of its own: `python -m tests.endings train …` in an empty folder.

All are forked from one that has trained already, so that what they need is imported once. Prints a JSON object: of each
its exit code and what it said.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ctxextend.cli.app import main
from ctxextend.training import trainer
from tests.trainings import write_book

publish, save, on_log = trainer._publish, torch.save, trainer.Watch.on_log
published: list[Path] = []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def limit(size: int) -> None:
    """Let no file grow beyond a size, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def before_third_name(act: Callable[[], None]) -> None:
    """Do something when the third save is written and has no name yet."""

    def acting(save: Path, saves: Path) -> None:
        published.append(save)
        if len(published) == 3:
            act()
        publish(save, saves)

    trainer._publish = acting


def within_third_save(act: Callable[[], None]) -> None:
    """Do something when some of the third save is written."""

    def acting(*given: Any, **named: Any) -> None:
        if len(published) == 2:
            act()
        save(*given, **named)

    before_third_name(lambda: None)
    torch.save = acting


def before_third_line(act: Callable[[], None]) -> None:
    """Do something before the third step is logged."""

    def acting(self: trainer.Watch, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 3:
            act()
        on_log(self, args, state, control, **others)

    setattr(trainer.Watch, "on_log", acting)  # noqa: B010 - mypy knows no such assignment


ENDINGS: dict[str, Callable[[], None]] = {
    "killed": lambda: within_third_save(die),
    "unnamed": lambda: before_third_name(die),
    "full": lambda: within_third_save(lambda: limit(1000)),
    "silent": lambda: before_third_line(lambda: limit(1)),
    "ended": lambda: before_third_line(lambda: os.kill(os.getpid(), signal.SIGTERM)),
}


def begin(folder: str) -> int:
    """Run the command in a folder of its own; return its exit code."""
    here = Path.cwd()
    Path(folder).mkdir()
    os.chdir(folder)
    write_book()
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        os.chdir(here)
    return 0


def end(name: str) -> tuple[int, str]:
    """Run the command in a process that comes to an end of that name; return its exit code and what it said."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writes, sys.stderr.fileno())
        ENDINGS[name]()
        os._exit(begin(name))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, os.read(reads, 1 << 16).decode()


if __name__ == "__main__":
    whole = begin("whole")
    sys.stdout.write(json.dumps({"whole": (whole, ""), **{name: end(name) for name in ENDINGS}}))
