"""The rope types of transformers, and what their settings state."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

# Rotary settings as in transformers 5: ``rope_type``, ``rope_theta``, ``factor``, …
Parameters = Mapping[str, Any]

# Dialects, by the key of the settings in a config.
NEW = "rope_parameters"
OLD = "rope_scaling"

# Types of layers.
FULL_LAYERS = "full_attention"
SLIDING_LAYERS = "sliding_attention"

# Keys of settings.
TYPE = "rope_type"
THETA = "rope_theta"
FACTOR = "factor"
PARTIAL = "partial_rotary_factor"
TRAINED = "original_max_position_embeddings"  # the length of the first training, before any scaling
SHORT_LIST = "short_factor"  # divides the frequencies of inputs up to `TRAINED`, by pair
LONG_LIST = "long_factor"  # divides those of longer inputs
LISTS = (SHORT_LIST, LONG_LIST)
BETA_FAST = "beta_fast"
BETA_SLOW = "beta_slow"
# Settings of yarn, and their values where they are not stated, in turns within `TRAINED`: Peng et
# al. 2023, section 3.2, arXiv:2309.00071.
YARN_BETAS = {BETA_FAST: 32.0, BETA_SLOW: 1.0}
ALPHA = "alpha"
LLAMA_4_BETA = "llama_4_scaling_beta"  # scales queries by their position, from `TRAINED` on
ATTENTION_FACTOR = "attention_factor"
# By which vLLM and SGLang multiply cosines and sines of ``longrope`` settings, for each list. They
# read no `ATTENTION_FACTOR`, and transformers reads neither of these.
LIST_MSCALES = ("short_mscale", "long_mscale")
MSCALE_ALL_DIM = "mscale_all_dim"
# Settings of single rope types, which have no meaning in others.
TYPE_SETTINGS = (
    FACTOR,
    TRAINED,
    *LISTS,
    *LIST_MSCALES,
    BETA_FAST,
    BETA_SLOW,
    ATTENTION_FACTOR,
    "truncate",
    "mscale",
    MSCALE_ALL_DIM,
    "low_freq_factor",
    "high_freq_factor",
)

# The scheme of models whose settings rotate nothing, and the method that removes the rotation.
NONE: Literal["none"] = "none"
FACTOR_OF_NO_ROTATION = 1e12  # of ``linear`` settings; `tables.no_rotation` says why


# What the config key of the length states. With factor 4 and a key that states 4096:
#
# - ``before``: the length before scaling. Trained at 4096 tokens, and serves 16384.
# - ``after``: the length after scaling. Trained at 1024 tokens, and serves 4096.
KeyStates = Literal["before", "after"]


class RopeType(NamedTuple):
    """A rope type; `tables.frequencies.FORMULAS` has its frequencies."""

    name: str
    needs: tuple[str, ...] = ()  # settings without a default
    # Up to which length the settings need no further scaling. Trained at 4096 tokens, with factor 4
    # and a config key that states 32768:
    #
    # - ``trained``: 4096.
    # - ``scaled``: 4096 * 4 = 16384.
    # - ``stated or scaled``: the longer of these two, 32768.
    serves: Literal["trained", "scaled", "stated or scaled"] = "trained"
    # Of types whose config key states the length before or after scaling, depending on who wrote
    # the file: which of them if nothing tells.
    presumed_key: KeyStates | None = None
    # Which length a factor for longer inputs starts from. With factor 4, first trained at 1024
    # tokens and 8192 served ones, 16384 tokens need
    #
    # - ``first trained``: factor 16384 / 1024 = 16.
    # - ``served``: factor 4 * 16384 / 8192 = 8. Models of such types may serve more than factor x
    #   first trained length (llama3), or that length may have a fraction (linear, dynamic).
    scales_from: Literal["first trained", "served"] = "first trained"
    # Whether the first trained length is part of the formula, so that no user can correct it.
    is_trained_fixed: bool = False

    @property
    def states_trained(self) -> bool:
        """Whether the settings have a key for the length of the first training, as yarn ones do."""
        return TRAINED in self.needs


_ROPE_TYPES = (
    RopeType("default"),
    # transformers 4 asked for the length before scaling (huggingface/transformers#24653), and many
    # files state the one after (deepseek-coder, Gemma 3).
    RopeType("linear", needs=(FACTOR,), presumed_key="after", scales_from="served"),
    # transformers takes the key for the trained length.
    RopeType("dynamic", needs=(FACTOR,), presumed_key="before", scales_from="served"),
    RopeType("yarn", needs=(FACTOR, TRAINED), serves="scaled"),
    # Some models were trained further than the factor says: Llama 3.1 states 131,072 = 2 x 8 x
    # 8,192.
    RopeType(
        "longrope",
        needs=(TRAINED, *LISTS),
        serves="stated or scaled",
        is_trained_fixed=True,
    ),
    RopeType(
        "llama3",
        needs=(FACTOR, TRAINED, "low_freq_factor", "high_freq_factor"),
        serves="stated or scaled",
        scales_from="served",
        is_trained_fixed=True,
    ),
    RopeType("proportional", presumed_key="after", scales_from="served"),
)
ROPE_TYPES = {row.name: row for row in _ROPE_TYPES}
KEPT_TYPES = tuple(name for name in ROPE_TYPES if name != "default")  # scaled models keep theirs

# ``dynamic`` settings with ``alpha``, in classes that read it; transformers calls them so, and
# files do not.
NTK_ALPHA = "ntk_alpha"
_WITH_ALPHA = RopeType(NTK_ALPHA, needs=(ALPHA,))


def yarn_betas(parameters: Parameters) -> dict[str, float]:
    """Return the betas of yarn settings by key, stated or by default."""
    return {name: float(parameters.get(name) or value) for name, value in YARN_BETAS.items()}


def has_switch_lists(parameters: Parameters) -> bool:
    """Whether settings are lists of factors with an attention factor, as `switch` states them."""
    return parameters[TYPE] == "longrope" and parameters.get(ATTENTION_FACTOR) is not None


def without_type_settings(parameters: Parameters) -> dict[str, Any]:
    """Return settings without those of single rope types: base, rotated share, sections, …."""
    return {key: value for key, value in parameters.items() if key not in TYPE_SETTINGS}


def rope_type(parameters: Parameters) -> RopeType:
    """Return the type of valid settings."""
    if parameters[TYPE] == NTK_ALPHA:
        return _WITH_ALPHA
    return ROPE_TYPES[parameters[TYPE]]


def rotates(parameters: Parameters) -> bool:
    """Whether valid settings turn any pair of values by more than rounding."""
    if parameters[TYPE] == "proportional":
        return bool(parameters.get(PARTIAL, 1.0) != 0)
    if parameters[TYPE] == "linear":
        return bool(parameters[FACTOR] < FACTOR_OF_NO_ROTATION)
    return True
