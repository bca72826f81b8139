"""Short forms of registry entries, for what most model types have in common."""

from collections.abc import Mapping

from ctxextend.families.schema import (
    LENGTH,
    Family,
    Part,
    Pin,
    Positions,
    Requirement,
    RotaryFacts,
    RotaryPositions,
)

# Prefixes of a language model of any type inside a model.
LANGUAGE_PREFIXES = ("language_model.", "model.language_model.")
STANDARD = RotaryFacts()
THETA_METHOD = ("theta",)  # other rope types are not accepted, or have settings of the model's own


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


def rotary(
    model_type: str,
    *,
    length: int,
    head_dim: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    theta: float | None = None,
    facts: RotaryFacts = STANDARD,
) -> Family:
    """Return the entry of a language model with rotary positions.

    All numbers are transformers' defaults.

    Args:
        model_type: As in config.json.
        length: Of the context, in tokens.
        head_dim: Size of a rotated head; by default hidden / heads.
        hidden: The hidden size; given with `heads`.
        heads: The number of attention heads.
        theta: ``rope_theta`` of the main layers; by default that of the facts.
        facts: How its classes read the rotary settings.
    """
    if theta is not None:
        main_layers, *_ = facts.theta
        facts = facts._replace(theta={**facts.theta, main_layers: theta})
    defaults = {LENGTH: length}
    if head_dim is not None:
        defaults[facts.dim_key] = head_dim
    assert (hidden is None) == (heads is None), "they are used together"
    if hidden is not None and heads is not None:
        defaults["hidden_size"] = hidden
        defaults["num_attention_heads"] = heads
    return Family(model_type, tables=(RotaryPositions(rope=facts),), defaults=defaults)


def with_any_text(model_type: str, *, default: str, is_in_outer_config: bool = False) -> Family:
    """Return the entry of a multimodal model whose language model may be of any type.

    Args:
        model_type: As in config.json.
        default: The model type of its language model if the config states none.
        is_in_outer_config: Whether old configs have no ``text_config``.
    """
    return Family(
        model_type, parts=(language_model(default, is_in_outer_config=is_in_outer_config),)
    )


def with_own_text(model_type: str, *, text: str, is_in_outer_config: bool = False) -> Family:
    """Return the entry of a multimodal model whose text model is always of the type `text`.

    Args:
        model_type: As in config.json.
        text: The model type of its text model.
        is_in_outer_config: Whether old configs have no ``text_config``.
    """
    return Family(
        model_type,
        parts=(own_part("text", "text_config", text, is_in_outer_config=is_in_outer_config),),
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
