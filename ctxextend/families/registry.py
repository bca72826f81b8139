"""The registry: one literal a family, facts only, named as transformers names them."""

from collections.abc import Mapping
from dataclasses import replace

from ctxextend.families.schema import Buffer, Family, Offset, Part, Pin, Requirement, Table

__all__ = ["FAMILIES"]

LENGTH = "max_position_embeddings"

# Position 0 stands behind the padding row, and the key counts all rows: fairseq's `utils.make_positions`.
BEHIND_PAD = Offset(rows=1, config_key="pad_token_id", inside_key=True)
NONE = Offset()
# A table as long as another's key says, whose own positions begin at row 0.
NONE_INSIDE = Offset(inside_key=True)
# fairseq's habit of two rows that stand for no position, whatever the pad id is.
TWO_INSIDE = Offset(rows=2, inside_key=True)
TWO_ON_TOP = Offset(rows=2)

IDS = (Buffer("embeddings.position_ids", "arange"), Buffer("embeddings.token_type_ids", "zeros"))
MASKS = tuple(
    Buffer(f"h.*.{attention}.{name}", "causal")
    for attention in ("attn", "crossattention")
    for name in ("bias", "masked_bias")
)
NEO_MASKS = (Buffer("h.*.attn.attention.bias", "causal"), Buffer("h.*.attn.attention.masked_bias", "causal"))

SINUSOIDS = (
    "fixed sinusoids, computed and not learned: raise max_position_embeddings in config.json, and drop "
    "position_embeddings.weight, and position_ids where it is there, from the weights, so that transformers computes "
    "them anew"
)
SINUSOIDS_MADE = "fixed sinusoids, made as long as a text needs: it reads longer texts as it is"
BIASED = Requirement(
    "position_biased_input",
    True,
    "relative positions alone: it reads longer texts as it is, and max_position_embeddings, which sizes those, is best "
    "left as it is",
)
NOT_SINUSOIDAL = Requirement("sinusoidal_embeddings", False, SINUSOIDS)


# Configs of CLIP and its kin may hold the text model's config a second time, and that copy wins with all its defaults.
CLIP_OVERRIDES = ("text_config_dict",)


def encoder(
    model_type: str,
    *prefixes: str,
    length: int = 512,
    pad: int | None = None,
    offset: Offset = NONE,
    buffers: tuple[Buffer, ...] = IDS,
    name: str = "embeddings.position_embeddings.weight",
    requires: tuple[Requirement, ...] = (),
    pins: tuple[Pin, ...] = (),
    clamps: bool = False,
    note: str = "",
) -> Family:
    """Describe a model with one table, built as BERT is."""
    return Family(
        model_type=model_type,
        prefixes=("", *prefixes),
        tables=(Table(name, LENGTH, offset=offset, buffers=buffers, clamps=clamps),),
        defaults={LENGTH: length} | ({"pad_token_id": pad} if pad is not None else {}),
        requires=requires,
        pins=pins,
        note=note,
    )


def behind_pad(model_type: str, *prefixes: str, length: int = 512, pad: int = 1) -> Family:
    """Describe a model with one table whose rows begin behind the padding row, built as RoBERTa is."""
    return encoder(model_type, *prefixes, length=length, pad=pad, offset=BEHIND_PAD)


def encoder_decoder(model_type: str, length: int, offset: Offset) -> Family:
    """Describe a model built as BART is: encoder and decoder have a table each, and one length for both."""
    return Family(
        model_type=model_type,
        prefixes=("", "model."),
        tables=tuple(
            Table(f"{part}.embed_positions.weight", LENGTH, offset=offset, part=part) for part in ("encoder", "decoder")
        ),
        defaults={LENGTH: length},
    )


def decoder(
    model_type: str,
    table: str,
    *prefixes: str,
    config_key: str = LENGTH,
    length: int,
    offset: Offset = NONE,
    buffers: tuple[Buffer, ...] = (),
    aliases: tuple[str, ...] = (),
    unused_keys: tuple[str, ...] = (),
) -> Family:
    """Describe a causal language model with one table."""
    return Family(
        model_type=model_type,
        prefixes=("", *prefixes),
        tables=(Table(table, config_key, aliases=aliases, unused_keys=unused_keys, offset=offset, buffers=buffers),),
        defaults={config_key: length},
    )


def gpt2_like(
    model_type: str, masks: tuple[Buffer, ...] = MASKS, table: str = "wpe.weight", length: int = 1024
) -> Family:
    """Describe a model built as GPT-2 is."""
    return decoder(
        model_type,
        table,
        "transformer.",
        config_key="n_positions",
        length=length,
        buffers=masks,
        # transformers' `attribute_map` writes max_position_embeddings, where a file has it, over n_positions.
        aliases=(LENGTH,),
        unused_keys=("n_ctx",),
    )


