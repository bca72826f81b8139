"""`--lora`: adapters, merged into the checkpoint or saved for stock PEFT to load."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

from ctxextend import convert, inspect, resize, run, verify
from ctxextend.errors import CheckpointError
from ctxextend.evaluation.eval_model import open_eval_model
from ctxextend.models.load import match_parameters
from ctxextend.recipe import CheckpointRef, Train
from ctxextend.training.adapters import add_adapters
from ctxextend.training.trainer import RunCallback
from tests.helpers import pico
from tests.helpers.trainings import (
    NEW,
    TABLES,
    changed_tensors,
    invoke,
    log_of,
    make_encoder,
    make_resized,
    table_of,
    train,
)
from tests.helpers.word_tokenizer import add_tokenizer

pytestmark = pytest.mark.usefixtures("book")
RANK = 2
LORA = ("--lora", RANK)
LINEAR = {
    "gpt2": " ".join(
        f"transformer.h.*.{name}"
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ),
    "bert": (
        "bert.encoder.layer.*.attention.self.query bert.encoder.layer.*.attention.self.key "
        "bert.encoder.layer.*.attention.self.value bert.encoder.layer.*.attention.output.dense "
        "bert.encoder.layer.*.intermediate.dense bert.encoder.layer.*.output.dense"
    ),
    "llama": " ".join(
        [f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"]
        + [f"model.layers.*.mlp.{name}_proj" for name in ("gate", "up", "down")]
    ),
}


def adapted(model_type: str) -> set[str]:
    """Return the names of the weights of attention and MLP in both blocks."""
    names = LINEAR[model_type].split()
    return {f"{name.replace('*', str(layer))}.weight" for name in names for layer in range(2)}


def make_llama(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**pico.CONFIGS["bert"], "initializer_range": 0.5}
    config = transformers.LlamaConfig(**sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return add_tokenizer(folder, special_tokens=False)


def make(model_type: str) -> Path:
    """Save a model that reads 32 tokens."""
    if model_type == "llama":
        return resize(make_llama(Path("source-old").absolute()), to=NEW, output="source").output
    return make_resized(Path("source").absolute(), model_type)


@pytest.mark.parametrize(
    "model_type",
    [
        "gpt2",
        pytest.param("bert", marks=pytest.mark.slow),
        pytest.param("llama", marks=pytest.mark.slow),
    ],
)
def test_train_lora_merges_the_product_of_the_adapter_that_stock_peft_loads(
    model_type: str,
) -> None:
    source = make(model_type)
    done = train(source, "merged", *LORA, "--json")
    train(source, "adapter", *LORA, "--save-adapter")
    table = {TABLES[model_type]} if model_type in TABLES else set()
    assert changed_tensors(source, Path("merged")) == adapted(model_type) | table
    before, after = (load_file(folder / "model.safetensors") for folder in (source, Path("merged")))
    saved = load_file("adapter/adapter_model.safetensors")
    for name in adapted(model_type):
        key = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (saved[f"{key}.lora_{part}.weight"].double() for part in "AB")
        assert (len(a), b.shape[1]) == (RANK, RANK)
        product = (b @ a).T if model_type == "gpt2" else b @ a
        assert torch.equal(after[name], (before[name].double() + 2 * product).float())
    # The adapter gives the logits of the merged model.
    head = (
        transformers.AutoModelForMaskedLM
        if model_type == "bert"
        else transformers.AutoModelForCausalLM
    )
    base = head.from_pretrained(source)
    untrained = pico.logits(base, NEW)
    found = pico.logits(PeftModel.from_pretrained(base, "adapter"), NEW)
    torch.testing.assert_close(
        found, pico.logits(head.from_pretrained("merged"), NEW), rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(found, untrained, atol=1e-2)
    files = {path.name for path in Path("adapter").iterdir()}
    assert files >= {"adapter_config.json", "ctxextend.yaml", "README.md", "train_log.jsonl"}
    assert not files & {"config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads(Path("adapter/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["inference_mode"]) == (
        str(source),
        RANK,
        True,
    )
    assert config["modules_to_save"] == (
        [TABLES[model_type].removesuffix(".weight")] if table else None
    )
    # The summary, the card, the recipe and the JSON object report what was trained.
    parameters = sum(value.numel() for value in saved.values())
    result = json.loads(done.stdout)
    assert (result["lora"], result["parameters"]) == (RANK, parameters)
    what = "the position table and adapters of rank 2" if table else "adapters of rank 2"
    assert f"{parameters:,} trainable parameters ({what})" in done.stderr
    assert f": {what} ({parameters:,} parameters)" in Path("merged/README.md").read_text()
    assert "  lora: 2\n" in Path("merged/ctxextend.yaml").read_text()


def test_train_lora_of_a_bf16_source_keeps_its_dtype() -> None:
    source = make_resized(Path("source").absolute(), "gpt2", dtype=torch.bfloat16)
    train(source, "out", *LORA)
    assert {tensor.dtype for tensor in load_file("out/model.safetensors").values()} == {
        torch.bfloat16
    }
    assert changed_tensors(source, Path("out")) == adapted("gpt2") | {TABLES["gpt2"]}
    train(source, "adapter", *LORA, "--save-adapter")
    table = load_file("adapter/adapter_model.safetensors")[
        "base_model.model.transformer.wpe.weight"
    ]
    assert torch.equal(table.float(), torch.from_numpy(table_of(Path("out"))))


@pytest.mark.parametrize(("trainable", "rows"), [("new", NEW // 2 - 1), ("all-but-positions", 0)])
def test_train_lora_trains_new_rows_or_no_rows(gpt2: Path, trainable: str, rows: int) -> None:
    train(gpt2, "out", *LORA, "--trainable", trainable)
    table = {TABLES["gpt2"]} if rows else set()
    assert changed_tensors(gpt2, Path("out")) == adapted("gpt2") | table
    changed = (table_of(gpt2) != table_of(Path("out"))).any(axis=1)
    assert changed.tolist() == [False] * (NEW // 2) + [bool(rows)] * (NEW // 2 - 1) + [False]


@pytest.mark.slow
def test_train_lora_resumes_with_identical_output(gpt2: Path) -> None:
    flags = (
        "--data",
        "book.txt",
        "--steps",
        5,
        "--batch-size",
        4,
        "--lr",
        0.01,
        "--save-every",
        1,
        *LORA,
    )
    assert invoke("train", gpt2, *flags, "-o", "whole").exit_code == 0
    on_log = RunCallback.on_log

    def interrupt(self: RunCallback, args: Any, state: Any, control: Any, **others: Any) -> None:
        on_log(self, args, state, control, **others)
        if state.global_step == 2 and "loss" in others.get("logs", {}):
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunCallback, "on_log", interrupt)
        assert invoke("train", gpt2, *flags, "-o", "out").exit_code == 130
    other = invoke("train", gpt2, *flags, "-o", "out", "--resume", "--lora", 3)
    assert "train.lora was 2 and is 3" in other.stderr
    assert invoke("train", gpt2, *flags, "-o", "out", "--resume").exit_code == 0
    assert log_of(Path("out")) == log_of(Path("whole"))
    assert (
        Path("out/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    )


def test_resize_and_convert_with_train_take_lora_and_the_recipe_reproduces_it(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    flags = ("--train", "book.txt", "--steps", 2, *LORA)
    assert invoke("resize", source, "--to", NEW, *flags, "-o", "resized").exit_code == 0
    assert changed_tensors(gpt2, Path("resized")) == adapted("gpt2") | {TABLES["gpt2"]}
    run("resized/ctxextend.yaml", "again")
    assert (
        Path("again/model.safetensors").read_bytes()
        == Path("resized/model.safetensors").read_bytes()
    )
    done = invoke("convert", source, "--scheme", "rotary", "--to", NEW, *flags, "-o", "converted")
    assert done.exit_code == 0, done.stderr
    verified = verify("converted")
    assert verified.passed
    assert "every tensor without an adapter is the stated rearrangement" in verified.conclusion


@pytest.mark.parametrize(
    "trainable",
    [
        "positions",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("new", "all-but-positions")),
    ],
)
def test_verify_compares_all_tensors_but_those_with_adapters(gpt2: Path, trainable: str) -> None:
    source = gpt2.with_name("long-old")
    train(gpt2, "out", *LORA, "--trainable", trainable, steps=2)
    for base in (source, gpt2):
        verified = verify("out", base)
        assert verified.passed, verified.checks
        assert verified.conclusion.endswith(
            " and in tensors with adapters." if base == source else "adapters."
        )
    assert verified.trainable == (None if trainable == "all-but-positions" else trainable)
    assert verified.adapted == tuple(sorted(f"{name}.weight" for name in LINEAR["gpt2"].split()))
    assert "; 8 with adapters not compared" in verified.checks[0].evidence[0]
    assert verify("out", deep=True).passed
    assert inspect("out").trainable == verified.trainable
    # Adapters remain known after further training; any other tensor must not change.
    train("out", "more", steps=1)
    assert verify("more", source).adapted == verified.adapted
    tensors = load_file("out/model.safetensors")
    tensors["transformer.ln_f.weight"][0] += 1
    pico.add_tensors(Path("out"), tensors)
    assert "transformer.ln_f.weight differs" in verify("out").checks[0].evidence[0]


@pytest.mark.slow
def test_train_lora_distils_an_encoder_and_lowers_the_loss() -> None:
    root = make_encoder(Path("source").absolute())
    resize(root, to=NEW, output="long")
    result = json.loads(train("long", "out", *LORA, "--json", steps=12).stdout)
    assert result["loss_after"] < result["loss_before"]


def test_train_lora_trains_a_converted_encoder_and_one_with_pairs() -> None:
    root = make_encoder(Path("source").absolute())
    convert(root, "rotary", NEW, output="rotary")
    assert (
        json.loads(train("rotary", "first", *LORA, "--json", steps=1).stdout)["objective"]
        == "distilled"
    )
    done = train("rotary", "second", *LORA, "--contrastive", "--batch-size", 2, "--json", steps=1)
    assert json.loads(done.stdout)["objective"] == "contrastive"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora", 0), "--lora must be at least 1, got 0."),
        (("--lora", 9), "--lora must be at most the width of "),
        ((*LORA, "--trainable", "all"), "--lora trains adapters instead of all weights"),
        (("--save-adapter",), "--save-adapter requires --lora."),
        (
            (*LORA, "--save-adapter", "--dtype", "bf16"),
            "--save-adapter cannot be used with --dtype.",
        ),
    ],
)
def test_train_rejects_flags_of_adapters_before_writing(
    gpt2: Path, flags: tuple[object, ...], message: str
) -> None:
    done = invoke("train", gpt2, "--data", "book.txt", "--steps", 1, "-o", "out", *flags)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert [path.name for path in Path.cwd().iterdir()] == ["book.txt"]


def test_resize_rejects_lora_without_train_or_above_the_width(gpt2: Path) -> None:
    assert "--lora requires --train." in invoke("resize", gpt2, "--to", 64, *LORA).stderr
    done = invoke("resize", gpt2, "--to", 64, "--train", "book.txt", "--steps", 1, "--lora", 9)
    assert (done.exit_code, "the width of" in done.stderr) == (2, True)
    assert [path.name for path in Path.cwd().iterdir()] == ["book.txt"]


def test_run_rejects_an_adapter_of_a_checkpoint_that_the_recipe_creates_or_evaluates() -> None:
    training = "train: {data: book.txt, steps: 1, lora: 2, save_adapter: true}\n"
    for step in (
        "resize: {to: 256}",
        "convert: {to: 256, scheme: rotary}",
        "evaluate: {data: book.txt}",
    ):
        Path("recipe.yaml").write_text(f"source: tiny-gpt2\n{step}\n{training}")
        done = invoke("run", "recipe.yaml")
        assert done.exit_code == 1
        assert "--save-adapter cannot be combined with other steps" in done.stderr
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["book.txt", "recipe.yaml"]


def test_add_adapters_rejects_a_model_without_the_weights_of_its_layers_in_its_files(
    gpt2: Path,
) -> None:
    model = open_eval_model(CheckpointRef(str(gpt2)))
    names = {TABLES["gpt2"]: TABLES["gpt2"]}
    with pytest.raises(CheckpointError, match=r"its files have no transformer\.h\.0\..*weight\."):
        add_adapters(model, names, Train(("book.txt",), 1, lora=RANK))


def test_train_rejects_an_adapter_with_a_table_that_is_not_the_weight_of_a_module(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def match(model: Any, *others: Any) -> dict[str, str]:
        model.register_parameter("positions", model.transformer.wpe.weight)
        return match_parameters(model, *others) | {TABLES["gpt2"]: "positions"}

    monkeypatch.setattr("ctxextend.training.training_task.match_parameters", match)
    done = invoke(
        "train", gpt2, "--data", "book.txt", "--steps", 1, *LORA, "--save-adapter", "-o", "out"
    )
    assert (done.exit_code, "so a PEFT adapter cannot contain it." in done.stderr) == (1, True)
    assert [path.name for path in Path.cwd().iterdir()] == ["book.txt"]
