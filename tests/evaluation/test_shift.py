"""The same passages at growing positions, compared with models whose rows are moved instead."""

from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import ctxextend
from ctxextend.cli.app import build_app
from ctxextend.errors import UnsupportedModelError
from ctxextend.evaluation.evaluation_result import Shift, ShiftPoint
from tests.helpers.pico import Pico
from tests.helpers.tiny import make_config, shrink
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

Make = Callable[..., Pico]
TABLE = "roberta.embeddings.position_embeddings.weight"


def measure(folder: Path, text: Path, **settings: int) -> Shift:
    shift = ctxextend.evaluate(folder, text, measure=["shift"], **settings).shift  # type: ignore[arg-type]
    assert shift is not None
    return shift


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(max(topics.values(), key=len))
    return path


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """tiny-gpt2 with its rows repeated."""
    return ctxextend.resize("tiny-gpt2", to=256, method="copy", output=tmp_path / "copied").output


def test_shift_of_repeated_rows_has_their_period(copied: Path, long_text: Path) -> None:
    found = measure(copied, long_text, tokens=2048)

    assert found.size == 64
    assert found.boundary == 128
    assert found.passages == 16
    losses = {point.start: point.loss.mean for point in found.points if point.loss is not None}
    assert sorted(losses) == [*range(0, 193, 16)]
    for start in range(0, 65, 16):
        assert losses[start + 128] == pytest.approx(losses[start], abs=1e-6)
    # Passages across the seam are far worse. All that reach beyond position 127 count.
    assert losses[96] > losses[0] + 0.5
    beyond = [point.effect.mean for point in found.points if point.start > 64]
    assert found.effect.mean == pytest.approx(np.mean(beyond))


def test_evaluate_shows_the_shift_of_passages(copied: Path, long_text: Path) -> None:
    arguments = ["evaluate", str(copied), "--data", str(long_text), "--measure", "shift"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.stdout.startswith(
        "Passages that reach beyond 128 positions: worse than the same at position 0 by"
    )
    assert "128-191" in done.stdout


def mean_loss(point: ShiftPoint) -> float:
    assert point.loss is not None
    return point.loss.mean


def test_shift_counts_positions_after_the_reserved_rows(make_pico: Make) -> None:
    pico = make_pico("roberta", initializer_range=0.5)
    folder = add_tokenizer(pico.folder, special_tokens=True)
    text = write_texts()
    found = measure(folder, text, tokens=256)
    points = {point.start: point for point in found.points}
    first_loss = mean_loss(points[0])

    weights = load_file(folder / "model.safetensors")
    table = weights[TABLE].clone()
    reserved = table[:2]
    rows = table[2:]
    for start in (5, 12):
        weights[TABLE] = torch.cat([reserved, rows.roll(-start, 0)])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        moved = measure(folder, text, tokens=256)

        point = points[start]
        assert mean_loss(point) == pytest.approx(mean_loss(moved.points[0]), abs=1e-6)
        assert point.effect.mean == pytest.approx(mean_loss(point) - first_loss, abs=1e-6)


def test_shift_of_encoders_is_the_cosine_of_embeddings(make_pico: Make) -> None:
    pico = make_pico("bert", base=True, initializer_range=0.5)
    folder = add_tokenizer(pico.folder, special_tokens=True)
    Path("text.txt").write_text("w1 w2 " * 7)  # all passages are equal
    found = measure(folder, Path("text.txt"))

    model = transformers.AutoModel.from_pretrained(folder).train(False)
    ids = torch.tensor([[2, 6, 7, 3]])
    means = []
    for start in range(13):
        position_ids = torch.arange(4)[None] + start
        with torch.no_grad():
            states = model(ids, position_ids=position_ids).last_hidden_state
        means.append(states.mean(dim=1))
    vectors = torch.nn.functional.normalize(torch.cat(means))
    cosines = (vectors @ vectors[0]).tolist()

    assert [point.loss for point in found.points] == [None] * 13
    effects = [point.effect.mean for point in found.points]
    assert effects == pytest.approx(cosines, abs=1e-6)
    assert found.effect.mean == pytest.approx(np.mean(cosines[1:]), abs=1e-6)


def test_shift_rejects_models_that_compute_positions(tmp_path: Path) -> None:
    config = shrink(make_config("blenderbot-small"))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    add_tokenizer(tmp_path, special_tokens=False)
    message = r"does not accept position ids.* Remove shift from --measure"
    with pytest.raises(UnsupportedModelError, match=message):
        measure(tmp_path, write_texts())
