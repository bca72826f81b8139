"""Find the limits of generated texts, and the table whose positions these texts use up.

Source of the rules: ``GenerationConfig.from_pretrained``, its ``from_model_config``, and
``generate`` of transformers 5.23.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ctxextend.checkpoint.folder import MODULES, Checkpoint, no_lm
from ctxextend.families.registry import MAX_CONFIG_DEPTH
from ctxextend.limits.statements import GENERATION_CONFIG, MAX_LENGTH, NO_LIMIT, STATEMENTS
from ctxextend.positions.positions import Keys, Positions, whole_number

# Keys of generation_config.json, which older configs have too; the first maximum wins.
MAXIMA = tuple(row.key[-1] for row in STATEMENTS if row.meaning == "maximum")
MINIMA = tuple(row.key[-1] for row in STATEMENTS if row.meaning == "minimum")

TASKS = "task_specific_params"  # of pipelines, up to transformers 4
# Older versions of transformers wrote all defaults of generation into nested configs.
DEFAULT_MAX_LENGTH = 20
# Without a generation_config.json, transformers completes the outer config by the first of these.
DECODER_CONFIGS = ("decoder", "generator", "text_config")
# Nested configs of other inputs, whose ``max_length`` counts other things, by name or by a key.
NOT_TEXT = "vision|visual|image|video|audio|speech|quantization"
NOT_TEXT_KEYS = {
    "patch_size",
    "image_size",
    "num_channels",
    "num_mel_bins",
    "sampling_rate",
    "conv_dim",
}
# Names of parts of a model, the last one if they are nested.
DECODER_PARTS = ("decoder", "speech")  # the decoder of CLVP, which writes speech, is called so
TEXT_PARTS = ("", "text")


class GenerationLimit(NamedTuple):
    """A limit of generated texts in a file."""

    file: str  # relative to the checkpoint's root
    path: Keys
    tokens: int
    is_used: bool  # whether `generate()` uses it

    @property
    def key(self) -> str:
        """The last key of its path."""
        return self.path[-1]

    @property
    def is_of_task(self) -> bool:
        """Whether it is for pipelines of one task, in old versions of transformers."""
        return TASKS in self.path

    @property
    def is_default(self) -> bool:
        """Whether it is a default in a nested config, which says nothing."""
        return len(self.path) > 1 and self.key == MAX_LENGTH and self.tokens == DEFAULT_MAX_LENGTH

    @property
    def may_rise(self) -> bool:
        """Whether it is a maximum that a longer context raises."""
        return self.key in MAXIMA and not self.is_of_task and not self.is_default


def generation_limits(checkpoint: Checkpoint) -> tuple[GenerationLimit, ...]:
    """Return all limits of generated texts in a folder.

    `generate()` uses the generation_config.json next to the model's config. Without this file, it
    uses config.json, if the model generates. Another generation_config.json at the root, which some
    folders with modules have, is not used.
    """
    limits = list[GenerationLimit]()
    used_file = (checkpoint.model / GENERATION_CONFIG).as_posix()
    for file in dict.fromkeys((used_file, GENERATION_CONFIG)):
        if file in checkpoint.copied:
            for key, tokens in limits_in_object(checkpoint.read_object(file)).items():
                is_used = file == used_file
                limit = GenerationLimit(file=file, path=(key,), tokens=tokens, is_used=is_used)
                limits.append(limit)
    if not checkpoint.has_config:
        return tuple(limits)
    used = set[Keys]()
    if used_file not in checkpoint.copied and generates_text(checkpoint):
        used = _used_paths(checkpoint.config)
    file = checkpoint.config_file
    for path, tokens in _limits_in_config(checkpoint.config):
        limit = GenerationLimit(file=file, path=path, tokens=tokens, is_used=path in used)
        limits.append(limit)
    return tuple(limits)


def deciding_limit(limits: tuple[GenerationLimit, ...]) -> GenerationLimit | None:
    """Return the limit at which `generate()` stops by default; None if none is stated.

    Of two maxima, the first in `MAXIMA` wins.
    """
    used = {limit.key: limit for limit in limits if limit.is_used and not limit.is_default}
    for key in MAXIMA:
        if key in used:
            return used[key]
    return None


def limits_in_object(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits that an object states, by key."""
    stated = dict[str, int]()
    for key in (*MAXIMA, *MINIMA):
        value = whole_number(values.get(key))
        if value is not None and 0 < value < NO_LIMIT:
            stated[key] = value
    return stated


def _limits_in_config(config: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    """Yield the limits in a config, in the configs nested in it, and those of tasks."""
    for key, tokens in limits_in_object(config).items():
        yield (*path, key), tokens
    tasks = config.get(TASKS)
    if isinstance(tasks, Mapping):
        for task, values in tasks.items():
            if isinstance(values, Mapping):
                for key, tokens in limits_in_object(values).items():
                    yield (*path, TASKS, task, key), tokens
    if len(path) >= MAX_CONFIG_DEPTH:
        return
    for name, part in config.items():
        if isinstance(part, Mapping) and _is_text_config(name, part):
            yield from _limits_in_config(part, (*path, name))


def _is_text_config(name: str, part: Mapping[str, Any]) -> bool:
    """Whether a nested object is the config of a model that reads or writes text."""
    is_named = name in ("decoder", "encoder", "generator") or name.endswith("_config")
    is_config = is_named or "model_type" in part
    return is_config and not re.search(NOT_TEXT, name) and NOT_TEXT_KEYS.isdisjoint(part)


def _used_paths(config: Mapping[str, Any]) -> set[Keys]:
    """Return the paths that `generate()` uses in a folder without generation_config.json.

    They are those at the top level and, for keys that it does not state, those in the first of
    `DECODER_CONFIGS` that is not empty.
    """
    outer: set[Keys] = {(key,) for key in limits_in_object(config)}
    stated_parts = [name for name in DECODER_CONFIGS if config.get(name)]
    if not stated_parts:
        return outer
    part = stated_parts[0]
    values = config[part]
    if not isinstance(values, Mapping):
        return outer
    inner: set[Keys] = {(part, key) for key in limits_in_object(values) if (key,) not in outer}
    return outer | inner


def generates_text(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is of a model that generates text, as far as its config tells."""
    if MODULES in checkpoint.copied:  # of a sentence encoder
        return False
    if checkpoint.config.get("is_encoder_decoder") or checkpoint.config.get("is_decoder"):
        return True
    return no_lm(checkpoint) == ""


def generating_table(tables: Sequence[Positions]) -> Positions | None:
    """Return the table whose positions generated texts use up; None if none reads text.

    It is the first of the decoder, else the first of the text, else the first that reads tokens.
    """
    parts = [table.part.rpartition(".")[2] for table in tables]
    for table, part in zip(tables, parts, strict=True):
        if part.endswith(DECODER_PARTS):
            return table
    reading = [table for table in tables if table.tokenizer is not None]
    for table in reading:
        if table.part.rpartition(".")[2] in TEXT_PARTS:
            return table
    return reading[0] if reading else None


def shares_positions(location: Positions) -> bool:
    """Whether the prompt uses up the positions of generated texts too.

    Args:
        location: That of the table that generates. If it is that of a decoder, an encoder reads
            the prompt, with separate positions.
    """
    return not location.part.endswith(DECODER_PARTS)
