"""`evaluate` from end to end, on the bundled checkpoint and on pico models."""

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
from ctxextend.cli.app import app_of
from ctxextend.errors import CheckpointError, DataError, ResizeError, UnsupportedModelError
from ctxextend.evaluation.eval_model import CAUSAL, ENCODER, MASKED, open_eval_model
from ctxextend.evaluation.evaluation_result import MODEL, SLIDING, TRUNCATED
from ctxextend.evaluation.losses import LossTask, open_scorer
from ctxextend.json_output import to_json
from ctxextend.recipe import MEASURES, PRECISIONS, CheckpointRef
from tests import pico
from tests.pico import Pico
from tests.words import add_tokenizer, write_texts

Make = Callable[..., Pico]
LOSSES = ("position", "context")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of texts that tiny-gpt2 understands, each longer than 512 of its tokens."""
    folder = tmp_path_factory.mktemp("reference")
    for name in sorted(topics, key=lambda name: -len(topics[name]))[:6]:
        (folder / f"{name}.txt").write_text(topics[name], "utf-8")
    return folder


@pytest.fixture(scope="session")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-gpt2, made to read 512 tokens by a method that keeps what it learned."""
    return ctxextend.resize("tiny-gpt2", to=512, output=tmp_path_factory.mktemp("models") / "tiny-gpt2-512").output


def measured(*arguments: Any, **flags: Any) -> dict[str, Any]:
    """What `evaluate` finds, as JSON has it."""
    found: dict[str, Any] = to_json(ctxextend.evaluate(*arguments, **flags))
    return found


def test_evaluate_finds_the_original_by_the_recipe_and_pairs_it(extended: Path, reference: Path) -> None:
    found = measured(extended, reference, tokens=4096, measure=LOSSES)
    expected = {"kind": CAUSAL, "max_len": 512, "base": "tiny-gpt2", "base_max_len": 128, "complete": True}
    expected |= {"across_documents": False, "tokens": 8 * 512}
    assert expected.items() <= found.items()
    assert list(found["positions"]["losses"]) == [MODEL, TRUNCATED, SLIDING]
    # `copy` keeps what was learned, so nothing may differ where the original could read the same.
    for bucket in found["positions"]["buckets"][:4]:
        assert bucket["losses"][MODEL]["mean"] == pytest.approx(bucket["losses"][TRUNCATED]["mean"], abs=1e-5)
    assert [point["context"] for point in found["contexts"]["points"]] == [64, 128, 256, 512]
    assert found["contexts"]["reference"] == 128
    for point in found["contexts"]["points"][:2]:
        assert point["loss"]["mean"] == pytest.approx(point["base"]["mean"], abs=1e-5)
    # It knows such text: 17 on what it was not trained on.
    assert found["positions"]["losses"][TRUNCATED]["perplexity"] < 40


def test_evaluate_compares_with_the_originals_own_length_whatever_is_asked_for(extended: Path, reference: Path) -> None:
    few, whole = (
        measured(extended, reference, tokens=1024, measure=["context"], length=asked)["contexts"]["points"]
        for asked in ((16, 512), ())
    )
    assert [point["context"] for point in few] == [16, 512]
    ends = [points[-1]["against_base"]["mean"] for points in (few, whole)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)


def test_evaluate_of_an_original_alone_measures_its_own_length(reference: Path) -> None:
    found = measured("tiny-gpt2", reference, tokens=2048, measure=LOSSES)
    positions, contexts = found["positions"], found["contexts"]
    assert (found["base"], found["base_max_len"]) == (None, None)
    assert any("--base" in note for note in found["notes"])
    assert (list(positions["losses"]), positions["changes"]) == ([MODEL], {})
    assert [point["context"] for point in contexts["points"]] == [16, 32, 64, 128]
    assert contexts["reference"] == 16
    assert all(point["base"] is None for point in contexts["points"])
    # tiny-gpt2 uses what stands before a token.
    last = contexts["points"][-1]["change"]
    assert last["mean"] < -last["ci95"]


