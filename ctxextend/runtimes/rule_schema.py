"""What a rule about a runtime states, and what it says about one folder."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ctxextend.positions.facts import ALIBI as ALIBI
from ctxextend.positions.facts import RELATIVE as RELATIVE
from ctxextend.tables.method_facts import SINUSOIDAL as SINUSOIDAL
from ctxextend.tables.rope_types import NONE
from ctxextend.tables.rope_types import NTK_ALPHA as NTK_ALPHA

# Keys of rotary settings: of transformers 5, and of earlier versions.
ROPE_PARAMETERS = "rope_parameters"
ROPE_SCALING = "rope_scaling"

# Positions of a folder, as rules name them: the scheme of a table of rows, or how rotary positions
# are scaled.
LEARNED = "learned"
UNSCALED = "unscaled"  # rotary positions as in training: only length limits change
RAISED_THETA = "theta"  # another base, and type ``default``
YARN = "yarn"  # this and all others are rope types
LINEAR = "linear"
DYNAMIC = "dynamic"
LONGROPE = "longrope"
SWITCHED = "switch"  # rope type ``longrope`` with an attention factor, as the method states it
LLAMA3 = "llama3"
PROPORTIONAL = "proportional"
REMOVED = NONE  # ``linear`` settings that rotate nothing
COMMON_ROPE_TYPES = (YARN, LINEAR, DYNAMIC, LONGROPE, LLAMA3)  # that many classes apply


# Why vLLM and SGLang do not load a model without positions.
TABLE_IS_TOO_LARGE = "it computes a row of angles for each of 1e12 x N positions"


class Effect(StrEnum):
    """What a runtime does with the positions of a folder."""

    APPLIES = "applies"  # as transformers does
    IGNORES = "ignores"  # it loads the folder, but computes the positions of the base
    DIFFERS = "differs"  # it loads the folder, but computes positions of neither
    REFUSES = "refuses"  # it fails with an error


class Length(StrEnum):
    """Which length a runtime takes from a folder."""

    SERVED = "served"  # none: it reads inputs of any length, or the length of the tokenizer
    STATED = "stated"  # the config key of the length
    STATED_SCALED = "stated x factor"
    # The key of the first trained length next to the settings, or else that of the length.
    TRAINED_KEY = "first trained, next to the settings"
    TOKENIZER = "tokenizer"  # that of the tokenizer if a file states it, else the config key


class Runtime(NamedTuple):
    """A program that loads the folder or a file converted from it."""

    key: str  # as `--for` takes it
    name: str
    version: str  # the version that was run, or read
    # Keys of rotary settings that it reads, such as ``rope_scaling``.
    dialects: tuple[str, ...] = (ROPE_PARAMETERS, ROPE_SCALING)
    # The command that serves or converts a folder; {folder} is its path, {max_len} its length and
    # {task} what Optimum calls its task.
    # The options of a `RuntimeStatement` follow. Empty: Python code loads it.
    command: str = ""
    # The command that serves a file in its format: {file} is its path, {max_len} its length.
    # The options of a `RuntimeStatement` follow. Empty: it has none.
    file_command: str = ""
    # Whether it computes the attention factor of yarn itself and reads no other.
    ignores_attention_factor: bool = False
    # Whether it reads `LIST_MSCALES` of ``longrope`` settings, and no attention factor.
    reads_list_mscales: bool = False
    # The option that makes it read sentences of another length than it derives.
    length_option: str = ""
    # The option that gives it ``beta_fast`` and ``beta_slow`` of yarn settings, in braces, if it
    # takes the defaults of transformers whatever a folder states; empty: it reads them.
    beta_option: str = ""


# The evidence of a rule: one of these, or the URL of what was read.
RUN = "run"
CODE_RUN = "run: the code for lengths and frequencies, without the model"


class Rule(NamedTuple):
    """What a runtime does with folders of some model types and positions."""

    runtime: str  # `Runtime.key`
    positions: tuple[str, ...]
    model_types: tuple[str, ...] = ()  # of config.json; empty: all types
    effect: Effect = Effect.APPLIES
    length: Length = Length.SERVED
    # Added to the runtime's command, it makes a folder right whose positions the runtime ignores.
    # In braces: {factor}, {first_trained}, {theta} and {max_len}.
    option: str = ""
    reason: str = ""  # why it does not apply them, as a clause; may be empty
    # Keys of rotary settings that it reads of these types; empty: those of the runtime.
    dialects: tuple[str, ...] = ()
    # A prefix of tensor names with which the runtime refuses a file; empty: none.
    without_prefix: str = ""
    # Whether it computes the attention factor of these settings itself, and reads no other.
    ignores_attention_factor: bool = False
    # Whether it gives inputs of any length the list of factors that is for long ones.
    ignores_short_list: bool = False
    # Whether a length in the files of sentence-transformers comes first.
    reads_sentence_length: bool = False
    evidence: str = RUN


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """What in a folder decides what runtimes do with it."""

    model_type: str  # of config.json
    positions: str  # one of those above, or a rope type
    max_len: int  # the requested context length, in usable positions
    stated: int  # the value of the config key of the length
    first_trained: int  # in tokens
    # What the key of that length states next to the settings, which engines may take for the
    # length of inputs; None if it is missing there.
    trained_key: int | None = None
    factor: float = 1.0
    theta: float | None = None
    # Keys that state its rotary settings: ``rope_parameters``, ``rope_scaling`` or both.
    dialects: tuple[str, ...] = ()
    attention_factor: float | None = None  # that it states
    list_mscales: tuple[float, ...] = ()  # values of `LIST_MSCALES` in ``longrope`` settings
    # ``beta_fast`` and ``beta_slow`` of yarn settings; None if they are transformers' defaults.
    betas: tuple[float, float] | None = None
    # Whether a file of sentence-transformers states the length; some runtimes take it from there.
    has_sentence_length: bool = False
    has_tokenizer_length: bool = False  # whether tokenizer_config.json states it
    table_name: str = ""  # of a table of rows, with the prefix of its model
