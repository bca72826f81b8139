"""`evaluate` of causal models whose positions cannot be resized."""

from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
import transformers

import ctxextend
from ctxextend.checkpoint.source import BUNDLED
from ctxextend.lab import eval_model
from ctxextend.lab.evaluation import Evaluation
from ctxextend.lab.scores import select
from tests.helpers import pico
from tests.helpers.scores import score_of
from tests.helpers.trainings import invoke, unwrapped

STATED = 128
SIZES: dict[str, dict[str, Any]] = {
    # No positions, and no stated length.
    "mamba": {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    # Layers of Mamba and of attention without positions.
    "jamba": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
        "max_position_embeddings": STATED,
    },
    # A recurrent network, whose config calls the length otherwise.
    "rwkv": {
        "hidden_size": 16,
        "attention_hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "context_length": STATED,
    },
}
NO_TABLE = "has no position table to resize; it uses no position embeddings"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Build a pico model of one of `SIZES` with random weights, as its type saves it."""

    def build(model_type: str, name: str = "", **changes: Any) -> Path:
        folder = tmp_path / (name or model_type)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(BUNDLED["tiny-gpt2"])
        tokenizer.model_max_length = 10**30  # as transformers writes "no limit"
        config_class: Any = transformers.CONFIG_MAPPING[model_type]
        config = config_class(
            vocab_size=len(tokenizer),
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=0,
            **SIZES[model_type] | changes,
        )
        torch.manual_seed(0)
        auto_class: Any = transformers.AutoModelForCausalLM
        model = auto_class.from_config(config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return build


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text like those the bundled tokenizer was trained on, of more than 4,096 tokens."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(topics[name] for name in sorted(topics)[:20]), "utf-8")
    return path


@pytest.fixture
def never_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_model, "load_eval_model", None)


def edit_config(folder: Path, **changes: Any) -> Path:
    """Change keys of a folder's config; None removes a key."""
    config = pico.config_of(folder) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    pico.write_json(folder / "config.json", kept)
    return folder


def evaluate(folder: Path, text: Path, **settings: Any) -> Evaluation:
    return ctxextend.evaluate(folder, data=text, tokens=1024, **settings)


@pytest.mark.parametrize("model_type", ["jamba", "rwkv"])
def test_evaluate_reads_a_model_at_the_length_that_its_config_states(
    model_type: str, make: Make, text: Path
) -> None:
    found = evaluate(make(model_type), text)
    (model,) = found.models
    assert model.model_type == model_type
    assert model.kind == "causal"
    assert model.max_len == found.length == STATED
    assert found.base is None
    contexts = select(found.scores, measure="context")
    assert [score.length for score in contexts] == [STATED, 64, 32, 16]
    assert {score.measure for score in found.scores} == {"position", "context", "effective"}


def test_evaluate_of_mamba_equals_the_loss_of_transformers(make: Make, text: Path) -> None:
    folder = make("mamba")
    length = 64
    found = evaluate(folder, text, length=length, measure="position")
    assert found.length == length

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(text.read_text("utf-8"), return_tensors="pt")["input_ids"][0, :1024]
    windows = ids.view(-1, length)
    with torch.no_grad():
        expected = model(input_ids=windows, labels=windows).loss.item()
    assert score_of(found).mean == pytest.approx(expected, abs=1e-5)


@pytest.mark.usefixtures("never_loads")
def test_evaluate_asks_for_a_length_before_it_loads_a_model(make: Make, text: Path) -> None:
    done = invoke("evaluate", make("mamba"), "--data", text)
    assert done.exit_code == 1
    assert "states no context length" in unwrapped(done.stderr)
    assert "--length N" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("resize", "--to", 256),
        ("train", "--steps", 1, "--data"),
        ("evaluate", "--to", 256, "--data"),
    ],
)
def test_commands_that_change_positions_refuse_such_models(
    command: tuple[object, ...], make: Make, text: Path
) -> None:
    name, *flags = command
    if flags[-1] == "--data":
        flags.append(text)
    done = invoke(name, make("jamba"), *flags)
    assert done.exit_code == 1
    assert NO_TABLE in unwrapped(done.stderr)


@pytest.mark.usefixtures("never_loads")
def test_evaluate_never_runs_the_code_of_an_unknown_type(make: Make, text: Path) -> None:
    mapped = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    folder = edit_config(make("jamba"), model_type="own", auto_map=mapped)
    done = invoke("evaluate", folder, "--data", text)
    assert done.exit_code == 1
    error = unwrapped(done.stderr)
    assert "Unknown model type 'own'" in error
    assert "modeling_own.OwnForCausalLM" in error
