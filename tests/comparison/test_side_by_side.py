"""`compare` of checkpoints: numbers as from `evaluate`, pairing, facts, unseen text, errors."""

import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

import ctxextend
from ctxextend.comparison import costs
from ctxextend.errors import CtxextendError
from ctxextend.evaluation import eval_model
from ctxextend.evaluation.eval_model import EvalModel, load_eval_model
from ctxextend.evaluation.evaluation_result import estimate
from ctxextend.evaluation.text_tokenizer import TextTokenizer
from ctxextend.json_output import to_json
from tests.helpers.json_schemas import check
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
    source, calls = make_source(tmp_path / "source", "gpt2"), list[tuple[int, int, str]]()
    folders = resized(source, "copy", "linear")
    found = ctxextend.compare_checkpoints(
        folders, texts, tokens=512, progress=lambda *call: calls.append(call)
    )
    assert (found.row_type, found.source, found.kind) == ("checkpoint", str(source), "causal")
    assert (found.max_len_before, found.max_len_after, found.documents) == (16, TO, 2)
    best, other = found.rows
    for row in found.rows:
        single = ctxextend.evaluate(row.method, texts, tokens=512)
        assert to_json(row.untrained.evaluation) | {"seconds": 0} == to_json(single) | {
            "seconds": 0
        }
        assert row.untrained.score == single.positions.losses["model"]  # type: ignore[union-attr]
        assert found.base == single.positions.losses["sliding"]  # type: ignore[union-attr]
        assert row.final.short_inputs is not None
        assert (row.final.short_inputs.mean == 0) == (row.method == "copy")
        facts = row.checkpoint
        assert facts is not None
        assert (facts.source, facts.model_type, facts.scheme, facts.max_len) == (
            row.method,
            "gpt2",
            "learned",
            TO,
        )
        assert (
            facts.bytes
            == 4 * facts.parameters
            == 4 * sum(p.numel() for p in load_model(row.method).parameters())
        )
        assert facts.tokens_per_second > 0
    # The paired difference, by hand: all tokens of the eight windows but the first of each.
    windows = [
        ids[start : start + TO]
        for ids in encoded(source, texts)
        for start in range(0, 300 - TO, TO)
    ][:8]
    losses = [
        [token_losses(load_model(row.method), window) for window in windows]
        for row in (best, other)
    ]
    expected = estimate([second - first for first, second in zip(*losses, strict=True)])
    assert other.final.delta is not None
    assert best.final.delta is None
    assert other.final.delta.mean == pytest.approx(expected.mean, abs=1e-6)
    assert other.final.delta.ci95 == pytest.approx(expected.ci95, abs=1e-6)
    assert {total for _, total, _ in calls} == {sum(tokens for tokens, _, _ in calls)}
    assert {name for _, _, name in calls} == {"the base", "copy", "linear"}


def load_model(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).train(False)


def encoded(folder: Path, texts: Path) -> list[torch.Tensor]:
    tokenizer = TextTokenizer.open(folder)
    return [
        torch.tensor(tokenizer.encode(json.loads(line)["text"]))
        for line in texts.read_text().splitlines()
    ]


