"""`--to` at the current length is the same for every kind of positions: a copy, with a warning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, T5Config

import ctxextend
from ctxextend import extend_model
from tests.helpers import conversions, pico, rotary_models, sinusoidal_models
from tests.helpers.gguf_files import write_gguf
from tests.helpers.notes import texts_in
from tests.helpers.rotary_models import OLD
from tests.helpers.trainings import invoke, succeed
from tests.helpers.word_tokenizer import add_tokenizer

HAS_LENGTH = {"llama": "max_position_embeddings", "mpt": "max_seq_len", "bloom": "seq_length"}


def make_without_rows(model_type: str) -> Path:
    """Save a small model with rotary or ALiBi positions of 16 tokens."""
    length: dict[str, Any] = {HAS_LENGTH[model_type]: OLD}
    return rotary_models.make(model_type, **length).folder


def make_relative() -> Path:
    """Save a small T5 with a tokenizer of 16 tokens."""
    sizes: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes | {"vocab_size": 32, "n_positions": OLD})
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained("t5")  # type: ignore[no-untyped-call]
    return add_tokenizer(Path("t5"), special_tokens=True, max_len=OLD)


def make_learned() -> Path:
    """Save a small BERT of 16 positions."""
    conversions.make(Path("bert"), "bert", "ForMaskedLM")
    return Path("bert")


# Every kind of positions, each with its length.
SOURCES: dict[str, tuple[Callable[[], Path], int]] = {
    "learned": (make_learned, OLD),
    "computed sinusoids": (lambda: sinusoidal_models.make("xglm"), OLD),
    "rotary": (lambda: make_without_rows("llama"), OLD),
    "ALiBi without a limit": (lambda: make_without_rows("bloom"), OLD),
    "relative": (make_relative, OLD),
    "rotary GGUF": (lambda: write_gguf(Path("base.gguf")), 64),
}
EACH_KIND = pytest.mark.parametrize(("make", "length"), SOURCES.values(), ids=SOURCES)


def copied_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that a copy of a checkpoint keeps as they are."""
    files = pico.contents(folder)
    return {name: data for name, data in files.items() if name not in ("README.md",)}


@EACH_KIND
@pytest.mark.parametrize("to", ["1x", "the number"])
def test_resize_to_the_current_length_writes_a_copy_and_says_so(
    make: Callable[[], Path], length: int, to: str
) -> None:
    source = make()
    output = Path("out.gguf" if source.suffix else "out")
    if to == "the number":
        to = str(length)
    done = invoke("resize", source, "--to", to, "--verify", "--json", "-o", output)
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    warning = f"The context length already is {length}: the output is"
    assert texts_in(values, "unchanged")[0].startswith(warning)
    assert values["max_len_before"] == values["max_len_after"] == length
    assert values["edits"] == []
    succeed("verify", output)
    if source.is_dir():
        before = copied_files(source)
        after = copied_files(output)
        del after["ctxextend.yaml"]
        assert after == before


def test_resize_says_that_limits_differ_from_the_current_length() -> None:
    source = make_without_rows("llama")
    pico.edit_json(source / "tokenizer_config.json", model_max_length=8)
    done = invoke("resize", source, "--to", "1x", "-o", "copy")
    assert "Some length limits differ: --fix-limits makes them agree." in done.stderr
    fixed = invoke("resize", source, "--to", "1x", "--fix-limits", "-o", "fixed")
    assert "the output is a copy with fixed length limits." in fixed.stderr
    assert pico.read_json("fixed/tokenizer_config.json")["model_max_length"] == OLD


@pytest.mark.parametrize("model_type", ["llama", "mpt"])
def test_extend_model_to_the_current_length_changes_nothing(model_type: str) -> None:
    source = make_without_rows(model_type)
    model = AutoModelForCausalLM.from_pretrained(source)
    before = model.config.to_dict()
    extend_model(model, "1x")
    assert model.config.to_dict() == before


def test_resize_for_a_runtime_at_the_current_length_does_not_lack_a_rule() -> None:
    source = make_without_rows("llama")
    done = invoke("resize", source, "--to", "1x", "--for", "vllm")
    assert done.exit_code == 0
    assert "No rule says" not in done.stderr


def test_a_copy_keeps_what_the_earlier_resize_recorded() -> None:
    ctxextend.resize("tiny-gpt2", 256, output="longer")
    ctxextend.resize("longer", 256, output="copy")
    for folder in ("longer", "copy"):
        report = ctxextend.inspect(folder)
        assert report.verdict.endswith("256 new rows created by bands, not trained yet.")
    assert ctxextend.verify("copy").base == "tiny-gpt2"
    assert ctxextend.verify("copy").passed
    assert ctxextend.verify("copy", base="longer").passed
    again = ctxextend.run("copy/ctxextend.yaml", "again")
    assert again.output is not None
    weights = "model.safetensors"
    assert Path("again", weights).read_bytes() == Path("longer", weights).read_bytes()
