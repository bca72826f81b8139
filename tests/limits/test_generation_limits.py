"""Limits of generated texts: edits, notes and remarks, compared with what `generate()` does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import extend_model, inspect, plan_resize, resize, verify
from tests.helpers import pico
from tests.helpers.notes import texts, texts_in
from tests.helpers.trainings import invoke

# Context lengths: of the saved models, of longer ones and of shorter ones.
OLD = 32
NEW = 64
SHORT = 16

GENERATION = "generation_config.json"
SIZES: dict[str, Any] = {
    "d_model": 8,
    "encoder_ffn_dim": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_ffn_dim": 8,
    "decoder_layers": 1,
    "decoder_attention_heads": 1,
    "vocab_size": 32,
}
TOKENS: dict[str, Any] = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def save(model: Any, folder: Path) -> Path:
    """Save a model without its generation config."""
    model.save_pretrained(folder)
    (folder / GENERATION).unlink()
    return folder


def make_gpt2(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=OLD, n_embd=8, n_layer=1, n_head=1, vocab_size=32)
    return save(transformers.GPT2LMHeadModel(config), folder)


def make_bart(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        max_position_embeddings=OLD, forced_eos_token_id=None, **SIZES, **TOKENS
    )
    return save(transformers.BartForConditionalGeneration(config), folder)


def make_led(folder: Path) -> Path:
    """Save a model whose encoder has four times the positions of its decoder."""
    torch.manual_seed(0)
    config = transformers.LEDConfig(
        max_encoder_position_embeddings=4 * OLD,
        max_decoder_position_embeddings=OLD,
        attention_window=4,
        **SIZES,
        **TOKENS,
    )
    return save(transformers.LEDForConditionalGeneration(config), folder)


def make_captioner(folder: Path) -> Path:
    """Save an image encoder with a BERT decoder, whose config is nested."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    encoder = transformers.ViTConfig(image_size=4, patch_size=2, **sizes)
    decoder = transformers.BertConfig(max_position_embeddings=OLD, vocab_size=32, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    for key, token in TOKENS.items():
        setattr(config, key, token)
    return save(transformers.VisionEncoderDecoderModel(config=config), folder)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "gpt2": make_gpt2,
    "bart": make_bart,
    "led": make_led,
    "captioner": make_captioner,
}
INPUTS: dict[str, dict[str, Any]] = {
    "captioner": {"pixel_values": torch.zeros(1, 3, 4, 4)},
}


def load(folder: Path) -> Any:
    (architecture,) = stated(folder)["architectures"]
    model_class = getattr(transformers, architecture)
    return model_class.from_pretrained(folder).eval()


def without_end(model: Any) -> None:
    """Let a model generate until a limit."""
    for key, token in TOKENS.items():
        setattr(model.generation_config, key, token)
    model.generation_config.eos_token_id = None


def generate(folder: Path, kind: str, prompt: int = 4) -> int:
    """Return how many tokens a model generates with the limits in its folder."""
    model = load(folder)
    without_end(model)
    inputs = {"input_ids": torch.ones(1, prompt, dtype=torch.long)}
    if kind in INPUTS:
        inputs = INPUTS[kind]
    tokens = model.generate(**inputs, do_sample=False, num_beams=1)
    return int(tokens.shape[1])


def stated(folder: Path, file: str = "config.json") -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / file).read_text())
    return values


def nest(folder: Path, **changes: Any) -> None:
    """Change the config of the decoder in config.json."""
    decoder = stated(folder)["decoder"]
    pico.edit_json(folder / "config.json", decoder=decoder | changes)


def part_of(kind: str) -> str | None:
    """Return the part to resize: the one that generates, if a model has two tables."""
    if kind == "led":
        return "decoder"
    return None


def planned_notes(folder: Path, to: int = NEW, **settings: Any) -> tuple[str, ...]:
    return texts(plan_resize(folder, to, **settings), "generation")


# Shorter


@pytest.mark.parametrize("file", ["config.json", GENERATION])
@pytest.mark.parametrize("limits", [{"max_length": 30, "min_length": 28}, {"max_new_tokens": 24}])
@pytest.mark.parametrize("kind", MAKERS)
def test_resize_lowers_generation_limits_that_would_fail(
    kind: str, limits: dict[str, int], file: str, tmp_path: Path
) -> None:
    folder = MAKERS[kind](tmp_path / kind)
    pico.edit_json(folder / file, **limits)
    generate(folder, kind)

    output = resize(folder, SHORT, part=part_of(kind), output=tmp_path / "out").output

    found = stated(output, file)
    for key in limits:
        assert 0 < found[key] <= SHORT
    shortest = found.get("min_length", 0)
    longest = found.get("max_length", SHORT)
    assert shortest <= longest
    assert generate(output, kind) <= SHORT + 1  # the last token is not read again
    assert inspect(output).agrees
    assert verify(output).passed


def test_resize_lowers_generation_limits_of_nested_decoders(tmp_path: Path) -> None:
    folder = make_captioner(tmp_path / "captioner")
    nest(folder, max_length=30, min_length=28)
    assert generate(folder, "captioner") == 30
    output = resize(folder, SHORT, output=tmp_path / "out").output
    decoder = stated(output)["decoder"]
    assert decoder["max_length"] == SHORT
    assert decoder["min_length"] == SHORT
    assert generate(output, "captioner") == SHORT


def test_resize_lowers_no_generation_limit_of_another_part(tmp_path: Path) -> None:
    folder = make_led(tmp_path / "led")
    pico.edit_json(folder / GENERATION, max_length=30)
    output = resize(folder, SHORT, part="encoder", output=tmp_path / "out").output
    assert stated(output, GENERATION)["max_length"] == 30
    assert generate(output, "led") == 30


