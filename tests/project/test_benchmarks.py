"""Data and judges of the benchmarks, and the figures that show their results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import ctxextend
from benchmarks import figures
from benchmarks.held_out_rows import BEYOND, SHORT, lines, measure_methods
from benchmarks.qmsum import write_qmsum
from ctxextend.settings import Evaluate
from tests.helpers.repository import ROOT


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_qmsum_writes_one_query_per_answer(tmp_path: Path) -> None:
    answers = {"train/b": ["An answer.", "Another."], "val/a": ["A third.", "Another."]}
    for name, (general, specific) in answers.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        first = {"speaker": "A", "content": f"Hello {name}."}
        second = {"speaker": "B", "content": "Bye."}
        meeting = {
            "meeting_transcripts": [first, second],
            "general_query_list": [{"answer": general}],
            "specific_query_list": [{"answer": specific}],
        }
        path.write_text(json.dumps(meeting))

    output = tmp_path / "set"
    write_qmsum(tmp_path, output, ["train", "val"])
    corpus = read_lines(output / "corpus.jsonl")
    queries = read_lines(output / "queries.jsonl")
    _, *relevant = (output / "qrels.tsv").read_text().splitlines()
    assert corpus[1] == {"_id": "m1", "text": "A: Hello val/a.\nB: Bye."}
    assert [query["text"] for query in queries] == ["An answer.", "Another.", "A third."]
    assert relevant == ["q0\tm0\t1", "q1\tm0\t1", "q2\tm1\t1"]
    pairs = read_lines(output / "pairs.jsonl")
    assert [pair["anchor"] for pair in pairs] == ["An answer.", "Another.", "A third."]
    assert pairs[2]["positive"] == corpus[1]["text"]


def mean_losses(folder: Path, text: Path, count: int, hold_out: int) -> tuple[float, float]:
    """Return the mean losses beyond and below a position, of texts as long as the model reads."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor(tokenizer(text.read_text())["input_ids"])
    losses: list[list[float]] = [[], []]
    for whole in torch.split(ids, model.config.n_positions)[:count]:
        for part, first, found in zip(
            (whole, whole[:hold_out]), (hold_out, 1), losses, strict=True
        ):
            with torch.inference_mode():
                logits = model(part[None]).logits[0, first - 1 : -1]
            found.append(torch.nn.functional.cross_entropy(logits, part[first:]).item())
    beyond, short = losses
    return float(np.mean(beyond)), float(np.mean(short))


def test_held_out_rows_are_judged_by_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    judges = Evaluate(data=(str(ROOT / "LICENSE"),), tokens=1200)
    found = measure_methods("tiny-gpt2", 64, None, ["copy", "auto"], judges)
    assert [*found.methods] == ["auto", "copy"]
    assert found.auto.startswith("bands:")

    root = ctxextend.plan_resize("tiny-gpt2", 256).plan.checkpoint.root
    cut = ctxextend.resize("tiny-gpt2", 64, output=tmp_path / "cut").output
    copied = ctxextend.resize(cut, 128, "copy", output=tmp_path / "copied").output
    for scores, folder in ((found.reference, root), (found.methods["copy"], copied)):
        beyond, short = mean_losses(folder, ROOT / "LICENSE", 9, 64)
        assert scores[BEYOND].samples == 9
        assert scores[BEYOND].mean == pytest.approx(beyond, rel=1e-5)
        assert scores[SHORT].mean == pytest.approx(short, rel=1e-5)
    assert found.methods["copy"][SHORT].minus(found.reference[SHORT]).change.mean == 0
    shown = [line.split(" | ")[0] for line in lines(found)]
    assert shown[2:] == ["| reference rows", "| auto", "| copy"]


@pytest.mark.slow
@pytest.mark.figures
def test_figures_of_the_site_are_those_of_the_benchmark(tmp_path: Path) -> None:
    figures.draw(tmp_path)
    site = ROOT / "docs" / "figures"
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in site.iterdir()}
    for name in drawn:
        with Image.open(tmp_path / name) as ours, Image.open(site / name) as theirs:
            assert ours.size == theirs.size
            drawn_values = np.asarray(ours.convert("L"), dtype=np.float64)
            site_values = np.asarray(theirs.convert("L"), dtype=np.float64)
            difference = np.abs(drawn_values - site_values).mean()
            assert difference < 1, f"{name} has changed: run make figures"
