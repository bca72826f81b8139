"""Twins: model types of transformers that differ from another one only in their position scheme.

Source: the classes of transformers 5.23: modeling_gpt2.py next to modeling_gpt_neox.py and modeling_falcon.py;
modeling_bert.py, modeling_roberta.py and modeling_electra.py next to modeling_roformer.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.families.schema import ALIBI, ROTARY

Array = NDArray[Any]
COPIED, TRANSPOSED, BY_HEAD, PLUS_MEAN = "copied", "transposed", "regrouped by head", "plus the mean position row"


def by_head(values: Array, heads: int) -> Array:
    """Transpose a fused projection, (d, 3d) or (3d,), and regroup its outputs: those of each head together, (3d, d).

    GPT-2 splits outputs into queries, keys and values, and then into heads; GPT-NeoX and Falcon into heads first.
    """
    outputs = values.T
    parts = outputs.reshape(3, heads, len(outputs) // (3 * heads), *outputs.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(outputs.shape)


def plus_mean(values: Array, mean: NDArray[np.float64]) -> Array:
    """Add the mean position row, (d,), to every row of (n, d): in float64, rounded once to the dtype of the values."""
    return (values.astype(np.float64) + mean).astype(values.dtype)


class Rule(NamedTuple):
    """How to compute a tensor of a twin from one of the source; ``*`` is the same part of both names."""

    source: str
    name: str
    how: str = COPIED

    def applied(self, tensor: str) -> str | None:
        """Return the twin's name for a tensor of the source; None if the rule does not apply to it."""
        match = re.fullmatch(re.escape(self.source).replace(r"\*", "(.+?)"), tensor)
        parts = iter(match.groups()) if match else None
        return None if parts is None else re.sub(r"\*", lambda _: next(parts), self.name)


@dataclass(frozen=True)
class SourceType:
    """A model type with learned positions, and which of its models have twins."""

    class_name: str  # how its classes are named
    twins: Sequence["Twin"]
    heads: Mapping[str, str]  # the rest of a class's name, and that of the twin
    head_rules: tuple[Rule, ...]  # names outside the base model
    config: Mapping[str, tuple[str, Any]]  # keys with their defaults, by the keys of `Twin.keys`
    required: Mapping[str, tuple[Any, ...]]  # values that config keys may have, the default first
    tokenizer: str  # class of the tokenizer that transformers uses for the type
    default_head: str = "Model"  # without a class in config.json and without tensors of a head
    ignored: tuple[str, ...] = ()  # buffers
    lm_act: str | None = None  # the activation of its LM head if that does not depend on the config


@dataclass(frozen=True)
class Twin:
    """A model type that computes the same with another position scheme."""

    scheme: str  # as in `Convert.scheme`
    model_type: str
    class_name: str  # how its classes are named
    prefix: str  # of the base model's tensors in a model with a head
    rules: tuple[Rule, ...]  # names in the base model
    keys: dict[str, str]  # its config keys, by those of `SourceType.config`
    fixed: Mapping[str, Any]  # other values of its config
    lm_head: str | None = None  # the LM head, if it is not tied as in the source
    has_angles: bool = False  # whether its file has a table of angles, (max_len, head_dim)
    limits: str = ""  # in which ways it is less exact, as a sentence

    @property
    def positions(self) -> str:
        """The position scheme, as in messages."""
        return {"alibi": ALIBI}.get(self.scheme, ROTARY)


def _block(layer: str, attention: str) -> tuple[Rule, ...]:
    """Return the rules of the blocks of a GPT-2 model."""
    return (
        Rule("h.*.ln_1.*", f"{layer}.*.input_layernorm.*"),
        Rule("h.*.attn.c_attn.*", f"{layer}.*.{attention}.query_key_value.*", BY_HEAD),
        Rule("h.*.attn.c_proj.*", f"{layer}.*.{attention}.dense.*", TRANSPOSED),
        Rule("h.*.ln_2.*", f"{layer}.*.post_attention_layernorm.*"),
        Rule("h.*.mlp.c_fc.*", f"{layer}.*.mlp.dense_h_to_4h.*", TRANSPOSED),
        Rule("h.*.mlp.c_proj.*", f"{layer}.*.mlp.dense_4h_to_h.*", TRANSPOSED),
    )


