"""Where the model types of transformers compute the queries of self-attention."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ctxextend.families.lookup import TableLocation
from ctxextend.families.rows import LANGUAGE_PREFIXES
from ctxextend.families.schema import ConfigCondition


class QueryProjection(NamedTuple):
    """The linear layers that compute queries from the positions of one part of a model type.

    Scaling their weights and biases multiplies the attention logits only.
    """

    module: str  # name without the model's prefix; ``*`` matches the index of a layer
    # Which outputs are queries, if others are keys and values:
    #
    # - empty: all of them.
    # - ``thirds``: the first third, before keys and values.
    # - ``thirds of each head``: the first third of each head's.
    # - ``queries first``: as many as `reader` reads, before keys and values.
    fused: Literal["", "thirds", "thirds of each head", "queries first"] = ""
    reader: str = ""  # of ``queries first``: the module next to it that reads what heads return
    is_transposed: bool = False  # whether weights are of shape (inputs, outputs): Conv1D
    prefix: str = ""  # of names in classes with a head, where that of the positions does not tell
    part: str = ""  # the positions that it reads, of a type with several
    heads_key: str = "num_attention_heads"  # config key of the heads, of ``thirds of each head``
    when: ConfigCondition | None = None  # of types with several forms: when a model has this one
    # A config key with which queries are normalised afterwards, so that a scale does nothing.
    undone_by: str = ""


def with_two_parts(module: str) -> tuple[QueryProjection, ...]:
    """Return the self-attention of encoder and decoder, without the cross-attention."""
    return tuple(QueryProjection(f"{part}.{module}", part=part) for part in ("encoder", "decoder"))


BERT_QUERIES = (QueryProjection("encoder.layer.*.attention.self.query"),)
CLIP_QUERIES = (QueryProjection("encoder.layers.*.self_attn.q_proj"),)
OPT_QUERIES = (QueryProjection("decoder.layers.*.self_attn.q_proj"),)
GPT2_QUERIES = (QueryProjection("h.*.attn.c_attn", fused="thirds", is_transposed=True),)
BART_QUERIES = with_two_parts("layers.*.self_attn.q_proj")
LLAMA_QUERIES = (QueryProjection("layers.*.self_attn.q_proj", prefix="model."),)

# By measurement: tests/families/test_query_projections.py runs small models of each type, and
# compares them with models whose attention logits are multiplied.
QUERY_PROJECTIONS: Mapping[str, tuple[QueryProjection, ...]] = {
    # With a table of rows.
    **dict.fromkeys(
        (
            "align_text_model",
            "bert",
            "bert-generation",
            "blip_text_model",
            "bridgetower_text_model",
            "camembert",
            "chinese_clip_text_model",
            "clap_text_model",
            "data2vec-text",
            "electra",
            "ernie",
            "layoutlm",
            "markuplm",
            "megatron-bert",
            "mobilebert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "splinter",
            "tapas",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ),
        BERT_QUERIES,
    ),
    **dict.fromkeys(
        (
            "clip_text_model",
            "clipseg_text_model",
            "groupvit_text_model",
            "metaclip_2_text_model",
            "owlv2_text_model",
            "owlvit_text_model",
            "siglip2_text_model",
            "siglip_text_model",
            "xclip_text_model",
        ),
        CLIP_QUERIES,
    ),
    **dict.fromkeys(("opt", "trocr", "whisper"), OPT_QUERIES),
    **dict.fromkeys(("gpt-sw3", "gpt2", "imagegpt", "openai-gpt"), GPT2_QUERIES),
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "mbart", "mvp", "plbart"), BART_QUERIES
    ),
    "albert": (QueryProjection("encoder.albert_layer_groups.*.albert_layers.*.attention.query"),),
    "biogpt": (QueryProjection("layers.*.self_attn.q_proj"),),
    "distilbert": (QueryProjection("transformer.layer.*.attention.q_lin"),),
    "flaubert": (QueryProjection("attentions.*.q_lin"),),
    "flava_text_model": (QueryProjection("encoder.layer.*.attention.attention.query"),),
    "gpt_bigcode": (
        QueryProjection(
            "h.*.attn.c_attn",
            fused="queries first",
            reader="c_proj",
            when=ConfigCondition("multi_query", value=True, or_missing=True),
        ),
        QueryProjection(
            "h.*.attn.c_attn",
            fused="thirds of each head",
            heads_key="n_head",
            when=ConfigCondition("multi_query", value=False),
        ),
    ),
    "gpt_neo": (QueryProjection("h.*.attn.attention.q_proj"),),
    "mpnet": (QueryProjection("encoder.layer.*.attention.attn.q"),),
    "squeezebert": (QueryProjection("encoder.layers.*.attention.query"),),
    "xlm": (QueryProjection("attentions.*.q_lin"),),
    # Rotary.
    **dict.fromkeys(
        (
            "arcee",
            "cwm",
            "eurobert",
            "gemma",
            "gemma2",
            "granite",
            "granitemoe",
            "helium",
            "llama",
            "ministral",
            "mistral",
            "mixtral",
            "nemotron",
            "qwen2",
            "qwen2_moe",
            "seed_oss",
            "smollm3",
            "starcoder2",
        ),
        LLAMA_QUERIES,
    ),
    "cohere": (LLAMA_QUERIES[0]._replace(undone_by="use_qk_norm"),),
    "phi": (LLAMA_QUERIES[0]._replace(undone_by="qk_layernorm"),),
    "stablelm": (LLAMA_QUERIES[0]._replace(undone_by="qk_layernorm"),),
    "gpt_neox": (
        QueryProjection(
            "layers.*.attention.query_key_value", fused="thirds of each head", prefix="gpt_neox."
        ),
    ),
    "phi3": (
        QueryProjection(
            "layers.*.self_attn.qkv_proj", fused="queries first", reader="o_proj", prefix="model."
        ),
    ),
}

QUERIES_NORMALISED = (
    "its queries are normalised after the projection, which undoes a scale of its weights"
)
QUERIES_LATENT = "its queries are computed from a compressed form (latent attention)"
QUERIES_SHARED = "its query weights compute more than the attention logits"

# Why the weights of other types cannot be scaled, as a clause; of the rest, nothing is known.
NO_QUERY_PROJECTION: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "afmoe",
            "apertus",
            "apertus1p5_text",
            "chameleon",
            "exaone4",
            "exaone_moe",
            "flex_olmo",
            "gemma3_text",
            "gemma3n_text",
            "gemma4_text",
            "glm4_moe",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "hy_v3",
            "nanochat",
            "olmo2",
            "olmo3",
            "olmoe",
            "qwen3",
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl_moe_text",
            "qwen3_vl_text",
        ),
        QUERIES_NORMALISED,
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "minicpm3", "youtu"),
        QUERIES_LATENT,
    ),
    # The query also gates the convolution, or scores the positions.
    **dict.fromkeys(("convbert", "deberta", "deberta-v2", "prophetnet"), QUERIES_SHARED),
}


def projection_names(projection: QueryProjection, location: TableLocation) -> tuple[str, ...]:
    """Return all possible names of the layers of a model, with ``*`` for the index of a layer.

    Rotary positions are a key of the config, so that the location of a language model in another
    one has no prefix of tensor names.
    """
    outer = location.prefixes
    if location.path and not location.table.has_rows:
        outer = ("", *LANGUAGE_PREFIXES)
    names = list[str]()
    for prefix in outer:
        names.append(f"{prefix}{projection.module}")
        if projection.prefix:
            names.append(f"{prefix}{projection.prefix}{projection.module}")
    return tuple(dict.fromkeys(names))
