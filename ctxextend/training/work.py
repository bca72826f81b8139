"""The folder beside an output in which a training keeps what it has, so that it can be stopped and gone on with.

NAME.training/
  run.json         what was asked for, and of what source
  resized/         the checkpoint that is trained, where the run resizes it first
  tokens.bin       the text; eval_tokens.bin that on which the loss is measured, where it is apart
  train_log.jsonl  the losses so far
  saves/           the last save; one that is being written has another name
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxextend.checkpoints.atomic_output import (
    atomic_file,
    created_folders,
    locked,
    os_errors_as_output_error,
    remove_at_once,
    remove_stale,
)
from ctxextend.checkpoints.redaction import hidden_values
from ctxextend.errors import TrainingError

__all__ = ["SAVE", "Work", "open_work", "work_folder"]

RUN_FILE = "run.json"
SAVES = "saves"
# How transformers calls its saves: the step follows.
SAVE = "checkpoint-"
# What may be another when a run goes on: but for the steps, by which learning rates go, nothing is learned by it.
FREE = tuple(f"train.{name}" for name in ("steps", "micro_batch", "eval_every", "save_every", "report_to", "keep_code"))
# Under which the first wish for steps is noted: the learning rates until the stop were those of so many.
BEGUN_FOR = "begun for"


@dataclass(frozen=True)
class Work:
    """The folder of a run.

    Attributes:
        folder: The folder.
        keeps_saves: Whether what is learned is saved on the way; a training that nobody goes on with needs none.
    """

    folder: Path
    keeps_saves: bool = True

    @property
    def resized(self) -> Path:
        """Where the checkpoint is that is trained, if the run resizes it first."""
        return self.folder / "resized"

    @property
    def tokens(self) -> Path:
        """The text as tokens."""
        return self.folder / "tokens.bin"

    @property
    def eval_tokens(self) -> Path:
        """The text on which the loss is measured, as tokens."""
        return self.folder / "eval_tokens.bin"

    @property
    def log(self) -> Path:
        """The losses so far."""
        return self.folder / "train_log.jsonl"

    @property
    def saves(self) -> Path:
        """Where saves are."""
        return self.folder / SAVES

    @property
    def reports(self) -> Path:
        """Where other programs that show losses keep theirs."""
        return self.folder / "runs"

    @property
    def save(self) -> Path | None:
        """The last save that is whole; None where there is none."""
        return next(iter(self._all_saves), None)

    @property
    def _all_saves(self) -> list[Path]:
        """Whole saves, the last first."""
        numbers = {path: path.name.removeprefix(SAVE) for path in self.saves.glob(f"{SAVE}*")}
        found = {path: int(number) for path, number in numbers.items() if number.isdecimal()}
        return sorted(found, key=lambda path: -found[path])

    @property
    def step(self) -> int:
        """The steps that were taken before the last save; 0 where there is none."""
        return int(self.save.name.removeprefix(SAVE)) if self.save else 0

    @property
    def begun_for(self) -> int | None:
        """The steps that the run was first asked for; None where nobody knows."""
        steps = _noted(self.folder).get(BEGUN_FOR)
        return steps if isinstance(steps, int) else None

    def remove_older(self) -> None:
        """Remove all saves but the last."""
        for save in self._all_saves[1:]:
            with contextlib.suppress(OSError):
                remove_at_once(save)

    def remove_last(self) -> None:
        """Remove the last save."""
        for save in self._all_saves[:1]:
            remove_at_once(save)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        with contextlib.suppress(OSError):
            remove_at_once(self.folder)


def work_folder(output: Path) -> Path:
    """Return the folder that goes with an output."""
    return output.with_name(f"{output.name}.training")


@contextlib.contextmanager
def open_work(output: Path, asked: Mapping[str, Any], *, resume: bool, force: bool) -> Iterator[Work]:
    """Give the folder of a run, which stays until it is removed, unless nothing was saved in it.

    Args:
        output: The output; the folder stands beside it.
        asked: What is asked for, as plain values, and of what source.
        resume: Whether to go on with what is in it, if anything is.
        force: Whether to throw away what is in it.

    Raises:
        TrainingError: There are saves of another run in it, or another process works in it.
        OutputError: It cannot be made.
    """
    folder, asked = work_folder(output), hidden_values(asked)
    work = Work(folder)
    remove_stale(folder, "old")
    with os_errors_as_output_error(folder), created_folders(folder), _held(folder):
        remove_stale(folder / RUN_FILE, "new")
        _check(folder, asked, resume=resume, force=force)
        if not resume or work.save is None:
            _empty(folder)
        _note(folder, {**asked, BEGUN_FOR: work.begun_for or asked["train.steps"]})
        work.saves.mkdir(exist_ok=True)
        try:
            yield work
        finally:
            if work.save is None:
                work.remove()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    try:
        with locked(folder):
            yield
    except BlockingIOError:
        raise TrainingError(f"Another run works in {folder} just now.", "Wait for it, or choose another -o.") from None


def _check(folder: Path, asked: Mapping[str, Any], *, resume: bool, force: bool) -> None:
    """Refuse to touch what is not ours, to lose what was saved, and to go on with something else."""
    if any(folder.iterdir()) and not (folder / RUN_FILE).is_file():
        raise TrainingError(f"{folder} is in the way: saves are kept under that name.", "Choose another -o.")
    saved, steps = Work(folder).step, asked["train.steps"]
    if not saved or (force and not resume):
        return
    if not resume:
        raise TrainingError(
            f"{folder} holds the saves of a run that was stopped.",
            "Go on with --resume, or begin anew with --force.",
        )
    before = _noted(folder)
    changed = sorted(name for name in {*before, *asked} - {*FREE, BEGUN_FOR} if before.get(name) != asked.get(name))
    if changed:
        told = "; ".join(f"{name} was {before.get(name)!r} and is {asked.get(name)!r}" for name in changed)
        raise TrainingError(
            f"The run in {folder} was another: {told}.", "Resume it as it was begun, or begin anew with --force."
        )
    if steps < saved:
        raise TrainingError(
            f"{folder} holds the save of step {saved}, and --steps asks for {steps}.",
            f"Go on with --steps {saved} or more, or begin anew with --force.",
        )


def _note(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write down what is asked for; whoever is killed meanwhile leaves what stood there."""
    with atomic_file(folder / RUN_FILE) as staged, staged.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asked, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _noted(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / RUN_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {}


def _empty(folder: Path) -> None:
    """Remove all that is in the folder of a run: its saves first and at once, and last what says that it is ours."""
    remove_at_once(folder / SAVES)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == RUN_FILE):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)  # noqa: PTH108 - a name that may be a link
