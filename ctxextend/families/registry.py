"""The registry of model types, with transformers' names."""

from collections.abc import Mapping

from ctxextend.families.rotary_types import LIMITS_ONLY, ROTARY_FAMILIES
from ctxextend.families.rows import family, language_model, submodel, text_model
from ctxextend.families.unsupported import NOT_LOADED
from ctxextend.positions.facts import (
    LENGTH,
    RELATIVE,
    Buffer,
    ConfigCondition,
    EngineKey,
    Family,
    Part,
    Pin,
    Requirement,
    ReservedRows,
)
from ctxextend.positions.rotary import Rotary
from ctxextend.positions.rows import Rows
from ctxextend.positions.sinusoids import Sinusoids
from ctxextend.positions.unlimited import Unlimited

BERT_TABLE = "embeddings.position_embeddings.weight"
EMBEDDING = "embeddings.position_embedding"
WEIGHTS = "embed_positions.weights"  # of fairseq's sinusoids
CLVP_KEY = "decoder_config.max_text_tokens"

# Models whose outputs depend on the padding length, even with an attention mask.
POOLS_LAST = "pools the last position, padding included"
MIXES_PADDING = "mixes padding into all outputs"
IMAGE_FIRST = "image tokens (49 by default) use the first rows too, so keep at least that many"

# Positions start after padding_idx, and the key includes all rows: fairseq's
# `utils.make_positions`.
AFTER_PADDING = ReservedRows(rows=1, config_key="pad_token_id", inside_key=True)
# None, but the key, shared with another table, is the number of rows.
KEY_IS_ROWS = ReservedRows(inside_key=True)
# fairseq's offset of two reserved rows, independent of the pad id.
TWO_COUNTED = ReservedRows(rows=2, inside_key=True)
TWO_EXTRA = ReservedRows(rows=2)
PADDING_EXTRA = ReservedRows(rows=1, config_key="pad_token_id")

POSITION_IDS = (Buffer("embeddings.position_ids", "arange"),)
IDS = (*POSITION_IDS, Buffer("embeddings.token_type_ids", "zeros"))
VILT_IDS = (
    Buffer("embeddings.text_embeddings.position_ids", "arange"),
    Buffer("embeddings.text_embeddings.token_type_ids", "zeros"),
)
KEPT_POSITION_IDS = (Buffer("embeddings.position_ids", "arange", is_kept=True),)
KEPT_IDS = (*KEPT_POSITION_IDS, Buffer("embeddings.token_type_ids", "zeros"))
MASKS = (
    Buffer("h.*.attn.bias", "causal"),
    Buffer("h.*.attn.masked_bias", "causal"),
    Buffer("h.*.crossattention.bias", "causal"),
    Buffer("h.*.crossattention.masked_bias", "causal"),
)
NEO_MASKS = (
    Buffer("h.*.attn.attention.bias", "causal"),
    Buffer("h.*.attn.attention.masked_bias", "causal"),
)
CLVP_MASKS = (Buffer("layers.*.attn.bias", "causal"),)

FULL_ATTENTION = ConfigCondition("attention_type", value="original_full")
DEBERTA_PINS = (Pin("max_relative_positions", "relative_attention"),)
DECODERS = ("model.decoder.", "decoder.")
# Transformers 4 wrote this key. Without it, vLLM counts the two rows before position 0 of RoBERTa
# as context, or does not load the model, and SGLang does not load it.
ABSOLUTE_POSITIONS = (
    EngineKey("position_embedding_type", needed_by="vLLM and SGLang", value="absolute"),
)
# llama.cpp and mlx-lm stop at a GPT-2 config without it: conversion/gpt2.py of llama.cpp reads it
# as the context length, and `ModelArgs` in mlx_lm/models/gpt2.py (0.32) has no default. In these,
# read in 2026-11, and in CTranslate2 4.8, no other type needs a key that transformers does not
# write.
GPT2_ENGINE_KEYS = (EngineKey("n_ctx", needed_by="llama.cpp and mlx-lm"),)
# Configs of CLIP-like models may contain a second copy of the text config, which takes precedence
# with its defaults.
CLIP_COPY = ("text_config_dict",)


def fairseq_sinusoids(name: str, *, width_key: str, part: str = "") -> Sinusoids:
    """Return a table of sinusoids like those of fairseq, which grows with the input."""
    return Sinusoids(
        tensor=name,
        layout="halves-log",
        width_key=width_key,
        stored_rows="ignored",
        part=part,
        reserved=TWO_EXTRA,
        longer_inputs="get computed rows",
    )


