"""Twins: model types of transformers that compute what another one does with other positions.

The twin of a window keeps its positions, and attends to tokens near by.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# How a tensor of a twin is computed from one of the source.
COPIED = "copied"
TRANSPOSED = "transposed"
BY_HEAD = "regrouped by head"
PLUS_MEAN = "plus the mean position row"
FOR_GLOBAL = "copied for global attention"
POSITION_ROWS = "as a position table"
# If the source lacks a tensor: it is not complete; the twin ties this one, or has none either; or
# transformers fills it at random, and only one output depends on it.
REFUSED = "refused"
ABSENT = "absent"
RANDOM = "random"
# How names of classes end.
BASE_MODEL = "Model"
CAUSAL_LM = "ForCausalLM"
MASKED_LM = "ForMaskedLM"
GENERATION = "ForConditionalGeneration"
TOKEN_CLASSIFICATION = "ForTokenClassification"
SEQUENCE_CLASSIFICATION = "ForSequenceClassification"
QUESTION_ANSWERING = "ForQuestionAnswering"
ANGLES_TABLE = "encoder.embed_positions.weight"  # the table of RoFormer's base model
BASE = "~"  # in rules of a head: the prefix of the base model's tensors


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


class TensorRule(NamedTuple):
    """How to compute tensors of a twin from those of the source.

    In names, ``*`` is the number of a layer, and at the end weight and bias:
    TensorRule("h.*.ln_1.*", "layers.*.input_layernorm.*") computes
    ``layers.5.input_layernorm.bias`` from ``h.5.ln_1.bias``.
    """

    source: str
    name: str
    how: str = COPIED
    if_missing: str = REFUSED

    def replaced(self, old: str, new: object) -> "TensorRule":
        """Return the rule with a part of both names replaced."""
        source = self.source.replace(old, str(new))
        return self._replace(source=source, name=self.name.replace(old, str(new)))

    def expanded(self, layers: int) -> Iterator["TensorRule"]:
        """Yield the rule of each tensor, without ``*``."""
        if ".*." in self.name:
            for layer in range(layers):
                yield from self.replaced(".*.", f".{layer}.").expanded(layers)
        elif "*" in self.name:
            yield self.replaced("*", "weight")
            yield self.replaced("*", "bias")
        else:
            yield self


@dataclass(frozen=True, kw_only=True)
class TwinHead:
    """A class of a twin, and how the tensors of its head are computed."""

    end: str  # how its name ends, such as `CAUSAL_LM` or `BASE_MODEL`
    rules: tuple[TensorRule, ...] = ()  # by complete names, or with `BASE`
    # Values that config keys must have, next to those of the source's type.
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Which token attends to all others, and these to it: the rule of the class.
    global_attention: str = "No token"


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A model type that computes the same with another position scheme, or in attention windows."""

    scheme: str  # as in `Convert.scheme`
    model_type: str
    class_name: str  # how names of its classes start
    prefix: str  # of the base model's tensors in a model with a head
    rules: tuple[TensorRule, ...]  # of the base model, without prefixes
    heads: Mapping[str, TwinHead]  # by how names of the source's classes end: {"LMHeadModel": …}
    # Config keys with another name in the source, from that name: {"n_embd": "hidden_size"}.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Values of the source's keys that it needs, if they are missing: {"pad_token_id": 0}.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # other values of its config
    unused: tuple[str, ...] = ()  # the source's config keys without effect in it
    tokens: tuple[str, ...] = ()  # config keys that must state a token
    same_width: str | None = None  # a key of the source that must state its `hidden_size`
    width_key: str = "hidden_size"
    heads_key: str = "num_attention_heads"
    layer_keys: tuple[str, ...] = ("num_hidden_layers",)  # of the encoder, and of the decoder
    theta: float | None = None  # the default base of its frequencies, where it can be chosen
    attention_window: int | None = None  # the default tokens that each one attends to
    has_angles: bool = False  # whether its files contain a table of angles, `ANGLES_TABLE`
    part: str | None = None  # the part whose table gets another length; None: it has no other
    limits: str = ""  # in which ways it is less exact, as a sentence

    @property
    def has_windows(self) -> bool:
        """Whether it keeps its positions, and attends in windows."""
        return self.attention_window is not None

    @property
    def adds_mean(self) -> bool:
        """Whether embeddings take the mean position row, instead of a table."""
        return any(rule.how == PLUS_MEAN for rule in self.rules)

    def rules_of(self, head: TwinHead, source_prefix: str) -> Iterator[TensorRule]:
        """Yield the rules of one of its classes, with the prefixes of names.

        Args:
            head: The class.
            source_prefix: The prefix of the base model's tensors in the source.
        """
        prefix = "" if head.end == BASE_MODEL else self.prefix
        for rule in self.rules:
            yield rule._replace(source=source_prefix + rule.source, name=prefix + rule.name)
        for rule in head.rules:
            source = rule.source.replace(BASE, source_prefix)
            yield rule._replace(source=source, name=rule.name.replace(BASE, prefix))


@dataclass(frozen=True, kw_only=True)
class SourceType:
    """A model type with learned positions, and which of its models have twins."""

    class_name: str  # how names of its classes start
    twins: tuple[Twin, ...]
    # Values of config keys that every twin needs, if they are missing: {"n_embd": 768}.
    defaults: Mapping[str, Any]
    # Values that config keys must have, None for a missing key: {"is_decoder": (None, False)}.
    required: Mapping[str, tuple[Any, ...]]
    # Config keys of the twin that transformers also accepts in the source: ``hidden_size`` of
    # GPT-2, for ``n_embd``.
    aliases: tuple[str, ...] = ()
    # Config keys without effect in any twin, such as ``summary_*``.
    unused: tuple[str, ...] = ()
