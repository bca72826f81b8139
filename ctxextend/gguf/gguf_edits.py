"""Plan the metadata of a GGUF file that a new length changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctxextend.checkpoint.gguf_checkpoint import gguf_values
from ctxextend.checkpoint.json_edit import Edit
from ctxextend.errors import MethodError, ResizeError
from ctxextend.gguf.gguf_architectures import (
    GGUF_ARCHITECTURES,
    GGUF_METHODS,
    LINEAR_METHOD,
    YARN_METHOD,
)
from ctxextend.gguf.gguf_config import (
    ATTENTION,
    CONTEXT_LENGTH,
    FREQ_BASE,
    FREQ_BASE_LOCAL,
    MAX_LENGTH_STATED,
    OLD_FACTOR,
    SCALING_FACTOR,
    SCALING_TYPE,
    SLIDING_WINDOW,
    TRAINED_LENGTH,
    derived_attention,
    shortest,
)
from ctxextend.gguf.gguf_model import NOT_STATED, check_not_quantised, check_scales
from ctxextend.notes import Code, Level, Note
from ctxextend.opening.opened_model import OpenedModel
from ctxextend.positions.change import Change
from ctxextend.positions.positions import nested
from ctxextend.settings import Resize
from ctxextend.tables.method_facts import DEFAULT_METHOD
from ctxextend.tables.rope_types import (
    ATTENTION_FACTOR,
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    THETA,
    TRAINED,
    TYPE,
    YARN_BETAS,
    Parameters,
)


def check_gguf_settings(model: OpenedModel, settings: Resize) -> None:
    """Check that a GGUF file can be resized, and can state a length and a method.

    Raises:
        CheckpointError: Its position table is quantised.
        ResizeError: It cannot state the length.
        MethodError: It cannot state the method.
    """
    check_not_quantised(model.checkpoint, model.tables[0])
    if settings.length >= MAX_LENGTH_STATED:
        message = f"--to {settings.to}: a GGUF file states a length of 32 bits."
        raise ResizeError(message, f"Use a length below {MAX_LENGTH_STATED}.")
    location = model.tables[0]
    name = settings.choice.name
    _check_no_betas(settings)
    if name in NOT_STATED or (location.layers and name in GGUF_METHODS):
        check_scales(model.checkpoint, location, name)


LLAMA_CPP_FLAGS = {BETA_FAST: "--yarn-beta-fast", BETA_SLOW: "--yarn-beta-slow"}


def _check_no_betas(settings: Resize) -> None:
    """Raise MethodError if the method states betas.

    The format has keys for them, but llama.cpp's converter writes none for Llama, and the model
    then gets the defaults: `tests.engines` runs it.
    """
    given = [key for key in YARN_BETAS if settings.choice.settings.get(key) is not None]
    if not given:
        return
    names = [key.replace("_", "-") for key in given]
    flags = " and ".join(LLAMA_CPP_FLAGS[key] for key in given)
    listed = " and ".join(names)
    message = f"--method {settings.method}: a GGUF file does not state {listed}."
    raise MethodError(message, f"Remove {listed}, and pass {flags} to llama.cpp.")


def with_methods_note(model: OpenedModel, settings: Resize) -> OpenedModel:
    """Return the model with a note on why not all methods scale it, if none is named."""
    location = model.tables[0]
    if not location.layers or settings.choice.name != DEFAULT_METHOD:
        return model
    row = GGUF_ARCHITECTURES[location.family.model_type]
    if row.methods == GGUF_METHODS:
        return model
    if row.methods:
        methods = " and ".join(row.methods)
        text = f"Only {methods} scales architecture {row.name}: {row.reason}."
    else:
        text = f"No method scales architecture {row.name}: {row.reason}."
    return model.with_notes(Note(Code.METHOD, Level.NOTE, text))


def with_gguf_settings(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return changes with rotary settings as a GGUF file states them.

    Numbers have 32 bits. Linear settings also state the first trained length, which llama.cpp does
    not read for them: so a later resize knows it. So do settings that stay, if the user stated it.
    """
    stated = list[Change]()
    for change in changes:
        positions = change.positions
        settings = dict(change.settings)
        for layers, after in change.changed_layers:
            before = layers.parameters
            if after == before and positions.trained_length is None:
                continue
            # Settings without scaling have no attention factor in transformers, and llama.cpp
            # multiplies theirs by the factor that the file states. It stays, so yarn settings get
            # its product with their own.
            scale = nested(positions.config, (*positions.path, ATTENTION))
            becomes_yarn = after[TYPE] == YARN_METHOD != before[TYPE]
            if becomes_yarn and scale != 1:
                after = {**after, ATTENTION_FACTOR: scale * derived_attention(after[FACTOR])}
            settings[layers.layer_type] = _as_stated(after, positions.lengths.first_trained)
        stated.append(replace(change, settings=settings))
    return tuple(stated)


