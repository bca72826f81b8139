"""Model types with rotary, ALiBi or relative positions.

`rotary_types.json` has a row for each type with one kind of rotary positions, in groups that share
`RotaryFacts`, and one for each multimodal type with one text model, of any type or always the same.
The others are here: they have several text models, other keys of the length, or positions that
depend on a key.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ctxextend.families.rows import family, language_model, own_part
from ctxextend.families.unsupported import NO_POSITIONS
from ctxextend.positions.facts import (
    ALIBI,
    LENGTH,
    RELATIVE,
    ConfigCondition,
    Family,
    OldRotaryKeys,
    Requirement,
    RotaryFacts,
)
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.unlimited import Unlimited
from ctxextend.tables.method_facts import SWITCH
from ctxextend.tables.rope_types import LISTS

TOKENIZER_LENGTH = "model_max_length"  # another name of the length in some configs

LIMITS_ONLY = RotaryFacts(methods=())  # the classes ignore other rotary settings
# Transformers 4.57 checks the keys of ``rope_scaling``.
PHI = RotaryFacts(
    type_names={"su": "longrope", "yarn": "longrope"},
    methods=("theta", SWITCH),
    drops_cache=True,
    old=OldRotaryKeys(scaling_keys=("type", *LISTS)),
)
PHI_KEYS = {
    "original_max_position_embeddings": 4096,
    "hidden_size": 3072,
    "num_attention_heads": 32,
}
# Latent attention rotates a part of each head, with its own size.
BAILING = RotaryFacts(theta={"": 6_000_000}, dim_key="qk_rope_head_dim")

GPTJ = Rotary(
    rope=LIMITS_ONLY,
    config_key="n_positions",
    aliases=(LENGTH,),
    unused_keys=("n_ctx",),
    longer_inputs="fail",
)
INKLING = Unlimited(scheme=RELATIVE, aliases=(TOKENIZER_LENGTH,))
T5 = Unlimited(scheme=RELATIVE, config_key="n_positions")


def _read_rows() -> Iterator[Family]:
    """Yield the types of the data file."""
    text = Path(__file__).with_name("rotary_types.json").read_text(encoding="utf-8")
    rows = json.loads(text)
    for group in rows["groups"]:
        facts = _with_tuples(group["facts"])
        facts["old"] = OldRotaryKeys(**_with_tuples(facts.get("old", {})))
        for model_type, row in group["types"].items():
            yield _read_row(model_type, RotaryFacts(**facts), row)
    for model_type, default in rows["any_text"].items():
        is_outer = model_type in rows["in_outer_config"]
        yield Family(model_type, parts=(language_model(default, is_in_outer_config=is_outer),))
    for model_type, text_type in rows["own_text"].items():
        is_outer = model_type in rows["in_outer_config"]
        part = own_part("text", "text_config", text_type, is_in_outer_config=is_outer)
        yield Family(model_type, parts=(part,))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with tuples instead of lists: JSON has none."""
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return {**values, **tuples}


def _read_row(model_type: str, facts: RotaryFacts, row: Mapping[str, Any]) -> Family:
    """Return a type of one row: the facts of its group, and transformers' defaults.

    The row states the length, the size of a rotated head or what it follows from, and the base of
    the main layers if it is not that of the group.
    """
    if "theta" in row:
        main_layers, *_ = facts.theta
        facts = facts._replace(theta={**facts.theta, main_layers: row["theta"]})
    keys = {
        "length": LENGTH,
        "head_dim": facts.dim_key,
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
    }
    defaults = {key: row[name] for name, key in keys.items() if name in row}
    return Family(model_type, tables=(Rotary(rope=facts),), defaults=defaults)


