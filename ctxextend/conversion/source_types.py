"""Model types with learned positions, and their twins.

Source: transformers 5.24, modeling_*.py of gpt2, gpt_neox and falcon; of bert, roberta, electra,
roformer and longformer; of bart and led.
"""

from collections.abc import Mapping
from typing import Any

from ctxextend.conversion.twins import (
    ABSENT,
    BASE,
    BASE_MODEL,
    BY_HEAD,
    CAUSAL_LM,
    FOR_GLOBAL,
    GENERATION,
    MASKED_LM,
    PLUS_MEAN,
    POSITION_ROWS,
    QUESTION_ANSWERING,
    RANDOM,
    REFUSED,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    TRANSPOSED,
    SourceType,
    TensorRule,
    Twin,
    TwinHead,
)
from ctxextend.settings import ATTENTION_WINDOWS, DEFAULT_ATTENTION_WINDOW, DEFAULT_THETA

NO = (None, False)  # values of a config key that must not be set
# Keys of any model type.
CUSTOM = {"auto_map": (None,), "quantization_config": (None,)}
# Of a masked LM, where only one of both types has this activation in every LM head.
GELU = {"hidden_act": ("gelu",)}
PRETRAINING = "ForPreTraining"  # how names of classes end


def _same(*names: str, if_missing: str = REFUSED) -> tuple[TensorRule, ...]:
    """Return rules for tensors with the same name in the twin."""
    return tuple(TensorRule(name, name, if_missing=if_missing) for name in names)


CLASSIFIER = _same("classifier.*")
QA_OUTPUTS = _same("qa_outputs.*")
TASK_HEADS = {
    TOKEN_CLASSIFICATION: TwinHead(end=TOKEN_CLASSIFICATION, rules=CLASSIFIER),
    QUESTION_ANSWERING: TwinHead(end=QUESTION_ANSWERING, rules=QA_OUTPUTS),
}


# ---- GPT-2


def _decoder(embeddings: str, layer: str, attention: str, norm: str) -> tuple[TensorRule, ...]:
    """Return the rules of a decoder, from the names of its modules in the twin."""
    return (
        TensorRule("wte.weight", f"{embeddings}.weight", PLUS_MEAN),
        TensorRule("h.*.ln_1.*", f"{layer}.*.input_layernorm.*"),
        TensorRule("h.*.attn.c_attn.*", f"{layer}.*.{attention}.query_key_value.*", BY_HEAD),
        TensorRule("h.*.attn.c_proj.*", f"{layer}.*.{attention}.dense.*", TRANSPOSED),
        TensorRule("h.*.ln_2.*", f"{layer}.*.post_attention_layernorm.*"),
        TensorRule("h.*.mlp.c_fc.*", f"{layer}.*.mlp.dense_h_to_4h.*", TRANSPOSED),
        TensorRule("h.*.mlp.c_proj.*", f"{layer}.*.mlp.dense_4h_to_h.*", TRANSPOSED),
        TensorRule("ln_f.*", f"{norm}.*"),
    )


def _decoder_heads(lm_head: str) -> dict[str, TwinHead]:
    """Return the classes of a decoder, from the name of its LM head."""
    # A head that the source ties to its embeddings is not stored. The twin cannot tie it, since the
    # mean position row is added to its embeddings.
    rules = (
        TensorRule(f"{BASE}wte.weight", lm_head),
        TensorRule("lm_head.weight", lm_head, if_missing=ABSENT),
    )
    return {
        "LMHeadModel": TwinHead(end=CAUSAL_LM, rules=rules),
        BASE_MODEL: TwinHead(end=BASE_MODEL),
        **TASK_HEADS,
    }


GPT2_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout",
    "attn_pdrop": "attention_dropout",
}

NEOX_TWIN = Twin(
    scheme="rotary",
    theta=DEFAULT_THETA,
    model_type="gpt_neox",
    class_name="GPTNeoX",
    prefix="gpt_neox.",
    rules=_decoder("embed_in", "layers", "attention", "final_layer_norm"),
    heads=_decoder_heads("embed_out.weight"),
    keys=GPT2_KEYS,
    fixed={
        "attention_bias": True,
        "use_parallel_residual": False,
        "tie_word_embeddings": False,
    },
)

