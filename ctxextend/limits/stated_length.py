"""The context length that the files of a checkpoint state, whatever its model type is."""

from typing import NamedTuple

from ctxextend.checkpoints.folder import Checkpoint
from ctxextend.limits.config_keys import READERS
from ctxextend.limits.side_files import stated_limits
from ctxextend.limits.statements import NO_LIMIT
from ctxextend.positions.positions import nested, whole_number

# Configs of the part that reads text, in that of a model with several parts. The first ones are
# those of `get_text_config` in transformers 5.24.
TEXT_CONFIGS = ("text_config", "decoder", "generator", "language_config", "llm_config")


class StatedLength(NamedTuple):
    """A context length that a file states."""

    file: str  # relative to the checkpoint's root
    key: str  # with dots for nested configs
    tokens: int


def stated_length(checkpoint: Checkpoint) -> StatedLength | None:
    """Return the context length that a checkpoint's files state; None if none of them does.

    The first of these that states one counts:

    1. The config, by the first key that `STATEMENTS` lists.
    2. The config of its part that reads text, in the same way.
    3. The length to which the tokenizer truncates texts.

    Raises:
        CheckpointError: A file cannot be read.
    """
    for path in ((), *((name,) for name in TEXT_CONFIGS)):
        for name in READERS:
            key = (*path, name)
            value = whole_number(nested(checkpoint.config, key))
            if value is not None and 0 < value < NO_LIMIT:
                return StatedLength(checkpoint.config_file, ".".join(key), value)
    for limit in stated_limits(checkpoint):
        if limit.statement.meaning == "truncation" and limit.tokens is not None:
            return StatedLength(limit.file, ".".join(limit.path), limit.tokens)
    return None
