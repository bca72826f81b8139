"""`compare` of checkpoints: numbers as from `evaluate`, pairing, facts, unseen text, errors."""

import gc
import json
import re
import weakref
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from ctxextend.lab.evaluation_result import Evaluation, estimate
from sentence_transformers import SentenceTransformer

import ctxextend
from ctxextend.comparison import costs, side_by_side
from ctxextend.errors import CtxextendError
from ctxextend.json_output import to_json
from ctxextend.lab import eval_model
from ctxextend.lab.eval_model import EvalModel, load_eval_model
from ctxextend.lab.text_tokenizer import TextTokenizer
from tests.helpers.json_schemas import check, check_result
from tests.helpers.rotary_models import make as make_rotary
from tests.helpers.trainings import invoke, make_encoder, make_source, train, write_book
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

TO = 64
LENGTHS = {"max_position_embeddings": TO, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SPEED_SECONDS", 0.0)


@pytest.fixture
def texts(_empty_folder: None) -> Path:
    return write_texts()


def resized(source: Path, *methods: str, to: int = TO) -> list[Path]:
    return [
        ctxextend.resize(source, to=to, method=method, output=method).output for method in methods
    ]


def test_compare_checkpoints_equals_evaluate_of_each(texts: Path, tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    folders = resized(source, "copy", "linear")
    calls: list[tuple[int, int, str]] = []

    def record(advance: int, total: int, label: str = "") -> None:
        calls.append((advance, total, label))

    found = ctxextend.compare_checkpoints(folders, texts, tokens=512, progress=record)
    assert found.row_type == "checkpoint"
    assert found.source == str(source)
    assert found.kind == "causal"
    assert found.max_len_before == 16
    assert found.max_len_after == TO
    assert found.documents == 2
    for row in found.rows:
        single = ctxextend.evaluate(row.method, texts, tokens=512)
        check_same_evaluation(row.evaluation, single)
        assert single.positions is not None
        assert row.score == single.positions.losses["model"]
        assert found.base == single.positions.losses["sliding"]
        assert row.short_inputs is not None
        is_unchanged = row.short_inputs.mean == 0
        assert is_unchanged == (row.method == "copy")

        facts = row.checkpoint
        assert facts is not None
        assert facts.source == row.method
        assert facts.model_type == "gpt2"
        assert facts.scheme == "learned"
        assert facts.max_len == TO
        parameters = sum(value.numel() for value in load_model(row.method).parameters())
        assert facts.parameters == parameters
        assert facts.bytes == 4 * parameters
        assert facts.tokens_per_second > 0

    tokens = sum(call[0] for call in calls)
    assert {call[1] for call in calls} == {tokens}
    assert {call[2] for call in calls} == {"the base", "copy", "linear"}


def load_model(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).train(False)


def test_compare_checkpoints_compares_losses_of_the_same_windows(
    texts: Path, tmp_path: Path
) -> None:
    source = make_source(tmp_path / "source", "gpt2")
    folders = resized(source, "copy", "linear")
    found = ctxextend.compare_checkpoints(folders, texts, tokens=512)
    best, other = found.rows

    # By hand: all tokens of the eight windows but the first of each.
    windows: list[torch.Tensor] = []
    for ids in encoded(source, texts):
        windows += [ids[start : start + TO] for start in range(0, 300 - TO, TO)]
    best_model = load_model(best.method)
    other_model = load_model(other.method)
    differences: list[np.ndarray[Any, Any]] = []
    for window in windows[:8]:
        difference = token_losses(other_model, window) - token_losses(best_model, window)
        differences.append(difference)
    expected = estimate(differences)

    assert best.delta is None
    assert other.delta is not None
    assert other.delta.mean == pytest.approx(expected.mean, abs=1e-6)
    assert other.delta.ci95 == pytest.approx(expected.ci95, abs=1e-6)


def check_same_evaluation(found: Evaluation, expected: Evaluation) -> None:
    """Check that two evaluations differ at most in the seconds they took."""
    found_values = to_json(found)
    expected_values = to_json(expected)
    del found_values["seconds"], expected_values["seconds"]
    assert found_values == expected_values


def encoded(folder: Path, texts: Path) -> list[torch.Tensor]:
    tokenizer = TextTokenizer.open(folder)
    return [torch.tensor(tokenizer.encode(text)) for text in read_texts(texts)]


def read_texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def token_losses(model: Any, ids: torch.Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    predictions = logits[:-1].double()
    losses = torch.nn.functional.cross_entropy(predictions, ids[1:], reduction="none")
    values: np.ndarray[Any, Any] = losses.numpy()
    return values


def test_compare_checkpoints_of_other_types_without_a_common_base(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path / "gpt2", "gpt2", n_positions=TO)
    resized(source, "zero:scope=all", "sinusoidal:scope=all", to=2 * TO)
    make_rotary("llama", "rotary", **LENGTHS)
    make_rotary("bloom", "alibi", n_layer=2, seq_length=TO)
    loads = load_eval_model
    alive = weakref.WeakSet[Any]()

    def load_one(*arguments: Any) -> EvalModel:
        gc.collect()
        for model in alive:
            for value in model.parameters():
                assert value.device.type == "meta"
        loaded = loads(*arguments)
        alive.add(loaded.model)
        return loaded

    monkeypatch.setattr(eval_model, "load_eval_model", load_one)
    names = ["rotary", "alibi", "zero:scope=all", "sinusoidal:scope=all", str(source)]
    measured = ("--data", texts, "--tokens", 512, "--measure", "context")
    done = invoke(
        "compare", *names, *measured, "--report", "page.html", "--plot", "page.png", "--json"
    )
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    check(values, "compare")
    assert values["source"] == ""
    assert values["base"] is None
    assert values["max_len_before"] == 8
    assert values["max_len_after"] == TO
    schemes = {row["method"]: row["checkpoint"]["scheme"] for row in values["rows"]}
    assert schemes == {
        "rotary": "rotary",
        "alibi": "ALiBi",
        "zero:scope=all": "none",
        "sinusoidal:scope=all": "sinusoidal",
        "gpt2": "learned",
    }

    page = Path("page.html").read_text("utf-8")
    assert "5 checkpoints at 64 tokens" in page
    assert "Checkpoints, best first" in page
    headings = re.findall(r"(?<=<h2>)\w+|(?<=<dt>)[\w ]+", page)
    assert "Recipes" not in headings
    assert "Position table" not in headings

    screen = invoke("compare", "rotary", "alibi", *measured).stdout
    assert "2 checkpoints (causal)" in screen
    assert "perplexity at 8" in " ".join(screen.split())


def test_compare_checkpoints_ranks_encoders_and_compares_short_texts_with_the_base(
    tmp_path: Path,
) -> None:
    source = make_encoder(tmp_path / "encoder")
    texts = write_texts(80, 12)
    copy, linear = resized(source, "copy", "linear")
    found = ctxextend.compare_checkpoints([copy, linear, copy], texts, tokens=12 * TO)

    short_inputs = {row.method: row.short_inputs for row in found.rows}
    assert sorted(short_inputs) == ["copy (1)", "copy (2)", "linear"]
    for row in found.rows:
        name = row.method.split()[0]
        single = ctxextend.evaluate(name, texts, tokens=12 * TO)
        check_same_evaluation(row.evaluation, single)
        short = short_inputs[row.method]
        assert short is not None
        assert (short.mean == 0) == (name == "copy")

    short_texts = [" ".join(text.split()[:14]) for text in read_texts(texts)]
    new = SentenceTransformer("linear").encode(short_texts, normalize_embeddings=True)
    old = SentenceTransformer(str(source)).encode(short_texts, normalize_embeddings=True)
    cosines = (old * new).sum(axis=1)
    distance = short_inputs["linear"]
    assert distance is not None
    assert distance.mean == pytest.approx(1 - cosines.mean(), abs=1e-5)


@pytest.mark.slow
def test_compare_by_effective_length_ranks_by_answers_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(topics[name] for name in sorted(topics)[:20]), "utf-8")
    folders = resized(Path("tiny-gpt2"), "copy", "linear", to=256)
    monkeypatch.setattr(side_by_side, "find_base", None)  # no base is read

    flags = ("--data", text, "--tokens", 1024, "--measure", "effective", "--budget", 600)
    pages = ("--report", "page.html", "--plot", "figure.svg")
    done = invoke("compare", *folders, *flags, *pages, "--json")
    values = json.loads(done.stdout)
    check_result(values)
    assert values["metric"] == "found"
    assert values["base"] is None
    assert values["max_len_after"] == 256
    scores = [row["score"]["mean"] for row in values["rows"]]
    assert scores == sorted(scores, reverse=True)
    texts = []
    for row, score in zip(values["rows"], scores, strict=True):
        evaluation = row["evaluation"]
        assert evaluation["positions"] is None
        tasks = evaluation["effective"]["tasks"]
        found = 0
        trials = 0
        for name in ("needle", "key"):
            for length in tasks[name]["lengths"]:
                found += sum(cell["found"] for cell in length["cells"])
                trials += sum(cell["trials"] for cell in length["cells"])
        assert score == pytest.approx(found / trials)
        texts.append([(one["length"], one["texts"]) for one in tasks["key"]["lengths"]])
    assert texts[0] == texts[1]  # both read the same

    single = ctxextend.evaluate("copy", text, tokens=1024, length=[128, 256], measure="effective")
    (copied,) = [row for row in values["rows"] if row["method"] == "copy"]
    assert copied["evaluation"]["effective"]["tasks"] == to_json(single)["effective"]["tasks"]
    assert "answers found" in Path("page.html").read_text()
    assert Path("figure.svg").stat().st_size


def test_compare_checkpoints_uses_only_text_that_all_held_out(tmp_path: Path) -> None:
    write_book()
    source = make_source(tmp_path / "source", "gpt2")
    resized(source, "copy", "linear", to=32)
    train("copy", "first", steps=2)
    train("linear", "second", steps=4)
    names = ["linear", "first", "second"]
    found = ctxextend.compare_checkpoints(names, "book.txt", measure="position", tokens=512)
    assert found.warnings == (
        "One of first, second was trained on book.txt: only the 128 held-out tokens are used.",
    )
    assert found.tokens == 4 * 32
    assert found.documents == 4


def refuse(references: list[Any], texts: Path, message: str, hint: str, **settings: Any) -> None:
    """Check that a comparison ends with a message and a hint."""
    with pytest.raises(CtxextendError, match=message) as failed:
        ctxextend.compare_checkpoints(references, texts, **settings)
    assert hint in str(failed.value.hint)


def test_compare_checkpoints_rejects_what_cannot_be_compared(texts: Path, tmp_path: Path) -> None:
    short = make_source(tmp_path / "short", "gpt2")
    (long,) = resized(short, "copy")
    masked = make_source(tmp_path / "masked", "bert")
    make_rotary("llama", "other", **LENGTHS)
    add_tokenizer(Path("other"), special_tokens=True)
    encoder = make_encoder(tmp_path / "encoder")

    too_short = "short has a context length of 16, too short for"
    refuse([long, short], texts, too_short, f"short --to {TO}", length=TO)
    tokenizers = "The tokenizers of other and copy cut the text"
    refuse([long, "other"], texts, tokenizers, "share a tokenizer")
    kinds = "is an encoder without an LM head, but .*masked is a masked"
    refuse([masked, encoder], texts, kinds, "one kind")
    refuse([encoder, encoder], texts, "Retrieval was skipped", "with --search", length=16)


@pytest.mark.parametrize("flag", ["--to 32", "--method copy"])
def test_compare_rejects_flags_of_one_model_for_several(flag: str) -> None:
    done = invoke("compare", "a", "b", "--data", "book.txt", *flag.split())
    name = flag.split()[0]
    assert done.exit_code == 2
    assert f"{name} is for one MODEL, got several." in done.stderr
