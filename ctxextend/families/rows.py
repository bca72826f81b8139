"""Short forms of registry entries, for what most model types have in common."""

from collections.abc import Mapping

from ctxextend.positions.facts import Family, Part, Pin, Requirement
from ctxextend.positions.positions import Positions

# Prefixes of a language model of any type inside a model.
LANGUAGE_PREFIXES = ("language_model.", "model.language_model.")


def family(
    model_type: str,
    *positions: Positions,
    length: int | None = None,
    keys: Mapping[str, int] | None = None,
    with_head: tuple[str, ...] = (),
    parts: tuple[Part, ...] = (),
    requires: tuple[Requirement, ...] = (),
    limits: tuple[str, ...] = (),
    pins: tuple[Pin, ...] = (),
    padding_effect: str = "",
    note: str = "",
) -> Family:
    """Return the entry of a model type whose base class adds no prefix to tensor names.

    Args:
        model_type: As in config.json.
        *positions: Those that read the tokens first.
        length: transformers' default of the config key of the first positions, in tokens.
        keys: transformers' defaults of other config keys.
        with_head: Prefixes of tensor names in classes with a head.
        parts, requires, limits, pins, padding_effect, note: As in `Family`.
    """
    defaults = dict(keys or {})
    if length is not None:
        defaults[positions[0].config_key] = length
    return Family(
        model_type,
        prefixes=("", *with_head),
        tables=positions,
        defaults=defaults,
        requires=requires,
        parts=parts,
        limits=limits,
        pins=pins,
        padding_effect=padding_effect,
        note=note,
    )


def language_model(
    model_type: str,
    *,
    name: str = "text",
    config_key: str = "text_config",
    is_in_outer_config: bool = False,
    first_position: int = 0,
) -> Part:
    """Return the part for a language model of any type; `model_type` is the default."""
    return Part(
        name,
        config_key=config_key,
        prefixes=LANGUAGE_PREFIXES,
        model_type=model_type,
        may_state_type=True,
        has_head=True,
        is_in_outer_config=is_in_outer_config,
        first_position=first_position,
    )


def own_part(
    name: str, config_key: str, model_type: str, *, is_in_outer_config: bool = False
) -> Part:
    """Return the part for a model of one type, without a table of rows.

    Its positions are found in its config only, so no prefix of tensor names is needed.
    """
    return Part(
        name,
        config_key=config_key,
        prefixes=("",),
        model_type=model_type,
        is_in_outer_config=is_in_outer_config,
    )


def text_model(
    model_type: str,
    *,
    prefixes: tuple[str, ...] = ("text_model.",),
    overrides: tuple[str, ...] = (),
    may_state_type: bool = False,
    has_head: bool = False,
) -> Part:
    """Return the part for the text model of a multimodal model, with a table of rows."""
    return Part(
        "text",
        config_key="text_config",
        prefixes=prefixes,
        model_type=model_type,
        overrides=overrides,
        may_state_type=may_state_type,
        has_head=has_head,
    )


def submodel(
    name: str,
    model_type: str,
    *,
    only_part: str = "",
    tokenizer: str | None = "",
    has_head: bool = False,
) -> Part:
    """Return the part for a model of any type inside another.

    Args:
        name: Of the part, and the key of its config.
        model_type: Its model type if its config states none.
        only_part: The table part that it uses; see `Part`.
        tokenizer: Its tokenizer folder; see `Part`.
        has_head: Whether it has a head; see `Part`.
    """
    return Part(
        name,
        config_key=name,
        prefixes=(f"{name}.",),
        model_type=model_type,
        may_state_type=True,
        has_head=has_head,
        tokenizer=tokenizer,
        only_part=only_part,
    )
