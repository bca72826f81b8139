"""Twins: model types of transformers that compute what another one does with other positions.

The twin of a window keeps its positions, and attends to tokens near by.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctxextend.settings import ATTENTION_WINDOWS
from ctxextend.tables.layouts import sinusoidal_rows

Array = NDArray[Any]
COPIED = "copied"
TRANSPOSED = "transposed"
BY_HEAD = "regrouped by head"
PLUS_MEAN = "plus the mean position row"
FOR_GLOBAL = "copied for global attention"
POSITION_ROWS = "as a position table"
# How names of classes end.
BASE_MODEL = "Model"
CAUSAL_LM = "ForCausalLM"
MASKED_LM = "ForMaskedLM"
GENERATION = "ForConditionalGeneration"
TOKEN_CLASSIFICATION = "ForTokenClassification"
SEQUENCE_CLASSIFICATION = "ForSequenceClassification"
QUESTION_ANSWERING = "ForQuestionAnswering"
MULTIPLE_CHOICE = "ForMultipleChoice"
LAYERS = ("layer.", "layers.", "h.")  # how names of lists of layers end
SEPARATOR_KEY = "sep_token_id"  # of a config


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


def moved_rows(values: Array, before: int, after: int) -> Array:
    """Return position rows after another number of reserved rows.

    The shape is (rows - before + after, d).

    Args:
        values: The table of the source, shape (rows, d).
        before: Its reserved rows, before position 0.
        after: Those of the twin. Missing ones are zeros: only padding has their positions.
    """
    if after <= before:
        return values[before - after :]
    added = np.zeros((after - before, values.shape[1]), values.dtype)
    return np.concatenate([added, values])


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
    # Whether the twin needs it: not if transformers ties it to another one.
    is_needed: bool = True

    def twin_names(self, layers: int) -> Iterator[str]:
        """Yield the names of all tensors of a twin that the rule computes.

        ``*`` is the number of a layer, and at the end weight and bias. Other patterns have none.
        """
        head, star, rest = self.name.partition("*")
        if not star:
            yield self.name
        elif not rest:
            yield from (f"{head}{parameter}" for parameter in ("weight", "bias"))
        elif head.endswith(LAYERS) and rest.endswith(".*") and rest.count("*") == 1:
            for layer in range(layers):
                for parameter in ("weight", "bias"):
                    yield f"{head}{layer}{rest.removesuffix('*')}{parameter}"

    def twin_name(self, tensor: str) -> str | None:
        """Return the twin's name for a tensor of the source; None if the rule does not apply."""
        match = match_pattern(self.source, tensor)
        if match is None:
            return None
        parts = iter(match.groups())
        return re.sub(r"\*", lambda _: next(parts), self.name)


@dataclass(frozen=True, kw_only=True)
class TwinHead:
    """A class of a twin, and how the tensors of its head are computed."""

    end: str  # how its name ends, such as `CAUSAL_LM` or `BASE_MODEL`
    rules: tuple[TensorRule, ...] = ()  # of tensors of the head, by their complete names
    base_rules: tuple[TensorRule, ...] = ()  # of the base model, beyond `Twin.rules`
    # Of tensors that are the base model's in the source, and the head's in the twin.
    rules_from_base: tuple[TensorRule, ...] = ()
    # Which tokens attend to all others, and these to them: the rule of the class. Else empty.
    global_attention: str = ""
    global_pronoun: str = "them"
    needs_separators: bool = False  # whether it runs only on texts with three `SEPARATOR_KEY`
    # Tensors that only one output depends on: the source's class may not have them.
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A model type that computes the same with another position scheme, or in attention windows."""

    scheme: str  # as in `Convert.scheme`
    model_type: str
    class_name: str  # how names of its classes start
    prefix: str  # of the base model's tensors in a model with a head
    rules: tuple[TensorRule, ...]  # of the base model, without prefixes
    heads: Mapping[str, TwinHead]  # by how names of the source's classes end: {"LMHeadModel": …}
    # Why other classes of the source have none, by how their names end; not all are listed.
    without_head: Mapping[str, str] = field(default_factory=dict)
    # Config keys with another name in the source, from that name: {"n_embd": "hidden_size"}.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Config keys that state the value of another one if they are missing.
    stated_as: Mapping[str, str] = field(default_factory=dict)
    # Values of the source's keys that it needs, if they are missing: {"pad_token_id": 0}.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # other values of its config
    equal_keys: tuple[str, ...] = ()  # keys of the source that must have the same value
    unused: tuple[str, ...] = ()  # the source's config keys without effect in it
    width_key: str = "hidden_size"
    heads_key: str = "num_attention_heads"
    layer_keys: tuple[str, ...] = ("num_hidden_layers",)  # the numbers of its layers
    # The tensor of an LM head that cannot be tied, since embeddings contain the mean row.
    lm_head: str | None = None
    lm_act: str | None = None  # the activation in its LM head, if no config key states it
    # Both names of the bias of a masked LM's head, which transformers usually ties.
    lm_biases: tuple[str, ...] = ()
    has_angles: bool = False  # whether its files contain a table of angles, `ANGLES_TABLE`
    part: str | None = None  # the part whose table gets another length; None: it has no other
    limits: str = ""  # in which ways it is less exact, as a sentence

    @property
    def has_windows(self) -> bool:
        """Whether it keeps its positions, and attends in windows."""
        return self.scheme == ATTENTION_WINDOWS

    @property
    def adds_mean(self) -> bool:
        """Whether embeddings take the mean position row, instead of a table."""
        return any(rule.how == PLUS_MEAN for rule in self.rules)

    def class_of(self, head: TwinHead) -> str:
        """Return the name of one of its classes."""
        return f"{self.class_name}{head.end}"


@dataclass(frozen=True, kw_only=True)
class SourceType:
    """A model type with learned positions, and which of its models have twins."""

    class_name: str  # how names of its classes start
    twins: tuple[Twin, ...]
    tokenizer: str  # the class of tokenizer that transformers uses for it
    # Values of config keys that every twin needs, if they are missing: {"n_embd": 768}.
    defaults: Mapping[str, Any]
    # Values that config keys may have, None for a missing key: {"is_decoder": (None, False)}. Other
    # models have no twin.
    required: Mapping[str, tuple[Any, ...]]
    # Of a config that states no class: how the name of the class ends, by a part of the name of
    # a tensor that it has.
    head_of_tensor: Mapping[str, str] = field(default_factory=dict)
    default_head: str = BASE_MODEL  # if it has none of these
    # Config keys of the twin that transformers also accepts in the source: ``hidden_size`` of
    # GPT-2, for ``n_embd``.
    aliases: tuple[str, ...] = ()
    # Config keys without effect in any twin, such as ``summary_*``; ``*`` as in `TensorRule`.
    unused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # buffers of the base model, which the twins lack
    lm_act: str | None = None  # the activation in its LM head, if no config key states it


ANGLES_TABLE = "encoder.embed_positions.weight"  # the table of RoFormer's base model
