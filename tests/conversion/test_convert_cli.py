"""`ctxextend convert` and recipes of conversions: screens, files of the output, refusals."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
from typer.testing import CliRunner, Result

from ctxextend.cli.app import build_app
from tests.helpers import pico
from tests.helpers.conversions import CONFIGS, NEW, OLD, make, read
from tests.helpers.hub_server import SHA, Hub
from tests.helpers.trainings import files_here, make_encoder
from tests.helpers.word_tokenizer import text_of

LM = ["--scheme", "rotary", "--to", str(NEW)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), list(map(str, arguments)))


# ---- the command


def test_convert_carries_over_everything_else(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    labels: dict[str, Any] = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    settings: dict[str, Any] = {"layer_norm_eps": 1e-5, "hidden_act": "relu"}
    make(source, "bert", "ForTokenClassification", **labels, **settings)
    (source / "config.json").chmod(0o640)
    (source / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (source / "notes").mkdir()
    (source / "notes/a.txt").write_text("kept")
    (source / "modeling_x.py").write_text("raise SystemExit")
    run("convert", source, *LM, "-o", "out")

    expected = read(source)
    for key in ("is_decoder", "add_cross_attention"):
        expected.pop(key, None)  # RoFormer has no such setting
    expected |= {
        "architectures": ["RoFormerForTokenClassification"],
        "model_type": "roformer",
        "max_position_embeddings": NEW,
        "rotary_value": False,
    }
    assert read(Path("out")) == expected
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


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        ("tiny-gpt2 --scheme rotary", 2, "--scheme rotary requires --to", "--to N"),
        (
            "bert --scheme rotary --to 9000000000000000k",
            1,
            "--to 9,216,000,000,000,000,000 is too large",
            "Use a smaller --to.",
        ),
        (
            "tiny-gpt2 --scheme alibi --to 512 --theta 500",
            2,
            "--theta applies to --scheme rotary",
            "Remove --theta.",
        ),
        (
            "bare/model.safetensors --scheme rotary --to 64 --model-type bert",
            1,
            "not a complete model",
            "Pass the",
        ),
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
    shutil.copytree("bert", "broken")
    Path("broken/tokenizer_config.json").write_text("[]")
    shutil.copytree("bert", "bare")
    Path("bare/config.json").unlink()

    before = files_here()
    done = run("convert", *arguments.split())
    text = " ".join(done.stderr.split())
    assert done.exit_code == code, text
    assert message in text
    assert hint in text
    assert "Traceback" not in text
    assert files_here() == before
