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
import transformers
from safetensors import safe_open

import ctxextend
from benchmarks import __main__ as benchmarks
from benchmarks import checkpoints, convert, long_range, real, rotary, short_training
from benchmarks.checkpoints import TABLE, Shape, write
from benchmarks.files import cmp_command, read_header
from benchmarks.measure import Cost, Row, alternate, measure, measure_json, python
from benchmarks.qmsum import write_qmsum
from ctxextend.tables.methods import METHODS

TINY = Shape(64, 2, 10, 16)


def test_alternate_runs_all_routes_in_turn() -> None:
    calls: list[str] = []

    def run(name: str) -> Cost:
        calls.append(name)
        return Cost(len(calls), 1.0)

    costs = alternate(
        {name: partial(run, name) for name in "ab"}, 2, before=lambda: calls.append("-")
    )
    assert calls == ["-", "a", "-", "b", "-", "a", "-", "b"]
    assert [[cost.seconds for cost in one] for one in costs] == [[2, 6], [4, 8]]


def test_measure_json_returns_peak_memory_and_output() -> None:
    code = "import json; data = b'x' * 100_000_000; print(json.dumps({'a': len(data)}))"
    cost, output = measure_json(python(code))
    assert output == {"a": 100_000_000}
    assert cost.megabytes > 100


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
    assert json.loads((out / "table.json").read_text())["failed"] == (["resize"] if fails else [])
    return int(exited.value.code or 0), (out / "table.md").read_text()


def test_main_exits_1_if_a_row_misses_or_a_benchmark_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    met = [
        Row("fast", "s", [1.0, 3.0, 9.0], "`cp`", [10.0], maximum=0.3),
        Row("large", "MB/s", [20.0], "`cp`", [10.0], minimum=2),
    ]
    status, page = run_main(monkeypatch, tmp_path, *met)
    assert status == 0
    assert (
        "| fast | 3.00 s (1.00 - 9.00) | `cp` | 10.00 s (10.00 - 10.00) | ≤ 0.3 x | 0.30 x | met |"
        in page
    )
    for missed in (replace(met[0], maximum=0.29), replace(met[1], minimum=2.1)):
        status, page = run_main(monkeypatch, tmp_path, *met, missed)
        assert (status, page.count("| met |"), page.count("**missed**")) == (1, 2, 1)
    status, page = run_main(monkeypatch, tmp_path, *met, fails=True)
    assert (status, "**resize failed**" in page, "| fast |" in page) == (1, True, True)


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
        start, header = read_header(file)
        for name, entry in header.items():
            if name in (TABLE, "__metadata__"):
                continue
            content = bytearray(file.read_bytes())
            index = start + entry["data_offsets"][1] - 1
            file.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
            with pytest.raises(SystemExit, match="failed: sh"):
                measure(command)
            file.write_bytes(content)


def test_qmsum_writes_one_query_per_answer(tmp_path: Path) -> None:
    answers = {"train/b": ["An answer.", "Another."], "val/a": ["A third.", "Another."]}
    for name, (general, specific) in answers.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        turns = [{"speaker": "A", "content": f"Hello {name}."}, {"speaker": "B", "content": "Bye."}]
        lists = {
            "general_query_list": [{"answer": general}],
            "specific_query_list": [{"answer": specific}],
        }
        path.write_text(json.dumps({"meeting_transcripts": turns, **lists}))
    write_qmsum(tmp_path, tmp_path / "set", ["train", "val"])
    corpus, queries = (
        (tmp_path / "set" / f"{name}.jsonl").read_text().splitlines()
        for name in ("corpus", "queries")
    )
    assert json.loads(corpus[1]) == {"_id": "m1", "text": "A: Hello val/a.\nB: Bye."}
    assert [json.loads(line)["text"] for line in queries] == ["An answer.", "Another.", "A third."]
    assert (tmp_path / "set" / "qrels.tsv").read_text().splitlines()[1:] == [
        "q0\tm0\t1",
        "q1\tm0\t1",
        "q2\tm1\t1",
    ]


