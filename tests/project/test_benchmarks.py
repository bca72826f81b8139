"""Ratios, tables, data and exit codes of the benchmarks; the benchmarks themselves are not run."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors import safe_open

import ctxextend
from benchmarks import __main__ as benchmarks
from benchmarks import checkpoints, convert, figures
from benchmarks.checkpoints import TABLE, Shape, write
from benchmarks.files import cmp_command, read_header
from benchmarks.held_out_rows import BEYOND, SHORT, lines, measure_methods
from benchmarks.measure import Cost, Row, alternate, measure
from benchmarks.minute_search import documents_from
from benchmarks.qmsum import write_qmsum
from ctxextend.lab.search_set import SearchSet
from ctxextend.settings import Evaluate
from ctxextend.tables.methods import METHODS
from tests.helpers.repository import ROOT
from tests.helpers.trainings import make_encoder
from tests.helpers.word_tokenizer import write_texts

TINY = Shape(64, 2, 10, 16)


def test_alternate_runs_all_routes_in_turn() -> None:
    calls: list[str] = []

    def run(name: str) -> Cost:
        calls.append(name)
        return Cost(len(calls), 1.0)

    routes = {name: partial(run, name) for name in "ab"}
    costs = alternate(routes, 2, before=lambda: calls.append("-"))
    assert calls == ["-", "a", "-", "b", "-", "a", "-", "b"]
    seconds = [[cost.seconds for cost in route] for route in costs]
    assert seconds == [[2, 6], [4, 8]]


def run_main(
    monkeypatch: pytest.MonkeyPatch, out: Path, *rows: Row, fails: bool = False
) -> tuple[int, str]:
    def benchmark(folder: Path, rounds: int) -> Iterator[Row]:
        yield from rows
        if fails:
            raise SystemExit("failed: cp")

    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"resize": (benchmark, 2)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(out), "--out", str(out)])
    with pytest.raises(SystemExit) as exited:
        benchmarks.main()
    failed: list[str] = []
    if fails:
        failed.append("resize")
    table = json.loads((out / "table.json").read_text())
    assert table["failed"] == failed
    page = (out / "table.md").read_text()
    return int(exited.value.code or 0), page


FAST = Row("fast", "s", [1.0, 3.0, 9.0], "`cp`", [10.0], maximum=0.3)
LARGE = Row("large", "MB/s", [20.0], "`cp`", [10.0], minimum=2)


def test_main_exits_0_if_all_rows_meet_their_criterion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, page = run_main(monkeypatch, tmp_path, FAST, LARGE)
    line = (
        "| fast | 3.00 s (1.00 - 9.00) | `cp` | 10.00 s (10.00 - 10.00) | ≤ 0.3 x | 0.30 x | met |"
    )
    assert status == 0
    assert line in page


@pytest.mark.parametrize(
    "missed", [replace(FAST, maximum=0.29), replace(LARGE, minimum=2.1)], ids=["maximum", "minimum"]
)
def test_main_exits_1_if_a_row_misses_its_criterion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missed: Row
) -> None:
    status, page = run_main(monkeypatch, tmp_path, FAST, LARGE, missed)
    assert status == 1
    assert page.count("| met |") == 2
    assert page.count("**missed**") == 1


def test_main_exits_1_if_a_benchmark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, page = run_main(monkeypatch, tmp_path, FAST, LARGE, fails=True)
    assert status == 1
    assert "**resize failed**" in page
    assert "| fast |" in page


def flip_bit_before(content: bytes, stop: int) -> bytes:
    """Return content with a bit of the byte before an offset flipped."""
    changed = bytearray(content)
    changed[stop - 1] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("size", [100, 10_000_000], ids=["many shards", "one file"])
def test_cmp_command_compares_everything_except_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", size)
    write(tmp_path / "base", TINY)
    ctxextend.resize(tmp_path / "base", to=32, output=tmp_path / "new")
    command = cmp_command(tmp_path / "base", tmp_path / "new")
    measure(command)
    for file in (tmp_path / "new").glob("*.safetensors"):
        content = file.read_bytes()
        start, header = read_header(file)
        for name, entry in header.items():
            if name in (TABLE, "__metadata__"):
                continue
            _, stop = entry["data_offsets"]
            file.write_bytes(flip_bit_before(content, start + stop))
            with pytest.raises(SystemExit, match="failed: sh"):
                measure(command)
            file.write_bytes(content)


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


@pytest.mark.usefixtures("_empty_folder")
def test_held_out_rows_of_encoders_are_judged_by_cosines(tmp_path: Path) -> None:
    source = str(make_encoder(tmp_path / "encoder"))
    judges = Evaluate(data=(str(write_texts(60, 10)),))
    found = measure_methods(source, 8, None, ["copy", "zero:scope=new"], judges)
    assert found.reference[BEYOND].mean == 1
    copied = found.methods["copy"]
    assert copied[SHORT].mean == 1
    assert copied[BEYOND].mean < 1
    assert copied.keys() == found.reference.keys() == {BEYOND, SHORT, "recall@1", "MRR"}


def test_minute_search_judges_queries_about_the_other_documents() -> None:
    texts = SearchSet(
        documents=("a", "b", "c"),
        queries=("of a", "of b and c", "of c"),
        relevant=({0: 1}, {1: 1, 2: 2}, {2: 1}),
        notes=(),
    )
    judging = documents_from(texts, 2)
    assert judging.documents == ("c",)
    assert judging.queries == ("of b and c", "of c")
    assert judging.relevant == ({0: 2}, {0: 1})


def test_convert_writes_every_scheme(tmp_path: Path) -> None:
    with patch.dict(METHODS):
        ctxextend.register_method("without-positions", convert.without_positions)
        for name, (write_scheme, _) in convert.SCHEMES.items():
            write_scheme("tiny-gpt2", to=160, output=tmp_path / name)

    model_types = dict.fromkeys(convert.SCHEMES, "gpt2")
    model_types |= {"rotary": "gpt_neox", "ALiBi": "falcon"}
    for name, model_type in model_types.items():
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["model_type"] == model_type
    with safe_open(tmp_path / "none" / "model.safetensors", "np") as file:
        table = file.get_tensor("transformer.wpe.weight")
    assert (table == table[0]).all()


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
