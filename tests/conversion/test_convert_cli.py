"""`ctxextend convert` and recipes of conversions: screens, files of the output, refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
from typer.testing import CliRunner, Result

from ctxextend.cli.app import build_app
from tests.helpers import pico
from tests.helpers.conversions import CONFIGS, NEW, OLD, make, read
from tests.helpers.hub_server import SHA, Hub
from tests.helpers.trainings import files_here, make_encoder, make_source, write_book
from tests.helpers.word_tokenizer import text_of

LM = ["--scheme", "rotary", "--to", str(NEW)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), list(map(str, arguments)))


# ---- the command


def test_convert_replaces_an_output_only_with_force() -> None:
    run("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "4x")
    again = run("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "4x")
    assert again.exit_code == 1
    assert "exists.\nReplace it with --force" in again.stderr

    flags = ("--scheme", "alibi", "--to", "4x", "-o", "tiny-gpt2-rotary-512", "--force")
    forced = run("convert", "tiny-gpt2", *flags)
    assert "Warning: transformers computes Falcon's ALiBi biases in bfloat16" in forced.stderr
    assert "divides them by the square root of the head size" in forced.stderr
    assert "gpt2 -> falcon (ALiBi positions)\n" in forced.stderr
    assert read(Path("tiny-gpt2-rotary-512"))["model_type"] == "falcon"

    flags = ("--scheme", "rotary", "--to", "512", "--force", "-q", "--verify")
    quiet = run("convert", "tiny-gpt2", *flags)
    assert quiet.exit_code == 0
    assert quiet.stderr == ""


def test_convert_dry_run_prints_the_plan_and_writes_nothing() -> None:
    done = run("convert", "tiny-gpt2", *LM, "--dry-run", "--json")
    assert list(Path().iterdir()) == []
    values = json.loads(done.stdout)
    assert values["files"]["rewritten"] == ["model.safetensors", "config.json"]
    assert values["dry_run"] is True
    assert values["model_type_after"] == "gpt_neox"
    assert values["theta"] == 1000


def make_classifier(folder: Path) -> None:
    """Save a BERT with labels, a card, code and other files."""
    labels: dict[str, Any] = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    settings: dict[str, Any] = {"layer_norm_eps": 1e-5, "hidden_act": "relu"}
    make(folder, "bert", "ForTokenClassification", **labels, **settings)
    config = folder / "config.json"
    pico.edit_json(config, task_specific_params={"a": 1}, gradient_checkpointing=False)
    config.chmod(0o640)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (folder / "notes").mkdir()
    (folder / "notes/a.txt").write_text("kept")
    (folder / "modeling_x.py").write_text("raise SystemExit")


def test_convert_carries_over_everything_else(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    make_classifier(source)
    run("convert", source, *LM, "-o", "out")

    expected = read(source)
    for key in ("is_decoder", "add_cross_attention", "gradient_checkpointing"):
        expected.pop(key, None)  # RoFormer has no such setting
    expected |= {
        "architectures": ["RoFormerForTokenClassification"],
        "model_type": "roformer",
        "max_position_embeddings": NEW,
        "rotary_value": False,
    }
    config = read(Path("out"))
    assert config == expected
    assert config["id2label"] == {"0": "no", "1": "yes"}
    assert config["layer_norm_eps"] == 1e-5
    assert config["hidden_act"] == "relu"

    assert Path("out/notes/a.txt").read_text() == "kept"
    assert Path("out/modeling_x.py").read_text() == "raise SystemExit"
    mode = Path("out/config.json").stat().st_mode
    assert mode & 0o777 == 0o640
    card = Path("out/README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\n---\n# Mine\n\n## Converted to rotary positions, 40 tokens\n"
    )
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "convert:\n  scheme: rotary\n  to: 40\n" in recipe


def test_the_recipe_of_a_conversion_repeats_it_while_the_source_is_the_same(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    make_classifier(source)
    run("convert", source, *LM, "-o", "out")
    again = run("run", "out/ctxextend.yaml", "--output", "again")
    assert again.exit_code == 0
    assert pico.contents(Path("again")) == pico.contents(Path("out"))

    weights = source / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + b"?")
    failed = run("run", "out/ctxextend.yaml", "--output", "third")
    assert failed.exit_code == 1
    assert "changed" in failed.stderr
    assert not Path("third").exists()


def test_convert_of_a_hub_model_records_the_commit(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    hub.add("owner/gpt2-mine", tmp_path / "source")
    done = run("convert", "owner/gpt2-mine", *LM)
    assert done.stdout == "gpt2-mine-rotary-40\n"
    recipe = Path("gpt2-mine-rotary-40/ctxextend.yaml").read_text()
    assert recipe.startswith(f"source: owner/gpt2-mine\nrevision: {SHA}\n")
    card = Path("gpt2-mine-rotary-40/README.md").read_text()
    assert "base_model: owner/gpt2-mine" in card
    verified = run("verify", "gpt2-mine-rotary-40")
    assert verified.exit_code == 0


def test_convert_downloads_no_weights_of_a_type_that_it_refuses(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text('{"model_type": "llama"}')
    repository = hub.add("owner/llama", tmp_path / "llama")
    repository.files["model.safetensors"] = b"large"
    done = run("convert", "owner/llama", *LM)
    assert "llama models have no twin with rotary positions" in done.stderr
    downloads = [line for line in hub.requests if line.startswith("GET")]
    assert downloads
    for line in downloads:
        assert "safetensors" not in line


def test_convert_trains_at_once(tmp_path: Path) -> None:
    source = make_source(tmp_path / "gpt2", "gpt2")
    write_book()
    done = run("convert", source, *LM, "--train", "book.txt", "--steps", 2, "-o", "out")
    assert done.exit_code == 0
    assert read(Path("out"))["model_type"] == "gpt_neox"
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "convert:\n  scheme: rotary\n" in recipe
    assert "  steps: 2\n" in recipe

    done = run("convert", source, *LM, "-o", "untrained")
    assert done.exit_code == 0
    trained = load_file("out/model.safetensors")
    untrained = load_file("untrained/model.safetensors")
    assert trained.keys() == untrained.keys()
    assert not torch.equal(trained["embed_out.weight"], untrained["embed_out.weight"])


def test_convert_of_a_sentence_encoder_embeds_longer_texts(tmp_path: Path) -> None:
    root = make_encoder(tmp_path / "encoder")
    done = run("convert", root, *LM, "-o", "out", "--verify")
    assert done.exit_code == 0
    assert "Dropped pooler.dense.bias, pooler.dense.weight" in done.stderr
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "0_Transformer",
        "1_Pooling",
        "README.md",
        "ctxextend.yaml",
        "modules.json",
    ]

    encoder = SentenceTransformer("out", device="cpu")
    assert encoder.max_seq_length == NEW
    shared = [*range(NEW - 9)]
    one = encoder.encode(text_of([*shared, NEW - 9]))
    other = encoder.encode(text_of([*shared, 0]))
    assert abs(one - other).max() > 1e-6


# ---- tokenizers

LETTERS = "Tehfoxjumpsvr"
WORDS = ["the", "fox", "##es", "jump", "##s", "over"]
PIECES = ["\u2581The", "\u2581fox", "es", "\u2581jump", "s", "\u2581over", "<mask>"]


def make_tokenizer(model_type: str) -> Any:
    """Return a small tokenizer of the class that a model type has."""
    if model_type in ("bert", "electra"):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        return transformers.BertTokenizer(vocab=numbered(words))
    special = ["<|endoftext|>"] if model_type == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>"]
    if model_type in ("gpt2", "roberta", "bart"):
        name = "GPT2Tokenizer" if model_type == "gpt2" else "RobertaTokenizer"
        words = [*special, "<mask>", *LETTERS, "\u0120", "he", "ox"]
        return getattr(transformers, name)(vocab=numbered(words), merges=[("h", "e"), ("o", "x")])
    name = "CamembertTokenizer" if model_type == "camembert" else "XLMRobertaTokenizer"
    scores = [(piece, -float(index)) for index, piece in enumerate([*special, *PIECES])]
    return getattr(transformers, name)(vocab=scores)


def numbered(words: list[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate(words)}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_convert_keeps_the_tokenizer(model_type: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    settings = source / "tokenizer_config.json"
    make(source, model_type, "Model")
    tokenizer = make_tokenizer(model_type)
    tokenizer.model_max_length = OLD
    tokenizer.save_pretrained(source)

    def check(stated: str | None) -> None:
        """Check that the ids are the same, and which class the output states."""
        scheme = LM
        if model_type == "bart":
            scheme = ["--scheme", "window", "--attention-window", "8", "--to", str(NEW)]
        done = run("convert", source, *scheme, "-o", "out", "--force")
        assert done.exit_code == 0
        before = AutoTokenizer.from_pretrained(source)
        after = AutoTokenizer.from_pretrained("out")
        assert type(after) is type(before)
        ids = before("The fox jumps over foxes")["input_ids"]
        assert after("The fox jumps over foxes")["input_ids"] == ids
        assert len(set(ids)) > 4
        assert after.special_tokens_map == before.special_tokens_map
        assert after.model_max_length in (NEW, before.model_max_length)
        assert read(Path("out"), "tokenizer_config.json")["tokenizer_class"] == stated

    name = type(tokenizer).__name__
    unstated = {"electra": "ElectraTokenizer", "bart": "BartTokenizer"}.get(model_type, name)
    check(name)
    assert AutoTokenizer.from_pretrained("out").model_max_length == NEW
    pico.edit_json(settings, tokenizer_class=None)  # as in old files
    check(unstated)
    settings.unlink()
    check(unstated)
    of_another_type = "PreTrainedTokenizerFast"
    pico.edit_json(source / "config.json", tokenizer_class=of_another_type)
    check(of_another_type)


# ---- refusals


def make_adapter(folder: Path, base: Path) -> None:
    """Save the weights of a model as if they were of an adapter."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "bert"}')
    tensors = load_file(base / "model.safetensors")
    adapter = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    save_file(adapter, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        ("tiny-gpt2 --scheme rotary", 2, "--scheme rotary requires --to", "--to N"),
        ("tiny-gpt2 --to 512", 2, "Missing option '--scheme'", "convert --help"),
        (
            "bert --scheme rotary --to 9000000000000000k",
            1,
            "--to 9,216,000,000,000,000,000 is too large",
            "Use a smaller --to.",
        ),
        ("tiny-gpt2 --scheme rotary --to 512 --theta 1", 2, "--theta must be above 1, got 1", ""),
        (
            "tiny-gpt2 --scheme alibi --to 512 --theta 500",
            2,
            "--theta applies to --scheme rotary",
            "Remove --theta.",
        ),
        (
            "bert --scheme rotary --to 40 --theta 500",
            2,
            "--theta cannot be used with roformer",
            "Remove --theta.",
        ),
        (
            "bert --scheme alibi --to 40",
            1,
            "bert models have no twin with ALiBi positions",
            "type gpt2",
        ),
        ("llama --scheme rotary --to 64", 1, "llama models have no twin", "type gpt2, bert"),
        ("adapter --scheme rotary --to 64 --model-type bert", 1, "cannot be converted", "Pass the"),
        (
            "broken --scheme rotary --to 64",
            1,
            "tokenizer_config.json is a JSON list, not an object",
            "",
        ),
    ],
)
def test_convert_refuses_by_name(
    arguments: str, code: int, message: str, hint: str, tmp_path: Path
) -> None:
    make(Path("bert"), "bert", "ForMaskedLM")
    if "llama" in arguments:
        config = transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
        )
        transformers.LlamaForCausalLM(config).save_pretrained("llama")
    shutil.copytree("bert", "broken")
    Path("broken/tokenizer_config.json").write_text("[]")
    make_adapter(Path("adapter"), Path("bert"))

    before = files_here()
    done = run("convert", *arguments.split())
    text = " ".join(done.stderr.split())
    assert done.exit_code == code, text
    assert message in text
    assert hint in text
    assert "Traceback" not in text
    assert files_here() == before
