"""Which step `train` saves, and the held-out loss that selects it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxextend import verify
from tests.helpers.trainings import (
    NEW,
    OLD,
    changed_tensors,
    diverging_loss,
    equal_rows,
    invoke,
    log_of,
    make_source,
)

pytestmark = pytest.mark.usefixtures("book")
STEPS = 5


def train(source: Path, output: str, lr: float, *flags: object, steps: int = STEPS) -> Any:
    """Train all weights, evaluate after each step, and return the JSON with stderr."""
    options = (
        "--data",
        "book.txt",
        "--steps",
        steps,
        "--batch-size",
        4,
        "--eval-every",
        1,
        "--lr",
        lr,
        "-o",
        output,
    )
    done = invoke("train", source, *options, "--trainable", "all", "--json", *flags)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout) | {"stderr": done.stderr}


def losses_of(folder: str) -> dict[int, float]:
    """Return the held-out loss after each step at which it was measured."""
    losses: dict[int, float] = {}
    for line in log_of(Path(folder)):
        if "eval_loss" in line:
            losses[int(line["step"])] = line["eval_loss"]
    return losses


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_train_saves_the_step_with_the_lowest_held_out_loss(precision: str, gpt2: Path) -> None:
    with diverging_loss(at=3):
        result = train(gpt2, "out", 0.1, "--precision", precision)
    losses = losses_of("out")
    best = result["best_step"]
    first_loss = losses[0]
    last_loss = losses[STEPS]
    best_loss = losses[best]

    assert sorted(losses) == [*range(STEPS + 1)]
    assert min(losses.values()) == best_loss
    assert best > 0
    assert best < 3
    assert best_loss < first_loss
    assert first_loss < last_loss
    assert result["loss_before"] == first_loss
    assert result["loss_last"] == last_loss
    assert result["loss_best"] == best_loss
    assert result["loss_after"] == best_loss
    assert result["saved_step"] == best
    (warning,) = result["warnings"]
    assert warning == (
        f"The held-out loss rose after step {best}: {first_loss:.4f} at the start, "
        f"{best_loss:.4f} after step {best}, {last_loss:.4f} after step {STEPS}. Saved the "
        f"weights of step {best}. Try a lower --lr than 0.1."
    )
    assert f"saved step {best} of {STEPS} (best)\n" in result["stderr"]

    # The saved weights have that loss.
    again = train(Path("out"), "again", 1e-9, "--precision", precision, steps=1)
    assert again["loss_before"] == pytest.approx(best_loss, abs=1e-5)


def test_train_saves_the_last_step_on_request(gpt2: Path) -> None:
    with diverging_loss(at=3):
        best = train(gpt2, "out", 0.1)
        last = train(gpt2, "last", 0.1, "--save", "last")
    last_loss = losses_of("out")[STEPS]

    assert last["best_step"] == best["best_step"]
    assert last["saved_step"] == STEPS
    assert last["loss_last"] == last_loss
    assert last["loss_after"] == last_loss
    assert last_loss > last["loss_best"]
    assert f"Saved the weights of step {STEPS}." in last["warnings"][0]
    again = train(Path("last"), "after", 1e-9, steps=1)
    assert again["loss_before"] == pytest.approx(last_loss, abs=1e-5)


def test_train_saves_the_untrained_weights_if_no_step_is_better(gpt2: Path) -> None:
    result = train(gpt2, "out", 3)
    (warning,) = result["warnings"]
    assert warning == (
        f"Training did not lower the held-out loss: {result['loss_before']:.4f} at the start, "
        f"{result['loss_last']:.4f} after step {STEPS}. Saved the untrained weights. Try a lower "
        "--lr than 3."
    )
    assert result["stderr"].count(warning) == 1
    assert result["best_step"] == 0
    assert result["saved_step"] == 0
    assert result["loss_best"] == result["loss_before"]
    assert result["loss_after"] == result["loss_before"]
    assert changed_tensors(gpt2, Path("out")) == set()
    assert verify("out").conclusion.endswith("only in its position table.")
    card = Path("out/README.md").read_text()
    assert "; no later evaluation was lower, so these are the untrained weights." in card


def test_train_new_keeps_learned_rows_in_the_best_step(gpt2: Path) -> None:
    with diverging_loss(at=3):
        result = train(gpt2, "out", 0.1, "--trainable", "new")
    assert 0 < result["saved_step"] < 3
    is_equal = equal_rows(gpt2, Path("out"))
    learned = is_equal[: NEW // 2]
    new = is_equal[NEW // 2 : NEW - 1]
    assert learned == [True] * (NEW // 2)
    assert not any(new)


@pytest.mark.parametrize("model_type", ["gpt2", "bert"])
def test_train_evaluates_the_same_sequences_with_every_batch_size(model_type: str) -> None:
    source = make_source(Path("source"), model_type)
    held_out_tokens = 4 * (OLD - 1) if model_type == "gpt2" else 8

    losses: list[float] = []
    for batch in (1, 16):
        output = f"out{batch}"
        result = train(source, output, 1e-9, "--batch-size", batch, steps=1)
        assert result["held_out_sequences"] == 4
        assert result["held_out_tokens"] == held_out_tokens
        assert result["window"] == OLD
        losses += [result["loss_before"], losses_of(output)[0]]
    for loss in losses:
        assert loss == pytest.approx(losses[0], abs=1e-5)
    assert f"evaluated on 4 sequences, {held_out_tokens} tokens; saved" in result["stderr"]

    seeded = train(source, "seeded", 1e-9, "--seed", 7, steps=1)
    assert seeded["held_out_sequences"] == 4
