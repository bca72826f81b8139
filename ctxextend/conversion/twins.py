"""Twins: model types of transformers that differ from another one only in their position scheme.

Source: transformers 5.23, modeling_*.py of gpt2, gpt_neox and falcon; of bert, roberta, electra and
roformer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.tables.sinusoids import sinusoidal_rows

Array = NDArray[Any]
COPIED = "copied"
TRANSPOSED = "transposed"
BY_HEAD = "regrouped by head"
PLUS_MEAN = "plus the mean position row"
# How names of classes end.
BASE_MODEL = "Model"
CAUSAL_LM = "ForCausalLM"
MASKED_LM = "ForMaskedLM"
TASK_HEADS = ("ForTokenClassification", "ForQuestionAnswering")


def by_head(values: Array, heads: int) -> Array:
    """Transpose a fused projection, (d, 3d) or (3d,), and regroup its outputs by head, (3d, d).

    GPT-2 splits outputs into queries, keys and values, and then into heads; GPT-NeoX and Falcon
    into heads first.
    """
    outputs = values.T  # (3d, d), or (3d,) for a bias
    head_dim = len(outputs) // (3 * heads)
    inputs = outputs.shape[1:]
    parts_first = outputs.reshape(3, heads, head_dim, *inputs)
    heads_first = np.ascontiguousarray(parts_first.swapaxes(0, 1))  # (heads, 3, head_dim, d)
    return heads_first.reshape(outputs.shape)


def plus_mean(values: Array, mean: NDArray[np.float64]) -> Array:
    """Add the mean position row, (d,), to every row of (n, d).

    The sum is computed in float64 and rounded once, to the dtype of the values.
    """
    # numpy converts the values to float64 in blocks, so that no copy of all of them is made.
    return np.add(values, mean, dtype=np.float64, casting="unsafe", out=np.empty_like(values))


def angles(max_len: int, head_dim: int) -> NDArray[np.float32]:
    """Return RoFormer's table of sines and cosines, (max_len, head_dim), with theta 10,000."""
    return sinusoidal_rows(np.arange(max_len), head_dim, "halves").astype(np.float32)


