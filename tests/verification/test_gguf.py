"""`verify` of GGUF files: what it passes, and every kind of change that it finds."""

import struct
from pathlib import Path

import numpy as np
import pytest

from ctxextend import Verification, inspect, resize, verify
from ctxextend.checkpoint.gguf_header import open_gguf
from ctxextend.errors import ResizeError, SourceError
from tests.helpers.gguf_files import LENGTH, TABLE, WIDTH, other_tensors, write_gguf

LONGER = 4 * LENGTH


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "base.gguf")


@pytest.fixture
def resized(base: Path, tmp_path: Path) -> Path:
    resize(base, LONGER, output=tmp_path / "out.gguf")
    return tmp_path / "out.gguf"


def failures(result: Verification) -> dict[str, str]:
    """Return the first evidence of each check that failed."""
    return {check.name: check.evidence[0] for check in result.checks if check.failed}


def set_value(path: Path, key: str, value: bytes) -> None:
    """Replace the value of a pair by one of the same size."""
    pair = open_gguf(path).pairs[key]
    content = path.read_bytes()
    assert content.count(pair) == 1
    path.write_bytes(content.replace(pair, pair[: -len(value)] + value))


def test_verify_finds_base_and_settings_in_the_recipe(resized: Path) -> None:
    result = verify(resized)
    assert result
    assert result.method == "yarn"
    assert [check.name for check in result.checks] == ["tensors", "table", "metadata"]
    assert result.conclusion.endswith("only in its rotary settings and length limits.")


def test_verify_finds_a_changed_byte_of_any_tensor(tmp_path: Path) -> None:
    table = np.random.default_rng(2).standard_normal((16, WIDTH)).astype(np.float32)
    base = write_gguf(tmp_path / "base.gguf", "bert", table=table)
    output = tmp_path / "out.gguf"
    resize(base, 40, "linear", output=output)
    assert verify(output, base).method == "linear"
    file = open_gguf(output)
    whole = output.read_bytes()
    for name, entry in file.entries.items():
        content = bytearray(whole)
        content[file.data_start + entry.end - 1] ^= 1
        output.write_bytes(content)
        found = failures(verify(output))
        check = "table" if name == TABLE else "tensors"
        assert found.keys() == {check}
        assert name in found[check]
        if name == TABLE:
            assert "1 of 40 rows do not match method linear: 39" in found[check]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "llama.context_length",
            struct.pack("<I", LONGER + 1),
            f"llama.context_length is {LONGER + 1}, expected {LONGER}",
        ),
        ("general.name", b"SMALL", "general.name is 'SMALL', expected 'small'"),
        ("tokenizer.ggml.token_type", struct.pack("<I", 3), "tokenizer.ggml.token_type is"),
    ],
)
def test_verify_finds_changed_metadata(key: str, value: bytes, message: str, resized: Path) -> None:
    set_value(resized, key, value)
    assert message in failures(verify(resized))["metadata"]


def test_verify_finds_a_changed_factor(resized: Path) -> None:
    set_value(resized, "llama.rope.scaling.factor", struct.pack("<f", 3.0))
    found = failures(verify(resized))
    assert "llama.rope: factor is 3.0, expected 4.0" in found["table"]
    assert "llama.rope.scaling.factor is 3.0, expected 4.0" in found["metadata"]


def test_verify_finds_changed_bytes_between_and_after_tensors(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    base.write_bytes(base.read_bytes() + b"more bytes")
    output = tmp_path / "out.gguf"
    resize(base, LONGER, output=output)
    whole = output.read_bytes()
    file = open_gguf(output)
    last = max(file.entries.values(), key=lambda entry: entry.end)
    padding = file.data_start + file.entries["blk.0.attn_norm.weight"].end
    changed = {
        "blk.0.attn_norm.weight": whole[:padding] + b"x" + whole[padding + 1 :],
        last.name: whole[:-1] + b"x",
    }
    for name, content in changed.items():
        output.write_bytes(content)
        found = failures(verify(output))
        assert found.keys() == {"metadata"}
        assert f"after {name}, the file has other bytes" in found["metadata"]
    output.write_bytes(whole[:-1])
    assert f"after {last.name}" in failures(verify(output))["metadata"]


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        ("llama", "yarn"),
        ("llama", "linear"),
        ("llama", "theta"),
        ("gemma3", "yarn"),
        ("gemma3", "theta"),
        ("deepseek2", "theta"),
        ("olmo2", "linear"),
        ("bert", "copy"),
        ("gpt2", "linear"),
        ("bloom", None),
    ],
)
def test_verify_and_inspect_pass_what_resize_wrote_once_and_twice(
    architecture: str, method: str | None, tmp_path: Path
) -> None:
    table = None
    values = {}
    if architecture in ("bert", "gpt2"):
        table = np.random.default_rng(2).standard_normal((LENGTH, WIDTH)).astype(np.float32)
    if architecture == "gemma3":
        values = {"gemma3.attention.sliding_window": 16, "gemma3.rope.freq_base_swa": 1e4}
    base = write_gguf(tmp_path / "base.gguf", architecture, table=table, values=values)
    for to in (LONGER, 2 * LONGER):
        output = tmp_path / f"{to}.gguf"
        resize(base, to, method, output=output, verify=True)
        result = verify(output)
        assert result, result.checks
        assert verify(output, base)
        assert inspect(output).agrees
        base = output


def test_verify_finds_missing_and_added_keys(base: Path, resized: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", values={"llama.vocab_size": 4})
    assert "llama.vocab_size is None, expected 4" in failures(verify(resized, other))["metadata"]
    resize(other, LONGER, output=tmp_path / "other-out.gguf")
    found = failures(verify(tmp_path / "other-out.gguf", base))
    assert "llama.vocab_size is 4, expected None" in found["metadata"]


def test_verify_finds_other_tensors(resized: Path, tmp_path: Path) -> None:
    tensors = {**other_tensors(), "output.weight": np.ones((4, WIDTH), np.float32)}
    other = write_gguf(tmp_path / "other.gguf", tensors=tensors)
    assert "output.weight is missing" in failures(verify(resized, other))["tensors"]


def test_verify_refuses_other_architectures_and_folders(resized: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", "qwen2")
    for base in (other, "tiny-gpt2"):
        assert "llama model, and its base" in failures(verify(resized, base))["readable"]
    with pytest.raises(ResizeError, match="--deep runs the model in transformers"):
        verify(resized, deep=True)


def test_verify_of_a_truncated_file_fails(base: Path, resized: Path) -> None:
    resized.write_bytes(resized.read_bytes()[:-64])
    assert failures(verify(resized, base)).keys() == {"readable"}


def test_verify_rejects_a_file_that_replaced_its_source(base: Path, resized: Path) -> None:
    resized.rename(base)
    with pytest.raises(SourceError, match="as its base: the output replaced the checkpoint"):
        verify(base)
    with pytest.raises(SourceError, match="are the same"):
        verify(base, base)
