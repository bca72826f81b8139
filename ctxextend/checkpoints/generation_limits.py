"""Limits of generated texts, and their edits for another context length.

Source of the rules: ``GenerationConfig.from_pretrained``, its ``from_model_config``, and
``generate`` of transformers 5.23.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ctxextend.checkpoints.folder import CONFIG, MODULES, Checkpoint
from ctxextend.checkpoints.length_limits import Edit
from ctxextend.families.length_keys import NO_LIMIT, runs_beyond, shares_positions
from ctxextend.families.lookup import MAX_DEPTH, Keys, TableLocation, whole_number

GENERATION_CONFIG = "generation_config.json"
TASKS = "task_specific_params"  # of pipelines, up to transformers 4
MAX_LENGTH = "max_length"  # prompt and generated tokens
MAX_NEW_TOKENS = "max_new_tokens"
MIN_LENGTH = "min_length"
MIN_NEW_TOKENS = "min_new_tokens"
MAXIMA = (MAX_NEW_TOKENS, MAX_LENGTH)  # the first one wins
MINIMA = {MIN_LENGTH: MAX_LENGTH, MIN_NEW_TOKENS: MAX_NEW_TOKENS}  # each with its maximum
KEYS = (*MAXIMA, *MINIMA)
# Older versions of transformers wrote all defaults of generation into nested configs.
DEFAULT_MAX_LENGTH = 20
# Without a generation_config.json, transformers completes the outer config by the first of these.
DECODER_CONFIGS = ("decoder", "generator", "text_config")
# Nested configs of other inputs, whose ``max_length`` counts other things, by name or by a key.
NOT_TEXT = re.compile("vision|visual|image|video|audio|speech|quantization")
NOT_TEXT_KEYS = {
    "patch_size",
    "image_size",
    "num_channels",
    "num_mel_bins",
    "sampling_rate",
    "conv_dim",
}


@dataclass(frozen=True)
class GenerationLimit:
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
    """Return all limits of generated texts in a folder."""
    main_file = (checkpoint.model / GENERATION_CONFIG).as_posix()
    limits = list[GenerationLimit]()
    for file in dict.fromkeys((main_file, GENERATION_CONFIG)):
        if file in checkpoint.copied:
            stated = _stated(checkpoint.read_object(file))
            for key, tokens in stated.items():
                limits.append(GenerationLimit(file, (key,), tokens, is_used=file == main_file))
    if not checkpoint.has_config:
        return tuple(limits)
    reads_config = main_file not in checkpoint.copied and _generates(checkpoint)
    used = _used_paths(checkpoint.config) if reads_config else set[Keys]()
    for path, tokens in _in_config(checkpoint.config):
        limits.append(GenerationLimit(checkpoint.config_file, path, tokens, path in used))
    return tuple(limits)


def deciding_limit(limits: tuple[GenerationLimit, ...]) -> GenerationLimit | None:
    """Return the limit at which `generate()` stops by default; None if none is stated."""
    used = {limit.key: limit for limit in limits if limit.is_used and not limit.is_default}
    return next((used[key] for key in MAXIMA if key in used), None)


def generation_edits(
    checkpoint: Checkpoint, location: TableLocation, before: int, after: int, *, fix_limits: bool
) -> Iterator[Edit]:
    """Yield the edits of generation limits from one context length to another, in tokens.

    `location` is that of the table that generates. Limits that would fail are lowered; `fix_limits`
    raises maxima.
    """
    groups = dict[tuple[str, Keys], list[GenerationLimit]]()
    for limit in generation_limits(checkpoint):
        groups.setdefault((limit.file, limit.path[:-1]), []).append(limit)
    for (file, path), limits in groups.items():
        stated = {limit.key: limit.tokens for limit in limits}
        new = lowered_limits(stated, location, before, after)
        if fix_limits:
            maxima = {limit.key: limit.tokens for limit in limits if limit.may_rise}
            new |= _raised_limits(maxima, before, after)
        for key, tokens in new.items():
            yield Edit(file, (*path, key), stated[key], tokens)


def lowered_limits(
    stated: Mapping[str, int],
    location: TableLocation,
    before: int,
    after: int,
) -> dict[str, int]:
    """Return lower values of the limits that would fail at a context length of `after` tokens."""
    lowered = dict[str, int]()
    if runs_beyond(location):
        return lowered
    if stated.get(MAX_LENGTH, 0) > after:
        lowered[MAX_LENGTH] = after
    new_tokens = stated.get(MAX_NEW_TOKENS, 0)
    if new_tokens > after:
        # The prompt keeps its positions, but at most half of all.
        prompt = before - new_tokens
        if prompt <= 0:
            prompt = after if shares_positions(location) else 0
        lowered[MAX_NEW_TOKENS] = max(after - prompt, after // 2, 1)
    for key, maximum in MINIMA.items():
        most = min(after, lowered.get(maximum, after))
        if stated.get(key, 0) > most:
            lowered[key] = min(most, stated.get(maximum, most))
    return lowered


def _raised_limits(stated: Mapping[str, int], before: int, after: int) -> dict[str, int]:
    """Return higher values of maxima below a context length; the prompt keeps its positions."""
    raised = dict[str, int]()
    if stated.get(MAX_LENGTH, after) < after:
        raised[MAX_LENGTH] = after
    new_tokens = stated.get(MAX_NEW_TOKENS, after)
    if new_tokens < after and before < after:
        raised[MAX_NEW_TOKENS] = min(new_tokens + after - before, after)
    return raised


def is_of_generation(edit: Edit) -> bool:
    """Whether an edit changes a limit of generated texts; tokenizer.json has a ``max_length``
    too.
    """
    return PurePosixPath(edit.file).name in (GENERATION_CONFIG, CONFIG) and edit.path[-1] in KEYS


def is_raised(edit: Edit) -> bool:
    """Whether an edit raises a limit of generated texts."""
    if (
        not is_of_generation(edit)
        or edit.path[-1] not in MAXIMA
        or not isinstance(edit.before, int)
    ):
        return False
    return bool(edit.after > edit.before)


def stated_in(values: Any) -> dict[str, int]:
    """Return the limits among the attributes of a generation config of transformers."""
    return _stated(vars(values))


def _stated(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits that an object states."""
    stated = dict[str, int]()
    for key in KEYS:
        value = whole_number(values.get(key))
        if value is not None and 0 < value < NO_LIMIT:
            stated[key] = value
    return stated


