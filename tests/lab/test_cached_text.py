"""Questions about a text that a model reads once, against passes over text and question."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ctxextend.lab.cached_text import CACHE_NAMES, answer_questions, find_cache
from ctxextend.lab.eval_model import CAUSAL, EvalModel, prepare_inputs
from ctxextend.lab.needle_text import Question
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
QUESTIONS = [
    Question(depth=0, ids=np.array(ids), answer=0, rivals={"all": np.arange(1, 64)})
    for ids in ([3, 4, 5], [5, 4, 3], [40, 40, 9], [4, 4, 8], [3, 4, 5], [9, 5, 3])
]


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


def cache_of(scorer: Scorer) -> str | None:
    return find_cache(scorer, TEXT, QUESTIONS)


def logits_of(scorer: Scorer, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logits after ids, from a pass over all of them."""
    with torch.inference_mode():
        inputs = prepare_inputs(scorer.model.model, torch.from_numpy(ids)[None])
        logits: np.ndarray[Any, Any] = scorer.model.model(**inputs).logits[0, -1].numpy()
    return logits


@EACH_MODEL
def test_cached_text_gives_the_logits_of_whole_passes(model_type: str) -> None:
    scorer = scorer_of(model_type)
    name = cache_of(scorer)
    assert (name is None) == (model_type == "mamba")  # which reads one token at a time
    expected = [logits_of(scorer, np.concatenate([TEXT, one.ids])) for one in QUESTIONS]
    assert not np.allclose(expected[0], expected[1], atol=1e-3)
    for how in (name, None):
        # Four at once, then two, and each by itself.
        found = [*answer_questions(scorer, how, TEXT, QUESTIONS)]
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
        for question, logits in zip(QUESTIONS, expected, strict=True):
            (single,) = answer_questions(scorer, how, TEXT, [question])
            np.testing.assert_allclose(single, logits, atol=1e-4, rtol=1e-4)


def test_answers_do_not_depend_on_longer_texts_before() -> None:
    scorer = scorer_of("llama-dynamic")
    longer = np.concatenate([TEXT] * 3)
    for text in (TEXT, TEXT[:20]):
        first = [*answer_questions(scorer_of("llama-dynamic"), None, text, QUESTIONS)]
        list(answer_questions(scorer, None, longer, QUESTIONS))
        np.testing.assert_array_equal([*answer_questions(scorer, None, text, QUESTIONS)], first)


def test_logits_of_labels_are_in_float32() -> None:
    scorer = scorer_of("llama")
    scorer.model.model.bfloat16()
    name = cache_of(scorer)
    assert name is not None
    for logits in answer_questions(scorer, name, TEXT, QUESTIONS):
        assert logits.dtype == np.float32
        assert len(set(logits.tolist())) == 64


@pytest.mark.parametrize("fails", [False, True])
def test_find_cache_rejects_a_cache_that_changes_the_logits_or_fails(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = scorer_of("llama")
    forward = scorer.model.model.forward

    def forget(**inputs: Any) -> Any:
        for name in CACHE_NAMES:
            if name in inputs and fails:
                raise RuntimeError("no cache")
            inputs.pop(name, None)
        inputs.pop("attention_mask")
        return forward(**inputs)

    forget.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(scorer.model.model, "forward", forget)
    assert cache_of(scorer) is None


def test_find_cache_rejects_questions_that_change_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer = scorer_of("llama")
    without_copy = SimpleNamespace(deepcopy=lambda cache: cache)
    monkeypatch.setattr("ctxextend.lab.cached_text.copy", without_copy)
    assert cache_of(scorer) is None