def clip_text(model_type: str, length: int = 77) -> Family:
    """Describe the text model of a pair built as CLIP is."""
    return encoder(
        model_type,
        "text_model.",
        length=length,
        name="embeddings.position_embedding.weight",
        buffers=IDS[:1],
    )


def text_part(
    model_type: str,
    text: str,
    *prefixes: str,
    outer: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
    raised: tuple[str, ...] = (),
    is_any: bool = False,
) -> Family:
    """Describe a model of several senses, of which one reads text."""
    part = Part("text", "text_config", prefixes or ("text_model.",), text, overrides, is_any)
    return Family(model_type=model_type, prefixes=("", *outer), parts=(part,), raised=raised)


# A language model of any family, by default OPT.
LANGUAGE_PART = Part(
    "text", "text_config", ("language_model.", "model.language_model."), "opt", is_any=True, is_head=True
)


def bark_table(part: str, name: str, *, has_masks: bool) -> Table:
    """Describe the table of one of the three models of Bark."""
    masks = (Buffer(f"{name}.layers.*.attn.bias", "causal", is_kept=True),) if has_masks else ()
    key = f"{name}_config.block_size"
    # transformers' `attribute_map` writes window_size, where a file has it, over block_size.
    aliases = (f"{name}_config.window_size",)
    return Table(f"{name}.position_embeds_layer.weight", key, aliases=aliases, buffers=masks, part=part)


FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        encoder("albert", "albert."),
        encoder("bert", "bert."),
        encoder("bert-generation", "bert.", buffers=IDS[:1]),
        Family(
            model_type="big_bird",
            prefixes=("", "bert."),
            tables=(
                Table(
                    "embeddings.position_embeddings.weight",
                    LENGTH,
                    buffers=IDS,
                    # Texts are padded to whole blocks before they get their positions.
                    multiple_of="block_size",
                    unless=("attention_type", "original_full"),
                ),
            ),
            defaults={LENGTH: 4096, "block_size": 64},
        ),
        encoder("bros", "bros.", buffers=(Buffer("embeddings.position_ids", "arange", is_kept=True), IDS[1])),
        encoder("convbert", "convbert."),
        encoder("deberta", "deberta.", requires=(BIASED,), pins=(Pin("max_relative_positions", "relative_attention"),)),
        encoder(
            "deberta-v2", "deberta.", requires=(BIASED,), pins=(Pin("max_relative_positions", "relative_attention"),)
        ),
        encoder("distilbert", "distilbert.", requires=(Requirement("sinusoidal_pos_embds", False, SINUSOIDS),)),
        replace(
            encoder("dpr"),
            prefixes=(
                "question_encoder.bert_model.",
                "ctx_encoder.bert_model.",
                "span_predictor.encoder.bert_model.",
                "encoder.bert_model.",
                "bert_model.",
                "",
            ),
        ),
        encoder("electra", "electra."),
        encoder("ernie", "ernie."),
        encoder("fnet", "fnet."),
        encoder("git", "git.", length=1024),
        encoder("layoutlm", "layoutlm."),
        *(
            encoder(
                name,
                "layoutlmv2.",
                buffers=IDS[:1],
                note="the tokens of the image, 49 by default, read the first rows too: keep at least as many",
            )
            for name in ("layoutlmv2", "layoutxlm")
        ),
        encoder("lxmert", "lxmert."),
        encoder("megatron-bert", "bert."),
        encoder("mobilebert", "mobilebert."),
        encoder("rembert", "rembert."),
        encoder("roc_bert", "roc_bert."),
        encoder("splinter", "splinter."),
        encoder("squeezebert", "transformer."),
        encoder("tapas", "tapas.", length=1024, clamps=True),
        encoder(
            "vilt",
            "vilt.",
            length=40,
            name="embeddings.text_embeddings.position_embeddings.weight",
            buffers=(
                Buffer("embeddings.text_embeddings.position_ids", "arange"),
                Buffer("embeddings.text_embeddings.token_type_ids", "zeros"),
            ),
        ),
        *(
            encoder(
                name,
                "transformer.",
                name="position_embeddings.weight",
                buffers=(Buffer("position_ids", "arange"),),
                requires=(NOT_SINUSOIDAL,),
            )
            for name in ("flaubert", "xlm")
        ),
        Family(
            model_type="tvp",
            prefixes=("", "model."),
            tables=(
                Table("embeddings.position_embeddings.weight", LENGTH, buffers=IDS, part="text"),
                Table("visual_embeddings.position_embeddings.weight", LENGTH, part="frames"),
            ),
            defaults={LENGTH: 512},
        ),
        Family(
            model_type="visual_bert",
            prefixes=("", "visual_bert."),
            tables=(
                Table("embeddings.position_embeddings.weight", LENGTH, buffers=IDS, part="text"),
                Table("embeddings.visual_position_embeddings.weight", LENGTH, part="visual"),
            ),
            defaults={LENGTH: 512},
        ),
        Family(
            model_type="perceiver",
            prefixes=("perceiver.", ""),
            tables=(
                Table("input_preprocessor.position_embeddings.weight", LENGTH, part="input"),
                Table("decoder.output_position_encodings.position_embeddings", LENGTH, part="output"),
            ),
            defaults={LENGTH: 2048},
        ),
        behind_pad("camembert", "roberta."),
        behind_pad("data2vec-text", "data2vec_text."),
        encoder(
            "esm",
            "esm.",
            length=1026,
            offset=BEHIND_PAD,
            requires=(
                Requirement(
                    "position_embedding_type",
                    "absolute",
                    "rotary or relative position embeddings: it reads longer texts as it is",
                ),
            ),
        ),
        behind_pad("layoutlmv3", "layoutlmv3."),
        behind_pad("longformer", "longformer."),
        behind_pad("markuplm", "markuplm.", pad=0),
        behind_pad("roberta", "roberta."),
        behind_pad("roberta-prelayernorm", "roberta_prelayernorm."),
        behind_pad("xlm-roberta", "roberta."),
        behind_pad("xlm-roberta-xl", "roberta.", length=514),
        behind_pad("xmod", "roberta."),
        encoder(
            "ibert",
            "ibert.",
            pad=1,
            offset=BEHIND_PAD,
            buffers=(*IDS, Buffer("embeddings.position_embeddings.weight_integer", "rows", is_kept=True)),
        ),
        encoder("mpnet", "mpnet.", offset=TWO_INSIDE, buffers=IDS[:1]),
        Family(
            model_type="lilt",
            prefixes=("", "lilt."),
            tables=(
                Table("embeddings.position_embeddings.weight", LENGTH, offset=BEHIND_PAD, buffers=IDS, part="text"),
                Table("layout_embeddings.box_position_embeddings.weight", LENGTH, offset=BEHIND_PAD, part="layout"),
            ),
            defaults={LENGTH: 512, "pad_token_id": 0},
        ),
        Family(
            model_type="luke",
            prefixes=("", "luke."),
            tables=(
                Table("embeddings.position_embeddings.weight", LENGTH, offset=BEHIND_PAD, buffers=IDS, part="text"),
                # Entities give positions of their words, counted from 0, in a table as long as the text's.
                Table(
                    "entity_embeddings.position_embeddings.weight",
                    LENGTH,
                    offset=NONE_INSIDE,
                    part="entity",
                ),
            ),
            defaults={LENGTH: 512, "pad_token_id": 1},
        ),
        Family(
            model_type="mra",
            prefixes=("", "mra."),
            tables=(
                Table(
                    "embeddings.position_embeddings.weight",
                    LENGTH,
                    offset=TWO_ON_TOP,
                    buffers=(Buffer("embeddings.position_ids", "arange", is_kept=True), IDS[1]),
                ),
            ),
            defaults={LENGTH: 512, "block_per_row": 4},
            # transformers' `MraSelfAttention`: the length decides to how many blocks of 32 tokens every text attends.
            pins=(Pin("block_per_row", keeps="blocks", block_size=32),),
            note="at lengths other than twice or four times the old one, short texts attend to other blocks",
        ),
        encoder("nystromformer", "nystromformer.", length=510, offset=TWO_ON_TOP),
        encoder("yoso", "yoso.", length=4096, offset=TWO_ON_TOP),
        encoder_decoder("bart", 1024, TWO_ON_TOP),
        encoder_decoder("bigbird_pegasus", 4096, NONE),
        encoder_decoder("blenderbot", 128, NONE),
        encoder_decoder("blenderbot-small", 512, NONE),
        encoder_decoder("mbart", 1024, TWO_ON_TOP),
        encoder_decoder("mvp", 1024, TWO_ON_TOP),
        encoder_decoder("plbart", 1024, TWO_ON_TOP),
        Family(
            model_type="prophetnet",
            prefixes=("", "prophetnet."),
            tables=(
                Table("encoder.position_embeddings.weight", LENGTH, offset=BEHIND_PAD, part="encoder", clamps=True),
                # The stream that predicts reads the row of the next position.
                Table("decoder.position_embeddings.weight", LENGTH, offset=BEHIND_PAD, part="decoder", ahead=1),
            ),
            defaults={LENGTH: 512, "pad_token_id": 0},
        ),
        Family(
            model_type="led",
            prefixes=("", "led."),
            tables=(
                Table(
                    "encoder.embed_positions.weight",
                    "max_encoder_position_embeddings",
                    part="encoder",
                    # Texts are padded to whole windows, and the padding takes positions too.
                    multiple_of="attention_window",
                ),
                Table("decoder.embed_positions.weight", "max_decoder_position_embeddings", part="decoder"),
            ),
            defaults={
                "max_encoder_position_embeddings": 16384,
                "max_decoder_position_embeddings": 1024,
                "attention_window": 512,
            },
        ),
        decoder("biogpt", "embed_positions.weight", "biogpt.", length=1024, offset=TWO_ON_TOP),
        decoder("opt", "decoder.embed_positions.weight", "model.", length=2048, offset=TWO_ON_TOP),
        decoder("pp_formulanet_text", "embed_positions.weight", length=2560, offset=TWO_ON_TOP),
        Family(
            model_type="trocr",
            prefixes=("model.", ""),
            tables=(Table("decoder.embed_positions.weight", LENGTH, offset=TWO_ON_TOP),),
            defaults={LENGTH: 512},
            requires=(Requirement("use_learned_position_embeddings", True, SINUSOIDS_MADE),),
        ),
        decoder("whisper", "decoder.embed_positions.weight", "model.", config_key="max_target_positions", length=448),
        gpt2_like("gpt2"),
        gpt2_like("gpt-sw3"),
        gpt2_like("imagegpt"),
        gpt2_like("gpt_bigcode", (Buffer("bias", "causal"),)),
        gpt2_like("openai-gpt", (*MASKS, Buffer("position_ids", "arange")), "positions_embed.weight", 512),
        decoder("gpt_neo", "wpe.weight", "transformer.", length=2048, buffers=NEO_MASKS),
        *(
            clip_text(name)
            for name in (
                "aimv2_text_model",
                "clip_text_model",
                "clipseg_text_model",
                "groupvit_text_model",
                "metaclip_2_text_model",
                "xclip_text_model",
            )
        ),
        *(clip_text(name, 16) for name in ("owlv2_text_model", "owlvit_text_model")),
        *(clip_text(name, 64) for name in ("siglip2_text_model", "siglip_text_model")),
        encoder("align_text_model", "text_model."),
        encoder("blip_text_model", "text_model.", "bert."),
        encoder("chinese_clip_text_model", "text_model."),
        encoder("flava_text_model", "text_model.", "flava.text_model."),
        encoder("instructblip_qformer", "qformer."),
        encoder("instructblipvideo_qformer", "qformer."),
        replace(behind_pad("altclip_text_model", length=514), prefixes=("roberta.", "text_model.roberta.", "")),
        behind_pad("bridgetower_text_model", "text_model.", length=514),
        encoder(
            "clap_text_model",
            "text_model.",
            length=514,
            pad=1,
            offset=BEHIND_PAD,
            buffers=tuple(Buffer(buffer.name, buffer.content, is_kept=True) for buffer in IDS),
        ),
        text_part("aimv2", "aimv2_text_model"),
        text_part("align", "align_text_model"),
        text_part("altclip", "altclip_text_model", overrides=CLIP_OVERRIDES),
        text_part("bridgetower", "bridgetower_text_model", outer=("bridgetower.",)),
        text_part("chinese_clip", "chinese_clip_text_model", overrides=CLIP_OVERRIDES),
        text_part("clap", "clap_text_model"),
        text_part("clip", "clip_text_model", overrides=CLIP_OVERRIDES, outer=("clip.",)),
        text_part("clipseg", "clipseg_text_model", overrides=CLIP_OVERRIDES, outer=("clip.",)),
        text_part("flava", "flava_text_model", overrides=CLIP_OVERRIDES, outer=("flava.",)),
        text_part("groupvit", "groupvit_text_model", overrides=CLIP_OVERRIDES),
        text_part("metaclip_2", "metaclip_2_text_model", overrides=CLIP_OVERRIDES),
        text_part("owlv2", "owlv2_text_model", outer=("owlv2.",)),
        text_part("owlvit", "owlvit_text_model", outer=("owlvit.",)),
        text_part(
            "sam3",
            "clip_text_model",
            "text_encoder.text_model.",
            "text_encoder.",
            outer=("detector_model.",),
            is_any=True,
        ),
        text_part("omdet-turbo", "clip_text_model", "language_backbone.model.", is_any=True),
        text_part("siglip", "siglip_text_model"),
        text_part("siglip2", "siglip2_text_model"),
        text_part("vision-text-dual-encoder", "bert", is_any=True),
        text_part("xclip", "xclip_text_model", overrides=CLIP_OVERRIDES),
        text_part(
            "florence2", "bart", "language_model.", "model.language_model.", "language_model.model.", is_any=True
        ),
        text_part("pp_formulanet", "pp_formulanet_text", "model.decoder.", "decoder."),
        text_part("grounding-dino", "bert", "text_backbone.", outer=("model.",), raised=("max_text_len",), is_any=True),
        text_part(
            "mm-grounding-dino", "bert", "text_backbone.", outer=("model.",), raised=("max_text_len",), is_any=True
        ),
        Family(
            model_type="sam3_video",
            parts=(Part("detector", "detector_config", ("detector_model.", ""), "sam3"),),
        ),
        Family(
            model_type="blip",
            prefixes=("", "blip."),
            parts=(
                Part("encoder", "text_config", ("text_encoder.", "text_model."), "blip_text_model"),
                Part("decoder", "text_config", ("text_decoder.bert.",), "blip_text_model"),
            ),
        ),
        Family(
            model_type="blip-2",
            parts=(LANGUAGE_PART,),
            # Of the models that compare texts and images, which have no language model.
            tables=(
                Table(
                    "embeddings.position_embeddings.weight",
                    "qformer_config.max_position_embeddings",
                    buffers=IDS[:1],
                    part="qformer",
                ),
            ),
            defaults={"qformer_config.max_position_embeddings": 512},
        ),
        *(
            Family(
                model_type=name,
                parts=(
                    LANGUAGE_PART,
                    Part(
                        "qformer",
                        "qformer_config",
                        ("qformer.", "model.qformer."),
                        f"{name}_qformer",
                        tokenizer="qformer_tokenizer",
                    ),
                ),
            )
            for name in ("instructblip", "instructblipvideo")
        ),
        *(
            Family(
                model_type=name,
                parts=(
                    Part("encoder", "encoder", ("encoder.",), default, is_any=True, tokenizer=tokenizer),
                    Part(
                        "decoder", "decoder", ("decoder.",), default_decoder, is_any=True, is_head=True, only="decoder"
                    ),
                ),
            )
            for name, default, default_decoder, tokenizer in (
                ("encoder-decoder", "bert", "bert", ""),
                ("nougat", "donut-swin", "mbart", None),
                ("speech-encoder-decoder", "wav2vec2", "bert", None),
                ("vision-encoder-decoder", "vit", "bert", None),
            )
        ),
        Family(
            model_type="rag",
            prefixes=("", "rag."),
            parts=(
                Part(
                    "question_encoder",
                    "question_encoder",
                    ("question_encoder.",),
                    "dpr",
                    is_any=True,
                    tokenizer="question_encoder_tokenizer",
                ),
                Part(
                    "generator",
                    "generator",
                    ("generator.",),
                    "bart",
                    is_any=True,
                    is_head=True,
                    tokenizer="generator_tokenizer",
                ),
            ),
        ),
        Family(
            model_type="bark",
            tables=(
                bark_table("semantic", "semantic", has_masks=True),
                bark_table("coarse", "coarse_acoustics", has_masks=True),
                bark_table("fine", "fine_acoustics", has_masks=False),
            ),
            defaults=dict.fromkeys(
                (
                    "semantic_config.block_size",
                    "coarse_acoustics_config.block_size",
                    "fine_acoustics_config.block_size",
                ),
                1024,
            ),
        ),
        decoder(
            "clvp_decoder",
            "position_embeds_layer.weight",
            "model.decoder.",
            "decoder.",
            length=608,
            buffers=(Buffer("layers.*.attn.bias", "causal"),),
        ),
        Family(
            model_type="clvp",
            tables=(
                Table(
                    "conditioning_encoder.text_position_embedding.weight",
                    "decoder_config.max_text_tokens",
                    part="text",
                    # Two special tokens are added to every text, and transformers leaves a third row free.
                    ahead=3,
                ),
            ),
            defaults={"decoder_config.max_text_tokens": 404},
            parts=(Part("speech", "decoder_config", ("speech_decoder_model.",), "clvp_decoder", is_head=True),),
        ),
    )
}
