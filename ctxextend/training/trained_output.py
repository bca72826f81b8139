"""What the folder of a trained checkpoint contains, and how it is written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.rewrite import Layout, file_sizes, write_files
from ctxextend.plan import output_files
from ctxextend.recipe import RECIPE_FILE
from ctxextend.report.figures import training_figure, write_figure
from ctxextend.training.finished_run import FinishedRun
from ctxextend.training.trained_card import trained_card
from ctxextend.training.trained_recipe import trained_recipe
from ctxextend.training.training_run import RunFolder

CURVE_FILE = "train_loss.png"


@dataclass(frozen=True)
class TrainedOutput:
    """What the output folder will contain."""

    checkpoint: Checkpoint  # the trained one, which is protected
    layouts: Mapping[str, Layout]  # of weights files that are rewritten
    tensor: Callable[[str], NDArray[Any]]  # the values of a changed tensor
    texts: Mapping[str, bytes]  # other files by path
    # Whether all other files of the checkpoint are copied; an adapter needs none of them.
    copies_files: bool = True

    @property
    def sizes(self) -> Mapping[str, int]:
        """The size in bytes of each file by path."""
        if self.copies_files:
            return file_sizes(self.checkpoint, self.layouts, self.texts)
        return {name: len(content) for name, content in self.texts.items()}


def trained_output(run: FinishedRun) -> TrainedOutput:
    """Return what the output folder of a run will contain: a checkpoint, or an adapter."""
    weights = run.weights
    texts = _texts(run)
    if run.settings.save_adapter:
        return TrainedOutput(
            checkpoint=weights.checkpoint,
            layouts={},
            tensor=weights.tensor,
            texts=_adapter_files(run) | texts,
            copies_files=False,
        )
    return TrainedOutput(
        checkpoint=weights.checkpoint,
        layouts=weights.layouts,
        tensor=weights.tensor,
        texts=weights.texts | texts,
    )


def _adapter_files(run: FinishedRun) -> dict[str, bytes]:
    """Return the files of a PEFT adapter for the source, with the table if that is trained."""
    from ctxextend.training.adapters import adapter_files

    trainable = run.weights.trainable
    table = run.task.files.table
    tables = dict[str, Any]()
    if table in trainable.names:
        tables[trainable.table] = run.weights.tensor(table)
    return adapter_files(trainable, tables, run.source.ref)


def _texts(run: FinishedRun) -> dict[str, bytes]:
    """Return the recipe, card, log, loss curve and logs of trackers, by path."""
    log = "".join(f"{json.dumps(line)}\n" for line in run.result.log)
    texts = {
        RECIPE_FILE: trained_recipe(run),
        output_files.CARD_FILE: trained_card(run),
        output_files.LOG_FILE: log,
    }
    files = {name: text.encode("utf-8", output_files.UNDECODED) for name, text in texts.items()}
    return files | _tracker_files(run.folder) | _curve(run)


def _tracker_files(folder: RunFolder) -> dict[str, bytes]:
    """Return the files that experiment trackers wrote, by path."""
    files = dict[str, bytes]()
    for path in (folder.path / "runs").rglob("*"):
        if path.is_file():
            files[path.relative_to(folder.path).as_posix()] = path.read_bytes()
    return files


def _curve(run: FinishedRun) -> dict[str, bytes]:
    """Return the figure of the losses, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return {}
    result = run.result
    path = run.folder.path / CURVE_FILE
    title = f"{result.output.name}: {result.trained.trainable} trained at {result.run.seq_len}"
    short = result.by_position.short_positions
    write_figure(path, lambda: training_figure(result.log, title, short))
    return {CURVE_FILE: path.read_bytes()}


def write_trained(output: TrainedOutput, folder: Path, *, force: bool) -> None:
    """Write an output atomically; with `force`, replace an existing checkpoint.

    Raises:
        OutputError: The folder exists, or cannot be written.
        CheckpointError: The checkpoint has changed since it was opened.
    """
    checkpoint = output.checkpoint
    if output.copies_files:
        checkpoint.check_unchanged()
    with atomic_folder(folder, checkpoint.protected, output.sizes, force=force) as staged:
        if output.copies_files:
            write_files(checkpoint, staged, output.layouts, output.tensor, output.texts)
        else:
            for name, content in output.texts.items():
                (staged / name).write_bytes(content)