def test_real_cuts_reactions_into_the_tokens_of_rxnfp(tmp_path: Path) -> None:
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] C Br [C@@H] ( ) >> O %12"
    (tmp_path / "vocab.txt").write_text(vocabulary.replace(" ", "\n"))
    (tmp_path / "config.json").write_text("{}")
    real.add_smiles_tokenizer(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens = ["[CLS]", "C", "(", "Br", ")", "[C@@H]", ">>", "O", "%12", "[UNK]", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("C(Br)[C@@H]>>O%12N")["input_ids"]) == tokens
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("bert", ["BertForMaskedLM"])


def test_real_page_contains_every_part_and_the_criterion() -> None:
    def value(mean: float, error: float = 0.001) -> dict[str, float]:
        return {"mean": mean, "standard_error": error, "tokens": 9, "samples": 100}

    def result(part: real.Part) -> dict[str, Any]:
        is_search = part.text == "qmsum"
        modes = {
            mode: {"nDCG@10": value(0.2), "MRR": value(0.1)}
            for mode in ("truncated", "chunks", "model")
        }
        rows = [
            {
                "method": name,
                "score": value(mean),
                "against copy": value(-0.004 if is_search else mean - 2),
                "against base": value(mean - 0.5),
                "search": modes if is_search else {},
            }
            for name, mean in {
                "copy": 2.0,
                "auto": 1.0,
                f"bands:keep-first={part.before}": 1.5,
            }.items()
        ]
        metric = "ndcg@10" if is_search else "loss"
        return {"metric": metric, "base": value(0.5), "auto": "bands:sigma=4", "rows": rows}

    results = {part.name: result(part) for part in real.PARTS}
    text = "\n".join(real.page(results))
    short = [*real.short_table(results)]
    for part in real.PARTS:
        assert f"{part.model} {part.before} → {part.to}" in text
    assert "| auto | 2.718 (x 1.6487 ± 0.0033) | 2.718 (x 1.6487 ± 0.0033) |" in text
    assert text.count("| bands, learned rows kept |") == 1 + 1 + 1 + 3 + 3 + 2
    assert (
        "| judge-words 128 → 256 | bands | -1.0000 ± 0.0020 nats/token | -0.9980 | 0.0200 | met |"
        in text
    )
    assert (
        "| MiniLM 512 → 1024 | bands | -0.0040 ± 0.0020 nDCG@10 | +0.0060 | 0.0050 | **missed** |"
        in text
    )
    assert len(short) == 1 + 1 + 1 + 4
    assert (
        short[1]
        == "| rxnfp's BERT, 128 → 256 | 1.6487 ± 0.0033 | 2.718 (x 1.6487 ± 0.0033) |  | 7.389 "
        "(x 4.4817 ± 0.0089) |"
    )


def test_rotary_page_contains_every_length_and_band() -> None:
    own = [np.full(7, loss) for loss in (1.0, 1.5)]
    base = [np.full(7, loss) for loss in (0.0, 1.0)]
    rows = [rotary.scores(name, 0, base, base, 4) for name in rotary.BASES.values()]
    for steps in rotary.STAGES:
        row = rotary.scores("yarn", steps, own, base, 4)
        rows.append(row | {"short": row["all"][1]})
    assert [[band.tokens for band in bands] for bands in rows[2]["bands"]] == [[6, 6], [8, 8]]
    results = [
        {"before": 4, "to": to, "rows": rows, "yarn against linear": rows[2]["all"][1]}
        for to in (8, 16)
    ]
    text = "\n".join(rotary.page(json.loads(json.dumps(results, default=vars))))
    assert "| method | 4 → 8 | 4 → 16 |" in text
    assert "| method | 0 to 3 | 4 to 7 | 8 to 11 | 12 to 15 |" in text
    assert "| yarn, 100 steps | 3.49 (x 2 (0 to 51)) | 3.49 (x 2 (0 to 51)) |" in text
    assert "| as it is, in sliding windows | 2 (0 to 947) | 2 (0 to 947) |" in text


def test_convert_writes_every_scheme(tmp_path: Path) -> None:
    with patch.dict(METHODS):
        ctxextend.register_method("without-positions", convert.without_positions)
        for name, (write_scheme, _) in convert.SCHEMES.items():
            write_scheme("tiny-gpt2", to=160, output=tmp_path / name)
    configs = {
        name: json.loads((tmp_path / name / "config.json").read_text()) for name in convert.SCHEMES
    }
    types = {name: config["model_type"] for name, config in configs.items()}
    assert types == {
        **dict.fromkeys(convert.SCHEMES, "gpt2"),
        "rotary": "gpt_neox",
        "ALiBi": "falcon",
    }
    with safe_open(tmp_path / "none" / "model.safetensors", "np") as file:
        assert (np.ptp(file.get_tensor("transformer.wpe.weight"), axis=0) == 0).all()


def test_documents_repeat_their_choices_only_beyond_the_length() -> None:
    texts = [
        "A text. Some of the words are in it, and more of them are here. One two",
        "one two six ten cat dog cow pig red",
    ]
    length = 16
    repetitions = []
    for seed in (0, 1):
        for document in long_range.documents(
            texts, lambda text: len(text.split()), length, 3, seed
        ):
            words = document.split()
            repetition = words[: len(words) // long_range.REPEATED]
            assert words == repetition * long_range.REPEATED
            assert len(repetition) > length
            repetitions.append(repetition)
    choices, note = (
        {tuple(words[part]) for words in repetitions} for part in (slice(8), slice(8, None))
    )
    assert len(choices) == 6
    assert len(note) == 1


def test_short_training_holds_out_modules_and_documents_them() -> None:
    trained_on, held_out = short_training.TRAINED_ON.split(), short_training.HELD_OUT.split()
    assert not {*trained_on} & {*held_out}
    texts = [*short_training.documentation("bisect heapq")]
    assert [text.startswith("Python Library Documentation: module ") for text in texts] == [
        True,
        True,
    ]
    assert ["insort" in text for text in texts] == [True, False]
    assert "\b" not in texts[0]


def test_real_prints_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.real", "--help"])
    with pytest.raises(SystemExit) as exited:
        real.main()
    assert exited.value.code == 0
    assert "--qmsum DIR" in capsys.readouterr().out
