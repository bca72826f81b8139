"""What the rules say about folders, as engines were seen to do."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ctxextend import plan_resize
from ctxextend.runtimes.engines import Outcome
from ctxextend.serving.engine_statements import Facts, Statement, statements
from tests.helpers import pico, rotary_configs
from tests.helpers.notes import texts


def described(found: Sequence[Statement]) -> dict[str, str]:
    """Return statements as short text: outcome, another length than 1,024, and option."""
    texts = dict[str, str]()
    for item in found:
        words = [item.outcome.value]
        if item.outcome is Outcome.DERIVES:
            words.append(str(item.length))
        if item.option:
            words.append(item.option)
        texts[item.engine.key] = " ".join(words)
    return texts


def check(found: Sequence[Statement], expected: Mapping[str, str]) -> None:
    """Check what is expected; there may be statements about more runtimes."""
    texts = described(found)
    assert {key: texts.get(key) for key in expected} == expected


def all_serve(*keys: str) -> dict[str, str]:
    return dict.fromkeys(keys, "serves")


# ---- as engines were run with small random models


def test_statements_of_gpt2_depend_on_the_names_of_its_tensors() -> None:
    expected = {
        **all_serve("transformers", "transformers4", "vllm", "llama.cpp", "ctranslate2"),
        "mlx": "refuses",
    }
    with_head = pico.make(Path("gpt2"), "gpt2").folder
    check(plan_resize(with_head, 64).runtimes, expected)
    base = pico.make(Path("base"), "gpt2", base=True).folder
    check(plan_resize(base, 64).runtimes, {**expected, "mlx": "serves"})


def test_statements_of_encoders_are_as_measured() -> None:
    bert = pico.make(Path("bert"), "bert").folder
    expected = all_serve("transformers", "transformers4", "vllm", "sglang", "ctranslate2", "tei")
    flags = "serves --embeddings -b 64 -ub 64"
    check(plan_resize(bert, 64).runtimes, {**expected, "llama.cpp": flags})

    roberta = pico.make(Path("roberta"), "roberta").folder
    check(
        plan_resize(roberta, 64).runtimes,
        {
            **all_serve("transformers", "ctranslate2", "tei"),
            # The key counts two rows before position 0.
            "vllm": "derives 66 --max-model-len 64",
            "sglang": "derives 66 --context-length 64",
        },
    )
    # VLLM takes at most the length of the tokenizer.
    pico.write_json(roberta / "tokenizer_config.json", {"model_max_length": 16})
    found = plan_resize(roberta, 64).runtimes
    check(found, {"vllm": "serves", "sglang": "derives 66 --context-length 64"})


def test_resize_warns_of_runtimes_that_ignore_an_attention_factor() -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 128,
        "attention_factor": 1.0,
    }
    folder = rotary_configs.save("llama", rope_parameters=rope)
    (warning,) = [
        text
        for text in texts(plan_resize(folder, rotary_configs.NEW), level="warning")
        if "attention_factor" in text
    ]
    assert warning == (
        "The settings state an attention_factor, which SGLang, llama.cpp and mlx-lm ignore: "
        "outputs differ from those of transformers."
    )


def test_other_betas_need_an_option_in_llama_cpp() -> None:
    method = "yarn:beta-slow=2"
    found = described(
        plan_resize(rotary_configs.save("llama"), rotary_configs.NEW, method).runtimes
    )
    assert found["llama.cpp"] == "differs --yarn-beta-fast 32 --yarn-beta-slow 2"
    assert found["vllm"] == "serves"
    assert found["mlx"] == "serves"
    assert found["ctranslate2"] == "refuses"

    # The converter writes no settings of this type, and the flags state all of them.
    ignored = described(
        plan_resize(rotary_configs.save("gpt_neox"), rotary_configs.NEW, method).runtimes
    )
    assert ignored["llama.cpp"].startswith("ignores --rope-scaling yarn")
    assert ignored["llama.cpp"].endswith("--yarn-beta-fast 32 --yarn-beta-slow 2")


@pytest.mark.parametrize(("mscale", "ignores"), [(None, True), (1.3, True), (1, False)])
def test_vllm_and_sglang_ignore_an_attention_factor_that_their_keys_do_not_state(
    mscale: float | None,
    ignores: bool,
) -> None:
    method = "switch" if mscale is None else f"switch:mscale={mscale}"
    planned = plan_resize(rotary_configs.save("llama"), rotary_configs.NEW, method)
    found = {item.engine.key: "attention_factor" in item.ignores for item in planned.runtimes}
    assert found["vllm"] is ignores
    assert found["sglang"] is ignores
    warnings = [text for text in texts(planned, "engine") if "attention_factor" in text]
    assert any("vLLM" in text for text in warnings) is ignores


# ---- what is not right, or not with an option


def state(model_type: str, positions: str, *has: str, **lengths: int) -> dict[str, Statement]:
    """Return the statements about a folder of 64 positions, by engine."""
    facts = Facts(
        model_type=model_type,
        positions=positions,
        max_len=64,
        lengths=lengths,
        values={"max_len": "64"},
        has=frozenset(has),
    )
    return {item.engine.key: item for item in statements(facts)}


def test_the_length_of_sentence_transformers_comes_first() -> None:
    found = state("mpnet", "learned", stated=66, sentence=64)["tei"]
    assert found.outcome is Outcome.SERVES
    found = state("mpnet", "learned", stated=66)["tei"]
    assert (found.outcome, found.length) == (Outcome.DERIVES, 66)
    # It has no option for the length.
    assert (found.option, found.is_right) == ("", False)


@pytest.mark.parametrize(
    ("model_type", "has", "outcome"),
    [
        ("llama", (), Outcome.SERVES),
        ("llama", ("only_rope_parameters",), Outcome.IGNORES),
        ("qwen3", ("only_rope_parameters",), Outcome.SERVES),
    ],
)
def test_the_dialect_decides(model_type: str, has: tuple[str, ...], outcome: Outcome) -> None:
    assert state(model_type, "yarn", *has)["mlx"].outcome is outcome


def test_nothing_is_said_of_an_unknown_pair() -> None:
    assert "mlx" not in state("persimmon", "yarn")
    assert statements(None) == ()
