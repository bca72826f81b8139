"""What the folder of a trained checkpoint contains, and how it is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ctxextend.checkpoints.atomic_output import atomic_folder
from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.checkpoints.rewrite import Layout, file_sizes, write_files
from ctxextend.training.trained_weights import TrainedWeights


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


def checkpoint_output(weights: TrainedWeights, texts: Mapping[str, bytes]) -> TrainedOutput:
    """Return the output of trained weights, with recipe, card and logs by path."""
    return TrainedOutput(
        checkpoint=weights.checkpoint,
        layouts=weights.layouts,
        tensor=weights.tensor,
        texts={**weights.texts, **texts},
    )


def adapter_output(weights: TrainedWeights, texts: Mapping[str, bytes]) -> TrainedOutput:
    """Return the output of an adapter, whose files are in `texts`, with recipe, card and logs."""
    return TrainedOutput(
        checkpoint=weights.checkpoint,
        layouts={},
        tensor=weights.tensor,
        texts=texts,
        copies_files=False,
    )


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
