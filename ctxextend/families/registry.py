"""The registry of model types: data only, with transformers' names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ctxextend.families.rotary_sizes import DEFAULT_SIZES
from ctxextend.families.rotary_types import (
    LANGUAGE_PREFIXES,
    LENGTH,
    LIMITS_ONLY,
    RULE_FAMILIES,
    rule,
)
from ctxextend.families.schema import (
    RELATIVE,
    Buffer,
    Family,
    Part,
    Pin,
    PositionTable,
    Requirement,
    ReservedRows,
)
from ctxextend.families.unsupported import NOT_LOADED

BERT_TABLE = "embeddings.position_embeddings.weight"

# Models whose outputs depend on the padding length, even with an attention mask.
POOLS_LAST = "pools the last position, padding included"
MIXES_PADDING = "mixes padding into all outputs"

# Positions start after padding_idx, and the key includes all rows: fairseq's
# `utils.make_positions`.
AFTER_PADDING = ReservedRows(rows=1, config_key="pad_token_id", inside_key=True)
KEY_IS_ROWS = ReservedRows(
    inside_key=True
)  # none, but the key, shared with another table, is the number of rows
TWO_COUNTED = ReservedRows(
    rows=2, inside_key=True
)  # fairseq's offset of two reserved rows, independent of the pad id
TWO_EXTRA = ReservedRows(rows=2)
PADDING_EXTRA = ReservedRows(rows=1, config_key="pad_token_id")

# Tables of sinusoids: computed if the file has none, by the key of their width; fairseq's, which
# grow with the input; and stored ones that are read without gradients.
COMPUTED: dict[str, Any] = {"layout": "halves-log", "width_key": "d_model"}
HIDDEN: dict[str, Any] = COMPUTED | {"width_key": "hidden_size"}
WEIGHTS = "embed_positions.weights"
FAIRSEQ: dict[str, Any] = {"reserved": TWO_EXTRA, "grows": True}
FIXED: dict[str, Any] = {"layout": "halves", "is_fixed": True}
ANGLES: dict[str, Any] = FIXED | {"rotates": True}

CTRL: dict[str, Any] = {
    "config_key": "n_positions",
    "length": 256,
    "aliases": (LENGTH,),
    "width_key": "n_embd",
}
TARGETS: dict[str, Any] = {
    "config_key": "max_target_positions",
    "length": 1024,
    "reserved": TWO_EXTRA,
}
KOSMOS: dict[str, Any] = COMPUTED | FAIRSEQ | {"width_key": "embed_dim"}
MUSICGEN: dict[str, Any] = HIDDEN | {"layout": "halves-log-cos", "grows": True}
SPEECH: dict[str, Any] = HIDDEN | {"config_key": "max_text_positions", "next_to": ".embed_tokens"}
EMBEDDING = "embeddings.position_embedding"

IDS = (Buffer("embeddings.position_ids", "arange"), Buffer("embeddings.token_type_ids", "zeros"))
IMAGE_FIRST = "image tokens (49 by default) use the first rows too, so keep at least that many"
VILT_IDS = tuple(replace(ids, name=ids.name.replace(".", ".text_embeddings.")) for ids in IDS)
KEPT_IDS = (Buffer("embeddings.position_ids", "arange", is_kept=True), IDS[1])
MASK_NAMES = ("bias", "masked_bias")
MASKS = tuple(
    Buffer(f"h.*.{part}.{name}", "causal")
    for part in ("attn", "crossattention")
    for name in MASK_NAMES
)
NEO_MASKS = tuple(Buffer(f"h.*.attn.attention.{name}", "causal") for name in MASK_NAMES)

BIASED = "position_biased_input"
XLM: Mapping[str, Any] = {"buffers": (Buffer("position_ids", "arange"),), "layout": "interleaved"}
TYPE = "position_embedding_type"
FULL_ATTENTION = ("attention_type", "original_full")
DPR_PREFIXES = (
    "question_encoder.bert_model.",
    "ctx_encoder.bert_model.",
    "span_predictor.encoder.bert_model.",
)

# Configs of CLIP-like models may contain a second copy of the text config, which takes precedence
# with its defaults.
CLIP_COPY = ("text_config_dict",)

Defaults = Mapping[str, int]
NO_KEYS: Defaults = {}

# BERT-like models with 512 positions by default and their name as prefix.
SIMPLE_ENCODERS = (
    "albert bert convbert electra ernie layoutlm lxmert mobilebert rembert roc_bert splinter"
)


def encoder(
    model_type: str,
    *prefixes: str,
    length: int = 512,
    keys: Defaults = NO_KEYS,
    name: str = BERT_TABLE,
    **more: Any,
) -> Family:
    """Return the entry of a BERT-like model with one table; `keys` are defaults of other config
    keys.
    """
    return Family(
        model_type,
        ("", *prefixes),
        (table("", name, **{"buffers": IDS} | more),),
        {LENGTH: length, **keys},
    )


def after_padding(model_type: str, *prefixes: str, pad: int = 1, **more: Any) -> Family:
    """Return the entry of a RoBERTa-like model with one table, whose positions start after
    padding_idx.
    """
    return encoder(
        model_type, *prefixes, keys={"pad_token_id": pad}, reserved=AFTER_PADDING, **more
    )


def encoder_decoder(
    model_type: str,
    length: int,
    name: str = "embed_positions.weight",
    start: str = "",
    keys: Any = NO_KEYS,
    **more: Any,
) -> Family:
    """Return the entry of a BART-like model: one table each in encoder and decoder, with a shared
    length.
    """
    tables = (
        table(part, f"{part}.{name}", **more) for part in (f"{start}encoder", f"{start}decoder")
    )
    return several(model_type, *tables, prefix="model.", length=length, keys=keys)


def decoder(
    model_type: str, table: str, *prefixes: str, config_key: str = LENGTH, length: int, **more: Any
) -> Family:
    """Return the entry of a causal language model with one table."""
    return Family(
        model_type,
        ("", *prefixes),
        (PositionTable(table, config_key, **more),),
        {config_key: length},
    )


def gpt2_like(
    model_type: str, masks: Any = MASKS, table: str = "wpe.weight", length: int = 1024
) -> Family:
    """Return the entry of a GPT-2-like model."""
    # transformers' `attribute_map`: max_position_embeddings overrides n_positions if the config has
    # it.
    key = "n_positions"
    others = {"aliases": (LENGTH,), "unused_keys": ("n_ctx",)}
    return decoder(
        model_type, table, "transformer.", config_key=key, length=length, buffers=masks, **others
    )


def clip_text(model_type: str, length: int = 77) -> Family:
    """Return the entry of the text model of a CLIP-like dual encoder."""
    return encoder(
        model_type, "text_model.", length=length, name=f"{EMBEDDING}.weight", buffers=IDS[:1]
    )


def text_part(
    name: str, text: str = "", *prefixes: str, outer: Any = (), limits: Any = (), **more: Any
) -> Family:
    """Return the entry of a multimodal model with one text model, by default its own type of
    one.
    """
    part = Part(
        "text", "text_config", prefixes or ("text_model.",), text or f"{name}_text_model", **more
    )
    return Family(name, ("", *outer), parts=(part,), limits=limits)


# A language model of any type, by default OPT.
LANGUAGE_PART = Part("text", "text_config", LANGUAGE_PREFIXES, "opt", is_any=True, is_head=True)
# The Q-Former, which reads an instruction together with an image.
QFORMER_PART = Part(
    "qformer", "qformer_config", ("qformer.", "model.qformer."), "", tokenizer="qformer_tokenizer"
)


def submodel(name: str, model_type: str, **more: Any) -> Part:
    """Return the part for a model of any type inside another; `model_type` is the default."""
    return Part(name, name, (f"{name}.",), model_type, is_any=True, **more)


def pair(model_type: str, encoder: str, decoder: str, tokenizer: str | None = None) -> Family:
    """Return the entry of an encoder-decoder model; its parts may be of any type, by default these
    two.
    """
    last = submodel("decoder", decoder, is_head=True, only="decoder")
    return Family(model_type, parts=(submodel("encoder", encoder, tokenizer=tokenizer), last))


def several(
    model_type: str, *tables: PositionTable, prefix: str = "", pins: Any = (), **more: Any
) -> Family:
    """Return the entry of a model with several tables that share one length."""
    return replace(
        encoder(model_type, prefix or f"{model_type}.", **more), tables=tables, pins=pins
    )


def table(part: str, name: str = BERT_TABLE, **more: Any) -> PositionTable:
    """Return a table whose length is `LENGTH`; `part` names it if the model has several."""
    return PositionTable(name, LENGTH, part=part, **more)


TEXT = table("text", buffers=IDS)
OUTPUT = table("output", "decoder.output_position_encodings.position_embeddings")
DEBERTA = (
    table("", buffers=IDS, when=(BIASED, (None, True))),
    rule(RELATIVE, when=(BIASED, (False,))),
)
DEBERTA_PINS = (Pin("max_relative_positions", "relative_attention"),)
CLVP_KEY = "decoder_config.max_text_tokens"
CLVP_MASKS = (Buffer("layers.*.attn.bias", "causal"),)
DECODERS = ("model.decoder.", "decoder.")
MUSIC, INSTRUCT = ("musicgen", "musicgen_melody"), ("instructblip", "instructblipvideo")
MUSIC_PART = Part("decoder", "decoder", ("decoder.",), "", is_head=True, tokenizer=None)
BARK = {
    "semantic": "semantic",
    "coarse": "coarse_acoustics",
    "fine": "fine_acoustics",
}  # its models by part


def bark_table(part: str) -> PositionTable:
    """Return the table of one of Bark's three models; the last one is not causal."""
    name = BARK[part]
    masks = (
        (Buffer(f"{name}.layers.*.attn.bias", "causal", is_kept=True),) if part != "fine" else ()
    )
    # transformers' `attribute_map`: window_size overrides block_size if the config has it.
    key = f"{name}_config.block_size"
    aliases = (f"{name}_config.window_size",)
    return PositionTable(
        f"{name}.position_embeds_layer.weight", key, aliases, buffers=masks, part=part
    )


