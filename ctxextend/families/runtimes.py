"""The context length that each runtime derives from the rotary settings in config.json.

Data with sources, by rope type.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

GITHUB = "https://github.com/"
VLLM_CHANGE = f"{GITHUB}vllm-project/vllm/pull/56446"


class Derived(Enum):
    """How a runtime derives the context length, as the documentation writes it."""

    STATED = "max"  # max_position_embeddings
    STATED_SCALED = "max * factor"
    TRAINED = "original"  # the first trained length
    TRAINED_SCALED = "original * factor"
    SERVED = "served"  # what the settings serve
    NOT_SUPPORTED = "-"  # it fails, or the settings mean something else to it


class Runtime(NamedTuple):
    """How a runtime derives the context length of a checkpoint with rotary positions."""

    program: str
    source: str  # URL
    lengths: Mapping[str, Derived]  # by rope type; other types have no rule
    versions: str = ""  # of the program; empty for all
    # Of its command line: another length than the derived one; empty: it derives no other.
    option: str = ""
    # In the names of model types whose stated length it never multiplies; empty: none.
    unscaled: str = ""

    @property
    def name(self) -> str:
        """The program with its versions."""
        return f"{self.program} {self.versions}".rstrip()


RUNTIMES = (
    Runtime(
        program="transformers",
        source=f"{GITHUB}huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py",
        lengths={
            "default": Derived.SERVED,
            "yarn": Derived.SERVED,
            "llama3": Derived.SERVED,
            "longrope": Derived.SERVED,
            "linear": Derived.SERVED,
            "proportional": Derived.SERVED,
            "dynamic": Derived.SERVED,
            "ntk_alpha": Derived.SERVED,
        },
    ),
    Runtime(
        program="vLLM",
        versions="up to 0.29",
        source=VLLM_CHANGE,
        lengths={
            "default": Derived.STATED,
            "yarn": Derived.TRAINED_SCALED,
            "llama3": Derived.STATED,
            "longrope": Derived.TRAINED,  # the option raises it
            "linear": Derived.STATED_SCALED,
            "proportional": Derived.NOT_SUPPORTED,
            # Since 0.22, vLLM fails beyond max_position_embeddings (vllm-project/vllm#55910);
            # earlier versions use the same base at every length (#41236).
            "dynamic": Derived.NOT_SUPPORTED,
            "ntk_alpha": Derived.NOT_SUPPORTED,
        },
        option="--max-model-len",
        unscaled="gemma3",
    ),
    Runtime(
        program="vLLM",
        versions="after 0.29",
        source=VLLM_CHANGE,
        lengths={
            "default": Derived.STATED,
            "yarn": Derived.STATED,
            "llama3": Derived.STATED,
            "longrope": Derived.TRAINED,  # the option raises it
            "linear": Derived.STATED_SCALED,
            "proportional": Derived.NOT_SUPPORTED,
            "dynamic": Derived.NOT_SUPPORTED,  # as before
            "ntk_alpha": Derived.NOT_SUPPORTED,
        },
        option="--max-model-len",
        unscaled="gemma3",
    ),
    Runtime(
        program="SGLang",
        source=f"{GITHUB}sgl-project/sglang/blob/main/python/sglang/srt/utils/hf_transformers/"
        "common.py",
        lengths={
            "default": Derived.STATED,
            "yarn": Derived.STATED,
            "llama3": Derived.STATED,
            "longrope": Derived.STATED,
            "linear": Derived.STATED_SCALED,
            "proportional": Derived.NOT_SUPPORTED,
            "dynamic": Derived.STATED_SCALED,
            "ntk_alpha": Derived.NOT_SUPPORTED,
        },
        option="--context-length",
        unscaled="gemma3",
    ),
    Runtime(
        program="llama.cpp",  # its converter
        source=f"{GITHUB}ggml-org/llama.cpp/blob/master/conversion/base.py",
        lengths={
            "default": Derived.STATED,
            "yarn": Derived.STATED,
            "llama3": Derived.STATED,
            "longrope": Derived.STATED,
            "linear": Derived.STATED,
            "proportional": Derived.NOT_SUPPORTED,
            "dynamic": Derived.NOT_SUPPORTED,  # dropped, except for HunYuan
            "ntk_alpha": Derived.NOT_SUPPORTED,
        },
    ),
)


class RuntimeLength(NamedTuple):
    """The context length that a runtime derives from the settings of one checkpoint."""

    runtime: Runtime
    rule: Derived | None  # None: no rule for this rope type
    length: int | None  # in tokens; None if the type is not supported, or without a rule


def runtime_lengths(
    rope: Mapping[str, Any], max_len: int, served: int, model_type: str = ""
) -> tuple[RuntimeLength, ...]:
    """Return the context length that each of `RUNTIMES` derives.

    Args:
        rope: The settings of the layers with full attention, as in transformers 5.
        max_len: max_position_embeddings.
        served: What the settings serve, in tokens; transformers enforces no other length.
        model_type: As in config.json.
    """
    lengths = list[RuntimeLength]()
    for runtime in RUNTIMES:
        rule = runtime.lengths.get(rope["rope_type"])
        if rule is None or rule is Derived.NOT_SUPPORTED:
            lengths.append(RuntimeLength(runtime, rule, length=None))
            continue
        if runtime.unscaled and runtime.unscaled in model_type:
            rule = Derived.STATED
        lengths.append(RuntimeLength(runtime, rule, _derive(rule, rope, max_len, served)))
    return tuple(lengths)


def _derive(rule: Derived, rope: Mapping[str, Any], max_len: int, served: int) -> int:
    """Return the context length by a rule, in tokens."""
    factor: float = rope.get("factor", 1)
    trained: float = rope.get("original_max_position_embeddings", max_len)
    values: dict[Derived, float] = {
        Derived.STATED: max_len,
        Derived.STATED_SCALED: max_len * factor,
        Derived.TRAINED: trained,
        Derived.TRAINED_SCALED: trained * factor,
        Derived.SERVED: served,
    }
    return round(values[rule])


def describe_runtimes(lengths: Sequence[RuntimeLength], requested: int) -> str:
    """Return which runtimes read the requested context length, and what the others do."""
    serving = [item.runtime for item in lengths if item.length == requested]
    others = [item for item in lengths if item.length not in (requested, None)]
    unsupported = [item.runtime for item in lengths if item.rule is Derived.NOT_SUPPORTED]
    unknown = [item.runtime for item in lengths if item.rule is None]
    readers = _names(serving) or "no runtime"
    clauses = [f"Context length {requested} in {readers}"]
    if others:
        clauses.append(_other_lengths(others, requested))
    if unsupported:
        clauses.append(f"not supported by {_names(unsupported)}")
    if unknown:
        clauses.append(f"no rule for this rope type in {_names(unknown)}")
    return f"{'; '.join(clauses)}."


def _other_lengths(others: Sequence[RuntimeLength], requested: int) -> str:
    """Return which runtimes read another length, and their options to change it, as a clause."""
    texts = [f"{item.runtime.name} {item.length}" for item in others]
    clause = f"other lengths: {', '.join(texts)}"
    options = dict.fromkeys(item.runtime.option for item in others if item.runtime.option)
    if not options:
        return clause
    flags = " or ".join(f"{option} {requested}" for option in options)
    return f"{clause} (set {flags})"


def _names(runtimes: Sequence[Runtime]) -> str:
    """Return the names of runtimes, without versions if a program is there with all of them."""
    names = list[str]()
    for runtime in runtimes:
        versions = [other for other in RUNTIMES if other.program == runtime.program]
        has_all = all(version in runtimes for version in versions)
        names.append(runtime.program if has_all else runtime.name)
    return ", ".join(dict.fromkeys(names))
