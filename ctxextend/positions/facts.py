"""What the registry states about a model type; `families.registry` finds it in a config."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ctxextend.tables.method_facts import SCALING_METHODS
from ctxextend.tables.rope_types import NONE

if TYPE_CHECKING:
    from ctxextend.positions.positions import Positions

LENGTH = "max_position_embeddings"  # the usual key of a length


class ReservedRows(NamedTuple):
    """The rule for reserved rows, which come before position 0."""

    rows: int = 0  # constant number
    config_key: str | None = None  # its value is added to `rows`, such as ``pad_token_id``
    # Whether the length in the config includes them (514 for 512 positions).
    inside_key: bool = False


NO_ROWS = ReservedRows()


class Buffer(NamedTuple):
    """A buffer sized by the context length that weights files may contain.

    Its content, for 4 positions:

    - ``arange``: ``[[0, 1, 2, 3]]``, such as ``position_ids`` of BERT. It starts at the number of
      reserved rows if the length in the config does not include them: ``[[2, 3, 4, 5]]``.
    - ``zeros``: ``[[0, 0, 0, 0]]``, such as ``token_type_ids``.
    - ``causal``: ones on and below the diagonal of the last two axes, such as ``attn.bias`` of
      GPT-2, shape (1, 1, 4, 4).
    - ``rows``: zeros, one for each row of the table, reserved ones included.
    """

    name: str  # without the model's prefix; ``*`` matches a layer index
    content: Literal["arange", "zeros", "causal", "rows"]
    # Whether it is persistent, and so rebuilt at the new size; others are dropped.
    is_kept: bool = False


# Schemes without a table of rows.
ROTARY: Literal["rotary"] = "rotary"
ALIBI: Literal["ALiBi"] = "ALiBi"
RELATIVE: Literal["relative"] = "relative"

# What to expect of them beyond the trained length if only length limits change, as a clause.
BEYOND = {
    ROTARY: (
        "positions continue beyond the trained angles, and quality falls soon "
        "(Chen et al. 2023, arXiv:2306.15595)"
    ),
    ALIBI: (
        "biases continue: the loss hardly grows, but far tokens count little "
        "(Press et al. 2022, arXiv:2108.12409)"
    ),
    RELATIVE: (
        "all far tokens share a bias: quality falls slowly, unless the task needs their order "
        "(arXiv:1910.10683)"
    ),
    NONE: (
        "no position is new, but more tokens compete for attention "
        "(Gelberg et al. 2025, arXiv:2512.12167)"
    ),
}


class OldRotaryKeys(NamedTuple):
    """How the classes of a model type read configs of before transformers 5."""

    reads_scaling: bool = True  # whether they read ``rope_scaling``
    # Whether ``rope_scaling`` applies to local layers too, as in ModernBERT. Then it cannot scale
    # only the others, and ``rope_parameters`` is written instead.
    scales_local: bool = False
    # Other names of ``rope_theta`` next to ``rope_scaling``, by layer type: Gemma 3 has
    # {"sliding_attention": "rope_local_base_freq"}. An empty name: the layers have no such key, and
    # transformers 4 gives them the base of the main layers.
    theta_keys: Mapping[str, str] = {}
    # Name of the rotated share next to ``rope_scaling``; ``rotary_pct`` in GPT-NeoX.
    partial_key: str = "partial_rotary_factor"
    # Settings that the classes add to ``rope_scaling`` of a rope type, and not to
    # ``rope_parameters``: {"yarn": {"attention_factor": 1.0}} in DeepSeek-V4.
    added: Mapping[str, Mapping[str, Any]] = {}
    # Whether transformers 4 fails without ``rope_scaling``, also for settings of type ``default``.
    needs_scaling: bool = False
    # The keys that transformers 4 accepts in ``rope_scaling``, if it fails with others:
    # ("type", "factor") for OLMo, which knows two types there.
    scaling_keys: tuple[str, ...] = ()


class RotaryFacts(NamedTuple):
    """How the classes of a model type read the rotary settings of their config."""

    # Default ``rope_theta`` by layer type, such as {"full_attention": 1e6, "sliding_attention":
    # 1e4}; the key is empty if all layers have the same settings. The main layers come first.
    theta: Mapping[str, float] = {"": 10_000.0}
    # Further settings by layer type, such as ``rope_type``, of a config that states none.
    defaults: Mapping[str, Mapping[str, Any]] = {}
    # Layer types with a sliding window, which see no further and are not scaled.
    local: tuple[str, ...] = ()
    old: OldRotaryKeys = OldRotaryKeys()  # the keys of files of before transformers 5
    # Default ``partial_rotary_factor``: the share of each head that is rotated.
    partial: float = 1.0
    # Other names of rope types, as its files state them: {"su": "longrope"} for Phi-3.
    type_names: Mapping[str, str] = {}
    # Key of the size of a head; if missing, or empty: hidden_size / num_attention_heads.
    dim_key: str = "head_dim"
    # Whether transformers needs `dim_key` in the config for other rope types than ``default``.
    needs_dim: bool = False
    methods: tuple[str, ...] = SCALING_METHODS  # that the classes apply; none: limits only
    # Whether ``generate()`` empties its cache when an input outgrows the first list of ``longrope``
    # settings, so that all keys have the frequencies of long inputs.
    drops_cache: bool = False
    # Whether ``alpha`` makes the base of ``dynamic`` settings a fixed one: the same for inputs of
    # every length.
    reads_alpha: bool = False
    # Whether released files of the default length state the length after scaling, not that of the
    # first training.
    releases_are_scaled: bool = False
    # Whether a ``sliding_window`` is that of all layers; of others, only some have it.
    windows_all_layers: bool = False
    # Whether a config states the settings in a dialect of transformers; a GGUF file does not.
    has_dialects: bool = True
    rounding: float = 0.0  # relative, of numbers as files state them: in 32 bits in GGUF files


class EngineKey(NamedTuple):
    """A key that other engines need, and that transformers does not write."""

    name: str
    needed_by: str  # engines, as a subject: "llama.cpp and mlx-lm"
    value: str = ""  # its value; empty: the length


class ConfigCondition(NamedTuple):
    """A key of the config, and the value with which something applies."""

    key: str
    value: Any
    or_missing: bool = False  # whether it also applies to a config without the key

    def holds(self, stated: Any) -> bool:
        """Whether it holds for a config that states a value of the key, or None for no value."""
        if stated is None:
            return self.or_missing
        return bool(stated == self.value)


class PositionScheme(NamedTuple):
    """What a model uses instead of a position table, and how to extend its context."""

    uses: str
    advice: str
    name: str = "other"  # of the scheme, for lists
    reads_tokens: bool = True  # whether its input is text


class Requirement(NamedTuple):
    """A value that a config key must have for the table to be used; it is also the default."""

    key: str
    value: Any
    instead: PositionScheme  # used with other values


class Pin(NamedTuple):
    """A config key that is adjusted so that its effect does not change with the length.

    What is kept:

    - ``length``: ``max_relative_positions`` -1 of DeBERTa becomes 512 if 512 positions become 1024.
      A value below 1 means the length, so that the key is set to the old length.
    - ``blocks``: ``block_per_row`` 4 of MRA becomes 2 if the length is doubled. The key is a number
      of blocks per `block_size` tokens of the length: key * length / block_size stays.
    """

    key: str
    condition: str | None = None  # another key that must be true for this to apply
    keeps: Literal["length", "blocks"] = "length"
    block_size: int = 1  # in tokens

    def value(self, stated: Any, before: int, after: int) -> int | None:
        """Return the value with which the effect stays; None if the stated one does, or no other.

        Args:
            stated: The value before, or transformers' default; None if there is neither.
            before, after: The length, as its key states it.
        """
        if self.keeps == "length":
            is_meant = isinstance(stated, int) and stated >= 1
            return None if is_meant else before
        rows = before // self.block_size
        new_rows = after // self.block_size
        total = min(rows * stated, rows**2)  # a row has at most as many blocks as there are rows
        if not new_rows or not total or total % new_rows:
            return None
        blocks: int = total // new_rows
        return blocks


class Part(NamedTuple):
    """A model inside a model, with its config."""

    name: str  # encoder, decoder, text, ...
    config_key: str  # contains its config; empty if it uses the outer one
    prefixes: tuple[str, ...]  # possible prefixes of its tensor names
    model_type: str  # its model type if its config has none
    # Key of another copy of its config, which transformers prefers: ``text_config_dict`` of CLIP.
    override: str = ""
    # Whether its config may state another model type, as that of the text model of LLaVA; otherwise
    # `model_type` always applies.
    may_state_type: bool = False
    # Whether it has a head, so that its tensor names have the prefix of its base model: the decoder
    # of encoder-decoder models has ``decoder.bert.`` where the encoder has ``encoder.``.
    has_head: bool = False
    # Its tokenizer:
    #
    # - empty: that of the model.
    # - another text: the one in this folder, ``qformer_tokenizer`` of InstructBLIP.
    # - None: it has none, since it reads no text, as the encoder of TrOCR.
    tokenizer: str | None = ""
    # The table part of its model type that it uses, ``decoder`` of mBART in Nougat; empty: all.
    only_part: str = ""
    # Whether old files have its keys in the outer config, and no ``text_config``, as Qwen2-VL.
    is_in_outer_config: bool = False
    first_position: int = 0  # of its tokens; see `positions.positions.Model`


class Family(NamedTuple):
    """The facts about one model type: an entry of the registry."""

    model_type: str  # as in config.json
    # Of tensor names: first in the base class, then in classes with a head.
    prefixes: tuple[str, ...] = ("",)
    tables: "tuple[Positions, ...]" = ()  # the one that reads the tokens first
    # transformers' defaults for missing config keys.
    defaults: Mapping[str, int] = {}
    requires: tuple[Requirement, ...] = ()  # for the tables to be used
    parts: tuple[Part, ...] = ()  # models inside it
    # Keys that also truncate inputs, and follow the length: ``max_text_len`` of Grounding DINO.
    limits: tuple[str, ...] = ()
    # Keys whose effect must not change, so that they do not simply follow the length.
    pins: tuple[Pin, ...] = ()
    # How outputs depend on the padding length, even with an attention mask, as a clause.
    padding_effect: str = ""
    note: str = ""  # a caveat for users, as a clause
    # Keys that say nothing about the length of its tables, despite their names.
    unrelated_keys: tuple[str, ...] = ()
    has_causal_mask: bool = True  # whether no token sees the later ones