FALCON_KEYS = {
    "n_inner": "ffn_hidden_size",
    "activation_function": "activation",
    "layer_norm_epsilon": "layer_norm_epsilon",
}
FALCON = Twin(
    scheme="alibi",
    model_type="falcon",
    class_name="Falcon",
    prefix="transformer.",
    rules=_decoder("word_embeddings", "h", "self_attention", "ln_f"),
    heads=_decoder_heads("lm_head.weight"),
    keys=GPT2_KEYS | FALCON_KEYS,
    fixed={
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "new_decoder_architecture": False,
        "parallel_attn": False,
        "tie_word_embeddings": False,
    },
    limits=(
        "transformers computes Falcon's ALiBi biases in bfloat16, so far positions share biases, "
        "and divides them by the square root of the head size, so they fall more slowly than in "
        "the paper"
    ),
)

GPT2 = SourceType(
    class_name="GPT2",
    twins=(NEOX_TWIN, FALCON),
    defaults={
        "vocab_size": 50257,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    required={
        "scale_attn_by_inverse_layer_idx": NO,
        "scale_attn_weights": (None, True),
        "add_cross_attention": NO,
        **CUSTOM,
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    unused=("n_ctx", "embd_pdrop", "reorder_and_upcast_attn", "summary_*"),
)


# ---- encoders with rotary positions


PROJECTIONS = ("query", "key", "value")
ENCODER_LAYER = (
    *(f"attention.self.{name}" for name in PROJECTIONS),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
ENCODER_LAYERS = _same(*(f"encoder.layer.*.{name}.*" for name in ENCODER_LAYER))
ROFORMER_RULES = (
    TensorRule(
        "embeddings.token_type_embeddings.weight",
        "embeddings.token_type_embeddings.weight",
        PLUS_MEAN,
    ),
    *_same("embeddings.word_embeddings.weight", "embeddings.LayerNorm.*"),
    *_same("embeddings_project.*", if_missing=ABSENT),
    *ENCODER_LAYERS,
)


# The names of the tensors in the head of a masked LM: of both layers, of the bias, and of the
# decoder, which transformers usually ties to the embeddings and to the bias.
BERT_LM = (
    "cls.predictions.transform.dense.*",
    "cls.predictions.transform.LayerNorm.*",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)
ROBERTA_LM = (
    "lm_head.dense.*",
    "lm_head.layer_norm.*",
    "lm_head.bias",
    "lm_head.decoder.weight",
    "lm_head.decoder.bias",
)
ELECTRA_LM = (
    "generator_predictions.dense.*",
    "generator_predictions.LayerNorm.*",
    "generator_lm_head.bias",
    "generator_lm_head.weight",
)


def _masked_lm(
    source: tuple[str, ...], twin: tuple[str, ...], required: Mapping[str, tuple[Any, ...]]
) -> TwinHead:
    """Return the class of a masked LM, from the names of the tensors in both heads."""
    rules = list[TensorRule]()
    for before, after in zip(source, twin, strict=False):  # ELECTRA's decoder has the only bias
        if_missing = REFUSED
        if ".decoder." in after:
            if_missing = ABSENT
        rules.append(TensorRule(before, after, if_missing=if_missing))
    return TwinHead(end=MASKED_LM, rules=tuple(rules), required=required)


def _roformer(lm_heads: Mapping[str, TwinHead]) -> Twin:
    """Return the twin with rotary positions, whose classes with an LM head are given."""
    return Twin(
        scheme="rotary",
        model_type="roformer",
        class_name="RoFormer",
        prefix="roformer.",
        rules=ROFORMER_RULES,
        heads={
            BASE_MODEL: TwinHead(end=BASE_MODEL),
            **lm_heads,
            **TASK_HEADS,
        },
        fixed={"rotary_value": False},
        has_angles=True,
    )


# ---- encoders with attention windows


LONGFORMER_RULES = (
    *_same("embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"),
    TensorRule(
        "embeddings.position_embeddings.weight",
        "embeddings.position_embeddings.weight",
        POSITION_ROWS,
    ),
    *_same("embeddings.LayerNorm.*"),
    *ENCODER_LAYERS,
    *(
        TensorRule(
            f"encoder.layer.*.attention.self.{name}.*",
            f"encoder.layer.*.attention.self.{name}_global.*",
            FOR_GLOBAL,
        )
        for name in PROJECTIONS
    ),
)


def _longformer(
    heads: Mapping[str, TwinHead],
    *,
    defaults: Mapping[str, Any],
    unused: tuple[str, ...] = (),
    same_width: str | None = None,
) -> Twin:
    """Return the twin with attention windows.

    Args:
        heads: The classes that not all types have.
        defaults, unused, same_width: As in `Twin`.
    """
    pooler = _same(f"{BASE}pooler.dense.*", if_missing=RANDOM)
    return Twin(
        scheme=ATTENTION_WINDOWS,
        attention_window=DEFAULT_ATTENTION_WINDOW,
        model_type="longformer",
        class_name="Longformer",
        prefix="longformer.",
        rules=LONGFORMER_RULES,
        heads={
            BASE_MODEL: TwinHead(end=BASE_MODEL, rules=pooler),
            TOKEN_CLASSIFICATION: TASK_HEADS[TOKEN_CLASSIFICATION],
            **heads,
        },
        defaults=defaults,
        unused=("classifier_dropout", *unused),
        tokens=("pad_token_id",),  # positions are counted from it
        same_width=same_width,
    )


# Defaults that Longformer, which has RoBERTa's, does not share with BERT.
BERT_TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
BERT_MASKED_LM = _masked_lm(BERT_LM, ROBERTA_LM, GELU)
BERT_WINDOWS = _longformer(
    {
        MASKED_LM: BERT_MASKED_LM,
        PRETRAINING: BERT_MASKED_LM,
        SEQUENCE_CLASSIFICATION: TwinHead(
            end=SEQUENCE_CLASSIFICATION,
            # BERT's head reads the pooler's output, and Longformer's has the same two layers.
            rules=(
                TensorRule(f"{BASE}pooler.dense.*", "classifier.dense.*"),
                TensorRule("classifier.*", "classifier.out_proj.*"),
            ),
            global_attention="The first token",
        ),
    },
    defaults=BERT_TOKENS,
)
ROBERTA_WINDOWS = _longformer(
    {
        MASKED_LM: _masked_lm(ROBERTA_LM, ROBERTA_LM, {}),
        SEQUENCE_CLASSIFICATION: TwinHead(
            end=SEQUENCE_CLASSIFICATION,
            rules=_same("classifier.dense.*", "classifier.out_proj.*"),
            global_attention="The first token",
        ),
    },
    defaults={},
)
# Its sequence classifier has gelu between two layers, where Longformer's has tanh.
ELECTRA_WINDOWS = _longformer(
    {MASKED_LM: _masked_lm(ELECTRA_LM, ROBERTA_LM, {})},
    defaults=BERT_TOKENS,
    unused=("embedding_size", "summary_*"),
    same_width="embedding_size",  # a width between embeddings and layers needs a projection
)


# ---- sources that are encoders


ENCODER_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
}


def _encoder(
    class_name: str,
    twins: tuple[Twin, ...],
    defaults: Mapping[str, Any],
) -> SourceType:
    """Return a type of encoders; `defaults` are those beyond BERT's."""
    unused = ["gradient_checkpointing"]
    if "embedding_size" not in defaults:  # only classes that have the key read it
        unused.append("embedding_size")
    return SourceType(
        class_name=class_name,
        twins=twins,
        defaults={**ENCODER_DEFAULTS, **defaults},
        required={
            "position_embedding_type": (None, "absolute"),
            "is_decoder": NO,
            "add_cross_attention": NO,
            **CUSTOM,
        },
        unused=tuple(unused),
    )


ROBERTA_DEFAULTS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ROBERTA_TWINS = (
    _roformer({MASKED_LM: _masked_lm(ROBERTA_LM, BERT_LM, GELU)}),
    ROBERTA_WINDOWS,
)
ELECTRA_DEFAULTS = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


# ---- BART


BART_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
BART_ATTENTION = "encoder.layers.*.self_attn"
BART_ENCODER_LAYER = ("self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
BART_DECODER_LAYER = (
    *(f"self_attn.{name}" for name in (*BART_PROJECTIONS.values(), "out_proj")),
    *(f"encoder_attn.{name}" for name in (*BART_PROJECTIONS.values(), "out_proj")),
    "encoder_attn_layer_norm",
    *BART_ENCODER_LAYER,
)
LED = Twin(
    scheme=ATTENTION_WINDOWS,
    attention_window=DEFAULT_ATTENTION_WINDOW,
    model_type="led",
    class_name="LED",
    prefix="led.",
    rules=(
        *_same("shared.weight", if_missing=ABSENT),  # all embeddings are one
        *_same("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", if_missing=ABSENT),
        *_same("encoder.layernorm_embedding.*", "decoder.layernorm_embedding.*"),
        *(
            TensorRule(
                f"{part}.embed_positions.weight", f"{part}.embed_positions.weight", POSITION_ROWS
            )
            for part in ("encoder", "decoder")
        ),
        *(
            TensorRule(
                f"{BART_ATTENTION}.{source}.*", f"{BART_ATTENTION}.longformer_self_attn.{name}.*"
            )
            for name, source in BART_PROJECTIONS.items()
        ),
        *(
            TensorRule(
                f"{BART_ATTENTION}.{source}.*",
                f"{BART_ATTENTION}.longformer_self_attn.{name}_global.*",
                FOR_GLOBAL,
            )
            for name, source in BART_PROJECTIONS.items()
        ),
        TensorRule(f"{BART_ATTENTION}.out_proj.*", f"{BART_ATTENTION}.output.*"),
        *_same(*(f"encoder.layers.*.{name}.*" for name in BART_ENCODER_LAYER)),
        *_same(*(f"decoder.layers.*.{name}.*" for name in BART_DECODER_LAYER)),
    ),
    heads={
        BASE_MODEL: TwinHead(end=BASE_MODEL),
        GENERATION: TwinHead(
            end=GENERATION,
            rules=_same("final_logits_bias", "lm_head.weight", if_missing=ABSENT),
        ),
        QUESTION_ANSWERING: TASK_HEADS[QUESTION_ANSWERING],
    },
    # Those of a classifier, which neither has: for the same number of labels.
    defaults={
        "id2label": {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    },
    width_key="d_model",
    heads_key="encoder_attention_heads",
    layer_keys=("encoder_layers", "decoder_layers"),
    part="encoder",
)
BART = SourceType(
    class_name="Bart",
    twins=(LED,),
    defaults={
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
    },
    required={
        "scale_embedding": NO,
        "is_decoder": NO,
        "is_encoder_decoder": (None, True),
        **CUSTOM,
    },
    unused=("gradient_checkpointing",),
)


SOURCE_TYPES = {
    "gpt2": GPT2,
    "bert": _encoder(
        "Bert",
        (
            _roformer(dict.fromkeys((MASKED_LM, PRETRAINING), _masked_lm(BERT_LM, BERT_LM, {}))),
            BERT_WINDOWS,
        ),
        {},
    ),
    "roberta": _encoder("Roberta", ROBERTA_TWINS, ROBERTA_DEFAULTS | {"vocab_size": 50265}),
    "camembert": _encoder("Camembert", ROBERTA_TWINS, ROBERTA_DEFAULTS),
    "xlm-roberta": _encoder("XLMRoberta", ROBERTA_TWINS, ROBERTA_DEFAULTS),
    "electra": _encoder(
        "Electra",
        (_roformer({MASKED_LM: _masked_lm(ELECTRA_LM, BERT_LM, GELU)}), ELECTRA_WINDOWS),
        ELECTRA_DEFAULTS,
    ),
    "bart": BART,
}
