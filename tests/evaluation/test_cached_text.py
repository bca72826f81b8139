"""Questions about a text that a model reads once, against passes over text and question."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ctxextend.evaluation.cached_text import CACHE_NAMES, find_cache, read_text, run_model
from ctxextend.evaluation.eval_model import CAUSAL, EvalModel, open_eval_model, prepare_inputs
from ctxextend.evaluation.scorer import Scorer, open_scorer
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.recipe import CheckpointRef

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
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type])
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


def logits_of(scorer: Scorer, ids: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the logits after ids, from a pass over all of them."""
    inputs = prepare_inputs(scorer.model.model, torch.from_numpy(ids)[None])
    output, head = run_model(scorer, inputs)
    logits: torch.Tensor = head(output.logits[:, -1])[0]
    return logits


@EACH_MODEL
def test_cached_text_gives_the_logits_of_whole_passes(model_type: str) -> None:
    scorer = scorer_of(model_type)
    use = find_cache(scorer)
    assert use is not None
    assert use.is_stepwise == (model_type == "mamba")
    cached_text = read_text(scorer, use, TEXT)
    expected = [logits_of(scorer, np.concatenate([TEXT, question])) for question in QUESTIONS]
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    for _ in range(2):  # asking changes nothing
        together = cached_text.logits(QUESTIONS)
        separate = [cached_text.logits([question])[0] for question in QUESTIONS]
        for found in (together, separate):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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


def test_read_text_computes_the_logits_of_the_last_token_only() -> None:
    scorer = open_scorer(open_eval_model(CheckpointRef("tiny-gpt2"), "fp32"))
    use = find_cache(scorer)
    assert use is not None
    shapes = list[tuple[int, ...]]()
    head = scorer.model.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    read_text(scorer, use, TEXT).logits(QUESTIONS)
    logits = [shape for shape in shapes if shape[-1] == head.out_features]
    assert logits == [(len(QUESTIONS), head.out_features)]