NEOX = Twin(
    "rotary",
    "gpt_neox",
    "GPTNeoX",
    "gpt_neox.",
    (
        Rule("wte.weight", "embed_in.weight", PLUS_MEAN),
        *_block("layers", "attention"),
        Rule("ln_f.*", "final_layer_norm.*"),
    ),
    {
        **{"vocab_size": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers"},
        **{"heads": "num_attention_heads", "inner": "intermediate_size", "act": "hidden_act"},
        **{"dropout": "hidden_dropout", "attention_dropout": "attention_dropout", "eps": "layer_norm_eps"},
        **{"bos": "bos_token_id", "eos": "eos_token_id"},
    },
    {"attention_bias": True, "use_parallel_residual": False, "tie_word_embeddings": False},
    lm_head="embed_out.weight",
)
FALCON = Twin(
    "alibi",
    "falcon",
    "Falcon",
    "transformer.",
    (
        Rule("wte.weight", "word_embeddings.weight", PLUS_MEAN),
        *_block("h", "self_attention"),
        Rule("ln_f.*", "ln_f.*"),
    ),
    NEOX.keys | {"inner": "ffn_hidden_size", "act": "activation", "eps": "layer_norm_epsilon"},
    {
        **{"alibi": True, "bias": True, "multi_query": False, "new_decoder_architecture": False},
        **{"parallel_attn": False, "tie_word_embeddings": False},
    },
    lm_head="lm_head.weight",
    limits="transformers computes Falcon's ALiBi biases in bfloat16, so far positions share biases, and divides them "
    "by the square root of the head size, so they fall more slowly than in the paper",
)
ROFORMER = Twin(
    "rotary",
    "roformer",
    "RoFormer",
    "roformer.",
    (
        Rule("embeddings.token_type_embeddings.weight", "embeddings.token_type_embeddings.weight", PLUS_MEAN),
        *(Rule(name, name) for name in ("embeddings.word_embeddings.weight", "embeddings.LayerNorm.*")),
        *(Rule(name, name) for name in ("embeddings_project.*", "encoder.layer.*")),
    ),
    {
        **{"vocab_size": "vocab_size", "width": "hidden_size", "layers": "num_hidden_layers"},
        **{"heads": "num_attention_heads", "inner": "intermediate_size", "act": "hidden_act"},
        **{"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"},
        **{"eps": "layer_norm_eps", "bos": "bos_token_id", "eos": "eos_token_id", "pad": "pad_token_id"},
        **{"types": "type_vocab_size", "embedding": "embedding_size"},
    },
    {"rotary_value": False},
    has_angles=True,
)
ANGLES, ANGLES_LAYOUT = "encoder.embed_positions.weight", "halves"  # sines and cosines; theta is 10,000

GPT2 = SourceType(
    "GPT2",
    (NEOX, FALCON),
    {"LMHeadModel": "ForCausalLM", **{name: name for name in ("Model", "ForTokenClassification")}}
    | {"ForQuestionAnswering": "ForQuestionAnswering"},
    (Rule("classifier.*", "classifier.*"), Rule("qa_outputs.*", "qa_outputs.*")),
    {
        **{"vocab_size": ("vocab_size", 50257), "width": ("n_embd", 768), "layers": ("n_layer", 12)},
        **{"heads": ("n_head", 12), "inner": ("n_inner", None), "act": ("activation_function", "gelu_new")},
        **{"dropout": ("resid_pdrop", 0.1), "attention_dropout": ("attn_pdrop", 0.1)},
        **{"eps": ("layer_norm_epsilon", 1e-5), "bos": ("bos_token_id", 50256), "eos": ("eos_token_id", 50256)},
    },
    {"scale_attn_by_inverse_layer_idx": (False,), "scale_attn_weights": (True,), "add_cross_attention": (False,)},
    "GPT2Tokenizer",
    default_head="LMHeadModel",
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
)
BERT_CONFIG: dict[str, tuple[str, Any]] = {
    name: (key, default)
    for (name, key), default in zip(
        ROFORMER.keys.items(), (30522, 768, 12, 12, 3072, "gelu", 0.1, 0.1, 1e-12, None, None, 0, 2, None), strict=True
    )
}
ROBERTA_CONFIG = BERT_CONFIG | {"pad": ("pad_token_id", 1), "bos": ("bos_token_id", 0), "eos": ("eos_token_id", 2)}
ELECTRA_CONFIG = BERT_CONFIG | {"width": ("hidden_size", 256), "heads": ("num_attention_heads", 4)}
ELECTRA_CONFIG |= {"inner": ("intermediate_size", 1024)}
ENCODER_HEADS = {f"For{task}": f"For{task}" for task in ("MaskedLM", "TokenClassification", "QuestionAnswering")}
ENCODER_HEADS |= {"Model": "Model"}
TASK_RULES = tuple(Rule(f"{name}.*", f"{name}.*") for name in ("classifier", "qa_outputs"))
ENCODER = {
    "position_embedding_type": (None, "absolute"),
    **dict.fromkeys(("is_decoder", "add_cross_attention"), (False, None)),
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def _encoder(class_name: str, tokenizer: str, **others: Any) -> SourceType:
    """Return a type whose twin is RoFormer; RoBERTa's names of the LM head are the default."""
    roberta_rules = (
        Rule("lm_head.layer_norm.*", "cls.predictions.transform.LayerNorm.*"),
        Rule("lm_head.dense.*", "cls.predictions.transform.dense.*"),
        Rule("lm_head.decoder.*", "cls.predictions.decoder.*"),
        Rule("lm_head.bias", "cls.predictions.bias"),
    )
    fields = {"heads": ENCODER_HEADS, "head_rules": roberta_rules, "config": ROBERTA_CONFIG, "lm_act": "gelu"} | others
    fields["head_rules"] += TASK_RULES
    return SourceType(class_name, (ROFORMER,), required=ENCODER, tokenizer=tokenizer, ignored=BUFFERS, **fields)


SOURCE_TYPES = {
    "gpt2": GPT2,
    "bert": _encoder(
        "Bert",
        "BertTokenizer",
        heads=ENCODER_HEADS | {"ForPreTraining": "ForMaskedLM"},
        head_rules=(Rule("cls.predictions.*", "cls.predictions.*"),),
        config=BERT_CONFIG,
        lm_act=None,
    ),
    "roberta": _encoder("Roberta", "RobertaTokenizer"),
    "camembert": _encoder("Camembert", "CamembertTokenizer"),
    "xlm-roberta": _encoder("XLMRoberta", "XLMRobertaTokenizer"),
    "electra": _encoder(
        "Electra",
        "ElectraTokenizer",
        head_rules=(
            *(
                Rule(f"generator_predictions.{name}.*", f"cls.predictions.transform.{name}.*")
                for name in ("dense", "LayerNorm")
            ),
            Rule("generator_lm_head.weight", "cls.predictions.decoder.weight"),
            Rule("generator_lm_head.bias", "cls.predictions.bias"),
        ),
        config=ELECTRA_CONFIG,
    ),
}
