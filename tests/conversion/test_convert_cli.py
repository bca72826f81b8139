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
from tests.helpers.trainings import make_encoder, make_source, write_book
from tests.helpers.word_tokenizer import text_of

LM = ["--scheme", "rotary", "--to", str(NEW)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), list(map(str, arguments)))


# ---- the command


def test_convert_prints_the_output_what_it_adds_and_what_to_do_next() -> None:
    done = run("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "4x")
    assert (done.exit_code, done.stdout) == (0, "tiny-gpt2-rotary-512\n")
    first, lengths, added, cost, effects = done.stderr.splitlines()
    assert first == "gpt2 -> gpt_neox (rotary positions, theta 1000)"
    assert lengths == "128 -> 512 tokens"
    assert added == "131,072 parameters added: the LM head is separate from the embeddings"
    assert cost.startswith("4.3 MB in ")
    assert effects.startswith(
        "Not yet trained at 512. Outputs are far from the source's, for short inputs too"
    )
    again = run("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "4x")
    assert (again.exit_code, "exists.\nReplace it with --force" in again.stderr) == (1, True)
    forced = run(
        "convert",
        "tiny-gpt2",
        "--scheme",
        "alibi",
        "--to",
        "4x",
        "-o",
        "tiny-gpt2-rotary-512",
        "--force",
    )
    assert "Warning: transformers computes Falcon's ALiBi biases in bfloat16" in forced.stderr
    assert "divides them by the square root of the head size" in forced.stderr
    assert "gpt2 -> falcon (ALiBi positions)\n" in forced.stderr
    assert read(Path("tiny-gpt2-rotary-512"))["model_type"] == "falcon"
    quiet = run(
        "convert", "tiny-gpt2", "--scheme", "rotary", "--to", "512", "--force", "-q", "--verify"
    )
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_convert_dry_run_prints_the_plan_and_writes_nothing() -> None:
    done = run("convert", "tiny-gpt2", *LM, "--dry-run")
    assert list(Path().iterdir()) == []
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:5] == [
        "source tiny-gpt2",
        "output tiny-gpt2-rotary-40",
        "convert gpt2 -> gpt_neox (rotary positions, theta 1000)",
        "128 -> 40 tokens",
        "131,072 parameters added: the LM head is separate from the embeddings",
    ]
    for line in (
        "rewrite model.safetensors",
        "config.json",
        "extend README.md",
        "create ctxextend.yaml",
    ):
        assert line in lines
    values = json.loads(run("convert", "tiny-gpt2", *LM, "--dry-run", "--json").stdout)
    assert values["files"]["rewritten"] == ["model.safetensors", "config.json"]
    assert (values["dry_run"], values["model_type_after"], values["theta"]) == (
        True,
        "gpt_neox",
        1000,
    )


def test_convert_carries_over_everything_else(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    make(source, "bert", "ForTokenClassification", **labels, layer_norm_eps=1e-5, hidden_act="relu")
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (source / "notes").mkdir()
    (source / "notes/a.txt").write_text("kept")
    (source / "config.json").chmod(0o640)
    (source / "modeling_x.py").write_text("raise SystemExit")
    pico.edit_json(
        source / "config.json", task_specific_params={"a": 1}, gradient_checkpointing=False
    )
    done = run("convert", source, *LM, "-o", "out")
    assert "Code files are neither executed nor copied: modeling_x.py." in done.stderr
    before, after = read(source), read(Path("out"))
    dropped = {
        "is_decoder",
        "add_cross_attention",
        "gradient_checkpointing",
    }  # RoFormer has no such settings
    changed = {
        "architectures": ["RoFormerForTokenClassification"],
        "model_type": "roformer",
        "max_position_embeddings": NEW,
        "rotary_value": False,
    }
    assert after == {key: value for key, value in before.items() if key not in dropped} | changed
    assert (after["id2label"], after["layer_norm_eps"], after["hidden_act"]) == (
        labels["id2label"],
        1e-5,
        "relu",
    )
    assert Path("out/notes/a.txt").read_text() == "kept"
    assert Path("out/config.json").stat().st_mode & 0o777 == 0o640
    card = Path("out/README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\n---\n# Mine\n\n## Converted to rotary positions, 40 tokens\n"
    )
    assert not Path("out/modeling_x.py").exists()
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "convert:\n  scheme: rotary\n  to: 40\n" in recipe

    assert run("run", "out/ctxextend.yaml", "--output", "again").exit_code == 0
    assert pico.contents(Path("again")) == pico.contents(Path("out"))
    (source / "model.safetensors").write_bytes(
        (source / "model.safetensors").read_bytes()[:-1] + b"?"
    )
    failed = run("run", "out/ctxextend.yaml", "--output", "third")
    assert (failed.exit_code, "changed" in failed.stderr, Path("third").exists()) == (
        1,
        True,
        False,
    )


def test_convert_of_a_hub_model_records_the_commit(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    make(tmp_path / "source", "gpt2", "LMHeadModel")
    hub.add("owner/gpt2-mine", tmp_path / "source")
    assert run("convert", "owner/gpt2-mine", *LM).stdout == "gpt2-mine-rotary-40\n"
    recipe = Path("gpt2-mine-rotary-40/ctxextend.yaml").read_text()
    assert recipe.startswith(f"source: owner/gpt2-mine\nrevision: {SHA}\n")
    assert "base_model: owner/gpt2-mine" in Path("gpt2-mine-rotary-40/README.md").read_text()
    assert run("verify", "gpt2-mine-rotary-40").exit_code == 0

    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text('{"model_type": "llama"}')
    hub.add("owner/llama", tmp_path / "llama").files["model.safetensors"] = b"large"
    before = len(hub.requests)
    assert "llama models cannot be converted" in run("convert", "owner/llama", *LM).stderr
    assert not [
        line for line in hub.requests[before:] if line.startswith("GET") and "safetensors" in line
    ]


def test_convert_trains_at_once(tmp_path: Path) -> None:
    source = make_source(tmp_path / "gpt2", "gpt2")
    write_book()
    done = run("convert", source, *LM, "--train", "book.txt", "--steps", 2, "-o", "out")
    assert done.exit_code == 0
    assert read(Path("out"))["model_type"] == "gpt_neox"
    recipe = Path("out/ctxextend.yaml").read_text()
    assert "convert:\n  scheme: rotary\n" in recipe
    assert "  steps: 2\n" in recipe
    wanted = run("convert", source, *LM, "-o", "untrained")
    assert wanted.exit_code == 0
    one, other = (load_file(Path(name) / "model.safetensors") for name in ("out", "untrained"))
    assert one.keys() == other.keys()
    assert not torch.equal(one["embed_out.weight"], other["embed_out.weight"])


def test_convert_of_a_sentence_encoder_embeds_longer_texts(tmp_path: Path) -> None:
    root = make_encoder(tmp_path / "encoder")
    done = run("convert", root, *LM, "-o", "out", "--verify")
    assert (done.exit_code, "Dropped 2 tensors: pooler.dense.bias" in done.stderr) == (0, True)
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "0_Transformer",
        "1_Pooling",
        "README.md",
        "ctxextend.yaml",
        "modules.json",
    ]
    encoder = SentenceTransformer("out", device="cpu")
    assert encoder.max_seq_length == NEW
    short, long = encoder.encode([text_of([*range(NEW - 8)]), text_of([*range(NEW - 9), 0])])
    assert abs(short - long).max() > 1e-6


# ---- tokenizers

LETTERS = "Tehfoxjumpsvr"
WORDS = ["the", "fox", "##es", "jump", "##s", "over"]
PIECES = ["\u2581The", "\u2581fox", "es", "\u2581jump", "s", "\u2581over", "<mask>"]


def make_tokenizer(model_type: str) -> Any:
    """Return a small tokenizer of the class that a model type has."""
    if model_type in ("bert", "electra"):
        vocab: Any = {
            word: index
            for index, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))
        }
        return transformers.BertTokenizer(vocab=vocab)
    first = ("<|endoftext|>",) if model_type == "gpt2" else ("<s>", "<pad>", "</s>", "<unk>")
    if model_type in ("gpt2", "roberta"):
        words = (*first, "<mask>", *LETTERS, "\u0120", "he", "ox")
        vocab = {word: index for index, word in enumerate(words)}
        name = "GPT2Tokenizer" if model_type == "gpt2" else "RobertaTokenizer"
        return getattr(transformers, name)(vocab=vocab, merges=[("h", "e"), ("o", "x")])
    name = "CamembertTokenizer" if model_type == "camembert" else "XLMRobertaTokenizer"
    return getattr(transformers, name)(
        vocab=[(piece, -float(index)) for index, piece in enumerate((*first, *PIECES))]
    )