TABLE_FAMILIES: tuple[Family, ...] = (
    # BERT-like models.
    family("albert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("albert.",)),
    family(
        "bert",
        Rows(tensor=BERT_TABLE, buffers=IDS, engine_keys=ABSOLUTE_POSITIONS),
        length=512,
        with_head=("bert.",),
    ),
    family("convbert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("convbert.",)),
    family("electra", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("electra.",)),
    family("ernie", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("ernie.",)),
    family("layoutlm", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("layoutlm.",)),
    family("lxmert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("lxmert.",)),
    family(
        "mobilebert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("mobilebert.",)
    ),
    family("rembert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("rembert.",)),
    family("roc_bert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("roc_bert.",)),
    family("splinter", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("splinter.",)),
    family(
        "fnet",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("fnet.",),
        padding_effect=MIXES_PADDING,
    ),
    family(
        "bert-generation",
        Rows(tensor=BERT_TABLE, buffers=POSITION_IDS),
        length=512,
        with_head=("bert.",),
    ),
    # Inputs are padded to full blocks before positions are assigned.
    family(
        "big_bird",
        Rows(
            tensor=BERT_TABLE, buffers=IDS, multiple_of="block_size", multiple_unless=FULL_ATTENTION
        ),
        length=4096,
        keys={"block_size": 64},
        with_head=("bert.",),
    ),
    family("bros", Rows(tensor=BERT_TABLE, buffers=KEPT_IDS), length=512, with_head=("bros.",)),
    family(
        "deberta",
        Rows(
            tensor=BERT_TABLE,
            when=ConfigCondition("position_biased_input", value=True, or_missing=True),
            buffers=IDS,
        ),
        Unlimited(scheme=RELATIVE, when=ConfigCondition("position_biased_input", value=False)),
        length=512,
        with_head=("deberta.",),
        pins=DEBERTA_PINS,
    ),
    family(
        "deberta-v2",
        Rows(
            tensor=BERT_TABLE,
            when=ConfigCondition("position_biased_input", value=True, or_missing=True),
            buffers=IDS,
        ),
        Unlimited(scheme=RELATIVE, when=ConfigCondition("position_biased_input", value=False)),
        length=512,
        with_head=("deberta.",),
        pins=DEBERTA_PINS,
    ),
    family(
        "distilbert",
        Rows(
            tensor=BERT_TABLE, buffers=IDS, layout_key="sinusoidal_pos_embds", layout="interleaved"
        ),
        length=512,
        with_head=("distilbert.",),
    ),
    family(
        "flaubert",
        Rows(
            tensor="position_embeddings.weight",
            buffers=(Buffer("position_ids", "arange"),),
            layout_key="sinusoidal_embeddings",
            layout="interleaved",
        ),
        length=512,
        with_head=("transformer.",),
    ),
    family(
        "xlm",
        Rows(
            tensor="position_embeddings.weight",
            buffers=(Buffer("position_ids", "arange"),),
            layout_key="sinusoidal_embeddings",
            layout="interleaved",
        ),
        length=512,
        with_head=("transformer.",),
    ),
    # Rotary angles, stored as a table of sinusoids per head.
    family(
        "roformer",
        Sinusoids(
            tensor="encoder.embed_positions.weight",
            layout="halves",
            stored_rows="frozen",
            rotates=True,
        ),
        length=1536,
        with_head=("roformer.",),
    ),
    Family(
        "dpr",
        prefixes=(
            "question_encoder.bert_model.",
            "ctx_encoder.bert_model.",
            "span_predictor.encoder.bert_model.",
            "encoder.bert_model.",
            "bert_model.",
            "",
        ),
        tables=(Rows(tensor=BERT_TABLE, buffers=IDS),),
        defaults={LENGTH: 512},
    ),
    family("git", Rows(tensor=BERT_TABLE, buffers=IDS), length=1024, with_head=("git.",)),
    family(
        "layoutlmv2",
        Rows(tensor=BERT_TABLE, buffers=POSITION_IDS),
        length=512,
        with_head=("layoutlmv2.",),
        note=IMAGE_FIRST,
    ),
    family(
        "layoutxlm",
        Rows(tensor=BERT_TABLE, buffers=POSITION_IDS),
        length=512,
        with_head=("layoutlmv2.",),
        note=IMAGE_FIRST,
    ),
    family("megatron-bert", Rows(tensor=BERT_TABLE, buffers=IDS), length=512, with_head=("bert.",)),
    family(
        "squeezebert",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("transformer.",),
    ),
    family(
        "tapas",
        Rows(tensor=BERT_TABLE, buffers=IDS, longer_inputs="share the last position"),
        length=1024,
        with_head=("tapas.",),
    ),
    family(
        "vilt",
        Rows(tensor="embeddings.text_embeddings.position_embeddings.weight", buffers=VILT_IDS),
        length=40,
        with_head=("vilt.",),
    ),
    family(
        "tvp",
        Rows(tensor=BERT_TABLE, part="text", buffers=IDS),
        Rows(tensor="visual_embeddings.position_embeddings.weight", part="frames"),
        length=512,
        with_head=("model.",),
    ),
    family(
        "visual_bert",
        Rows(tensor=BERT_TABLE, part="text", buffers=IDS),
        Rows(tensor="embeddings.visual_position_embeddings.weight", part="visual"),
        length=512,
        with_head=("visual_bert.",),
    ),
    Family(
        "perceiver",
        prefixes=("perceiver.", ""),
        tables=(
            Rows(tensor="input_preprocessor.position_embeddings.weight", part="input"),
            Rows(tensor="decoder.output_position_encodings.position_embeddings", part="output"),
        ),
        defaults={LENGTH: 2048},
    ),
    # RoBERTa-like models, whose positions start after padding_idx.
    family(
        "camembert",
        Rows(
            tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS, engine_keys=ABSOLUTE_POSITIONS
        ),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("roberta.",),
    ),
    family(
        "roberta",
        Rows(
            tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS, engine_keys=ABSOLUTE_POSITIONS
        ),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("roberta.",),
    ),
    family(
        "xlm-roberta",
        Rows(
            tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS, engine_keys=ABSOLUTE_POSITIONS
        ),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("roberta.",),
    ),
    family(
        "xmod",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("roberta.",),
    ),
    family(
        "data2vec-text",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("data2vec_text.",),
    ),
    family(
        "esm",
        Rows(
            tensor=BERT_TABLE,
            reserved=AFTER_PADDING,
            when=ConfigCondition("position_embedding_type", value="absolute", or_missing=True),
            buffers=IDS,
        ),
        Rotary(
            rope=LIMITS_ONLY,
            reserved=AFTER_PADDING,
            when=ConfigCondition("position_embedding_type", value="rotary"),
        ),
        length=1026,
        with_head=("esm.",),
    ),
    family(
        "layoutlmv3",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("layoutlmv3.",),
    ),
    family(
        "longformer",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("longformer.",),
    ),
    family(
        "markuplm",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 0},
        with_head=("markuplm.",),
    ),
    family(
        "roberta-prelayernorm",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("roberta_prelayernorm.",),
    ),
    family(
        "xlm-roberta-xl",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=514,
        keys={"pad_token_id": 1},
        with_head=("roberta.",),
    ),
    family(
        "ibert",
        Rows(
            tensor=BERT_TABLE,
            reserved=AFTER_PADDING,
            buffers=(*IDS, Buffer(f"{BERT_TABLE}_integer", "rows", is_kept=True)),
        ),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("ibert.",),
    ),
    family(
        "mpnet",
        Rows(tensor=BERT_TABLE, reserved=TWO_COUNTED, buffers=POSITION_IDS),
        length=512,
        with_head=("mpnet.",),
    ),
    family(
        "lilt",
        Rows(tensor=BERT_TABLE, part="text", reserved=AFTER_PADDING, buffers=IDS),
        Rows(
            tensor="layout_embeddings.box_position_embeddings.weight",
            part="layout",
            reserved=AFTER_PADDING,
        ),
        length=512,
        keys={"pad_token_id": 0},
        with_head=("lilt.",),
    ),
    # Entities use the positions of their words, from 0, in a table with as many rows as the text's.
    family(
        "luke",
        Rows(tensor=BERT_TABLE, part="text", reserved=AFTER_PADDING, buffers=IDS),
        Rows(
            tensor="entity_embeddings.position_embeddings.weight",
            part="entity",
            reserved=KEY_IS_ROWS,
        ),
        length=512,
        keys={"pad_token_id": 1},
        with_head=("luke.",),
    ),
    # transformers' `MraSelfAttention`: the length sets how many blocks of 32 tokens every input
    # attends to.
    family(
        "mra",
        Rows(tensor=BERT_TABLE, reserved=TWO_EXTRA, buffers=KEPT_IDS),
        length=512,
        keys={"block_per_row": 4},
        with_head=("mra.",),
        pins=(Pin("block_per_row", keeps="blocks", block_size=32),),
        note="unless the length is doubled or quadrupled, short inputs attend to different blocks",
    ),
    family(
        "nystromformer",
        Rows(tensor=BERT_TABLE, reserved=TWO_EXTRA, buffers=IDS),
        length=510,
        with_head=("nystromformer.",),
        padding_effect=MIXES_PADDING,
    ),
    family(
        "yoso",
        Rows(tensor=BERT_TABLE, reserved=TWO_EXTRA, buffers=IDS),
        length=4096,
        with_head=("yoso.",),
        padding_effect=MIXES_PADDING,
    ),
    # BART-like models, with one length for encoder and decoder.
    family(
        "bart",
        Rows(tensor="encoder.embed_positions.weight", part="encoder", reserved=TWO_EXTRA),
        Rows(tensor="decoder.embed_positions.weight", part="decoder", reserved=TWO_EXTRA),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "mbart",
        Rows(tensor="encoder.embed_positions.weight", part="encoder", reserved=TWO_EXTRA),
        Rows(tensor="decoder.embed_positions.weight", part="decoder", reserved=TWO_EXTRA),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "mvp",
        Rows(tensor="encoder.embed_positions.weight", part="encoder", reserved=TWO_EXTRA),
        Rows(tensor="decoder.embed_positions.weight", part="decoder", reserved=TWO_EXTRA),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "plbart",
        Rows(tensor="encoder.embed_positions.weight", part="encoder", reserved=TWO_EXTRA),
        Rows(tensor="decoder.embed_positions.weight", part="decoder", reserved=TWO_EXTRA),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "bigbird_pegasus",
        Rows(tensor="encoder.embed_positions.weight", part="encoder"),
        Rows(tensor="decoder.embed_positions.weight", part="decoder"),
        length=4096,
        with_head=("model.",),
    ),
    family(
        "blenderbot",
        Rows(tensor="encoder.embed_positions.weight", part="encoder"),
        Rows(tensor="decoder.embed_positions.weight", part="decoder"),
        length=128,
        with_head=("model.",),
    ),
    family(
        "blenderbot-small",
        Rows(tensor="encoder.embed_positions.weight", part="encoder"),
        Rows(tensor="decoder.embed_positions.weight", part="decoder"),
        length=512,
        with_head=("model.",),
    ),
    family(
        "pegasus",
        Sinusoids(
            tensor="encoder.embed_positions.weight",
            part="encoder",
            layout="halves",
            stored_rows="frozen",
        ),
        Sinusoids(
            tensor="decoder.embed_positions.weight",
            part="decoder",
            layout="halves",
            stored_rows="frozen",
        ),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "fsmt",
        Sinusoids(
            tensor="encoder.embed_positions.weight",
            part="encoder",
            reserved=PADDING_EXTRA,
            layout="halves-log",
            longer_inputs="get computed rows",
        ),
        Sinusoids(
            tensor="decoder.embed_positions.weight",
            part="decoder",
            reserved=PADDING_EXTRA,
            layout="halves-log",
            longer_inputs="get computed rows",
        ),
        length=1024,
        keys={"pad_token_id": 1},
        with_head=("model.",),
    ),
    # MarianMTModel does not save its tables.
    family(
        "marian",
        Sinusoids(
            tensor="encoder.embed_positions.weight",
            part="encoder",
            layout="halves",
            width_key="d_model",
            stored_rows="frozen",
        ),
        Sinusoids(
            tensor="decoder.embed_positions.weight",
            part="decoder",
            layout="halves",
            width_key="d_model",
            stored_rows="frozen",
        ),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "m2m_100",
        fairseq_sinusoids(f"encoder.{WEIGHTS}", part="encoder", width_key="d_model"),
        fairseq_sinusoids(f"decoder.{WEIGHTS}", part="decoder", width_key="d_model"),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "nllb-moe",
        fairseq_sinusoids(f"encoder.{WEIGHTS}", part="encoder", width_key="d_model"),
        fairseq_sinusoids(f"decoder.{WEIGHTS}", part="decoder", width_key="d_model"),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "seamless_m4t",
        fairseq_sinusoids(f"text_encoder.{WEIGHTS}", part="text_encoder", width_key="hidden_size"),
        fairseq_sinusoids(f"text_decoder.{WEIGHTS}", part="text_decoder", width_key="hidden_size"),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "seamless_m4t_v2",
        fairseq_sinusoids(f"text_encoder.{WEIGHTS}", part="text_encoder", width_key="hidden_size"),
        fairseq_sinusoids(f"text_decoder.{WEIGHTS}", part="text_decoder", width_key="hidden_size"),
        length=4096,
        with_head=("model.",),
    ),
    # Without a tensor: each forward pass computes its sinusoids.
    family(
        "pegasus_x",
        Sinusoids(
            tensor="encoder.embed_positions",
            part="encoder",
            layout="halves-log",
            width_key="d_model",
            stored_rows="ignored",
            longer_inputs="get computed rows",
        ),
        Sinusoids(
            tensor="decoder.embed_positions",
            part="decoder",
            layout="halves-log",
            width_key="d_model",
            stored_rows="ignored",
            longer_inputs="get computed rows",
        ),
        length=16384,
        with_head=("model.",),
    ),
    # The predicting stream reads the row of the next position.
    family(
        "prophetnet",
        Rows(
            tensor="encoder.position_embeddings.weight",
            part="encoder",
            reserved=AFTER_PADDING,
            longer_inputs="share the last position",
        ),
        Rows(
            tensor="decoder.position_embeddings.weight",
            part="decoder",
            reserved=AFTER_PADDING,
            extra_rows=1,
        ),
        length=512,
        keys={"pad_token_id": 0},
        with_head=("prophetnet.",),
    ),
    # Inputs are padded to full attention windows, and padding uses encoder positions too.
    family(
        "led",
        Rows(
            tensor="encoder.embed_positions.weight",
            config_key="max_encoder_position_embeddings",
            part="encoder",
            multiple_of="attention_window",
        ),
        Rows(
            tensor="decoder.embed_positions.weight",
            config_key="max_decoder_position_embeddings",
            part="decoder",
        ),
        length=16384,
        keys={"max_decoder_position_embeddings": 1024, "attention_window": 512},
        with_head=("led.",),
    ),
    # Decoders.
    family(
        "biogpt",
        Rows(tensor="embed_positions.weight", reserved=TWO_EXTRA),
        length=1024,
        with_head=("biogpt.",),
    ),
    family(
        "opt",
        Rows(tensor="decoder.embed_positions.weight", reserved=TWO_EXTRA),
        length=2048,
        with_head=("model.",),
    ),
    family(
        "pp_formulanet_text",
        Rows(tensor="embed_positions.weight", reserved=TWO_EXTRA),
        length=2560,
    ),
    Family(
        "trocr",
        prefixes=("model.", ""),
        tables=(Rows(tensor="decoder.embed_positions.weight", reserved=TWO_EXTRA),),
        defaults={LENGTH: 512},
        requires=(Requirement("use_learned_position_embeddings", value=True, instead=NOT_LOADED),),
    ),
    family(
        "whisper",
        Rows(tensor="decoder.embed_positions.weight", config_key="max_target_positions"),
        length=448,
        with_head=("model.",),
        note="its feature extractor fixes the length of audio inputs",
    ),
    # transformers' `attribute_map`: max_position_embeddings overrides n_positions if the config has
    # it.
    family(
        "gpt2",
        Rows(
            tensor="wpe.weight",
            config_key="n_positions",
            aliases=(LENGTH,),
            engine_keys=GPT2_ENGINE_KEYS,
            buffers=MASKS,
        ),
        length=1024,
        with_head=("transformer.",),
    ),
    family(
        "gpt-sw3",
        Rows(
            tensor="wpe.weight",
            config_key="n_positions",
            aliases=(LENGTH,),
            engine_keys=GPT2_ENGINE_KEYS,
            buffers=MASKS,
        ),
        length=1024,
        with_head=("transformer.",),
    ),
    family(
        "imagegpt",
        Rows(
            tensor="wpe.weight",
            config_key="n_positions",
            aliases=(LENGTH,),
            unused_keys=("n_ctx",),
            buffers=MASKS,
        ),
        length=1024,
        with_head=("transformer.",),
    ),
    family(
        "gpt_bigcode",
        Rows(
            tensor="wpe.weight",
            config_key="n_positions",
            aliases=(LENGTH,),
            unused_keys=("n_ctx",),
            buffers=(Buffer("bias", "causal"),),
        ),
        length=1024,
        with_head=("transformer.",),
    ),
    family(
        "openai-gpt",
        Rows(
            tensor="positions_embed.weight",
            config_key="n_positions",
            aliases=(LENGTH,),
            unused_keys=("n_ctx",),
            buffers=(*MASKS, Buffer("position_ids", "arange")),
        ),
        length=512,
        with_head=("transformer.",),
    ),
    family(
        "ctrl",
        Sinusoids(
            tensor="pos_encoding",
            config_key="n_positions",
            aliases=(LENGTH,),
            layout="halves",
            width_key="n_embd",
            stored_rows="ignored",
        ),
        length=256,
        with_head=("transformer.",),
    ),
    family(
        "xglm",
        fairseq_sinusoids(WEIGHTS, width_key="d_model"),
        length=2048,
        with_head=("model.",),
    ),
    family(
        "kosmos_2_text_model",
        fairseq_sinusoids(WEIGHTS, width_key="embed_dim"),
        length=2048,
        with_head=("model.",),
    ),
    family(
        "kosmos_2_5_text_model",
        fairseq_sinusoids(WEIGHTS, width_key="embed_dim"),
        length=4096,
        with_head=("model.",),
    ),
    family(
        "musicgen_decoder",
        Sinusoids(
            tensor=WEIGHTS,
            layout="halves-log-cos",
            width_key="hidden_size",
            stored_rows="ignored",
            longer_inputs="get computed rows",
        ),
        length=2048,
        with_head=DECODERS,
    ),
    family(
        "musicgen_melody_decoder",
        Sinusoids(
            tensor=WEIGHTS,
            layout="halves-log-cos",
            width_key="hidden_size",
            stored_rows="ignored",
            longer_inputs="get computed rows",
        ),
        length=2048,
        with_head=DECODERS,
    ),
    family(
        "canary_decoder",
        Sinusoids(
            tensor="pos_emb.positional_embedding",
            layout="halves",
            width_key="hidden_size",
            stored_rows="ignored",
        ),
        length=1024,
        with_head=("model.",),
    ),
    # Longer inputs of these two run in one forward pass, but fail in generation with a cache.
    family(
        "speech_to_text",
        Sinusoids(
            tensor=f"decoder.{WEIGHTS}",
            config_key="max_target_positions",
            reserved=TWO_EXTRA,
            layout="halves-log",
            width_key="d_model",
            stored_rows="ignored",
        ),
        length=1024,
        with_head=("model.",),
    ),
    Family(
        "speecht5",
        prefixes=("speecht5.",),
        tables=(
            Sinusoids(
                tensor="encoder.prenet.encode_positions.pe",
                config_key="max_text_positions",
                part="encoder",
                layout="interleaved",
                width_key="hidden_size",
                stored_rows="ignored",
                next_to=".embed_tokens",
            ),
            Sinusoids(
                tensor=f"decoder.prenet.{WEIGHTS}",
                config_key="max_text_positions",
                part="decoder",
                reserved=PADDING_EXTRA,
                layout="halves-log",
                width_key="hidden_size",
                stored_rows="ignored",
                next_to=".embed_tokens",
            ),
        ),
        defaults={"max_text_positions": 450, "pad_token_id": 1},
    ),
    family(
        "gpt_neo",
        Rows(tensor="wpe.weight", buffers=NEO_MASKS),
        length=2048,
        with_head=("transformer.",),
    ),
    # Text models of dual encoders.
    family(
        "aimv2_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "clip_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "clipseg_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "groupvit_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "metaclip_2_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "xclip_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=77,
        with_head=("text_model.",),
    ),
    family(
        "owlv2_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=16,
        with_head=("text_model.",),
    ),
    family(
        "owlvit_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=16,
        with_head=("text_model.",),
    ),
    family(
        "siglip2_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=64,
        with_head=("text_model.",),
        padding_effect=POOLS_LAST,
    ),
    family(
        "siglip_text_model",
        Rows(tensor=f"{EMBEDDING}.weight", buffers=POSITION_IDS),
        length=64,
        with_head=("text_model.",),
        padding_effect=POOLS_LAST,
    ),
    family(
        "tipsv2_text_model",
        Sinusoids(
            tensor=f"{EMBEDDING}.weights",
            layout="halves-log",
            buffers=POSITION_IDS,
            width_key="hidden_size",
            stored_rows="ignored",
        ),
        length=64,
    ),
    family(
        "videoprism_text_model",
        Sinusoids(
            tensor=EMBEDDING,
            layout="halves",
            buffers=KEPT_POSITION_IDS,
            width_key="hidden_size",
            stored_rows="frozen",
        ),
        length=64,
    ),
    family(
        "align_text_model",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("text_model.",),
    ),
    family(
        "blip_text_model",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("text_model.", "bert."),
    ),
    family(
        "chinese_clip_text_model",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("text_model.",),
    ),
    family(
        "flava_text_model",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("text_model.", "flava.text_model."),
    ),
    family(
        "instructblip_qformer",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("qformer.",),
    ),
    family(
        "instructblipvideo_qformer",
        Rows(tensor=BERT_TABLE, buffers=IDS),
        length=512,
        with_head=("qformer.",),
    ),
    Family(
        "altclip_text_model",
        prefixes=("roberta.", "text_model.roberta.", ""),
        tables=(Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),),
        defaults={LENGTH: 514, "pad_token_id": 1},
    ),
    family(
        "bridgetower_text_model",
        Rows(tensor=BERT_TABLE, reserved=AFTER_PADDING, buffers=IDS),
        length=514,
        keys={"pad_token_id": 1},
        with_head=("text_model.",),
    ),
    family(
        "clap_text_model",
        Rows(
            tensor=BERT_TABLE,
            reserved=AFTER_PADDING,
            buffers=(
                Buffer("embeddings.position_ids", "arange", is_kept=True),
                Buffer("embeddings.token_type_ids", "zeros", is_kept=True),
            ),
        ),
        length=514,
        keys={"pad_token_id": 1},
        with_head=("text_model.",),
    ),
    # Models with a text model.
    family("aimv2", parts=(text_model("aimv2_text_model"),)),
    family("align", parts=(text_model("align_text_model"),)),
    family("clap", parts=(text_model("clap_text_model"),)),
    family("siglip", parts=(text_model("siglip_text_model"),)),
    family("siglip2", parts=(text_model("siglip2_text_model"),)),
    family("owlv2", with_head=("owlv2.",), parts=(text_model("owlv2_text_model"),)),
    family("owlvit", with_head=("owlvit.",), parts=(text_model("owlvit_text_model"),)),
    family("altclip", parts=(text_model("altclip_text_model", overrides=CLIP_COPY),)),
    family("chinese_clip", parts=(text_model("chinese_clip_text_model", overrides=CLIP_COPY),)),
    family("groupvit", parts=(text_model("groupvit_text_model", overrides=CLIP_COPY),)),
    family("metaclip_2", parts=(text_model("metaclip_2_text_model", overrides=CLIP_COPY),)),
    family("xclip", parts=(text_model("xclip_text_model", overrides=CLIP_COPY),)),
    family(
        "clip", with_head=("clip.",), parts=(text_model("clip_text_model", overrides=CLIP_COPY),)
    ),
    family(
        "clipseg",
        with_head=("clip.",),
        parts=(text_model("clipseg_text_model", overrides=CLIP_COPY),),
    ),
    family(
        "flava", with_head=("flava.",), parts=(text_model("flava_text_model", overrides=CLIP_COPY),)
    ),
    family("tipsv2", parts=(text_model("tipsv2_text_model"),)),
    family("videoprism", parts=(text_model("videoprism_text_model"),)),
    family("kosmos-2", parts=(text_model("kosmos_2_text_model", has_head=True),)),
    family("kosmos-2.5", parts=(text_model("kosmos_2_5_text_model", has_head=True),)),
    family(
        "musicgen",
        parts=(
            Part(
                "decoder",
                config_key="decoder",
                prefixes=("decoder.",),
                model_type="musicgen_decoder",
                tokenizer=None,
                has_head=True,
            ),
        ),
    ),
    family(
        "musicgen_melody",
        parts=(
            Part(
                "decoder",
                config_key="decoder",
                prefixes=("decoder.",),
                model_type="musicgen_melody_decoder",
                tokenizer=None,
                has_head=True,
            ),
        ),
    ),
    family(
        "canary",
        with_head=("model.",),
        parts=(
            Part(
                "decoder",
                config_key="decoder_config",
                prefixes=("decoder.",),
                model_type="canary_decoder",
            ),
        ),
    ),
    # The names in files and in the loaded model.
    family(
        "cohere_asr",
        Rows(tensor="transf_decoder._embedding.position_embedding.pos_enc"),
        Rows(tensor="decoder.pos_emb.weight"),
        length=1024,
        with_head=("model.",),
    ),
    family(
        "bridgetower", with_head=("bridgetower.",), parts=(text_model("bridgetower_text_model"),)
    ),
    family(
        "sam3",
        with_head=("detector_model.",),
        parts=(
            text_model(
                "clip_text_model",
                prefixes=("text_encoder.text_model.", "text_encoder."),
                may_state_type=True,
            ),
        ),
    ),
    family(
        "omdet-turbo",
        parts=(
            text_model(
                "clip_text_model", prefixes=("language_backbone.model.",), may_state_type=True
            ),
        ),
    ),
    family("vision-text-dual-encoder", parts=(text_model("bert", may_state_type=True),)),
    family(
        "florence2",
        parts=(
            text_model(
                "bart",
                prefixes=("language_model.", "model.language_model.", "language_model.model."),
                may_state_type=True,
            ),
        ),
    ),
    family("pp_formulanet", parts=(text_model("pp_formulanet_text", prefixes=DECODERS),)),
    family(
        "grounding-dino",
        with_head=("model.",),
        parts=(text_model("bert", prefixes=("text_backbone.",), may_state_type=True),),
        limits=("max_text_len",),
    ),
    family(
        "mm-grounding-dino",
        with_head=("model.",),
        parts=(text_model("bert", prefixes=("text_backbone.",), may_state_type=True),),
        limits=("max_text_len",),
    ),
    family(
        "sam3_video",
        parts=(
            Part(
                "detector",
                config_key="detector_config",
                prefixes=("detector_model.", ""),
                model_type="sam3",
            ),
        ),
    ),
    family(
        "blip",
        with_head=("blip.",),
        parts=(
            Part(
                "encoder",
                config_key="text_config",
                prefixes=("text_encoder.", "text_model."),
                model_type="blip_text_model",
            ),
            Part(
                "decoder",
                config_key="text_config",
                prefixes=("text_decoder.bert.",),
                model_type="blip_text_model",
            ),
        ),
    ),
    # The Q-Former is used by the image-text retrieval classes, which have no language model.
    family(
        "blip-2",
        Rows(
            tensor=BERT_TABLE,
            config_key="qformer_config.max_position_embeddings",
            part="qformer",
            buffers=POSITION_IDS,
        ),
        length=512,
        parts=(language_model("opt"),),
    ),
    family(
        "instructblip",
        parts=(
            language_model("opt"),
            Part(
                "qformer",
                config_key="qformer_config",
                prefixes=("qformer.", "model.qformer."),
                model_type="instructblip_qformer",
                tokenizer="qformer_tokenizer",
            ),
        ),
    ),
    family(
        "instructblipvideo",
        parts=(
            language_model("opt"),
            Part(
                "qformer",
                config_key="qformer_config",
                prefixes=("qformer.", "model.qformer."),
                model_type="instructblipvideo_qformer",
                tokenizer="qformer_tokenizer",
            ),
        ),
    ),
    family(
        "encoder-decoder",
        parts=(
            submodel("encoder", "bert"),
            submodel("decoder", "bert", only_part="decoder", has_head=True),
        ),
    ),
    family(
        "nougat",
        parts=(
            submodel("encoder", "donut-swin", tokenizer=None),
            submodel("decoder", "mbart", only_part="decoder", has_head=True),
        ),
    ),
    family(
        "speech-encoder-decoder",
        parts=(
            submodel("encoder", "wav2vec2", tokenizer=None),
            submodel("decoder", "bert", only_part="decoder", has_head=True),
        ),
    ),
    family(
        "vision-encoder-decoder",
        parts=(
            submodel("encoder", "vit", tokenizer=None),
            submodel("decoder", "bert", only_part="decoder", has_head=True),
        ),
    ),
    family(
        "rag",
        with_head=("rag.",),
        parts=(
            submodel("question_encoder", "dpr", tokenizer="question_encoder_tokenizer"),
            submodel("generator", "bart", tokenizer="generator_tokenizer", has_head=True),
        ),
    ),
    # transformers' `attribute_map`: window_size overrides block_size if the config has it. The last
    # of the three models is not causal.
    family(
        "bark",
        Rows(
            tensor="semantic.position_embeds_layer.weight",
            config_key="semantic_config.block_size",
            part="semantic",
            aliases=("semantic_config.window_size",),
            buffers=(Buffer("semantic.layers.*.attn.bias", "causal", is_kept=True),),
        ),
        Rows(
            tensor="coarse_acoustics.position_embeds_layer.weight",
            config_key="coarse_acoustics_config.block_size",
            part="coarse",
            aliases=("coarse_acoustics_config.window_size",),
            buffers=(Buffer("coarse_acoustics.layers.*.attn.bias", "causal", is_kept=True),),
        ),
        Rows(
            tensor="fine_acoustics.position_embeds_layer.weight",
            config_key="fine_acoustics_config.block_size",
            part="fine",
            aliases=("fine_acoustics_config.window_size",),
        ),
        length=1024,
        keys={"coarse_acoustics_config.block_size": 1024, "fine_acoustics_config.block_size": 1024},
    ),
    family(
        "clvp_decoder",
        Rows(tensor="position_embeds_layer.weight", buffers=CLVP_MASKS),
        length=608,
        with_head=DECODERS,
    ),
    # Two special tokens are added to every text, and transformers leaves a third row unused.
    family(
        "clvp",
        Rows(
            tensor="conditioning_encoder.text_position_embedding.weight",
            config_key=CLVP_KEY,
            part="text",
            extra_rows=3,
        ),
        length=404,
        parts=(
            Part(
                "speech",
                config_key="decoder_config",
                prefixes=("speech_decoder_model.",),
                model_type="clvp_decoder",
                has_head=True,
            ),
        ),
    ),
)

ENTRIES: Mapping[str, Family] = {
    entry.model_type: entry for entry in (*TABLE_FAMILIES, *ROTARY_FAMILIES)
}

# Distinguish model types with the same table name if a config has no model_type: prefixes of tensor
# names (after the table's prefix) or config keys that a type has, or with "!" does not have.
# gpt-sw3 never matches: its files say gpt2.
SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "albert": ("encoder.albert_layer_groups.",),
    "distilbert": ("transformer.layer.0.",),
    "mpnet": ("encoder.relative_attention_bias.",),
    "bert": (
        "embeddings.token_type_embeddings.",
        "encoder.layer.0.attention.output.LayerNorm.",
        "!attention_type",
    ),
    "bert-generation": ("!embeddings.token_type_embeddings.",),
    "big_bird": ("attention_type",),
    "blip_text_model": ("!embeddings.token_type_embeddings.",),
    "megatron-bert": ("encoder.ln.",),
    "gpt2": ("h.0.attn.c_attn.", "h.0.ln_1.bias", "!multi_query"),
    "gpt-sw3": ("!h.",),
    "gpt_bigcode": ("multi_query",),
    "imagegpt": ("h.0.attn.c_attn.", "!h.0.ln_1.bias"),
}
