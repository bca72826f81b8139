"""End-to-end tests of `evaluate`, on the bundled checkpoint and on pico models."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, get_args

import pytest
import torch
import transformers
from typer.testing import CliRunner

import ctxextend
from ctxextend.cli import options
from ctxextend.cli.app import build_app
from ctxextend.errors import CheckpointError, DataError, ResizeError, UnsupportedModelError
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED, open_eval_model
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED
from ctxextend.evaluation.losses import LossTask, open_scorer
from ctxextend.json_output import to_json
from ctxextend.recipe import MEASURES, PRECISIONS, CheckpointRef
from tests.helpers import pico
from tests.helpers.pico import Pico
from tests.helpers.word_tokenizer import add_tokenizer, write_texts

Make = Callable[..., Pico]
LOSSES = ("position", "context")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts like those tiny-gpt2 was trained on, each longer than 512 tokens."""
    folder = tmp_path_factory.mktemp("texts")
    for name in sorted(topics, key=lambda name: -len(topics[name]))[:6]:
        (folder / f"{name}.txt").write_text(topics[name], "utf-8")
    return folder


@pytest.fixture(scope="session")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-gpt2 resized to 512 tokens with its learned rows unchanged."""
    output = tmp_path_factory.mktemp("models") / "tiny-gpt2-512"
    return ctxextend.resize("tiny-gpt2", to=512, method="copy", output=output).output


def evaluate_json(*arguments: Any, **flags: Any) -> dict[str, Any]:
    """Return the JSON of an evaluation."""
    found: dict[str, Any] = to_json(ctxextend.evaluate(*arguments, **flags))
    return found


def test_evaluate_compares_with_base_from_recipe(extended: Path, texts: Path) -> None:
    found = evaluate_json(extended, texts, tokens=4096, measure=LOSSES)
    expected = {
        "kind": CAUSAL,
        "max_len": 512,
        "base": "tiny-gpt2",
        "base_max_len": 128,
        "complete": True,
    }
    expected |= {"across_documents": False, "tokens": 8 * 512}
    assert expected.items() <= found.items()
    assert list(found["positions"]["losses"]) == [MODEL, TRUNCATED, SLIDING]
    # `copy` keeps the learned rows, so losses within the base's context length are equal.
    for bucket in found["positions"]["buckets"][:4]:
        assert bucket["losses"][MODEL]["mean"] == pytest.approx(
            bucket["losses"][TRUNCATED]["mean"], abs=1e-5
        )
    assert [point["context"] for point in found["contexts"]["points"]] == [64, 128, 256, 512]
    assert found["contexts"]["reference"] == 128
    for point in found["contexts"]["points"][:2]:
        assert point["loss"]["mean"] == pytest.approx(point["base"]["mean"], abs=1e-5)
    # Its perplexity is 17 on text of this kind that it was not trained on.
    assert found["positions"]["losses"][TRUNCATED]["perplexity"] < 40


def test_evaluate_always_measures_base_at_its_context_length(extended: Path, texts: Path) -> None:
    selected, default = (
        evaluate_json(extended, texts, tokens=1024, measure=["context"], length=length)["contexts"][
            "points"
        ]
        for length in ((16, 512), ())
    )
    assert [point["context"] for point in selected] == [16, 512]
    ends = [points[-1]["against_base"]["mean"] for points in (selected, default)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)


def test_evaluate_without_base_measures_model_only(texts: Path) -> None:
    found = evaluate_json("tiny-gpt2", texts, tokens=2048, measure=LOSSES)
    positions, contexts = found["positions"], found["contexts"]
    assert (found["base"], found["base_max_len"]) == (None, None)
    assert any("--base" in note for note in found["notes"])
    assert (list(positions["losses"]), positions["changes"]) == ([MODEL], {})
    assert [point["context"] for point in contexts["points"]] == [16, 32, 64, 128]
    assert contexts["reference"] == 16
    assert all(point["base"] is None for point in contexts["points"])
    # tiny-gpt2 uses its context.
    last = contexts["points"][-1]["change"]
    assert last["mean"] < -last["ci95"]


def test_evaluate_loss_equals_transformers_loss_in_each_precision(texts: Path) -> None:
    flags: dict[str, Any] = {"tokens": 128 * 4, "measure": ["position"]}
    model = open_eval_model(CheckpointRef("tiny-gpt2"))
    first = sorted(texts.iterdir())[0].read_text("utf-8")
    ids = torch.tensor(model.tokenizer.tokenizer(first)["input_ids"][: 128 * 4]).view(4, 128)
    with torch.no_grad():
        expected = model.model(input_ids=ids, labels=ids).loss.item()
    full, half = (
        evaluate_json("tiny-gpt2", texts, precision=name, **flags) for name in ("auto", "bf16")
    )
    assert full["positions"]["losses"][MODEL]["mean"] == pytest.approx(expected, abs=1e-5)
    assert half["positions"]["losses"][MODEL]["mean"] == pytest.approx(expected, rel=0.01)
    assert (full["precision"], half["precision"]) == ("float32", "bfloat16")


def test_open_scorer_rejects_causal_class_with_bidirectional_attention(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MegatronBertConfig(
        **sizes, intermediate_size=16, vocab_size=32, max_position_embeddings=16
    )
    transformers.MegatronBertForCausalLM(config).save_pretrained(tmp_path)
    add_tokenizer(tmp_path, special_tokens=True)
    with pytest.raises(
        UnsupportedModelError, match="is not causal: its predictions depend on later tokens"
    ):
        open_scorer(open_eval_model(CheckpointRef(str(tmp_path))))
    pico.edit_json(tmp_path / "config.json", is_decoder=True)
    assert open_scorer(open_eval_model(CheckpointRef(str(tmp_path)))).has_separate_head


def test_evaluate_joins_short_documents_and_warns_if_losses_are_measured(make_pico: Make) -> None:
    text = write_texts(5, 40)
    # The LM head is tied to the word embeddings, so no tensor is missing.
    causal = add_tokenizer(make_pico("gpt2", "causal", base=True).folder, special_tokens=False)
    found = ctxextend.evaluate(causal, text, tokens=64, measure=LOSSES)
    assert (found.kind, found.across_documents) == (CAUSAL, True)
    (across,) = found.warnings
    assert "windows span several documents" in across
    encoder = add_tokenizer(make_pico("bert", base=True).folder, special_tokens=True)
    found = ctxextend.evaluate(encoder, text, tokens=64)
    assert (found.kind, found.warnings, found.across_documents) == (ENCODER, (), False)


def test_evaluate_reads_text_with_much_white_space_and_rejects_empty_text(make_pico: Make) -> None:
    masked = add_tokenizer(make_pico("bert").folder, special_tokens=True)
    words = Path(write_texts(1, 300)).read_text().split()
    Path("wide.txt").write_text("".join(f"{word:<40}" for word in words))
    assert ctxextend.evaluate(masked, "wide.txt", tokens=64, measure=["position"]).tokens == 64
    Path("none.jsonl").write_text('{"text": null}\n' * 3)
    with pytest.raises(DataError, match="The text has 0 tokens"):
        ctxextend.evaluate(masked, "none.jsonl", tokens=64)


def test_evaluate_notes_skipped_measures_and_rejects_requested_ones(make_pico: Make) -> None:
    masked, text = add_tokenizer(make_pico("bert").folder, special_tokens=True), write_texts(300, 1)
    found = ctxextend.evaluate(masked, text, tokens=64)
    assert (found.kind, found.passkey) == (MASKED, None)
    assert any("no ten numbers of one token" in note for note in found.notes)
    with pytest.raises(DataError, match=r"no ten numbers of one token.*Remove it from --measure"):
        ctxextend.evaluate(masked, text, tokens=64, measure=["passkey"])


def test_evaluate_warns_if_base_is_missing_or_changed(make_pico: Make, tmp_path: Path) -> None:
    folder = make_pico("gpt2").folder
    elsewhere = tmp_path / "elsewhere"
    text = write_texts(200, 1)
    longer = ctxextend.resize(
        add_tokenizer(folder, special_tokens=False), to=32, output=tmp_path / "longer"
    ).output
    folder.rename(elsewhere)
    missing = ctxextend.evaluate(longer, text, measure=LOSSES)
    assert missing.base is None
    assert any("--base" in warning for warning in missing.warnings)
    assert not any(
        "--base" in warning for warning in ctxextend.evaluate(longer, text, no_base=True).warnings
    )
    assert ctxextend.evaluate(longer, text, base=elsewhere, measure=LOSSES).base == str(elsewhere)
    add_tokenizer(make_pico("gpt2", initializer_range=0.5).folder, special_tokens=False)
    changed = ctxextend.evaluate(longer, text, measure=["position"])
    assert changed.base is None
    assert any(
        "has changed since the recipe was written" in warning for warning in changed.warnings
    )


def test_evaluate_rejects_base_with_other_kind_or_tokenizer(make_pico: Make) -> None:
    causal = add_tokenizer(make_pico("gpt2").folder, special_tokens=False)
    masked = add_tokenizer(make_pico("bert").folder, special_tokens=True)
    other = add_tokenizer(make_pico("gpt2", "other").folder, special_tokens=True)
    for model, base, message in (
        (causal, masked, r"a masked language model, but .* is a causal"),
        (causal, "tiny-gpt2", "cut the text into different tokens"),
        (other, causal, "cut the text into different tokens"),
    ):
        with pytest.raises(CheckpointError, match=message):
            ctxextend.evaluate(model, write_texts(200, 1), base=base)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"length": [256]},
            "context length of 128, too short for windows of 256 .*resize tiny-gpt2 --to 256",
        ),
        ({"length": [4]}, "--length must be at least 8, got 4"),
        ({"tokens": True}, "--tokens must be .* got True"),
        ({"no_base": True, "base": "tiny-gpt2"}, "--no-base cannot be used with --base"),
        (
            {"no_base": True, "measure": ["retrieval"]},
            "--no-base cannot be used with --measure retrieval, which requires the base",
        ),
        ({"measure": ["speed"]}, "--measure must be one of position, context, .* got speed"),
        ({"measure": ["retrieval"]}, "--measure retrieval does not apply to tiny-gpt2, a causal"),
    ],
)
def test_evaluate_rejects_invalid_values(flags: dict[str, Any], message: str, texts: Path) -> None:
    with pytest.raises(ResizeError, match=message):
        ctxextend.evaluate("tiny-gpt2", texts, **flags)


def test_evaluate_rejects_empty_text_before_loading_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctxextend.evaluation.eval_model.load_eval_model", None)
    Path("empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        ctxextend.evaluate("tiny-gpt2", "empty.txt")


def test_evaluate_flags_accept_the_values_of_recipes() -> None:
    assert options.MEASURES == MEASURES
    assert get_args(get_args(options.Precision)[0]) == PRECISIONS


def test_evaluate_prints_identical_json_except_seconds(extended: Path, texts: Path) -> None:
    arguments = ["evaluate", str(extended), "--data", str(texts), "--tokens", "1024"]
    first, second = (CliRunner().invoke(build_app(), [*arguments, "--json"]) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr
    values = json.loads(first.stdout)
    assert json.loads(second.stdout) | {"seconds": values["seconds"]} == values
    assert values["passkey"]["lengths"] == [64, 128, 256, 512]
    assert values["shift"] is None  # only by name
    loss = values["positions"]["losses"]["model"]
    assert loss["perplexity"] == pytest.approx(math.exp(loss["mean"]))
    assert values["warnings"] == [
        line.removeprefix("Warning: ") for line in first.stderr.splitlines() if "Warn" in line
    ]


def test_evaluate_interrupted_prints_results_so_far(
    extended: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: LossTask, number: int) -> Any:
        if number == 4:
            raise KeyboardInterrupt
        return targets(self, number)

    targets = LossTask.targets
    monkeypatch.setattr(LossTask, "targets", interrupt)
    monkeypatch.setattr(
        "ctxextend.cli.console.ignore_ctrl_c", lambda: None
    )  # would affect the other tests
    arguments = ["evaluate", str(extended), "--data", str(texts), "--batch-size", "2", "--json"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 130, done.stderr
    values = json.loads(done.stdout)
    assert values["complete"] is False
    assert values["positions"]["windows"] == 4
    assert values["tokens"] == 4 * 512
    assert values["passkey"] is None


def test_evaluate_rejects_model_shorter_than_the_shortest_context(make_pico: Make) -> None:
    folder = add_tokenizer(make_pico("bert", max_position_embeddings=2).folder, special_tokens=True)
    with pytest.raises(ResizeError, match=r"context length of 2, too short for windows of 8"):
        ctxextend.evaluate(folder, write_texts(40))
