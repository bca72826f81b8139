"""Folders whose model runs its own code, and model types that transformers does not have."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ctxextend import inspect, plan_resize, verify
from ctxextend.errors import UnsupportedModelError
from tests.helpers import pico
from tests.helpers.notes import texts
from tests.helpers.trainings import invoke, succeed, unwrapped

OLD, NEW = 16, 40
SINGLE = "model.safetensors"
MakePico = Callable[..., pico.Pico]
SIZES: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
}


def write(
    name: str, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None
) -> Path:
    """Write a folder with a config and a few tensors."""
    folder = Path(name)
    folder.mkdir()
    if tensors is None:
        tensors = {"lm_head.weight": torch.zeros(32, 8)}
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    pico.write_json(folder / "config.json", SIZES | config)
    return folder


def with_code(file: str, model: str, **config: Any) -> dict[str, Any]:
    """Return a config whose model is a class in a file of its folder."""
    auto_map = {
        "AutoConfig": f"configuration_{file}.Config",
        "AutoModelForCausalLM": f"modeling_{file}.{model}",
    }
    return {"auto_map": auto_map, **config}


LENGTH = {"max_position_embeddings": OLD}
ROTARY = {**LENGTH, "rope_theta": 10_000.0, "num_key_value_heads": 2}
TRAINED = {"original_max_position_embeddings": OLD}

# Configs as they are published, with small sizes: the class that is named, and what else is said.
PUBLISHED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "dnabert2": (
        with_code(
            "bert_layers", "BertForMaskedLM", model_type="bert", alibi_starting_size=512, **LENGTH
        ),
        ("modeling_bert_layers.BertForMaskedLM",),
    ),
    "phi3": (
        with_code("phi3", "Phi3ForCausalLM", model_type="phi3", **TRAINED, **ROTARY),
        ("modeling_phi3.Phi3ForCausalLM", "--model-type phi3"),
    ),
    "no type": (
        with_code("mine", "Model", **ROTARY),
        ("modeling_mine.Model", "It has no model_type."),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_resize_names_the_own_code_of_a_folder(name: str) -> None:
    config, expected = PUBLISHED[name]
    write(name, config)
    refused = invoke("resize", name, "--to", NEW, "--output", "out")
    assert refused.exit_code == 1
    assert not Path("out").exists()
    text = unwrapped(refused.stderr)
    for part in (
        "config.json has auto_map",
        "the folder's own code",
        "trust_remote_code=True",
        *expected,
    ):
        assert part in text
    assert "Check that the weights match" not in text


@pytest.mark.parametrize(
    "name", [name for name, (_, expected) in PUBLISHED.items() if "--model-type" in expected[-1]]
)
def test_resize_of_own_code_with_the_suggested_model_type(name: str) -> None:
    config, expected = PUBLISHED[name]
    write(name, config)
    flags = shlex.split(expected[-1])
    done = invoke("resize", name, "--to", NEW, "--output", "out", *flags)
    assert done.exit_code == 0
    assert "Planned for transformers' own" in done.stderr
    succeed("verify", "out", "--base", name)


def test_resize_of_a_table_in_the_weights_notes_own_code(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    code = with_code("x", "Model")
    pico.edit_json(folder / "config.json", **code)
    sentence = (
        "config.json has auto_map: the positions are those of the folder's own code "
        "(modeling_x.Model)"
    )
    plan = plan_resize(folder, to=NEW)
    planned = [note for note in texts(plan, "own-code") if note.startswith(sentence)]
    assert planned
    inspected = [note for note in inspect(folder).notes if note.startswith(sentence)]
    assert inspected
    result = plan.execute("out")
    assert verify(result.output, folder).passed


def test_own_tokenizers_are_not_own_models() -> None:
    auto_map = {"AutoTokenizer": "tokenization_x.Tokenizer"}
    config = {"model_type": "llama", **ROTARY, "auto_map": auto_map}
    folder = write("llama", config)
    plan = plan_resize(folder, to=NEW)
    for note in texts(plan, level="note"):
        assert "auto_map" not in note

    pico.edit_json(folder / "config.json", model_type="mine")
    plan = plan_resize(folder, to=NEW, model_type="llama")
    edits = {edit.path: edit.after for edit in plan.plan.edits}
    assert edits["model_type",] == "llama"


# ---- unknown types


PROJECTIONS = {
    "model.layers.0.self_attn.k_proj.weight": torch.zeros(OLD, 8),
    "model.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(OLD, 8),
    "model.layers.0.mlp.router.weight": torch.zeros(OLD, 8),
    "model.layers.0.post_attention_layernorm.weight": torch.zeros(OLD, 8),
    "model.layers.0.self_attn.pos_proj.weight": torch.zeros(OLD, 8),
    "model.embed_tokens.weight": torch.zeros(32, 8),
}


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"rope_theta": 10_000.0}},
        {"position_embedding_type": "rotary"},
        {"attn_config": {"alibi": True, "alibi_bias_max": 8}},
    ],
)
def test_resize_of_an_unknown_type_with_other_positions_offers_no_tensor(
    config: dict[str, Any],
) -> None:
    vision = {"vision.embeddings.position_embedding.weight": torch.zeros(OLD, 8)}
    write("mine", {"model_type": "mine", **LENGTH, **config}, PROJECTIONS | vision)
    refused = invoke("resize", "mine", "--to", NEW)
    assert refused.exit_code == 1
    text = unwrapped(refused.stderr)
    assert "Unknown model type 'mine'. Its positions are rotary or ALiBi" in text
    assert "--table" not in text
    assert "--model-type TYPE" in text


def test_resize_of_an_unknown_type_offers_no_tensors_of_layers() -> None:
    tensors = {name.replace(".0.", ".1."): value.clone() for name, value in PROJECTIONS.items()}
    write("mine", {"model_type": "mine", **LENGTH}, PROJECTIONS | tensors)
    text = unwrapped(invoke("resize", "mine", "--to", NEW).stderr)
    assert "--table model.embed_tokens.weight:vocab_size." in text
    assert "layers" not in text


def test_resize_offers_a_table_if_the_config_turns_other_positions_off() -> None:
    config = {"model_type": "mine", "alibi": False, **LENGTH}
    table = torch.zeros(OLD, 8)
    write("mine", config, PROJECTIONS | {"transformer.wpe.weight": table})
    refused = invoke("resize", "mine", "--to", NEW)
    flags = "--table transformer.wpe.weight:max_position_embeddings"
    assert flags in unwrapped(refused.stderr)
    succeed("resize", "mine", "--to", NEW, *flags.split())


# ---- --model-type over another type


def test_resize_says_what_model_type_rewrites(make_pico: MakePico) -> None:
    folder = make_pico("roberta").folder
    pico.edit_json(folder / "config.json", model_type="mine")
    done = invoke("resize", folder, "--to", NEW, "--model-type", "roberta", "--output", "unknown")
    assert done.exit_code == 0
    assert pico.config_of("unknown")["model_type"] == "roberta"

    pico.edit_json(folder / "config.json", model_type="xlm-roberta")
    done = invoke("resize", folder, "--to", NEW, "--model-type", "roberta", "--output", "known")
    assert done.exit_code == 0
    assert pico.config_of("known")["model_type"] == "xlm-roberta"

    code = with_code("x", "Model")
    pico.edit_json(folder / "config.json", model_type="mine", **code)
    done = invoke("resize", folder, "--to", NEW, "--model-type", "roberta", "--output", "code")
    assert done.exit_code == 0
    assert "in transformers" not in done.stderr + done.stdout  # that class does not load it
    assert pico.config_of("code")["model_type"] == "mine"


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("bert", "no position table found; in a bert model it is"),
        ("llama", "--model-type llama: config.json has no max_position_embeddings"),
    ],
)
def test_resize_refuses_a_model_type_whose_positions_the_weights_do_not_have(
    model_type: str, message: str, make_pico: MakePico
) -> None:
    folder = make_pico("gpt2").folder
    refused = invoke("resize", folder, "--to", NEW, "--model-type", model_type)
    assert refused.exit_code == 1
    assert list(Path().glob("*-*")) == []
    assert message in unwrapped(refused.stderr)


def test_resize_refuses_a_model_type_whose_settings_the_config_does_not_have() -> None:
    write("mine", {"model_type": "mine", "n_ctx": OLD}, PROJECTIONS)
    refused = invoke("resize", "mine", "--to", NEW, "--model-type", "llama")
    message = (
        "--model-type llama: config.json has no max_position_embeddings, the context length of "
        "llama."
    )
    assert refused.exit_code == 1
    assert message in refused.stderr

    file = Path("weights.safetensors")
    weights = (Path("mine") / SINGLE).read_bytes()
    file.write_bytes(weights)
    refused = invoke("resize", file, "--to", NEW, "--model-type", "llama")
    message = "--model-type llama: the positions of llama are rotary, with settings in config.json."
    assert refused.exit_code == 1
    assert message in refused.stderr


def test_inspect_raises_the_error_of_own_code_before_a_download(make_pico: MakePico) -> None:
    folder = make_pico("bert").folder
    code = with_code("bert", "JinaBertModel")
    pico.edit_json(folder / "config.json", position_embedding_type="alibi", **code)
    (folder / SINGLE).unlink()
    with pytest.raises(UnsupportedModelError, match="the folder's own code"):
        inspect(folder)


def test_inspect_suggests_a_fix_that_resize_accepts_for_own_code(tmp_path: Path) -> None:
    folder = tmp_path / "mistral"
    folder.mkdir()
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 64}
    auto_map = {"AutoModelForCausalLM": "modeling_mistral_yarn.MistralForCausalLM"}
    config = {"model_type": "mistral", **sizes, "auto_map": auto_map}
    pico.write_json(folder / "config.json", config)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 32}')
    tensors = {"lm_head.weight": torch.zeros(4, 4)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (fix,) = {limit.fix for limit in inspect(folder).limits if limit.fix}
    _, *arguments = shlex.split(fix)
    succeed(*arguments)
