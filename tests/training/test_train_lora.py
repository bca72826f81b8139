"""`--lora`: adapters, merged into the checkpoint."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from ctxextend import convert, inspect, resize, run, verify
from ctxextend.training.trainable import TrainableParameters
from tests.helpers import pico
from tests.helpers.trainings import (
    NEW,
    TABLES,
    changed_tensors,
    files_here,
    invoke,
    make_encoder,
    make_resized,
    table_of,
    train,
)
from tests.helpers.word_tokenizer import add_tokenizer

pytestmark = pytest.mark.usefixtures("book")
RANK = 2
LORA = ("--lora", RANK)


def adapted(source: Path) -> set[str]:
    """Return the names of the weights of attention and MLP in both blocks."""
    names: set[str] = set()
    for name, tensor in load_file(source / "model.safetensors").items():
        if re.search(r"\.[01]\..*weight$", name) and tensor.ndim == 2:
            names.add(name)
    return names


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
    ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "llama"))],
)
def test_train_lora_merges_the_product_of_the_adapters(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(model_type)
    trained: list[TrainableParameters] = []
    load = TrainableParameters.__init__

    def record(self: TrainableParameters, *given: Any, **more: Any) -> None:
        load(self, *given, **more)
        trained.append(self)

    monkeypatch.setattr(TrainableParameters, "__init__", record)
    done = train(source, "merged", *LORA, "--json")
    tables = {TABLES[model_type]} if model_type in TABLES else set()
    assert changed_tensors(source, Path("merged")) == adapted(source) | tables

    before = load_file(source / "model.safetensors")
    after = load_file("merged/model.safetensors")
    (parameters,) = trained
    for name in adapted(source):
        module = name.removesuffix(".weight")
        a = parameters.value(f"{module}.lora_A.default.weight").double()
        b = parameters.value(f"{module}.lora_B.default.weight").double()
        assert len(a) == RANK
        assert b.shape[1] == RANK
        product = b @ a
        if model_type == "gpt2":  # its weights are transposed
            product = product.T
        expected = before[name].double() + 2 * product
        assert torch.equal(after[name], expected.float())

    # The merged weights give what the adapted model does.
    head: Any = transformers.AutoModelForMaskedLM
    if model_type != "bert":
        head = transformers.AutoModelForCausalLM
    expected_logits = pico.logits(parameters.model.eval(), NEW)
    found = pico.logits(head.from_pretrained("merged"), NEW)
    torch.testing.assert_close(found, expected_logits, rtol=1e-4, atol=1e-5)

    # The recipe and the JSON object report what was trained.
    result = json.loads(done.stdout)
    assert result["lora"] == RANK
    assert result["parameters"] == parameters.count
    recipe = Path("merged/ctxextend.yaml").read_text()
    assert "  lora: 2\n" in recipe


def test_train_lora_of_a_bf16_source_keeps_its_dtype() -> None:
    source = make_resized(Path("source").absolute(), "gpt2", dtype=torch.bfloat16)
    train(source, "out", *LORA)
    for tensor in load_file("out/model.safetensors").values():
        assert tensor.dtype == torch.bfloat16
    assert changed_tensors(source, Path("out")) == adapted(source) | {TABLES["gpt2"]}


@pytest.mark.parametrize(("trainable", "rows"), [("new", NEW // 2 - 1), ("all-but-positions", 0)])
def test_train_lora_trains_new_rows_or_no_rows(gpt2: Path, trainable: str, rows: int) -> None:
    train(gpt2, "out", *LORA, "--trainable", trainable)
    tables = {TABLES["gpt2"]} if rows else set()
    assert changed_tensors(gpt2, Path("out")) == adapted(gpt2) | tables

    differing = table_of(gpt2) != table_of(Path("out"))
    changed = differing.any(axis=1)
    learned = [False] * (NEW // 2)
    new = [bool(rows)] * (NEW // 2 - 1)
    assert changed.tolist() == [*learned, *new, False]


def test_run_trains_adapters_after_a_resize_or_conversion_and_reproduces_it(gpt2: Path) -> None:
    source = gpt2.with_name("long-old")
    steps = {
        "resized": f"resize: {{to: {NEW}}}",
        "converted": f"convert: {{scheme: rotary, to: {NEW}}}",
    }
    for output, step in steps.items():
        training = f"train: {{data: book.txt, steps: 2, lora: {RANK}}}"
        Path("recipe.yaml").write_text(f"source: {source}\n{step}\n{training}\n")
        run("recipe.yaml", output)
    assert changed_tensors(gpt2, Path("resized")) == adapted(gpt2) | {TABLES["gpt2"]}

    run("resized/ctxextend.yaml", "again")
    weights = Path("again/model.safetensors").read_bytes()
    assert weights == Path("resized/model.safetensors").read_bytes()

    verified = verify("converted")
    assert verified.passed
    assert verified.conclusion.endswith("except in tensors with adapters.")


@pytest.mark.parametrize(
    "trainable",
    [
        "positions",
        pytest.param("all-but-positions", marks=pytest.mark.slow),
    ],
)
def test_verify_compares_all_tensors_but_those_with_adapters(gpt2: Path, trainable: str) -> None:
    source = gpt2.with_name("long-old")
    train(gpt2, "out", *LORA, "--trainable", trainable, steps=2)

    verified = verify("out", source)
    assert verified.passed, verified.checks
    assert verified.conclusion.endswith(" and in tensors with adapters.")
    verified = verify("out", gpt2)
    assert verified.passed, verified.checks
    assert verified.conclusion.endswith("adapters.")

    if trainable == "all-but-positions":
        assert verified.trainable is None
    else:
        assert verified.trainable == trainable
    assert len(verified.adapted) == 4
    assert verified.adapted[0] == "transformer.h.*.attn.c_attn.weight"
    assert "; 8 with adapters not compared" in verified.checks[0].evidence[0]
    assert verify("out", deep=True).passed
    assert inspect("out").trainable == verified.trainable

    # Adapters remain known after further training; any other tensor must not change.
    train("out", "more", steps=1)
    assert verify("more", source).adapted == verified.adapted
    tensors = load_file("out/model.safetensors")
    tensors["transformer.ln_f.weight"][0] += 1
    pico.add_tensors(Path("out"), tensors)
    evidence = verify("out").checks[0].evidence
    assert "transformer.ln_f.weight differs" in evidence[0]


def test_train_lora_trains_a_converted_encoder_and_one_with_pairs() -> None:
    root = make_encoder(Path("source").absolute())
    convert(root, "rotary", NEW, output="rotary")
    done = train("rotary", "first", *LORA, "--json", steps=1)
    assert json.loads(done.stdout)["objective"] == "distilled"
    done = train(
        "rotary", "second", *LORA, "--contrastive", "passages", "--batch-size", 2, "--json", steps=1
    )
    assert json.loads(done.stdout)["objective"] == "contrastive"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lora", 9), "--lora must be at most the width of "),
        ((*LORA, "--trainable", "all"), "--lora trains adapters instead of all weights"),
    ],
)
def test_train_rejects_flags_of_adapters_before_writing(
    gpt2: Path, flags: tuple[object, ...], message: str
) -> None:
    done = invoke("train", gpt2, "--data", "book.txt", "--steps", 1, "-o", "out", *flags)
    assert done.exit_code == 2, done.stderr
    assert message in done.stderr
    assert files_here() == ["book.txt"]