def _as_stated(settings: Parameters, trained: int) -> Parameters:
    """Return rotary settings as a file gives them back; `trained` is in tokens."""
    stated = dict(settings)
    if stated[TYPE] == LINEAR_METHOD:
        stated.setdefault(TRAINED, trained)
    for key in (THETA, FACTOR):
        if key in stated:
            stated[key] = shortest(stated[key])
    if ATTENTION_FACTOR in stated:
        derived = derived_attention(stated[FACTOR])
        stated[ATTENTION_FACTOR] = shortest(stated[ATTENTION_FACTOR] / derived) * derived
    return stated


def metadata_edits(
    model: OpenedModel, changes: Sequence[Change], *, fix_limits: bool
) -> tuple[Edit, ...]:
    """Return the edits to the metadata of a GGUF file that the new lengths require.

    Raises:
        MethodError: The file cannot state the rotary settings, or llama.cpp does not apply them.
    """
    stated = gguf_values(model.checkpoint)
    edits = list[Edit]()
    for change in changes:
        architecture = change.positions.family.model_type
        if change.settings and change.scales and change.choice is not None:
            check_scales(model.checkpoint, change.positions, change.choice.name)
        for key, after in _values(change, stated, fix_limits=fix_limits):
            full_key = f"{architecture}.{key}"
            before = stated.get(full_key)
            if isinstance(before, float):
                before = shortest(before)
            if before != after:
                path = tuple(full_key.split("."))
                edits.append(Edit(model.checkpoint.config_file, path, before, after))
    return tuple(edits)


def _values(
    change: Change, stated: Mapping[str, Any], *, fix_limits: bool
) -> Iterator[tuple[str, Any]]:
    """Yield keys after the name of the architecture, and their new values.

    Rotary settings are those that the converter of llama.cpp writes.
    """
    if change.is_changed or fix_limits:
        yield CONTEXT_LENGTH, change.positions.key_value(change.stated_after)
    for layers, after in change.changed_layers:
        before = layers.parameters
        if after == before:
            # Yarn settings that do not state it take the context length, which may change.
            if TRAINED in after:
                yield TRAINED_LENGTH, round(after[TRAINED])
            continue
        architecture = change.positions.family.model_type
        if after[THETA] != before[THETA]:
            yield FREQ_BASE, shortest(after[THETA])
            takes_base = GGUF_ARCHITECTURES[architecture].local_base == "default"
            has_window = stated.get(f"{architecture}.{SLIDING_WINDOW}")
            if takes_base and has_window and f"{architecture}.{FREQ_BASE_LOCAL}" not in stated:
                yield FREQ_BASE_LOCAL, shortest(before[THETA])
        if after[TYPE] == "default":
            continue
        yield SCALING_TYPE, after[TYPE]
        yield SCALING_FACTOR, shortest(after[FACTOR])
        if f"{architecture}.{OLD_FACTOR}" in stated:
            yield OLD_FACTOR, shortest(after[FACTOR])
        yield TRAINED_LENGTH, round(after[TRAINED])
        if ATTENTION_FACTOR in after:
            yield ATTENTION, shortest(after[ATTENTION_FACTOR] / derived_attention(after[FACTOR]))
