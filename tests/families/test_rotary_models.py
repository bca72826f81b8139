"""Rotary, ALiBi and relative models: resized in memory, verified, compared and trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import evaluate, extend_model, resize, train, verify
from ctxextend.errors import MethodError
from tests.helpers import pico
from tests.helpers.pico import logits
from tests.helpers.rotary_models import OLD, make
from tests.helpers.trainings import write_book
from tests.helpers.word_tokenizer import add_tokenizer

NEW = 64
KEEPING = ("switch", "dynamic")  # methods that leave short inputs as they are
METHODS = ("yarn", "switch", "linear", "dynamic", "theta")
KEYS: dict[str, Any] = {
    "max_position_embeddings": OLD,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
}
# Several rope types in one model; and attention whose scale depends on the settings.
GEMMA: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
MLA: dict[str, Any] = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
DEEPSEEK = MLA | {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
SCALED = DEEPSEEK | {"rope_parameters": YARN | {"rope_theta": 10_000.0}}


def edit_rope(**values: Any) -> None:
    """Change rotary settings of the folder ``resized`` in both dialects; None removes one."""
    config = pico.config_of("resized")
    rope = {**config["rope_parameters"], **values}
    stated = {k: v for k, v in rope.items() if v is not None}
    next_to = {"rope_theta": stated.get("rope_theta")}
    scaling = {**stated, "type": stated["rope_type"]}
    scaling.pop("rope_theta", None)
    pico.edit_json(
        Path("resized/config.json"), rope_parameters=stated, rope_scaling=scaling, **next_to
    )


@pytest.mark.parametrize(
    ("model_type", "changes", "methods"),
    [
        ("llama", KEYS, METHODS),
        ("gemma3_text", KEYS | GEMMA, METHODS),
        ("deepseek_v3", KEYS | SCALED, ("yarn",)),
    ],
)
def test_extend_model_equals_the_resized_checkpoint(
    model_type: str, changes: dict[str, Any], methods: tuple[str, ...]
) -> None:
    source = make(model_type, **changes)
    for method in methods:
        resize(source.folder, NEW, method, output=method)
        model = pico.realign(source.load())
        resized = source.load(Path(method))
        loaded = pico.realign(resized)
        logits(model, NEW)
        before = logits(model, OLD // 2)
        extend_model(model, NEW, method)
        # Dynamic settings follow the longest input until a short one.
        for length in (OLD, NEW, 3 * OLD, OLD // 2):
            extended_output = logits(model, length)
            loaded_output = logits(loaded, length)
            assert torch.equal(extended_output, loaded_output), (method, length)
        short = logits(model, OLD // 2)
        assert torch.equal(short, before) == (method in KEEPING)
        with pytest.raises(MethodError, match="--method bands does not apply to rotary positions"):
            extend_model(model, 2 * NEW, "bands")
        extended_config = config_without_names(model)
        loaded_config = config_without_names(loaded)
        assert extended_config == loaded_config


def config_without_names(model: Any) -> dict[str, Any]:
    """Return the config of a model without its folder, and the name of rope types for old readers.

    A loaded model has this name from ``rope_scaling``.
    """
    config: dict[str, Any] = model.config.to_dict() | {"_name_or_path": ""}
    config.pop("original_max_position_embeddings", None)  # for old readers, too
    settings = config["rope_parameters"]
    for item in (settings, *settings.values()):
        if isinstance(item, dict):
            item.pop("type", None)
    return config


def make_relative() -> pico.Pico:
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(
        **sizes, vocab_size=32, n_positions=OLD, decoder_start_token_id=0
    )  # type: ignore[call-arg]
    transformers.T5EncoderModel(config).save_pretrained("t5")
    add_tokenizer(Path("t5"), special_tokens=True, max_len=OLD)
    return pico.Pico(Path("t5"), transformers.T5EncoderModel)


@pytest.mark.parametrize(
    "make_source",
    [
        lambda: make("falcon", alibi=True, num_hidden_layers=1, max_position_embeddings=OLD),
        make_relative,
    ],
)
def test_alibi_and_relative_models_change_only_in_length_limits(
    make_source: Callable[[], pico.Pico],
) -> None:
    source = make_source()
    resize(source.folder, NEW, output="resized")
    result = verify("resized", deep=True)
    assert (
        result.conclusion
        == f"Verified: resized differs from {result.base} only in its length limits."
    )
    check = result.checks[-1]
    assert "bit-identical to the base's" in check.evidence[0]
    model = source.load()
    before = logits(model, NEW)
    extend_model(model, NEW)
    assert torch.equal(logits(model, NEW), before)


def test_verify_compares_rotary_settings_and_frequencies() -> None:
    make(**KEYS)
    for method in METHODS:
        resize("llama", NEW, method, output=method)
        result = verify(method, deep=True)
        assert result, result.checks
        assert (
            result.conclusion
            == f"Verified: {method} differs from ./llama only in its rotary settings and length "
            "limits."
        )
        loads, _, outputs = result.checks[3:]
        assert (
            "model.rotary_emb.inv_freq equals the frequencies of the rotary settings"
            in loads.evidence
        )
        is_same = "bit-identical" in outputs.evidence[0]
        assert is_same == (method in KEEPING)
        assert is_same or "may differ from the base's" in outputs.evidence[0]
    verified = verify("yarn", "llama")
    assert verified.checks[1].evidence == ("rope_parameters: settings of yarn:factor=4",)
    resize("dynamic", 2 * NEW, output="twice")  # inputs beyond the trained length get another base
    verified = verify("twice", "dynamic", deep=True)
    assert verified.checks[-1].evidence[0].startswith("bit-identical")


def test_verify_finds_a_lost_rope_theta() -> None:
    make(**KEYS, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    resize("llama", NEW, output="resized")
    edit_rope(rope_theta=None)
    table = verify("resized").checks[1]
    assert table.evidence[0] == "rope_parameters: rope_theta is 10000.0, expected 500000.0"


def test_evaluate_measures_rotary_methods_as_the_folders_of_resize() -> None:
    make(**KEYS)
    write_book()
    measures: dict[str, Any] = {"tokens": 4 * NEW, "measure": ["position", "context"]}
    result = evaluate("llama", "book.txt", to=NEW, **measures)
    assert {*result.order} == {*METHODS}
    assert not result.skipped
    for method in ("linear", "dynamic"):
        resize("llama", NEW, method, output=method)
        measured = evaluate(method, "book.txt", **measures)
        own = [score.mean for score in result.scores if score.model == method]
        assert own == [score.mean for score in measured.scores if score.model == method]
    costs = {method: result.of_short(method) for method in result.order}
    assert all(costs.values())
    unchanged = [method for method, cost in costs.items() if cost and cost.change.mean == 0]
    assert {*unchanged} == {*KEEPING}


def test_train_states_both_dialects_of_a_folder_that_transformers_saved_again() -> None:
    source = make(**KEYS)
    write_book()
    settings: dict[str, Any] = {"batch_size": 2, "window": OLD, "save": "last"}
    resized = resize("llama", NEW, output="resized").output
    again = Path("again")
    source.load(resized).save_pretrained(again)
    for name in ("tokenizer.json", "tokenizer_config.json", "ctxextend.yaml"):
        (again / name).write_bytes((resized / name).read_bytes())
    assert "rope_scaling" not in pico.config_of("again")

    train("again", "book.txt", 1, output="trained", **settings)
    config = pico.config_of("trained")
    assert config["rope_scaling"] == pico.config_of("resized")["rope_scaling"]
    assert config["rope_theta"] == 10_000.0
    assert config["rope_parameters"] == pico.config_of("again")["rope_parameters"]

    train("llama", "book.txt", 1, output="base-trained", **settings)
    assert pico.config_of("base-trained")["rope_theta"] == 10_000.0
    assert "rope_scaling" not in pico.config_of("base-trained")
