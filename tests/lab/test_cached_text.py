"""Questions about a text that a model reads once, against passes over text and question."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ctxextend.lab.cached_text import CACHE_NAMES, find_cache, read_text, run_model
from ctxextend.lab.eval_model import CAUSAL, EvalModel, prepare_inputs
from ctxextend.lab.scorer import Scorer, open_scorer
from ctxextend.lab.text_tokenizer import TextTokenizer

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "llama-dynamic": SMALL
    | {
        "max_position_embeddings": 32,  # shorter than the text
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    },
    "phi3-longrope": SMALL
    | {
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 42,  # between the text and the text with a question
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 4.0, 8.0],
            "original_max_position_embeddings": 42,
            "rope_theta": 10_000.0,
        },
    },
    "mistral": SMALL | {"sliding_window": 16},  # shorter than the text
    "gpt2": {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128},
    "bloom": {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "mamba": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
EACH_MODEL = pytest.mark.parametrize("model_type", CONFIGS)
TEXT = np.arange(40) * 7 % 60 + 2
QUESTIONS = [np.array([3, 4, 5]), np.array([5, 4, 3]), np.array([40, 40, 9])]


def scorer_of(model_type: str) -> Scorer:
    torch.manual_seed(0)
    name = model_type.partition("-")[0]
    config = transformers.AutoConfig.for_model(name, **CONFIGS[model_type])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():  # the default weights give nearly equal logits
            parameter.add_(0.1 * torch.randn_like(parameter))
    return open_scorer(
        EvalModel(
            name=model_type,
            root=Path(),
            model_type=model_type,
            kind=CAUSAL,
            model=model,
            tokenizer=TextTokenizer(None),
            max_len=128,
        )
    )


def logits_of(scorer: Scorer, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logits after ids, from a pass over all of them."""
    inputs = prepare_inputs(scorer.model.model, torch.from_numpy(ids)[None])
    output, score = run_model(scorer, inputs)
    return score(output.logits[0, -1], torch.arange(64))


@EACH_MODEL
def test_cached_text_gives_the_logits_of_whole_passes(model_type: str) -> None:
    scorer = scorer_of(model_type)
    use = find_cache(scorer)
    assert use is not None
    assert use.is_stepwise == (model_type == "mamba")
    cached_text = read_text(scorer, use, TEXT, QUESTIONS[0])
    labels = [np.arange(64)] * len(QUESTIONS)
    found = list[list[np.ndarray[Any, Any]]]()
    for _ in range(2):  # asking changes nothing
        found.append(cached_text.logits(QUESTIONS, labels))
        found.append([cached_text.logits([question], labels[:1])[0] for question in QUESTIONS])
    expected = [logits_of(scorer, np.concatenate([TEXT, question])) for question in QUESTIONS]
    assert not np.allclose(expected[0], expected[1], atol=1e-3)
    for logits in found:
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


def test_read_text_does_not_depend_on_longer_texts_before() -> None:
    scorer = scorer_of("llama-dynamic")
    first = logits_of(scorer, TEXT)
    logits_of(scorer, np.concatenate([TEXT] * 3))
    np.testing.assert_array_equal(logits_of(scorer, TEXT), first)
    short = logits_of(scorer, TEXT[:20])
    np.testing.assert_array_equal(short, logits_of(scorer_of("llama-dynamic"), TEXT[:20]))


def test_logits_of_labels_are_in_float32() -> None:
    scorer = scorer_of("llama")
    scorer.model.model.bfloat16()
    use = find_cache(scorer)
    assert use is not None
    (logits,) = read_text(scorer, use, TEXT, QUESTIONS[0]).logits(QUESTIONS[:1], [np.arange(64)])
    assert logits.dtype == np.float32
    assert len(set(logits.tolist())) == 64


def test_find_cache_rejects_a_cache_that_changes_the_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer = scorer_of("llama")
    forward = scorer.model.model.forward

    def forget(**inputs: Any) -> Any:
        for name in CACHE_NAMES:
            inputs.pop(name, None)
        inputs.pop("attention_mask")
        return forward(**inputs)

    forget.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(scorer.model.model, "forward", forget)
    assert find_cache(scorer) is None


def test_find_cache_is_none_for_a_model_that_fails_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer = scorer_of("llama")

    def fail(cache: Any) -> None:
        raise RuntimeError("no cache")

    monkeypatch.setattr(scorer.model.model, "forward", fail)
    assert find_cache(scorer) is None
