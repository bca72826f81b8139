"""`train --dry-run`: what it states and checks, and its estimates against measured runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from benchmarks.training_memory import CASES, RESULTS, Case, page, run_case
from ctxextend import resize
from ctxextend.models.devices import peak_memory
from ctxextend.recipe import CheckpointRef, Recipe, Train
from ctxextend.training.start import plan_recipe_training
from tests.helpers import pico, tiny
from tests.helpers.trainings import NEW, OLD, invoke, make_encoder, make_resized, make_source
from tests.helpers.word_tokenizer import add_tokenizer, text_of

pytestmark = pytest.mark.usefixtures("book")
SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16"}

RECORDED: dict[str, dict[str, int]] = json.loads(RESULTS.with_suffix(".json").read_text())
TOLERANCE = 0.15  # relative to the measured peak
DRY_RUN = (
    "--data",
    "book.txt",
    "--steps",
    4,
    "--per-device-batch-size",
    1,
    "--dry-run",
)
FAST = ("gpt2-4-layers-all-1-fsdp", "gpt2-4-layers-positions-1-bf16")


def plan(source: Path, data: str = "book.txt", **settings: Any) -> Any:
    settings = {"steps": 2, "batch_size": 8, "per_device_batch_size": 1} | settings
    train = Train((data,), **settings)
    return plan_recipe_training(Recipe(CheckpointRef(str(source)), train=train))


def make_header(
    folder: Path, model_type: str, config: dict[str, Any], dtype: torch.dtype = torch.float32
) -> Path:
    """Save a checkpoint whose weights file is a header and a hole, which takes no space on disk."""
    settings = transformers.AutoConfig.for_model(model_type, **config)
    is_masked = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    auto: Any = (
        transformers.AutoModelForMaskedLM if is_masked else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = auto.from_config(settings)
    settings.architectures = [type(model).__name__]
    settings.save_pretrained(folder)

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in model.named_parameters():
        start = end
        end = start + value.numel() * dtype.itemsize
        header[name] = {
            "dtype": SAFETENSORS[dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        size = len(text).to_bytes(8, "little")
        file.write(size + text)
        file.truncate(8 + len(text) + end)
    return add_tokenizer(folder, special_tokens=is_masked)


def make_small(folder: Path, model_type: str) -> Path:
    """Save a small masked language model of a type."""
    config = tiny.shrink(tiny.make_config(model_type))
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return add_tokenizer(folder, special_tokens=True)


def test_train_dry_run_states_parameters_and_memory(tmp_path: Path) -> None:
    source = make_resized(tmp_path / "gpt2", "gpt2")
    done = invoke("train", source, *DRY_RUN)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    one, *several = [line for line in lines if "device" in line]

    same = pico.make(tmp_path / "same", "gpt2", n_positions=NEW)
    parameters = same.load().num_parameters()
    assert lines[0] == f"parameters  {parameters:,}"
    assert lines[1] == f"trained     {NEW * 8} (positions)"
    found, *devices = plan(source).memory
    assert one == f"1 device    {found.bytes / 1e6:.1f} MB"
    for line, memory in zip(several, devices, strict=True):
        each = memory.bytes / 1e6
        sharded = memory.fsdp_bytes / 1e6
        expected = f"{memory.devices} devices   {each:.1f} MB each, {sharded:.1f} MB with --fsdp"
        assert line == expected


def test_train_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = make_resized(tmp_path / "gpt2", "gpt2")
    working_folder = pico.contents(Path.cwd())
    model_folder = pico.contents(tmp_path)
    done = invoke("train", source, *DRY_RUN)
    assert done.exit_code == 0, done.stderr
    assert pico.contents(Path.cwd()) == working_folder
    assert pico.contents(tmp_path) == model_folder


def test_plan_training_of_new_rows_counts_only_these(tmp_path: Path) -> None:
    source = make_resized(tmp_path / "gpt2", "gpt2")
    found = plan(source, trainable="new")
    assert found.parameters == (NEW - OLD) * 8
    assert found.parameters < found.model_parameters


@pytest.mark.parametrize("trainable", ["positions", "all-but-positions"])
def test_plan_training_counts_adapters_as_a_run_does(trainable: str, tmp_path: Path) -> None:
    source = make_resized(tmp_path / "gpt2", "gpt2")
    found = plan(source, trainable=trainable, lora=2)
    flags = ("--steps", 1, "--batch-size", 1, "--trainable", trainable, "--lora", 2, "--json")
    done = invoke("train", source, "--data", "book.txt", *flags)
    assert found.parameters == json.loads(done.stdout)["parameters"]
    assert found.parameters > 0


def test_plan_training_lists_only_numbers_of_devices_that_share_the_batch(tmp_path: Path) -> None:
    source = make_source(tmp_path / "bert", "bert")
    found = plan(source, batch_size=4, per_device_batch_size=None)
    shares = [(memory.devices, memory.per_device_batch_size) for memory in found.memory]
    assert shares == [(1, 4), (2, 2), (4, 1)]


def test_train_dry_run_reports_an_output_that_exists(tmp_path: Path) -> None:
    source = make_source(tmp_path / "gpt2", "gpt2")
    Path("out").mkdir()
    Path("out/file.txt").write_text("")
    arguments = ("train", source, "--data", "book.txt", "--steps", 1, "-o", "out")
    run = invoke(*arguments)
    dry_run = invoke(*arguments, "--dry-run")
    assert run.exit_code == 1
    assert dry_run.exit_code == 1
    assert run.stderr == dry_run.stderr


def test_plan_training_distills_an_encoder_with_its_teacher(tmp_path: Path) -> None:
    root = make_encoder(tmp_path / "encoder")
    resize(root, to=NEW, output="long")
    found = plan(Path("long"))
    assert found.parameters == NEW * 8
    assert found.trainable == "positions"


def test_plan_training_reads_no_weights(tmp_path: Path) -> None:
    config = {"n_positions": 64, "n_embd": 2048, "n_head": 16, "n_layer": 2, "vocab_size": 250_000}
    source = make_header(tmp_path / "gpt2", "gpt2", config)
    size = (source / "model.safetensors").stat().st_size
    peak = peak_memory(torch.device("cpu"))
    before = peak() or 0
    found = plan(source, per_device_batch_size=1)
    assert size > 2.4e9
    assert found.memory[0].bytes > size
    assert (peak() or 0) < before + 0.2e9


def test_plan_training_keeps_half_precision(tmp_path: Path) -> None:
    config = {"n_positions": 16, "n_embd": 512, "n_head": 4, "n_layer": 1, "vocab_size": 60_000}
    half = make_header(tmp_path / "half", "gpt2", config, torch.bfloat16)
    exact = plan(half, precision="fp32", batch_size=1)
    rounded = plan(half, precision="bf16", batch_size=1)
    saved = exact.memory[0].bytes - rounded.memory[0].bytes
    # Frozen weights take two bytes, not four.
    assert saved == pytest.approx(2 * exact.model_parameters, rel=0.2)


@pytest.mark.parametrize("model_type", ["roformer", "big_bird"])
def test_plan_training_estimates_models_with_computed_buffers_or_tied_biases(
    model_type: str, tmp_path: Path
) -> None:
    source = make_small(tmp_path / model_type, model_type)
    found = plan(source, batch_size=1, seq_len=16, trainable="all-but-positions")
    assert 0 < found.parameters <= found.model_parameters


def test_plan_training_estimates_a_model_whose_initialisation_reads_values(tmp_path: Path) -> None:
    config = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 16,
        "vocab_size": 64,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
    }
    source = make_header(tmp_path / "modernbert", "modernbert", config)
    found = plan(source, batch_size=1, seq_len=16, trainable="all")
    assert found.parameters == found.model_parameters


def test_plan_training_estimates_a_model_that_asks_for_global_attention(tmp_path: Path) -> None:
    source = make_small(tmp_path / "longformer", "longformer")
    short = plan(source, batch_size=1, seq_len=8, trainable="all").memory[0]
    long = plan(source, batch_size=1, seq_len=16, trainable="all").memory[0]
    assert short.bytes < long.bytes


def test_train_dry_run_says_that_a_model_reads_values(tmp_path: Path) -> None:
    source = make_small(tmp_path / "xlm", "xlm")
    done = invoke("train", source, "--data", "book.txt", "--steps", 1, "--dry-run")
    assert done.exit_code == 1
    shown = " ".join(done.stderr.split())
    assert "Cannot estimate the memory of xlm models without weights" in shown


@pytest.mark.parametrize("name", RECORDED)
def test_plan_training_estimates_recorded_in_results_are_close_to_measured_memory(
    name: str,
) -> None:
    recorded = RECORDED[name]
    assert recorded["estimated"] == pytest.approx(recorded["measured"], rel=TOLERANCE)


def settings_of(case: Case) -> dict[str, Any]:
    """Return the training settings of a case, as keywords."""
    flags = [flag.removeprefix("--") for flag in case.flags if flag != "--fsdp"]
    settings: dict[str, Any] = {}
    for name, value in zip(flags[::2], flags[1::2], strict=True):
        settings[name] = int(value) if value.isdigit() else value
    size = case.per_device_batch_size
    settings["batch_size"] = size * case.devices * case.accumulated
    settings["per_device_batch_size"] = size
    return settings


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in RECORDED],
)
def test_plan_training_estimates_the_memory_recorded_in_results(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    dtype = getattr(torch, case.dtype)
    source = make_header(tmp_path / "model", case.model_type, case.config, dtype)
    numbers = np.random.default_rng(0).integers(0, 27, 12_000)
    Path("long.txt").write_text(text_of(numbers.tolist()))

    found = plan(source, "long.txt", **settings_of(case))
    memory = next(memory for memory in found.memory if memory.devices == case.devices)
    estimated = memory.fsdp_bytes if "--fsdp" in case.flags else memory.bytes
    assert estimated == pytest.approx(RECORDED[name]["estimated"], rel=0.01)


def test_training_memory_page_states_the_recorded_numbers() -> None:
    assert RESULTS.with_suffix(".md").read_text() == page(RECORDED)


@pytest.mark.slow
def test_plan_training_is_close_to_memory_measured_now(tmp_path: Path) -> None:
    row = run_case(CASES["gpt2-4-layers-all-1"], tmp_path)
    assert row["estimated"] == pytest.approx(row["measured"], rel=TOLERANCE)
