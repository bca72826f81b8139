"""Model types with learned positions, and their twins.

Source: transformers 5.24, modeling_*.py of gpt2, gpt_neox and falcon; of bert, roberta, electra,
roformer and longformer; of bart and led.
"""

from collections.abc import Mapping
from typing import Any

from ctxextend.conversion.twins import (
    BASE_MODEL,
    BY_HEAD,
    CAUSAL_LM,
    FOR_GLOBAL,
    GENERATION,
    MASKED_LM,
    MULTIPLE_CHOICE,
    PLUS_MEAN,
    POSITION_ROWS,
    QUESTION_ANSWERING,
    SEPARATOR_KEY,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    TRANSPOSED,
    SourceType,
    TensorRule,
    Twin,
    TwinHead,
)
from ctxextend.settings import ATTENTION_WINDOWS

NO = (None, False)  # values of a config key that must not be set
# Keys of any model type.
CUSTOM = {"auto_map": (None,), "quantization_config": (None,)}


def _same(*names: str, is_needed: bool = True) -> tuple[TensorRule, ...]:
    """Return rules for tensors with the same name in the twin."""
    return tuple(TensorRule(name, name, is_needed=is_needed) for name in names)


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
    rules = (TensorRule("lm_head.weight", lm_head, is_needed=False),)
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
    lm_head="embed_out.weight",
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
    lm_head="lm_head.weight",
    limits=(
        "transformers computes Falcon's ALiBi biases in bfloat16, so far positions share biases, "
        "and divides them by the square root of the head size, so they fall more slowly than in "
        "the paper"
    ),
)

GPT2 = SourceType(
    class_name="GPT2",
    twins=(NEOX_TWIN, FALCON),
    tokenizer="GPT2Tokenizer",
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
    default_head="LMHeadModel",
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    unused=("n_ctx", "embd_pdrop", "reorder_and_upcast_attn", "summary_*"),
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
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
        "embeddings.token_type_*.weight",
        "embeddings.token_type_*.weight",
        PLUS_MEAN,
        is_needed=False,
    ),
    *_same("embeddings.word_embeddings.weight", "embeddings.LayerNorm.*"),
    *_same("embeddings_project.*", is_needed=False),
    *ENCODER_LAYERS,
)


