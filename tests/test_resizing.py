"""`resize` and `convert` in Python do what the flags of the commands do."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ctxextend import ResizeResult, VerificationError, convert, resize
from ctxextend.cli.app import build_app
from tests.helpers.trainings import fix_steps, make_source, succeed
from tests.helpers.word_tokenizer import write_texts
from tests.plan.test_resize_rotary import make

SENTENCE = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(autouse=True)
def book() -> None:
    Path("book.txt").write_text(SENTENCE * 200)


def printed(*arguments: str) -> dict[str, Any]:
    """Return what a command prints with --json."""
    done = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def plain(result: ResizeResult) -> dict[str, Any]:
    """Return the JSON of a result without what differs between two runs."""
    return comparable(result.to_json())


def comparable(values: dict[str, Any]) -> dict[str, Any]:
    """Return values without those that differ between two runs."""
    different = {"seconds", "output", "schema_version", "command", "bytes_written"}
    kept = {name: value for name, value in values.items() if name not in different}
    if kept.get("tuning"):
        kept["tuning"] = {**kept["tuning"], "seconds": 0}
    if kept.get("train"):
        kept["train"] = kept["train"]["loss_after"]
    return kept


def test_resize_verifies_its_output() -> None:
    result = resize("tiny-gpt2", 256, verify=True, output="python")
    assert result.verified
    flags = printed("resize", "tiny-gpt2", "--to", "256", "--verify", "-o", "flags")
    assert plain(result) == comparable(flags)


def test_resize_tunes_a_table_on_text_and_verifies_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix_steps(monkeypatch, 2)
    make_source(Path("small"), "gpt2", n_positions=48)
    write_texts(192, 10)
    result = resize("small", 96, tune="texts.jsonl", verify=True, output="python")
    assert result.verified
    assert result.plan.methods["transformer.wpe.weight"].startswith("bands:")
    assert result.tuning is not None
    flags = ["--to", "96", "--tune", "texts.jsonl", "--verify", "-o", "flags"]
    assert plain(result) == comparable(printed("resize", "small", *flags))


def test_resize_writes_no_weights_with_edit_only() -> None:
    make()
    result = resize("llama", 64, edit_only=True, output="edited")
    assert not list(result.output.glob("*.safetensors"))
    assert result.add_weights is not None
    flags = printed("resize", "llama", "--to", "64", "--edit-only", "-o", "flags")
    assert plain(result) == comparable(flags)


def test_convert_verifies_its_output() -> None:
    result = convert("tiny-gpt2", "rotary", 256, verify=True, output="python")
    assert result.verified
    flags = ["--scheme", "rotary", "--to", "256", "--verify", "-o", "flags"]
    assert plain(result) == comparable(printed("convert", "tiny-gpt2", *flags))


def test_resize_leaves_nothing_if_the_output_is_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise VerificationError("The output does not match the plan.")

    monkeypatch.setattr("ctxextend.verification.verify.check_output", fail)
    with pytest.raises(VerificationError):
        resize("tiny-gpt2", 256, verify=True, output="out")
    assert not Path("out").exists()


def test_resize_takes_keep_first_above_the_learned_rows_as_all_of_them() -> None:
    done = succeed("resize", "tiny-gpt2", "--to", 256, "--keep-first", 200, "-o", "kept", "--json")
    note = "--keep-first 200 is taken as 128: the table has 128 learned rows."
    assert note in done.stderr.splitlines()
    assert json.loads(done.stdout)["keep_first"] == 128
    succeed("verify", "kept")

    exact = succeed("resize", "tiny-gpt2", "--to", 256, "--keep-first", 128, "-o", "exact")
    assert "taken as" not in exact.stderr
    weights = Path("exact/model.safetensors").read_bytes()
    assert weights == Path("kept/model.safetensors").read_bytes()