@pytest.mark.parametrize("model_type", CONFIGS)
def test_convert_keeps_the_tokenizer(model_type: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    text = "The fox jumps over foxes"
    settings = tmp_path / "source/tokenizer_config.json"
    make(source, model_type, "Model")
    tokenizer = make_tokenizer(model_type)
    tokenizer.model_max_length = OLD
    tokenizer.save_pretrained(source)

    def check(stated: str | None) -> None:
        """Check that the ids are the same, and which class the output states."""
        assert run("convert", source, *LM, "-o", "out", "--force").exit_code == 0
        before, after = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained("out")
        assert type(after) is type(before)
        assert after(text)["input_ids"] == before(text)["input_ids"]
        assert len(set(before(text)["input_ids"])) > 4
        assert after.special_tokens_map == before.special_tokens_map
        assert after.model_max_length in (NEW, before.model_max_length)
        assert read(Path("out"), "tokenizer_config.json")["tokenizer_class"] == stated

    name = type(tokenizer).__name__
    check(name)
    assert AutoTokenizer.from_pretrained("out").model_max_length == NEW
    pico.edit_json(settings, tokenizer_class=None)  # as in old files
    check("ElectraTokenizer" if model_type == "electra" else name)
    settings.unlink()
    check("ElectraTokenizer" if model_type == "electra" else name)
    pico.edit_json(
        source / "config.json", tokenizer_class="PreTrainedTokenizerFast"
    )  # of another type
    check("PreTrainedTokenizerFast")


# ---- refusals


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        ("tiny-gpt2 --scheme rotary", 2, "Missing option '--to'", "convert --help"),
        ("tiny-gpt2 --to 512", 2, "Missing option '--scheme'", "convert --help"),
        (
            "tiny-gpt2 --scheme rotory --to 512",
            2,
            "--scheme must be one of rotary, alibi, got rotory",
            "mean rotary?",
        ),
        ("tiny-gpt2 --scheme rotary --to 0", 2, "--to must be at least 1, got 0", ""),
        (
            "tiny-gpt2 --scheme rotary --to many",
            2,
            "--to must be a number, such as 4096 or 4k, or a factor",
            "",
        ),
        (
            "bert --scheme rotary --to 9000000000000000k",
            1,
            "--to 9,216,000,000,000,000,000 is too large",
            "Lower",
        ),
        ("tiny-gpt2 --scheme rotary --to 512 --theta 1", 2, "--theta must be above 1, got 1", ""),
        ("tiny-gpt2 --scheme rotary --to 512 --theta x", 2, "--theta must be a number, got x", ""),
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
            "bert (bert) cannot be converted to alibi",
            "Use --scheme rotary.",
        ),
        ("tiny-gpt2 --scheme rotary --to 512 --steps 3", 2, "--steps", "--train"),
        ("tiny-gpt2 --scheme rotary --to 512 --tensor wpe", 2, "Unknown option --tensor", ""),
        ("llama --scheme rotary --to 64", 1, "llama models cannot be converted", "type gpt2, bert"),
        (
            "bare/model.safetensors --scheme rotary --to 64 --model-type bert",
            1,
            "cannot be converted",
            "Pass the",
        ),
        ("adapter --scheme rotary --to 64 --model-type bert", 1, "cannot be converted", "Pass the"),
        (
            "tiny-gpt2-rotary-512 --scheme alibi --to 512",
            1,
            "gpt_neox models cannot be converted",
            "Pass the folder",
        ),
        (
            "broken --scheme rotary --to 64",
            1,
            "tokenizer_config.json is a JSON list, not an object",
            "",
        ),
        ("no-such --scheme rotary --to 512", 1, "no-such", ""),
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
    if "rotary-512" in arguments:
        assert run("convert", "tiny-gpt2", "--scheme", "rotary", "--to", "512").exit_code == 0
    shutil.copytree("bert", "broken")
    Path("broken/tokenizer_config.json").write_text("[]")
    Path("bare").mkdir()
    shutil.copy("bert/model.safetensors", "bare")
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text('{"base_model_name_or_path": "bert"}')
    tensors = {
        f"base_model.model.{name}": tensor
        for name, tensor in load_file("bert/model.safetensors").items()
    }
    save_file(tensors, "adapter/adapter_model.safetensors")
    before = {path.name for path in Path().iterdir()}
    done = run("convert", *arguments.split())
    text = " ".join(done.stderr.split())
    assert (done.exit_code, message in text, hint in text) == (code, True, True), text
    assert "Traceback" not in text
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "convert: {scheme: rotary, to: 512}\nresize: {to: 512}\n",
            "a recipe either resizes or converts",
        ),
        ("convert: {scheme: rotory, to: 512}\n", "scheme must be one of rotary, alibi, got rotory"),
        ("convert: {scheme: rotary}\n", "convert.to"),
        ("convert: {scheme: rotary, to: 512, tetha: 500}\n", "did you mean convert.theta?"),
        ("tensor: wpe\nconvert: {scheme: rotary, to: 512}\n", "tensor"),
    ],
)
def test_a_recipe_with_invalid_settings_of_a_conversion_is_refused(text: str, message: str) -> None:
    Path("recipe.yaml").write_text(f"source: tiny-gpt2\n{text}")
    done = run("run", "recipe.yaml")
    assert (done.exit_code, message in " ".join(done.stderr.split())) == (1, True), done.stderr
    assert [path.name for path in Path().iterdir()] == ["recipe.yaml"]