def _in_config(config: Mapping[str, Any], path: Keys = ()) -> Iterator[tuple[Keys, int]]:
    """Yield the limits in a config, in the configs nested in it, and those of tasks."""
    for key, tokens in _stated(config).items():
        yield (*path, key), tokens
    tasks = config.get(TASKS)
    for task, values in tasks.items() if isinstance(tasks, Mapping) else ():
        if isinstance(values, Mapping):
            for key, tokens in _stated(values).items():
                yield (*path, TASKS, task, key), tokens
    for name, part in config.items():
        if isinstance(part, Mapping) and len(path) < MAX_DEPTH and _is_text_config(name, part):
            yield from _in_config(part, (*path, name))


def _is_text_config(name: str, part: Mapping[str, Any]) -> bool:
    """Whether a nested object is the config of a model that reads or writes text."""
    is_named = name in ("decoder", "encoder", "generator") or name.endswith("_config")
    is_config = is_named or "model_type" in part
    return is_config and not NOT_TEXT.search(name) and NOT_TEXT_KEYS.isdisjoint(part)


def _used_paths(config: Mapping[str, Any]) -> set[Keys]:
    """Return the paths that `generate()` uses in a folder without generation_config.json."""
    used: set[Keys] = {(key,) for key in _stated(config)}
    name = next((name for name in DECODER_CONFIGS if config.get(name)), None)
    inner = config.get(name) if name else None
    if name is not None and isinstance(inner, Mapping):
        used |= {(name, key) for key in _stated(inner) if (key,) not in used}
    return used


def _generates(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is of a model that generates text, as far as its config tells."""
    if MODULES in checkpoint.copied:
        return False
    is_decoder = checkpoint.config.get("is_encoder_decoder") or checkpoint.config.get("is_decoder")
    return bool(is_decoder) or not checkpoint.no_lm
