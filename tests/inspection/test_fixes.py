"""The commands that `inspect` prints: they fix the folder, and hide no broken model."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ctxextend
from tests.helpers import mistral_format, pico, rotary_models
from tests.helpers.trainings import invoke, unwrapped

TRAINED = 64
RAISED = 256
TOKENIZER = "tokenizer_config.json"


def make_raised(name: str = "models/decoder", limit: int = TRAINED, **rope: Any) -> Path:
    """Save a Llama whose length was raised by hand, with the tokenizer's limit of the training."""
    folder = rotary_models.make(name=name, max_position_embeddings=TRAINED).folder
    pico.edit_json(folder / "config.json", max_position_embeddings=RAISED, **rope)
    pico.edit_json(folder / TOKENIZER, model_max_length=limit)
    return folder


def wrong_limit(folder: Path | str, **ref: Any) -> ctxextend.Limit:
    (limit,) = [limit for limit in ctxextend.inspect(folder, **ref).limits if not limit.agrees]
    return limit


def run_command(command: str) -> Path:
    """Run a command that was printed, and that says nothing against itself; return its output."""
    _, *words = shlex.split(command)
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert "without scaling" not in unwrapped(done.stderr)
    return Path(done.stdout.strip())


def lengths(folder: Path) -> tuple[int, str, int]:
    """Return the length, the rope type and the tokenizer's limit of a folder."""
    config = pico.config_of(folder)
    rope = config["rope_parameters"]["rope_type"]
    limit = pico.read_json(folder / TOKENIZER)["model_max_length"]
    return config["max_position_embeddings"], rope, limit


# ---- a rotary model that states more than another limit


def test_inspect_offers_a_command_for_each_length_of_a_training() -> None:
    limit = wrong_limit(make_raised())
    output = run_command(str(limit.fix))
    assert lengths(output) == (RAISED, "default", RAISED)
    assert lengths_agree(output)
    shutil.rmtree(output)
    start = f"if the model was trained at {TRAINED} tokens, scale it: "
    assert limit.remark.startswith(start)
    scaled = run_command(limit.remark.removeprefix(start))
    assert lengths(scaled) == (RAISED, "yarn", RAISED)
    assert lengths_agree(scaled)


def test_inspect_asks_nothing_about_lengths_that_are_known() -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
    folder = make_raised(rope_parameters={**scaled, "rope_theta": 10_000.0})
    assert wrong_limit(folder).remark == ""
    # The user says it.
    limit = wrong_limit(make_raised("raised"), trained_length=TRAINED)
    assert limit.remark == ""
    assert "--trained-length 64 --to 64 --fix-limits" in str(limit.fix)
    # The recipe says it.
    base = rotary_models.make(name="base", max_position_embeddings=TRAINED).folder
    output = ctxextend.resize(base, RAISED, method="theta", output="longer").output
    pico.edit_json(output / TOKENIZER, model_max_length=TRAINED)
    assert wrong_limit(output).remark == ""


def test_inspect_does_not_take_limits_that_only_cut_for_the_trained_length() -> None:
    folder = make_raised(limit=RAISED)
    pico.write_json(folder / "modules.json", [])
    pico.write_json(folder / "sentence_bert_config.json", {"max_seq_length": TRAINED})
    limit = wrong_limit(folder)
    assert limit.file == "sentence_bert_config.json"
    assert limit.remark == ""
    assert lengths_agree(run_command(str(limit.fix)))


def test_inspect_offers_a_fix_that_resize_accepts_with_params_json() -> None:
    folder = mistral_format.make("mistral", params={"max_seq_len": 100})
    assert lengths_agree(run_command(str(wrong_limit(folder).fix)))


def test_resize_warns_if_it_raises_limits_to_a_rotary_length_without_scaling() -> None:
    folder = make_raised()
    sentence = (
        "config.json max_position_embeddings states 256 tokens without scaling: if the model was "
        "trained at 64, pass --trained-length 64, which scales it."
    )
    fixed = invoke("resize", folder, "--to", RAISED, "--fix-limits", "--output", "fixed")
    assert fixed.exit_code == 0
    assert sentence in unwrapped(fixed.stderr)
    longer = invoke("resize", folder, "--to", 2 * RAISED, "--output", "longer")
    assert sentence in unwrapped(longer.stderr)
    lower = invoke("resize", folder, "--to", TRAINED, "--fix-limits", "--dry-run")
    assert "without scaling" not in unwrapped(lower.stderr)
    for flags in (("--trained-length", TRAINED), ("--method", "limits")):
        done = invoke("resize", folder, "--to", 2 * RAISED, *flags, "--dry-run")
        assert done.exit_code == 0
        assert "without scaling" not in unwrapped(done.stderr)


# ---- where the output goes


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("models/bert", "models/bert-16"),
        ("it's mine/bert", "it's mine/bert-16"),
        ("./-models/bert", "-models/bert-16"),
    ],
)
def test_inspect_fix_writes_next_to_the_folder(source: str, output: str) -> None:
    folder = pico.make(Path(source), "bert").folder
    pico.edit_json(folder / "config.json", max_position_embeddings=8)
    limit = wrong_limit(source)
    assert run_command(str(limit.fix)) == Path(output)
    assert lengths_agree(output)


def test_inspect_fix_of_the_current_folder_writes_next_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = pico.make(Path("models/bert"), "bert").folder
    pico.edit_json(folder / "config.json", max_position_embeddings=8)
    monkeypatch.chdir(folder)
    done = invoke("inspect", ".", "--check")
    assert "Fix: ctxextend resize . --to 16 --fix-limits --output ../bert-16" in done.stdout
    run_command(str(wrong_limit(".").fix))
    subprocess.run(["cp", "-R", "../bert-16/.", "./"], check=True)
    assert lengths_agree(".")


def test_inspect_fix_in_the_current_folder_needs_no_output() -> None:
    folder = pico.make(Path("bert"), "bert").folder
    pico.edit_json(folder / "config.json", max_position_embeddings=8)
    assert wrong_limit("bert").fix == "ctxextend resize bert --to 16 --fix-limits"


def lengths_agree(folder: Path | str) -> bool:
    return ctxextend.inspect(folder).agrees