_FAMILIES = (
    *(encoder(name, f"{name}.") for name in SIMPLE_ENCODERS.split()),
    replace(encoder("fnet", "fnet."), padding_effect=MIXES_PADDING),
    encoder("bert-generation", "bert.", buffers=IDS[:1]),
    # Inputs are padded to full blocks before positions are assigned.
    encoder(
        "big_bird",
        "bert.",
        length=4096,
        keys={"block_size": 64},
        multiple_of="block_size",
        unless=FULL_ATTENTION,
    ),
    encoder("bros", "bros.", buffers=KEPT_IDS),
    *(
        several(name, *DEBERTA, prefix="deberta.", pins=DEBERTA_PINS)
        for name in ("deberta", "deberta-v2")
    ),
    encoder("distilbert", "distilbert.", layout="interleaved", layout_key="sinusoidal_pos_embds"),
    *(
        encoder(
            name,
            "transformer.",
            name="position_embeddings.weight",
            layout_key="sinusoidal_embeddings",
            **XLM,
        )
        for name in ("flaubert", "xlm")
    ),
    # Rotary angles, stored as a table of sinusoids per head.
    encoder(
        "roformer",
        "roformer.",
        length=1536,
        name="encoder.embed_positions.weight",
        buffers=(),
        **ANGLES,
    ),
    replace(encoder("dpr"), prefixes=(*DPR_PREFIXES, "encoder.bert_model.", "bert_model.", "")),
    encoder("git", "git.", length=1024),
    *(
        replace(encoder(name, "layoutlmv2.", buffers=IDS[:1]), note=IMAGE_FIRST)
        for name in ("layoutlmv2", "layoutxlm")
    ),
    encoder("megatron-bert", "bert."),
    encoder("squeezebert", "transformer."),
    encoder("tapas", "tapas.", length=1024, clamps=True),
    encoder(
        "vilt",
        "vilt.",
        length=40,
        name="embeddings.text_embeddings.position_embeddings.weight",
        buffers=VILT_IDS,
    ),
    several(
        "tvp",
        TEXT,
        table("frames", "visual_embeddings.position_embeddings.weight"),
        prefix="model.",
    ),
    several("visual_bert", TEXT, table("visual", "embeddings.visual_position_embeddings.weight")),
    replace(
        several(
            "perceiver",
            table("input", "input_preprocessor.position_embeddings.weight"),
            OUTPUT,
            length=2048,
        ),
        prefixes=("perceiver.", ""),
    ),
    *(after_padding(name, "roberta.") for name in ("camembert", "roberta", "xlm-roberta", "xmod")),
    after_padding("data2vec-text", "data2vec_text."),
    several(
        "esm",
        table("", reserved=AFTER_PADDING, buffers=IDS, when=(TYPE, (None, "absolute"))),
        rule(rope=LIMITS_ONLY, reserved=AFTER_PADDING, when=(TYPE, ("rotary",))),
        length=1026,
    ),
    *(after_padding(name, f"{name}.") for name in ("layoutlmv3", "longformer")),
    after_padding("markuplm", "markuplm.", pad=0),
    after_padding("roberta-prelayernorm", "roberta_prelayernorm."),
    after_padding("xlm-roberta-xl", "roberta.", length=514),
    after_padding(
        "ibert", "ibert.", buffers=(*IDS, Buffer(f"{BERT_TABLE}_integer", "rows", is_kept=True))
    ),
    encoder("mpnet", "mpnet.", reserved=TWO_COUNTED, buffers=IDS[:1]),
    several(
        "lilt",
        table("text", reserved=AFTER_PADDING, buffers=IDS),
        table("layout", "layout_embeddings.box_position_embeddings.weight", reserved=AFTER_PADDING),
        keys={"pad_token_id": 0},
    ),
    several(
        "luke",
        table("text", reserved=AFTER_PADDING, buffers=IDS),
        # Entities use the positions of their words, from 0, in a table with as many rows as the
        # text's.
        table("entity", "entity_embeddings.position_embeddings.weight", reserved=KEY_IS_ROWS),
        keys={"pad_token_id": 1},
    ),
    replace(
        encoder("mra", "mra.", keys={"block_per_row": 4}, reserved=TWO_EXTRA, buffers=KEPT_IDS),
        # transformers' `MraSelfAttention`: the length sets how many blocks of 32 tokens every input
        # attends to.
        pins=(Pin("block_per_row", keeps="blocks", block_size=32),),
        note="unless the length is doubled or quadrupled, short inputs attend to different blocks",
    ),
    replace(
        encoder("nystromformer", "nystromformer.", length=510, reserved=TWO_EXTRA),
        padding_effect=MIXES_PADDING,
    ),
    replace(
        encoder("yoso", "yoso.", length=4096, reserved=TWO_EXTRA), padding_effect=MIXES_PADDING
    ),
    *(
        encoder_decoder(name, 1024, reserved=TWO_EXTRA)
        for name in ("bart", "mbart", "mvp", "plbart")
    ),
    encoder_decoder("bigbird_pegasus", 4096),
    encoder_decoder("blenderbot", 128),
    encoder_decoder("blenderbot-small", 512),
    encoder_decoder("pegasus", 1024, **FIXED),
    encoder_decoder(
        "fsmt",
        1024,
        keys={"pad_token_id": 1},
        reserved=PADDING_EXTRA,
        layout="halves-log",
        grows=True,
    ),
    encoder_decoder("marian", 1024, **COMPUTED | FIXED),  # MarianMTModel does not save its tables
    *(
        encoder_decoder(name, 1024, WEIGHTS, **COMPUTED, **FAIRSEQ)
        for name in ("m2m_100", "nllb-moe")
    ),
    encoder_decoder("seamless_m4t", 1024, WEIGHTS, "text_", **HIDDEN, **FAIRSEQ),
    encoder_decoder("seamless_m4t_v2", 4096, WEIGHTS, "text_", **HIDDEN, **FAIRSEQ),
    # Without a tensor: each forward pass computes its sinusoids.
    encoder_decoder("pegasus_x", 16384, "embed_positions", **COMPUTED, grows=True),
    several(
        "prophetnet",
        table("encoder", "encoder.position_embeddings.weight", reserved=AFTER_PADDING, clamps=True),
        # The predicting stream reads the row of the next position.
        table(
            "decoder", "decoder.position_embeddings.weight", reserved=AFTER_PADDING, extra_rows=1
        ),
        keys={"pad_token_id": 0},
    ),
    Family(
        "led",
        ("", "led."),
        tuple(
            PositionTable(
                f"{part}.embed_positions.weight",
                f"max_{part}_position_embeddings",
                part=part,
                multiple_of=key,
            )
            # Inputs are padded to full attention windows, and padding uses encoder positions too.
            for part, key in (("encoder", "attention_window"), ("decoder", None))
        ),
        {
            "max_encoder_position_embeddings": 16384,
            "max_decoder_position_embeddings": 1024,
            "attention_window": 512,
        },
    ),
    decoder("biogpt", "embed_positions.weight", "biogpt.", length=1024, reserved=TWO_EXTRA),
    decoder("opt", "decoder.embed_positions.weight", "model.", length=2048, reserved=TWO_EXTRA),
    decoder("pp_formulanet_text", "embed_positions.weight", length=2560, reserved=TWO_EXTRA),
    replace(
        decoder("trocr", "decoder.embed_positions.weight", length=512, reserved=TWO_EXTRA),
        prefixes=("model.", ""),
        requires=(Requirement("use_learned_position_embeddings", True, NOT_LOADED),),
    ),
    replace(
        decoder(
            "whisper",
            "decoder.embed_positions.weight",
            "model.",
            config_key="max_target_positions",
            length=448,
        ),
        note="its feature extractor fixes the length of audio inputs",
    ),
    *(gpt2_like(name) for name in ("gpt2", "gpt-sw3", "imagegpt")),
    gpt2_like("gpt_bigcode", (Buffer("bias", "causal"),)),
    gpt2_like(
        "openai-gpt", (*MASKS, Buffer("position_ids", "arange")), "positions_embed.weight", 512
    ),
    decoder("ctrl", "pos_encoding", "transformer.", layout="halves", **CTRL),
    decoder("xglm", WEIGHTS, "model.", length=2048, **COMPUTED, **FAIRSEQ),
    decoder("kosmos_2_text_model", WEIGHTS, "model.", length=2048, **KOSMOS),
    decoder("kosmos_2_5_text_model", WEIGHTS, "model.", length=4096, **KOSMOS),
    *(decoder(f"{name}_decoder", WEIGHTS, *DECODERS, length=2048, **MUSICGEN) for name in MUSIC),
    decoder(
        "canary_decoder",
        "pos_emb.positional_embedding",
        "model.",
        length=1024,
        **HIDDEN | {"layout": "halves"},
    ),
    # Longer inputs of these two run in one forward pass, but fail in generation with a cache, so
    # they do not grow.
    decoder("speech_to_text", f"decoder.{WEIGHTS}", "model.", **TARGETS, **COMPUTED),
    Family(
        "speecht5",
        ("speecht5.",),
        (
            PositionTable(
                "encoder.prenet.encode_positions.pe",
                part="encoder",
                **SPEECH | {"layout": "interleaved"},
            ),
            PositionTable(
                f"decoder.prenet.{WEIGHTS}", part="decoder", reserved=PADDING_EXTRA, **SPEECH
            ),
        ),
        {"max_text_positions": 450, "pad_token_id": 1},
    ),
    decoder("gpt_neo", "wpe.weight", "transformer.", length=2048, buffers=NEO_MASKS),
    *(
        clip_text(f"{name}_text_model")
        for name in ("aimv2", "clip", "clipseg", "groupvit", "metaclip_2", "xclip")
    ),
    *(clip_text(name, 16) for name in ("owlv2_text_model", "owlvit_text_model")),
    *(
        replace(clip_text(name, 64), padding_effect=POOLS_LAST)
        for name in ("siglip2_text_model", "siglip_text_model")
    ),
    decoder("tipsv2_text_model", f"{EMBEDDING}.weights", length=64, buffers=IDS[:1], **HIDDEN),
    decoder("videoprism_text_model", EMBEDDING, length=64, buffers=KEPT_IDS[:1], **HIDDEN | FIXED),
    encoder("align_text_model", "text_model."),
    encoder("blip_text_model", "text_model.", "bert."),
    encoder("chinese_clip_text_model", "text_model."),
    encoder("flava_text_model", "text_model.", "flava.text_model."),
    *(encoder(f"{name}_qformer", "qformer.") for name in INSTRUCT),
    replace(
        after_padding("altclip_text_model", length=514),
        prefixes=("roberta.", "text_model.roberta.", ""),
    ),
    after_padding("bridgetower_text_model", "text_model.", length=514),
    after_padding(
        "clap_text_model",
        "text_model.",
        length=514,
        buffers=(KEPT_IDS[0], replace(IDS[1], is_kept=True)),
    ),
    *(text_part(name) for name in ("aimv2", "align", "clap", "siglip", "siglip2")),
    *(text_part(name, outer=(f"{name}.",)) for name in ("owlv2", "owlvit")),
    *(
        text_part(name, overrides=CLIP_COPY)
        for name in ("altclip", "chinese_clip", "groupvit", "metaclip_2", "xclip")
    ),
    *(text_part(name, overrides=CLIP_COPY, outer=("clip.",)) for name in ("clip", "clipseg")),
    text_part("flava", overrides=CLIP_COPY, outer=("flava.",)),
    *(text_part(name) for name in ("tipsv2", "videoprism")),
    text_part("kosmos-2", "kosmos_2_text_model", is_head=True),
    text_part("kosmos-2.5", "kosmos_2_5_text_model", is_head=True),
    *(Family(name, parts=(replace(MUSIC_PART, model_type=f"{name}_decoder"),)) for name in MUSIC),
    Family(
        "canary",
        ("", "model."),
        parts=(Part("decoder", "decoder_config", ("decoder.",), "canary_decoder"),),
    ),
    Family(
        "cohere_asr",
        ("", "model."),
        # The names in files and in the loaded model.
        (
            table("", "transf_decoder._embedding.position_embedding.pos_enc"),
            table("", "decoder.pos_emb.weight"),
        ),
        {LENGTH: 1024},
    ),
    text_part("bridgetower", outer=("bridgetower.",)),
    text_part(
        "sam3",
        "clip_text_model",
        "text_encoder.text_model.",
        "text_encoder.",
        outer=("detector_model.",),
        is_any=True,
    ),
    text_part("omdet-turbo", "clip_text_model", "language_backbone.model.", is_any=True),
    text_part("vision-text-dual-encoder", "bert", is_any=True),
    text_part(
        "florence2",
        "bart",
        "language_model.",
        "model.language_model.",
        "language_model.model.",
        is_any=True,
    ),
    text_part("pp_formulanet", "pp_formulanet_text", *DECODERS),
    text_part(
        "grounding-dino",
        "bert",
        "text_backbone.",
        outer=("model.",),
        limits=("max_text_len",),
        is_any=True,
    ),
    text_part(
        "mm-grounding-dino",
        "bert",
        "text_backbone.",
        outer=("model.",),
        limits=("max_text_len",),
        is_any=True,
    ),
    Family(
        "sam3_video", parts=(Part("detector", "detector_config", ("detector_model.", ""), "sam3"),)
    ),
    Family(
        "blip",
        ("", "blip."),
        parts=(
            Part("encoder", "text_config", ("text_encoder.", "text_model."), "blip_text_model"),
            Part("decoder", "text_config", ("text_decoder.bert.",), "blip_text_model"),
        ),
    ),
    Family(
        "blip-2",
        # Used by the image-text retrieval classes, which have no language model.
        tables=(
            PositionTable(BERT_TABLE, f"qformer_config.{LENGTH}", buffers=IDS[:1], part="qformer"),
        ),
        defaults={f"qformer_config.{LENGTH}": 512},
        parts=(LANGUAGE_PART,),
    ),
    *(
        Family(name, parts=(LANGUAGE_PART, replace(QFORMER_PART, model_type=f"{name}_qformer")))
        for name in INSTRUCT
    ),
    pair("encoder-decoder", "bert", "bert", tokenizer=""),
    pair("nougat", "donut-swin", "mbart"),
    pair("speech-encoder-decoder", "wav2vec2", "bert"),
    pair("vision-encoder-decoder", "vit", "bert"),
    Family(
        "rag",
        ("", "rag."),
        parts=(
            submodel("question_encoder", "dpr", tokenizer="question_encoder_tokenizer"),
            submodel("generator", "bart", is_head=True, tokenizer="generator_tokenizer"),
        ),
    ),
    Family(
        "bark",
        ("",),
        tuple(map(bark_table, BARK)),
        {f"{name}_config.block_size": 1024 for name in BARK.values()},
    ),
    decoder(
        "clvp_decoder", "position_embeds_layer.weight", *DECODERS, length=608, buffers=CLVP_MASKS
    ),
    Family(
        "clvp",
        # Two special tokens are added to every text, and transformers leaves a third row unused.
        tables=(
            PositionTable(
                "conditioning_encoder.text_position_embedding.weight",
                CLVP_KEY,
                part="text",
                extra_rows=3,
            ),
        ),
        defaults={CLVP_KEY: 404},
        parts=(
            Part(
                "speech", "decoder_config", ("speech_decoder_model.",), "clvp_decoder", is_head=True
            ),
        ),
    ),
)


def _with_sizes(family: Family) -> Family:
    """Return an entry with transformers' default sizes, from which the size of a head follows."""
    sizes = DEFAULT_SIZES.get(family.model_type)
    return family if sizes is None else replace(family, defaults={**sizes, **family.defaults})


FAMILIES: Mapping[str, Family] = {
    family.model_type: _with_sizes(family) for family in (*_FAMILIES, *RULE_FAMILIES)
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