def test_evaluate_by_position_equals_transformers_own_loss_in_either_precision(reference: Path) -> None:
    flags: dict[str, Any] = {"tokens": 128 * 4, "measure": ["position"]}
    reader = open_eval_model(CheckpointRef("tiny-gpt2"))
    first = sorted(reference.iterdir())[0].read_text("utf-8")
    ids = torch.tensor(reader.tokenizer.tokenizer(first)["input_ids"][: 128 * 4]).view(4, 128)
    with torch.no_grad():
        theirs = reader.model(input_ids=ids, labels=ids).loss.item()
    whole, half = (measured("tiny-gpt2", reference, precision=name, **flags) for name in ("auto", "bf16"))
    assert whole["positions"]["losses"][MODEL]["mean"] == pytest.approx(theirs, abs=1e-5)
    assert half["positions"]["losses"][MODEL]["mean"] == pytest.approx(theirs, rel=0.01)
    assert (whole["precision"], half["precision"]) == ("float32", "bfloat16")


def test_evaluate_refuses_a_causal_class_that_reads_both_ways(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MegatronBertConfig(**sizes, intermediate_size=16, vocab_size=32, max_position_embeddings=16)
    transformers.MegatronBertForCausalLM(config).save_pretrained(tmp_path)
    add_tokenizer(tmp_path, special_tokens=True)
    with pytest.raises(UnsupportedModelError, match="reads the tokens behind a place too"):
        open_scorer(open_eval_model(CheckpointRef(str(tmp_path))))
    pico.edit_json(tmp_path / "config.json", is_decoder=True)
    assert open_scorer(open_eval_model(CheckpointRef(str(tmp_path)))).has_separate_head


def test_evaluate_joins_short_documents_and_warns_where_losses_are_measured(make_pico: Make) -> None:
    text = write_texts(5, 40)
    # Its head is its word table, so nothing is missing without a head's name.
    causal = add_tokenizer(make_pico("gpt2", "causal", base=True).folder, special_tokens=False)
    found = ctxextend.evaluate(causal, text, tokens=64, measure=LOSSES)
    assert (found.kind, found.across_documents) == (CAUSAL, True)
    (across,) = found.warnings
    assert "run over their ends" in across
    encoder = add_tokenizer(make_pico("bert", base=True).folder, special_tokens=True)
    found = ctxextend.evaluate(encoder, text, tokens=64)
    assert (found.kind, found.warnings, found.across_documents) == (ENCODER, (), False)


def test_evaluate_reads_all_of_a_text_that_is_mostly_white_space_and_refuses_one_without_any(make_pico: Make) -> None:
    masked = add_tokenizer(make_pico("bert").folder, special_tokens=True)
    words = Path(write_texts(1, 300)).read_text().split()
    Path("wide.txt").write_text("".join(f"{word:<40}" for word in words))
    assert ctxextend.evaluate(masked, "wide.txt", tokens=64, measure=["position"]).tokens == 56
    Path("none.jsonl").write_text('{"text": null}\n' * 3)
    with pytest.raises(DataError, match="The text has 0 tokens"):
        ctxextend.evaluate(masked, "none.jsonl", tokens=64)


def test_evaluate_notes_what_cannot_be_measured_and_refuses_it_by_its_name(make_pico: Make) -> None:
    masked, text = add_tokenizer(make_pico("bert").folder, special_tokens=True), write_texts(300, 1)
    found = ctxextend.evaluate(masked, text, tokens=64)
    assert (found.kind, found.passkey) == (MASKED, None)
    assert any("no ten numbers of one token" in note for note in found.notes)
    with pytest.raises(DataError, match=r"no ten numbers of one token.*Leave it out of --measure"):
        ctxextend.evaluate(masked, text, tokens=64, measure=["passkey"])


def test_evaluate_goes_on_without_an_original_that_is_gone_or_another(make_pico: Make, tmp_path: Path) -> None:
    folder, elsewhere, text = make_pico("gpt2").folder, tmp_path / "elsewhere", write_texts(200, 1)
    longer = ctxextend.resize(add_tokenizer(folder, special_tokens=False), to=32, output=tmp_path / "longer").output
    folder.rename(elsewhere)
    gone = ctxextend.evaluate(longer, text, measure=LOSSES)
    assert gone.base is None
    assert any("--base" in warning for warning in gone.warnings)
    assert not any("--base" in warning for warning in ctxextend.evaluate(longer, text, no_base=True).warnings)
    assert ctxextend.evaluate(longer, text, base=elsewhere, measure=LOSSES).base == str(elsewhere)
    add_tokenizer(make_pico("gpt2", initializer_range=0.5).folder, special_tokens=False)
    another = ctxextend.evaluate(longer, text, measure=["position"])
    assert another.base is None
    assert any("no longer what it was" in warning for warning in another.warnings)


def test_evaluate_refuses_what_cannot_be_compared(make_pico: Make) -> None:
    causal = add_tokenizer(make_pico("gpt2").folder, special_tokens=False)
    masked = add_tokenizer(make_pico("bert").folder, special_tokens=True)
    framed = add_tokenizer(make_pico("gpt2", "framed").folder, special_tokens=True)
    for model, base, said in (
        (causal, masked, r"a masked language model, and .* is a causal"),
        (causal, "tiny-gpt2", "cut the text into different tokens"),
        (framed, causal, "cut the text into different tokens"),
    ):
        with pytest.raises(CheckpointError, match=said):
            ctxextend.evaluate(model, write_texts(200, 1), base=base)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"length": [256]}, "reads 128 tokens at once, and a context of 256 .*resize tiny-gpt2 --to 256"),
        ({"length": [4]}, "--length must be at least 8, got 4"),
        ({"tokens": True}, "--tokens must be .* got True"),
        ({"no_base": True, "base": "tiny-gpt2"}, "--no-base leaves out"),
        ({"no_base": True, "measure": ["retrieval"]}, "--no-base leaves out .* --measure retrieval needs"),
        ({"measure": ["speed"]}, "no --measure speed.*position, context"),
        ({"measure": ["retrieval"]}, "--measure retrieval has no meaning for tiny-gpt2, a causal"),
    ],
)
def test_evaluate_refuses_values_that_cannot_be(flags: dict[str, Any], message: str, reference: Path) -> None:
    with pytest.raises(ResizeError, match=message):
        ctxextend.evaluate("tiny-gpt2", reference, **flags)