def test_resize_lowers_no_generation_limit_if_longer_texts_run(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 8,
        "num_layers": 1,
        "num_heads": 1,
        "vocab_size": 32,
        "n_positions": OLD,
        "decoder_start_token_id": 0,
    }
    config = transformers.T5Config(**sizes)
    folder = save(transformers.T5ForConditionalGeneration(config), tmp_path / "t5")
    pico.edit_json(folder / GENERATION, max_length=100, decoder_start_token_id=0)
    assert generate(folder, "t5") == 100
    assert inspect(folder).agrees
    output = resize(folder, NEW, output=tmp_path / "out").output
    assert stated(output, GENERATION)["max_length"] == 100


@pytest.mark.parametrize("limits", [{"max_length": 30, "min_length": 28}, {"max_new_tokens": 24}])
def test_extend_model_lowers_generation_limits_that_would_fail(
    limits: dict[str, int], tmp_path: Path
) -> None:
    folder = make_bart(tmp_path / "bart")
    pico.edit_json(folder / GENERATION, **limits)
    output = resize(folder, SHORT, output=tmp_path / "out").output
    resized = stated(output, GENERATION)

    model = load(folder)
    extend_model(model, SHORT)

    for key in limits:
        lowered = getattr(model.generation_config, key)
        assert lowered == resized[key]
        assert lowered <= SHORT
    without_end(model)
    model.generate(input_ids=torch.ones(1, 4, dtype=torch.long))


# Longer


@pytest.mark.parametrize(
    ("file", "limits", "expected"),
    [
        (
            GENERATION,
            {"max_length": 30},
            "still stops at 30 tokens (generation_config.json max_length)",
        ),
        (
            GENERATION,
            {"max_new_tokens": 8, "max_length": 30},
            "stops after 8 new tokens (generation_config.json max_",
        ),
    ],
)
def test_resize_says_where_generation_still_stops(
    file: str, limits: dict[str, int], expected: str, tmp_path: Path
) -> None:
    folder = make_bart(tmp_path / "bart")
    pico.edit_json(folder / file, **limits)
    before = (folder / file).read_bytes()
    dry_run = invoke("resize", folder, "--to", NEW, "--dry-run")
    done = invoke("resize", folder, "--to", NEW, "-o", tmp_path / "out", "--json")
    (note,) = texts_in(json.loads(done.stdout), "generation")
    assert expected in note
    assert "--fix-limits" in note
    assert note in dry_run.stderr
    assert note in done.stderr
    if file == GENERATION:
        assert (tmp_path / "out" / file).read_bytes() == before
    assert inspect(tmp_path / "out").agrees


def test_resize_ignores_generation_limits_of_a_config_next_to_a_generation_config(
    tmp_path: Path,
) -> None:
    folder = make_bart(tmp_path / "bart")
    pico.edit_json(folder / "config.json", max_length=8)
    pico.edit_json(folder / GENERATION, max_length=30)
    assert generate(folder, "bart") == 30
    (note,) = planned_notes(folder)
    assert "stops at 30 tokens" in note


@pytest.mark.parametrize("file", ["config.json", GENERATION])
@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"max_length": 30}, NEW), ({"max_new_tokens": 20}, NEW - OLD + 20 + 4)],
)
@pytest.mark.parametrize("kind", MAKERS)
def test_fix_limits_raises_where_generation_stops(
    kind: str, limits: dict[str, int], expected: int, file: str, tmp_path: Path
) -> None:
    folder = MAKERS[kind](tmp_path / kind)
    pico.edit_json(folder / file, min_length=2, **limits)
    part = part_of(kind)

    output = resize(folder, NEW, part=part, fix_limits=True, output=tmp_path / "out").output
    assert stated(output, file)["min_length"] == 2
    length = generate(output, kind)
    assert OLD < length <= expected + 1
    if "max_length" in limits:
        assert length == expected
    assert inspect(output, part=part).agrees


def test_fix_limits_keeps_defaults(tmp_path: Path) -> None:
    folder = make_captioner(tmp_path / "captioner")
    nest(folder, max_length=20)
    output = resize(folder, NEW, fix_limits=True, output=tmp_path / "out").output
    config = stated(output)
    assert config["decoder"]["max_length"] == 20


def test_convert_keeps_where_generation_stops_and_says_so(tmp_path: Path) -> None:
    folder = make_gpt2(tmp_path / "gpt2")
    pico.edit_json(folder / GENERATION, max_length=30)
    output = tmp_path / "out"
    done = invoke("convert", folder, "--scheme", "rotary", "--to", NEW, "-o", output, "--json")
    (note,) = texts_in(json.loads(done.stdout), "generation")
    assert "still stops at 30 tokens" in note
    assert "--fix-limits" not in note
    assert stated(output, GENERATION)["max_length"] == 30


# Inspect


@pytest.mark.parametrize("file", ["config.json", GENERATION])
@pytest.mark.parametrize(
    "limits", [{"max_length": 50}, {"max_new_tokens": 50}, {"max_length": 90, "min_length": 50}]
)
@pytest.mark.parametrize("kind", ["gpt2", "led"])
def test_inspect_reports_and_fixes_generation_limits_that_would_fail(
    kind: str, limits: dict[str, int], file: str, tmp_path: Path
) -> None:
    folder = MAKERS[kind](tmp_path / kind)
    pico.edit_json(folder / file, **limits)
    found = [limit for limit in inspect(folder).limits if not limit.agrees]
    assert {limit.key: limit.tokens for limit in found} == limits
    assert invoke("inspect", folder, "--check").exit_code == 3
    part = part_of(kind)
    output = resize(folder, OLD, part=part, fix_limits=True, output=tmp_path / "out").output
    assert invoke("inspect", output, "--check").exit_code == 0
    assert generate(output, kind) <= OLD + 1