ROTARY_FAMILIES: tuple[Family, ...] = (
    *_read_rows(),
    # Models of several text models, or in another config.
    Family(
        "qwen2_5_omni",
        parts=(own_part("text", "thinker_config", "qwen2_5_omni_thinker"),),
    ),
    Family(
        "qwen3_omni_moe",
        parts=(own_part("text", "thinker_config", "qwen3_omni_moe_thinker"),),
    ),
    Family("colmodernvbert", parts=(language_model("modernvbert", config_key="vlm_config"),)),
    # Its tokens have the positions from 1 on.
    Family("paligemma", parts=(language_model("gemma", first_position=1),)),
    Family("colpali", parts=(language_model("paligemma", config_key="vlm_config"),)),
    Family("colqwen2", parts=(language_model("qwen2_vl", config_key="vlm_config"),)),
    Family(
        "pi0",
        parts=(
            language_model("paligemma", name="vlm", config_key="vlm_config"),
            language_model("gemma", name="dit", config_key="dit_config"),
        ),
    ),
    Family(
        "t5gemma",
        parts=(
            own_part("encoder", "encoder", "t5_gemma_module"),
            own_part("decoder", "decoder", "t5_gemma_module"),
        ),
    ),
    Family(
        "t5gemma2",
        parts=(
            own_part("encoder", "encoder", "t5gemma2_encoder"),
            own_part("decoder", "decoder", "t5gemma2_decoder"),
        ),
    ),
    Family(
        "dia",
        parts=(
            own_part("encoder", "encoder_config", "dia_encoder"),
            own_part("decoder", "decoder_config", "dia_decoder"),
        ),
    ),
    Family(
        "blt",
        parts=(
            own_part("encoder", "encoder_config", "blt_local_encoder"),
            own_part("decoder", "decoder_config", "blt_local_decoder"),
            own_part("global", "global_config", "blt_global_transformer"),
        ),
    ),
    # Other keys of the length, or positions that depend on a key.
    family("gptj", GPTJ, length=2048),
    family("codegen", GPTJ, length=2048),
    family("phi3", Rotary(rope=PHI), length=4096, keys=PHI_KEYS),
    family("phi4_multimodal", Rotary(rope=PHI), length=131_072, keys=PHI_KEYS),
    family(
        "bailing_hybrid",
        Rotary(rope=BAILING, aliases=(TOKENIZER_LENGTH,)),
        length=262_144,
        keys={"qk_rope_head_dim": 64},
    ),
    family("dbrx", Rotary(rope=LIMITS_ONLY, config_key="max_seq_len"), length=2048),
    family(
        "zamba2",
        Rotary(
            rope=RotaryFacts(dim_key="attention_head_dim"),
            when=ConfigCondition("use_mem_rope", value=True),
        ),
        length=4096,
        requires=(Requirement("use_mem_rope", value=True, instead=NO_POSITIONS),),
    ),
    family(
        "granitemoehybrid",
        Rotary(rope=RotaryFacts(), when=ConfigCondition("position_embedding_type", value="rope")),
        length=2048,
        keys={"hidden_size": 4096, "num_attention_heads": 32},
        requires=(Requirement("position_embedding_type", value="rope", instead=NO_POSITIONS),),
    ),
    family(
        "falcon",
        Rotary(rope=RotaryFacts(), when=ConfigCondition("alibi", value=False, or_missing=True)),
        Unlimited(scheme=ALIBI, when=ConfigCondition("alibi", value=True)),
        length=2048,
        keys={"hidden_size": 4544, "num_attention_heads": 71},
    ),
    family(
        "mpt",
        Unlimited(scheme=ALIBI, config_key="max_seq_len", longer_inputs="fail"),
        length=2048,
    ),
    # Transformers reads no length of these: published configs state one, or are of models trained
    # at this one.
    family("bloom", Unlimited(scheme=ALIBI, config_key="seq_length"), length=2048),
    family("longt5", T5, length=4096),
    family("t5", T5, length=512),
    family("mt5", T5, length=512),
    family("umt5", T5, length=512),
    family("switch_transformers", T5, length=512),
    family("udop", T5, length=512),
    family("inkling_text", INKLING, length=131_072),
    family("inkling2_text", INKLING, length=1_048_576),
    family("inkling2_loop_text", INKLING, length=1_048_576),
)
