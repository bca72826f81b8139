"""All commands on models with sinusoidal positions, stored or computed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ctxextend
from tests.helpers import pico
from tests.helpers.parameters import slow
from tests.helpers.sinusoidal_models import (
    CAUSAL,
    MODELS,
    make,
)
from tests.helpers.trainings import NEW, OLD, changed_tensors, invoke, train, unwrapped, write_book


def table_of(model_type: str) -> str:
    """Return the tensor name of the stored table of a type."""
    return str(MODELS[model_type][2])


def fine_tune(model_type: str) -> Path:
    """Change one row of the stored table of a new model; return the folder."""
    weights = load_file(make(model_type) / "model.safetensors")
    weights[table_of(model_type)][3] += 0.01
    path = Path(model_type)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return Path(model_type)


@pytest.mark.parametrize(
    "model_type",
    ["xlm", slow("distilbert"), "roformer", "pegasus", slow("marian"), "ctrl", slow("xglm")],
)
def test_train_keeps_sinusoids_frozen_by_default(model_type: str) -> None:
    write_book()
    ctxextend.resize(make(model_type), to=NEW, output="long")
    done = train("long", "out", "--json")
    result = json.loads(done.stdout)
    # Without an encoder, nothing uses cross-attention.
    tensors = load_file("long/model.safetensors")
    others = {name for name in tensors if ".encoder_attn" not in name}
    changed = changed_tensors(Path("long"), Path("out"))
    assert changed == others - {MODELS[model_type][2]}
    assert result["trainable"] == "all-but-positions"
    objective = "causal" if model_type in CAUSAL else "masked"
    assert result["objective"] == objective
    assert "  trainable: all-but-positions\n" in Path("out/ctxextend.yaml").read_text()
    verified = ctxextend.verify("out", deep=True)
    checks = {check.name: check for check in verified.checks}
    failed = [name for name, check in checks.items() if not check.passed]
    assert failed == ["tensors"]
    fact = "computed by"
    if MODELS[model_type][2]:
        fact = "match method formula bit for bit; not trained"
    assert fact in checks["table"].evidence[0]


@pytest.mark.parametrize(
    ("model_type", "trainable"),
    [("distilbert", "positions"), ("xlm", "positions"), ("xlm", "new"), ("xlm", "all")],
)
def test_train_trains_sinusoids_if_asked(model_type: str, trainable: str) -> None:
    write_book()
    ctxextend.resize(make(model_type), to=NEW, output="long")
    done = train("long", "out", "--trainable", trainable, "--json")
    assert json.loads(done.stdout)["trainable"] == trainable
    name = table_of(model_type)
    changed = changed_tensors(Path("long"), Path("out"))
    assert name in changed
    assert (changed == {name}) == (trainable != "all")
    before = load_file("long/model.safetensors")[name]
    after = load_file("out/model.safetensors")[name]
    keeps_rows = torch.equal(before[:OLD], after[:OLD])
    assert keeps_rows == (trainable == "new")
    verified = ctxextend.verify("out", deep=True)
    assert verified.passed == (trainable != "all")


@pytest.mark.parametrize("model_type", ["roformer", "ctrl"])
def test_train_refuses_constant_positions(model_type: str) -> None:
    write_book()
    ctxextend.resize(make(model_type), to=NEW, output="long")
    for trainable in ("positions", "new"):
        flags = ("--data", "book.txt", "--steps", 2, "--trainable", trainable)
        done = invoke("train", "long", *flags)
        assert done.exit_code == 1
        assert f"Error: --trainable {trainable}: " in done.stderr
        assert " has constant rows.\n" in done.stderr
        assert done.stderr.endswith("\nUse --trainable all-but-positions.\n")
    files = {path.name for path in Path().iterdir()}
    assert files == {model_type, "long", "book.txt"}
    # With `all`, the others are trained.
    train("long", "others", "--trainable", "all-but-positions", steps=2)
    done = train("long", "all", "--trainable", "all", steps=2)
    assert "so it stays frozen: all other weights are trained." in done.stderr
    assert "  trainable: all-but-positions\n" in Path("all/ctxextend.yaml").read_text()
    assert not changed_tensors(Path("others"), Path("all"))


def test_verify_fails_if_the_base_does_not_equal_the_recorded_formula() -> None:
    ctxextend.resize(make("xlm"), to=NEW, output="out")
    done = invoke("verify", "out", "--base", fine_tune("xlm"))
    assert done.exit_code == 3
    assert "(failed: table)" in done.stdout
    assert (
        "The recipe does not apply to xlm: --method formula:layout=interleaved,start=0"
        in unwrapped(done.stdout)
    )


def test_inspect_refuses_a_computed_table_that_does_not_fit_in_memory() -> None:
    config = make("xglm") / "config.json"
    pico.edit_json(config, max_position_embeddings=10**15)
    done = invoke("inspect", "xglm")
    assert done.exit_code == 1
    assert (
        "max_position_embeddings requires 1,000,000,000,000,002 computed rows, too many to inspect"
        in done.stderr
    )
