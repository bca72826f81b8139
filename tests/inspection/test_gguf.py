"""`inspect` of GGUF files: lengths, frequencies, and whether they agree."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ctxextend import inspect, resize
from ctxextend.cli.app import build_app
from ctxextend.cli.console import FAILED_CHECK
from ctxextend.errors import CheckpointError
from ctxextend.tables.frequencies import frequencies
from tests.helpers.gguf_files import LENGTH, WIDTH, other_tensors, quantised, write_gguf

LONGER = 4 * LENGTH


def test_inspect_shows_lengths_and_frequencies(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf", values={"llama.rope.freq_base": 5e5})
    resize(base, LONGER, output=tmp_path / "out.gguf")
    result = inspect(tmp_path / "out.gguf")
    [report] = result.schemes
    assert result.model_type == "llama"
    assert (report.first_trained, report.stated, report.served) == (LENGTH, LONGER, LONGER)
    [layers] = report.layers
    settings = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": LENGTH,
        "rope_theta": 5e5,
    }
    expected = frequencies(settings, WIDTH // 2, LONGER, LONGER)
    np.testing.assert_allclose(layers.wavelengths, 2 * np.pi / expected.inverse)
    assert layers.attention_factor == expected.attention_factor
    assert result.agrees


def test_inspect_reads_the_rotated_values_of_a_head(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf")
    assert len(inspect(whole).schemes[0].layers[0].wavelengths) == WIDTH // 2 // 2
    for key in ("rope.dimension_count", "attention.key_length"):
        path = write_gguf(tmp_path / "part.gguf", values={f"llama.{key}": 6})
        assert len(inspect(path).schemes[0].layers[0].wavelengths) == 3


def test_inspect_shows_layers_with_a_window(tmp_path: Path) -> None:
    values = {"gemma3.rope.freq_base": 1e6, "gemma3.rope.freq_base_swa": 1e4}
    path = write_gguf(tmp_path / "base.gguf", "gemma3", values=values)
    resize(path, LONGER, output=tmp_path / "out.gguf")
    scaled, local = inspect(tmp_path / "out.gguf").schemes[0].layers
    assert (scaled.layers, scaled.is_local) == ("full_attention", False)
    assert (local.layers, local.is_local) == ("sliding_attention", True)
    assert scaled.slowdown == pytest.approx(4)
    assert local.slowdown == 1


def test_inspect_says_what_is_left_out(tmp_path: Path) -> None:
    tensors = {**other_tensors(), "rope_freqs.weight": np.ones(8, np.float32)}
    path = write_gguf(tmp_path / "base.gguf", tensors=tensors)
    assert "rope_freqs.weight applies too" in inspect(path).notes[0]


def test_inspect_check_finds_a_length_that_the_settings_do_not_serve(tmp_path: Path) -> None:
    values = {
        "llama.context_length": 10 * LENGTH,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": LENGTH,
    }
    path = write_gguf(tmp_path / "base.gguf", values=values)
    result = inspect(path)
    assert not result.agrees
    assert "the settings serve 128 tokens, but engines read" in result.limits[0].reason
    assert result.limits[0].fix == (
        f"ctxextend resize {path} --to 128 --fix-limits --output {tmp_path / 'base-128.gguf'}"
    )
    resize(path, 128, fix_limits=True, output=tmp_path / "out.gguf")
    assert inspect(tmp_path / "out.gguf").agrees


def test_inspect_check_finds_a_length_that_is_not_that_of_the_rows(tmp_path: Path) -> None:
    table = np.random.default_rng(2).standard_normal((16, WIDTH)).astype(np.float32)
    good = write_gguf(tmp_path / "good.gguf", "bert", table=table)
    bad = write_gguf(tmp_path / "bad.gguf", "bert", table=table, values={"bert.context_length": 20})
    run = CliRunner().invoke
    assert run(build_app(), ["inspect", str(good), "--check"]).exit_code == 0
    done = run(build_app(), ["inspect", str(bad), "--check"])
    assert done.exit_code == FAILED_CHECK
    assert "bad.gguf bert.context_length is 20" in done.stdout.replace("\n", " ")
    result = inspect(bad)
    assert result.limits[0].reason.startswith("position_embd.weight has 16 rows")
    assert result.limits[0].fix == (
        f"ctxextend resize {bad} --to 16 --fix-limits --output {tmp_path / 'bad-16.gguf'}"
    )


def test_inspect_shows_the_rows_that_a_resize_created(tmp_path: Path) -> None:
    table = np.random.default_rng(2).standard_normal((16, WIDTH)).astype(np.float32)
    base = write_gguf(tmp_path / "base.gguf", "bert", table=table)
    resize(base, 40, "copy", output=tmp_path / "out.gguf")
    [report] = inspect(tmp_path / "out.gguf").tables
    assert report.new_rows == ((16, 40),)
    assert report.positions == 40


def test_inspect_refuses_a_quantised_table(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "base.gguf", "bert", table=quantised(16))
    with pytest.raises(CheckpointError, match="position_embd.weight has dtype Q8_0"):
        inspect(path)