def match_pattern(pattern: str, name: str) -> re.Match[str] | None:
    """Match a name in which each ``*`` of a pattern is a part without dots."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "([^.]+)"), name)


class TensorRule(NamedTuple):
    """How to compute a tensor of a twin from one of the source.

    In names, ``*`` is the same part on both sides:
    TensorRule("h.*.ln_1.*", "layers.*.input_layernorm.*") computes
    ``layers.5.input_layernorm.bias`` from ``h.5.ln_1.bias``.
    """

    source: str
    name: str
    how: str = COPIED

    def twin_name(self, tensor: str) -> str | None:
        """Return the twin's name for a tensor of the source; None if the rule does not apply."""
        match = match_pattern(self.source, tensor)
        if match is None:
            return None
        parts = iter(match.groups())
        return re.sub(r"\*", lambda _: next(parts), self.name)


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A model type that computes the same with another position scheme."""

    scheme: str  # as in `Convert.scheme`
    model_type: str
    class_name: str  # how names of its classes start
    prefix: str  # of the base model's tensors in a model with a head
    rules: tuple[TensorRule, ...]  # of the base model, without prefixes
    # Config keys with another name in the source, from that name: {"n_embd": "hidden_size"}.
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]  # other values of its config: {"use_parallel_residual": False}
    # The tensor of an LM head that cannot be tied, since embeddings contain the mean row.
    lm_head: str | None = None
    has_angles: bool = False  # whether its files contain a table of angles, `ANGLES_TABLE`
    limits: str = ""  # in which ways it is less exact, as a sentence

    def class_of(self, head: str) -> str:
        """Return the name of its class that ends with a head, such as `CAUSAL_LM`."""
        return f"{self.class_name}{head}"


@dataclass(frozen=True, kw_only=True)
class SourceType:
    """A model type with learned positions, and which of its models have twins."""

    class_name: str  # how names of its classes start
    twins: tuple[Twin, ...]
    tokenizer: str  # the class of tokenizer that transformers uses for it
    # Values of config keys that the twin needs, if they are missing: {"n_embd": 768}.
    defaults: Mapping[str, Any]
    # Values that config keys may have, None for a missing key: {"is_decoder": (None, False)}. Other
    # models have no twin.
    required: Mapping[str, tuple[Any, ...]]
    # Ends of class names, with those of the twin: {"LMHeadModel": "ForCausalLM"}.
    heads: Mapping[str, str]
    rules: tuple[TensorRule, ...]  # of tensors of heads; others are in `Twin.rules`
    default_head: str = (
        BASE_MODEL  # if config.json states no class, and no tensor is that of a masked LM
    )
    # Config keys of the twin that transformers also accepts in the source: ``hidden_size`` of
    # GPT-2, for ``n_embd``.
    aliases: tuple[str, ...] = ()
    # Config keys without effect in the twin, such as ``summary_*``; ``*`` as in `TensorRule`.
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # buffers of the base model, which the twin lacks
    lm_act: str | None = None  # the activation in its LM head, if no config key states it


ANGLES_TABLE = "encoder.embed_positions.weight"  # the table of RoFormer's base model
# The bias of RoFormer's LM head has two names, which transformers usually ties.
MASKED_LM_BIAS = "cls.predictions.bias"
MASKED_LM_DECODER_BIAS = "cls.predictions.decoder.bias"
NO = (None, False)  # values of a config key that must not be set
# Keys of any model type.
CUSTOM = {"auto_map": (None,), "quantization_config": (None,)}


def _same(*names: str) -> tuple[TensorRule, ...]:
    """Return rules for tensors with the same name in the twin."""
    return tuple(TensorRule(name, name) for name in names)


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
    heads={"LMHeadModel": CAUSAL_LM, BASE_MODEL: BASE_MODEL, **{task: task for task in TASK_HEADS}},
    rules=_same("classifier.*", "qa_outputs.*"),
    default_head="LMHeadModel",
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    unused=("n_ctx", "embd_pdrop", "reorder_and_upcast_attn", "summary_*"),
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
)


# ---- encoders


ENCODER_LAYER = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
ROFORMER = Twin(
    scheme="rotary",
    model_type="roformer",
    class_name="RoFormer",
    prefix="roformer.",
    rules=(
        TensorRule("embeddings.token_type_*.weight", "embeddings.token_type_*.weight", PLUS_MEAN),
        *_same("embeddings.word_embeddings.weight", "embeddings.LayerNorm.*"),
        *_same("embeddings_project.*"),
        *_same(*(f"encoder.layer.*.{name}.*" for name in ENCODER_LAYER)),
    ),
    keys={},
    fixed={"rotary_value": False},
    has_angles=True,
)
ENCODER_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
}


def _encoder(
    class_name: str,
    lm_rules: tuple[TensorRule, ...],
    defaults: Mapping[str, Any],
    *,
    heads: Mapping[str, str] | None = None,
    lm_act: str | None = None,
) -> SourceType:
    """Return a type whose twin is RoFormer; `defaults` and `heads` are those beyond BERT's."""
    unused = ["gradient_checkpointing"]
    if "embedding_size" not in defaults:  # only classes that have the key read it
        unused.append("embedding_size")
    return SourceType(
        class_name=class_name,
        twins=(ROFORMER,),
        tokenizer=f"{class_name}Tokenizer",
        defaults={**ENCODER_DEFAULTS, **defaults},
        required={
            "position_embedding_type": (None, "absolute"),
            "is_decoder": NO,
            "add_cross_attention": NO,
            **CUSTOM,
        },
        heads={name: name for name in (BASE_MODEL, MASKED_LM, *TASK_HEADS)} | dict(heads or {}),
        rules=(*lm_rules, *_same("classifier.*", "qa_outputs.*")),
        unused=tuple(unused),
        ignored=("embeddings.position_ids", "embeddings.token_type_ids"),
        lm_act=lm_act,
    )


BERT_RULES = _same(
    "cls.predictions.bias",
    "cls.predictions.decoder.*",
    "cls.predictions.transform.*.*",
)
ROBERTA_RULES = (
    TensorRule("lm_head.dense.*", "cls.predictions.transform.dense.*"),
    TensorRule("lm_head.layer_norm.*", "cls.predictions.transform.LayerNorm.*"),
    TensorRule("lm_head.decoder.*", "cls.predictions.decoder.*"),
    TensorRule("lm_head.bias", "cls.predictions.bias"),
)
ROBERTA_DEFAULTS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
ELECTRA_RULES = (
    TensorRule("generator_predictions.*.*", "cls.predictions.transform.*.*"),
    TensorRule("generator_lm_head.weight", "cls.predictions.decoder.weight"),
    TensorRule("generator_lm_head.bias", "cls.predictions.bias"),
)
ELECTRA_DEFAULTS = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
SOURCE_TYPES = {
    "gpt2": GPT2,
    "bert": _encoder("Bert", BERT_RULES, {}, heads={"ForPreTraining": MASKED_LM}),
    "roberta": _encoder(
        "Roberta", ROBERTA_RULES, ROBERTA_DEFAULTS | {"vocab_size": 50265}, lm_act="gelu"
    ),
    "camembert": _encoder("Camembert", ROBERTA_RULES, ROBERTA_DEFAULTS, lm_act="gelu"),
    "xlm-roberta": _encoder("XLMRoberta", ROBERTA_RULES, ROBERTA_DEFAULTS, lm_act="gelu"),
    "electra": _encoder("Electra", ELECTRA_RULES, ELECTRA_DEFAULTS, lm_act="gelu"),
}
