"""The folder beside an output that holds an unfinished training run, so that it can be resumed.

NAME.training/
  run.json         the settings of the run, and the hash of its source's table
  resized/         the resized checkpoint, if the run resizes first
  tokens.bin       the text; eval_tokens.bin the text of --eval-data
  train_log.jsonl  the losses so far
  saves/           the last saves; one that is being written has another name
  runs/            what tensorboard and the like write
"""

import contextlib
import json
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
from ctxextend.errors import TrainingError

RUN_FILE = "run.json"
# transformers' name of a save; the step follows.
SAVE = "checkpoint-"
# Settings that may change when a run is resumed.
FREE = tuple(f"train.{name}" for name in ("steps", "micro_batch", "eval_every", "save_every", "report_to", "keep_code"))
# The key of the steps that were asked for first, which gave the learning rates until the interruption.
BEGUN_FOR = "begun for"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a training run.

    Attributes:
        path: The folder.
        keeps_saves: Whether the run is saved at all; a comparison's are not.
    """

    path: Path
    keeps_saves: bool = True

    @classmethod
    def beside(cls, output: Path) -> "RunFolder":
        """Return the folder that belongs to an output."""
        return cls(output.with_name(f"{output.name}.training"))

    @property
    def resized(self) -> Path:
        """The resized checkpoint."""
        return self.path / "resized"

    @property
    def log(self) -> Path:
        """The losses so far."""
        return self.path / "train_log.jsonl"

    @property
    def saves(self) -> Path:
        """The folder of saves."""
        return self.path / "saves"

    @property
    def all_saves(self) -> list[Path]:
        """Complete saves, the last first."""
        numbers = {path: path.name.removeprefix(SAVE) for path in self.saves.glob(f"{SAVE}*")}
        found = {path: int(number) for path, number in numbers.items() if number.isdecimal()}
        return sorted(found, key=lambda path: -found[path])

    @property
    def save(self) -> Path | None:
        """The last complete save."""
        return next(iter(self.all_saves), None)

    @property
    def step(self) -> int:
        """The step of the last save; 0 if there is none."""
        return int(self.save.name.removeprefix(SAVE)) if self.save else 0

    @property
    def settings(self) -> dict[str, Any]:
        """What `open_run_folder` wrote down of the run; empty if nothing is readable."""
        try:
            found = json.loads((self.path / RUN_FILE).read_text("utf-8"))
        except (OSError, ValueError):
            found = None
        return found if isinstance(found, dict) else {}

    @property
    def begun_for(self) -> int | None:
        """The steps that were asked for first; None if unknown."""
        steps = self.settings.get(BEGUN_FOR)
        return steps if isinstance(steps, int) else None

    def remove(self, saves: slice | None = None) -> None:
        """Remove the folder, or of `all_saves` those of a slice; a killed removal leaves no part under their names."""
        with contextlib.suppress(OSError):
            for path in [self.path] if saves is None else self.all_saves[saves]:
                remove_at_once(path)


@contextlib.contextmanager
def open_run_folder(output: Path, settings: Mapping[str, Any], *, resume: bool, force: bool) -> Iterator[RunFolder]:
    """Create or reopen the folder of a run, and lock it; it is removed at the end if nothing was saved in it.

    Args:
        output: The output.
        settings: The settings of the run as plain values, with ``train.steps``.
        resume: Whether to continue from the last save, if there is one.
        force: Whether to discard saves.

    Raises:
        TrainingError: It holds the saves of another run, or another process works in it.
        OutputError: It cannot be created.
    """
    folder = RunFolder.beside(output)
    remove_stale(folder.path, "old")
    with os_errors_as_output_error(folder.path), created_folders(folder.path), _locked(folder.path):
        remove_stale(folder.path / RUN_FILE, "new")
        _check(folder, settings, resume=resume, force=force)
        if not resume or folder.save is None:
            remove_at_once(folder.saves)  # at once, and before anything else
            for path in sorted(folder.path.iterdir(), key=lambda path: path.name == RUN_FILE):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        noted = {**settings, BEGUN_FOR: folder.begun_for or settings["train.steps"]}
        with atomic_file(folder.path / RUN_FILE) as staged:
            staged.write_text(json.dumps(noted, indent=2) + "\n", "utf-8")
        folder.saves.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if folder.save is None:
                folder.remove()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with locked(path):
            yield
    except BlockingIOError:
        raise TrainingError(f"Another run works in {path} just now.", "Wait for it, or choose another -o.") from None


def _check(folder: RunFolder, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
    """Refuse to touch what is not ours, to lose saves, and to resume another run."""
    path = folder.path
    if any(path.iterdir()) and not (path / RUN_FILE).is_file():
        raise TrainingError(f"{path} is in the way: saves are kept under that name.", "Choose another -o.")
    saved, steps = folder.step, settings["train.steps"]
    if not saved or (force and not resume):
        return
    if not resume:
        raise TrainingError(
            f"{path} holds the saves of a run that was stopped.", "Go on with --resume, or begin anew with --force."
        )
    before = folder.settings
    names = sorted({*before, *settings} - {*FREE, BEGUN_FOR})
    if changed := [name for name in names if before.get(name) != settings.get(name)]:
        said = "; ".join(f"{name} was {before.get(name)!r} and is {settings.get(name)!r}" for name in changed)
        raise TrainingError(
            f"The run in {path} was another: {said}.", "Resume it as it was begun, or begin anew with --force."
        )
    if steps < saved:
        raise TrainingError(
            f"{path} holds the save of step {saved}, and --steps asks for {steps}.",
            f"Go on with --steps {saved} or more, or begin anew with --force.",
        )