def _roformer(lm_rules: tuple[TensorRule, ...], *masked_lms: str) -> Twin:
    """Return the twin with rotary positions.

    Args:
        lm_rules: Of the tensors of a masked LM's head.
        masked_lms: How names of the source's classes with this head end, but for `MASKED_LM`.
    """
    masked_lm = TwinHead(end=MASKED_LM, rules=lm_rules)
    return Twin(
        scheme="rotary",
        model_type="roformer",
        class_name="RoFormer",
        prefix="roformer.",
        rules=ROFORMER_RULES,
        heads={
            BASE_MODEL: TwinHead(end=BASE_MODEL),
            MASKED_LM: masked_lm,
            **dict.fromkeys(masked_lms, masked_lm),
            **TASK_HEADS,
        },
        fixed={"rotary_value": False},
        lm_biases=("cls.predictions.bias", "cls.predictions.decoder.bias"),
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
POOLER_RULES = _same("pooler.dense.*")
FIRST_TOKEN = "the first token"
QUESTION = "the tokens of the question"
CHOICE = "the tokens of the choice"
# The classes look for the separators of RoBERTa's pairs: _compute_global_attention_mask.
THREE_SEPARATORS = (
    "Longformer{head} looks for the three separators that RoBERTa puts into a pair of texts, but "
    "{name} puts two"
)


def _longformer(
    lm_rules: tuple[TensorRule, ...],
    heads: Mapping[str, TwinHead],
    *,
    lm_classes: tuple[str, ...] = (),
    without_head: Mapping[str, str],
    defaults: Mapping[str, Any],
    unused: tuple[str, ...] = (),
    equal_keys: tuple[str, ...] = (),
) -> Twin:
    """Return the twin with attention windows.

    Args:
        lm_rules: Of the tensors of a masked LM's head.
        heads: The classes of the source that only some types have.
        lm_classes: How names of the source's classes with an LM head end, but for `MASKED_LM`.
        without_head, defaults, unused, equal_keys: As in `Twin`.
    """
    masked_lm = TwinHead(end=MASKED_LM, rules=lm_rules)
    return Twin(
        scheme=ATTENTION_WINDOWS,
        model_type="longformer",
        class_name="Longformer",
        prefix="longformer.",
        rules=LONGFORMER_RULES,
        heads={
            BASE_MODEL: TwinHead(
                end=BASE_MODEL,
                base_rules=POOLER_RULES,
                optional=("pooler.dense.weight", "pooler.dense.bias"),
            ),
            MASKED_LM: masked_lm,
            **dict.fromkeys(lm_classes, masked_lm),
            TOKEN_CLASSIFICATION: TASK_HEADS[TOKEN_CLASSIFICATION],
            **heads,
        },
        without_head=without_head,
        stated_as={SEPARATOR_KEY: "eos_token_id"},
        defaults=defaults,
        equal_keys=equal_keys,
        unused=("classifier_dropout", *unused),
        lm_act="gelu",
        lm_biases=("lm_head.bias", "lm_head.decoder.bias"),
    )


def _refused_pairs(name: str) -> dict[str, str]:
    """Return why a type has no class for pairs of texts."""
    refused = dict[str, str]()
    for head in (QUESTION_ANSWERING, MULTIPLE_CHOICE):
        refused[head] = THREE_SEPARATORS.format(head=head, name=name)
    return refused


BERT_LM = (
    *_same("cls.predictions.bias", "cls.predictions.transform.*.*"),
    *_same("cls.predictions.decoder.*", is_needed=False),
)
BERT_TO_ROBERTA_LM = (
    TensorRule("cls.predictions.transform.dense.*", "lm_head.dense.*"),
    TensorRule("cls.predictions.transform.LayerNorm.*", "lm_head.layer_norm.*"),
    TensorRule("cls.predictions.decoder.*", "lm_head.decoder.*", is_needed=False),
    TensorRule("cls.predictions.bias", "lm_head.bias"),
)
ROBERTA_LM = (
    *_same("lm_head.bias", "lm_head.dense.*", "lm_head.layer_norm.*"),
    *_same("lm_head.decoder.*", is_needed=False),
)
ROBERTA_TO_BERT_LM = (
    TensorRule("lm_head.dense.*", "cls.predictions.transform.dense.*"),
    TensorRule("lm_head.layer_norm.*", "cls.predictions.transform.LayerNorm.*"),
    TensorRule("lm_head.decoder.*", "cls.predictions.decoder.*", is_needed=False),
    TensorRule("lm_head.bias", "cls.predictions.bias"),
)
ELECTRA_TO_BERT_LM = (
    TensorRule("generator_predictions.*.*", "cls.predictions.transform.*.*"),
    TensorRule("generator_lm_head.weight", "cls.predictions.decoder.weight", is_needed=False),
    TensorRule("generator_lm_head.bias", "cls.predictions.bias"),
)
ELECTRA_TO_ROBERTA_LM = (
    TensorRule("generator_predictions.dense.*", "lm_head.dense.*"),
    TensorRule("generator_predictions.LayerNorm.*", "lm_head.layer_norm.*"),
    TensorRule("generator_lm_head.weight", "lm_head.decoder.weight", is_needed=False),
    TensorRule("generator_lm_head.bias", "lm_head.bias"),
)
# Defaults that Longformer, which has RoBERTa's, does not share with BERT.
BERT_TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
PRETRAINING = "ForPreTraining"
BERT_WINDOWS = _longformer(
    BERT_TO_ROBERTA_LM,
    {
        SEQUENCE_CLASSIFICATION: TwinHead(
            end=SEQUENCE_CLASSIFICATION,
            # BERT's head reads the pooler's output, and Longformer's has the same two layers.
            rules_from_base=(TensorRule("pooler.dense.*", "classifier.dense.*"),),
            rules=(TensorRule("classifier.*", "classifier.out_proj.*"),),
            global_attention=FIRST_TOKEN,
            global_pronoun="it",
        ),
    },
    lm_classes=(PRETRAINING,),
    without_head=_refused_pairs("BERT"),
    defaults=BERT_TOKENS,
)
ROBERTA_WINDOWS = _longformer(
    ROBERTA_LM,
    {
        SEQUENCE_CLASSIFICATION: TwinHead(
            end=SEQUENCE_CLASSIFICATION,
            rules=_same("classifier.dense.*", "classifier.out_proj.*"),
            global_attention=FIRST_TOKEN,
            global_pronoun="it",
        ),
        QUESTION_ANSWERING: TwinHead(
            end=QUESTION_ANSWERING,
            rules=QA_OUTPUTS,
            global_attention=QUESTION,
            needs_separators=True,
        ),
        MULTIPLE_CHOICE: TwinHead(
            end=MULTIPLE_CHOICE,
            rules=CLASSIFIER,
            base_rules=POOLER_RULES,
            global_attention=CHOICE,
            needs_separators=True,
        ),
    },
    without_head={},
    defaults={},
)
ELECTRA_WINDOWS = _longformer(
    ELECTRA_TO_ROBERTA_LM,
    {},
    without_head={
        **_refused_pairs("ELECTRA"),
        SEQUENCE_CLASSIFICATION: (
            "its head has gelu between two layers, where LongformerForSequenceClassification has "
            "tanh"
        ),
        PRETRAINING: "longformer models have no discriminator",
    },
    defaults=BERT_TOKENS,
    unused=("embedding_size", "summary_*"),
    # A width between embeddings and layers needs a projection.
    equal_keys=("embedding_size", "hidden_size"),
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
    *,
    lm_act: str | None = None,
) -> SourceType:
    """Return a type of encoders; `defaults` are those beyond BERT's."""
    unused = ["gradient_checkpointing"]
    if "embedding_size" not in defaults:  # only classes that have the key read it
        unused.append("embedding_size")
    return SourceType(
        class_name=class_name,
        twins=twins,
        tokenizer=f"{class_name}Tokenizer",
        defaults={**ENCODER_DEFAULTS, **defaults},
        required={
            "position_embedding_type": (None, "absolute"),
            "is_decoder": NO,
            "add_cross_attention": NO,
            **CUSTOM,
        },
        head_of_tensor={
            "discriminator_predictions.": PRETRAINING,
            "predictions.": MASKED_LM,
            "lm_head.": MASKED_LM,
        },
        unused=tuple(unused),
        ignored=("embeddings.position_ids", "embeddings.token_type_ids"),
        lm_act=lm_act,
    )


ROBERTA_DEFAULTS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ROBERTA_TWINS = (_roformer(ROBERTA_TO_BERT_LM), ROBERTA_WINDOWS)
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
    model_type="led",
    class_name="LED",
    prefix="led.",
    rules=(
        *_same("shared.weight", "*.embed_tokens.weight", is_needed=False),  # all are one
        *_same("encoder.layernorm_embedding.*", "decoder.layernorm_embedding.*"),
        TensorRule("*.embed_positions.weight", "*.embed_positions.weight", POSITION_ROWS),
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
            rules=_same("final_logits_bias", "lm_head.weight", is_needed=False),
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
    tokenizer="BartTokenizer",
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
    head_of_tensor={"final_logits_bias": GENERATION, "lm_head.": GENERATION},
    unused=("gradient_checkpointing",),
    ignored=("encoder.version", "decoder.version"),  # of fairseq
)


def types_with_twin(scheme: str) -> tuple[str, ...]:
    """Return the model types that have a twin with a scheme, as in `Convert.scheme`."""
    found = list[str]()
    for name, source_type in SOURCE_TYPES.items():
        if any(twin.scheme == scheme for twin in source_type.twins):
            found.append(name)
    return tuple(found)


SOURCE_TYPES = {
    "gpt2": GPT2,
    "bert": _encoder("Bert", (_roformer(BERT_LM, PRETRAINING), BERT_WINDOWS), {}),
    "roberta": _encoder(
        "Roberta", ROBERTA_TWINS, ROBERTA_DEFAULTS | {"vocab_size": 50265}, lm_act="gelu"
    ),
    "camembert": _encoder("Camembert", ROBERTA_TWINS, ROBERTA_DEFAULTS, lm_act="gelu"),
    "xlm-roberta": _encoder("XLMRoberta", ROBERTA_TWINS, ROBERTA_DEFAULTS, lm_act="gelu"),
    "electra": _encoder(
        "Electra",
        (_roformer(ELECTRA_TO_BERT_LM), ELECTRA_WINDOWS),
        ELECTRA_DEFAULTS,
        lm_act="gelu",
    ),
    "bart": BART,
}