def test_evaluate_refuses_an_empty_text_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxextend.evaluation.evaluate.load_eval_model", None)
    Path("empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        ctxextend.evaluate("tiny-gpt2", "empty.txt")


def test_evaluate_names_of_the_command_line_are_the_recipes() -> None:
    assert options.MEASURES == MEASURES
    assert get_args(get_args(options.Precision)[0]) == PRECISIONS


def test_evaluate_prints_the_same_json_again_but_for_the_seconds(extended: Path, reference: Path) -> None:
    arguments = ["evaluate", str(extended), "--data", str(reference), "--tokens", "1024"]
    first, again = (CliRunner().invoke(app_of(), [*arguments, "--json"]) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0), first.stderr
    values = json.loads(first.stdout)
    assert json.loads(again.stdout) | {"seconds": values["seconds"]} == values
    assert values["passkey"]["lengths"] == [64, 128, 256, 512]
    loss = values["positions"]["losses"]["model"]
    assert loss["perplexity"] == pytest.approx(math.exp(loss["mean"]))
    assert values["warnings"] == [
        line.removeprefix("Warning: ") for line in first.stderr.splitlines() if "Warn" in line
    ]


def test_evaluate_stopped_by_ctrl_c_prints_what_was_measured(
    extended: Path, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: LossTask, number: int) -> Any:
        if number == 4:
            raise KeyboardInterrupt
        return targets(self, number)

    targets = LossTask.targets
    monkeypatch.setattr(LossTask, "targets", stopped)
    monkeypatch.setattr("ctxextend.cli.output.ignore_ctrl_c", lambda: None)  # this process goes on
    arguments = ["evaluate", str(extended), "--data", str(reference), "--batch-size", "2", "--json"]
    done = CliRunner().invoke(app_of(), arguments)
    assert done.exit_code == 130, done.stderr
    values = json.loads(done.stdout)
    assert values["complete"] is False
    assert values["positions"]["windows"] == 4
    assert values["tokens"] == 4 * 512
    assert values["passkey"] is None


def test_evaluate_refuses_a_model_that_reads_less_than_the_shortest_context(make_pico: Make) -> None:
    folder = add_tokenizer(make_pico("bert", max_position_embeddings=2).folder, special_tokens=True)
    with pytest.raises(ResizeError, match=r"reads 2 tokens at once, and a context of 8"):
        ctxextend.evaluate(folder, write_texts(40))