def token_losses(model: Any, ids: torch.Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    losses: np.ndarray[Any, Any] = torch.nn.functional.cross_entropy(
        logits, ids[1:], reduction="none"
    ).numpy()
    return losses


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
        assert {value.device.type for model in alive for value in model.parameters()} <= {"meta"}
        model = loads(*arguments)
        alive.add(model.model)
        return model

    monkeypatch.setattr(eval_model, "load_eval_model", load_one)
    names = ["rotary", "alibi", "zero:scope=all", "sinusoidal:scope=all", str(source)]
    flags = (
        "--data",
        texts,
        "--tokens",
        512,
        "--measure",
        "context",
        "--report",
        "page.html",
        "--plot",
        "page.png",
    )
    done = invoke("compare", *names, *flags, "--json")
    assert done.exit_code == 0
    check(values := json.loads(done.stdout), "compare")
    assert (
        values["source"],
        values["base"],
        values["max_len_before"],
        values["max_len_after"],
    ) == ("", None, 8, TO)
    facts = {row["method"]: row["checkpoint"] for row in values["rows"]}
    schemes = {
        "rotary": "rotary",
        "alibi": "ALiBi",
        "zero:scope=all": "none",
        "sinusoidal:scope=all": "sinusoidal",
    }
    assert {name: fact["scheme"] for name, fact in facts.items()} == schemes | {"gpt2": "learned"}
    page = Path("page.html").read_text("utf-8")
    assert "5 checkpoints at 64 tokens" in page
    assert "Checkpoints, best first" in page
    assert not {"Recipes", "Position table"} & set(
        re.findall(r"(?<=<h2>)\w+|(?<=<dt>)[\w ]+", page)
    )
    screen = invoke("compare", *names[:2], *flags[:6]).stdout
    assert "2 checkpoints (causal)" in screen
    assert "perplexity at 8" in " ".join(screen.split())


def test_compare_checkpoints_ranks_encoders_and_compares_short_texts_with_the_base(
    tmp_path: Path,
) -> None:
    source, texts = make_encoder(tmp_path / "encoder"), write_texts(80, 12)
    folders = resized(source, "copy", "linear")
    found = ctxextend.compare_checkpoints([*folders, folders[0]], texts, tokens=12 * TO)
    assert sorted(row.method for row in found.rows) == ["copy (1)", "copy (2)", "linear"]
    for row in found.rows:
        name = row.method.split()[0]
        short = row.final.short_inputs
        single = ctxextend.evaluate(name, texts, tokens=12 * TO)
        assert to_json(row.final.evaluation) | {"seconds": 0} == to_json(single) | {"seconds": 0}
        assert short is not None
        assert (short.mean == 0) == (name == "copy")
    models = {name: SentenceTransformer(name) for name in ("linear", str(source))}
    lines = [json.loads(line)["text"] for line in texts.read_text().splitlines()]
    short_texts = [" ".join(line.split()[:14]) for line in lines]
    old, new = (model.encode(short_texts, normalize_embeddings=True) for model in models.values())
    (linear,) = (row.final.short_inputs for row in found.rows if row.method == "linear")
    assert linear is not None
    assert linear.mean == pytest.approx(1 - (old * new).sum(axis=1).mean(), abs=1e-5)


def test_compare_checkpoints_uses_only_text_that_all_held_out(tmp_path: Path) -> None:
    write_book()
    source = make_source(tmp_path / "source", "gpt2")
    resized(source, "copy", "linear", to=32)
    train("copy", "first", steps=2)
    train("linear", "second", steps=4)
    found = ctxextend.compare_checkpoints(
        ["linear", "first", "second"], "book.txt", measure="position", tokens=512
    )
    assert found.warnings == (
        "One of first, second was trained on book.txt: only the 128 held-out tokens are used.",
    )
    assert (found.tokens, found.documents) == (4 * 32, 4)


def test_compare_checkpoints_reports_results_so_far_after_ctrl_c(
    texts: Path, tmp_path: Path
) -> None:
    folders = resized(make_source(tmp_path / "source", "gpt2"), "copy", "linear")

    def stop(advance: int, total: int, label: str = "") -> None:
        if label == "linear":
            raise KeyboardInterrupt

    with pytest.raises(ctxextend.ComparisonInterrupted) as stopped:
        ctxextend.compare_checkpoints(folders, texts, measure="position", tokens=512, progress=stop)
    assert not stopped.value.comparison.complete
    assert [row.method for row in stopped.value.comparison.rows] == ["copy"]


def test_compare_checkpoints_rejects_what_cannot_be_compared(texts: Path, tmp_path: Path) -> None:
    source = make_source(tmp_path / "short", "gpt2")
    (long,) = resized(source, "copy")
    make_source(tmp_path / "masked", "bert")
    make_rotary("llama", "other", **LENGTHS)
    add_tokenizer(Path("other"), special_tokens=True)
    encoder = make_encoder(tmp_path / "encoder")
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
        (
            (long, source),
            {"length": TO},
            "short has a context length of 16, too short for",
            f"short --to {TO}",
        ),
        ((long, "other"), {}, "The tokenizers of other and copy cut the text", "share a tokenizer"),
        (
            (tmp_path / "masked", encoder),
            {},
            "is an encoder without an LM head, but .*masked is a masked",
            "one kind",
        ),
        ((encoder, encoder), {"length": 16}, "Retrieval was skipped", "--corpus"),
        ((long, source), {"measure": "shift"}, "--measure shift reads one checkpoint", "evaluate"),
    ]
    for references, settings, message, hint in cases:
        with pytest.raises(CtxextendError, match=message) as failed:
            ctxextend.compare_checkpoints(references, texts, **settings)
        assert hint in str(failed.value.hint)


@pytest.mark.parametrize(
    "flag", ["--to 32", "--steps 2", "--quick", "--hold-out 8", "--method copy", "--revision v1"]
)
def test_compare_rejects_flags_of_one_model_for_several(flag: str) -> None:
    done = invoke("compare", "a", "b", "--data", "book.txt", *flag.split())
    assert done.exit_code == 2
    assert f"{flag.split()[0]} is for one MODEL, got 2: a, b." in done.stderr
