"""What to know of an output: each note is written once, finished, where its fact is known."""

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How much a note matters."""

    NOTE = "note"
    WARNING = "warning"  # the output may be wrong, or not what was asked for


class Code(StrEnum):
    """What a note is about."""

    METHOD = "method"  # which method is used, and why
    UNTRAINED = "untrained"  # what to expect beyond the old length before any training
    SHORT_INPUTS = "short-inputs"  # whether outputs of short inputs change
    PADDING = "padding"  # outputs depend on the length to which texts are padded
    FAR = "far"  # the length is further from the trained one than any that was measured as useful
    LIMITS = "limits"  # limits that cut inputs before are raised, so outputs change
    LENGTHS = "lengths"  # files state lengths that disagree: of the training, or one that stays
    GENERATION = "generation"  # where generated texts stop, or turn into noise
    ATTENTION_WINDOW = "attention-window"  # all layers or some see no further than a window
    ENGINE = "engine"  # which engines read the length, and what the requested one does
    TENSORS = "tensors"  # values that are missing, dropped, untrained or not finite
    ADAPTER = "adapter"  # the source is only an adapter
    OWN_CODE = "own-code"  # files of the folder name code
    FILES = "files"  # files that the output lacks, or shares
    TRAINING = "training"  # what to know of the training after it
    UNCHANGED = "unchanged"  # nothing to do
    SOURCE = "source"  # how the reference was read, and what is special about its model type


class Note(NamedTuple):
    """One thing to know of an output."""

    code: Code
    level: Level
    text: str  # whole sentences
