"""What a context length costs: the key-value cache in plans, on screens and in `inspect`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxextend import inspect, plan_resize
from ctxextend.families.kv_cache import CachedLayers
from ctxextend.plan.cache_cost import KvCache, describe_layers
from tests.helpers import pico
from tests.helpers.gguf_files import write_gguf
from tests.helpers.kv_caches import CACHE
from tests.helpers.trainings import invoke

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 16,
}
# Of a token in one layer: keys and values of two heads of eight values.
TOKEN_VALUES = 2 * 2 * 8


def save(
    folder: Path, dtype: Any = torch.bfloat16, model_type: str = "llama", **changes: Any
) -> Any:
    """Save a small model with random weights, and return it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **SIZES, **changes)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.to(dtype).save_pretrained(folder)
    return model


def cache_of(folder: Path, to: int = 64) -> Any:
    """Return the cache in the JSON of a planned resize."""
    return plan_resize(folder, to=to).to_json()["kv_cache"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plan_resize_states_the_bytes_that_transformers_caches(tmp_path: Path, dtype: Any) -> None:
    model = save(tmp_path, dtype)
    with torch.no_grad():
        outputs = model(input_ids=torch.ones(1, 64, dtype=torch.long), use_cache=True)
    cache = outputs[CACHE]
    size = 0
    for layer in cache.layers:
        size += layer.keys.nbytes + layer.values.nbytes
    stated = cache_of(tmp_path)
    assert stated["dtype"] == str(dtype).removeprefix("torch.")
    assert (stated["tokens_before"], stated["tokens_after"]) == (16, 64)
    assert stated["bytes_after"] == size
    assert stated["bytes_before"] == size // 4


def test_plan_resize_counts_the_window_of_sliding_layers(tmp_path: Path) -> None:
    save(tmp_path, model_type="mistral", sliding_window=24)
    stated = cache_of(tmp_path)
    assert stated["bytes_before"] == 3 * 16 * TOKEN_VALUES * 2
    assert stated["bytes_after"] == 3 * 23 * TOKEN_VALUES * 2
    assert [layers["max_tokens"] for layers in stated["layers"]] == [23]


def test_plan_resize_takes_the_dtype_of_quantised_weights_from_the_config(tmp_path: Path) -> None:
    save(tmp_path)
    pico.edit_json(tmp_path / "config.json", dtype="float16", quantization_config={"bits": 8})
    assert cache_of(tmp_path)["dtype"] == "float16"
    pico.edit_json(tmp_path / "config.json", dtype="float8_e4m3fn")
    assert cache_of(tmp_path) is None


def test_plan_resize_counts_the_decoder_at_its_own_length(tmp_path: Path) -> None:
    pico.make_led(tmp_path, encoder=32, decoder=16)
    cache = plan_resize(tmp_path, to=64, part="decoder").to_json()["kv_cache"]
    assert cache["part"] == "decoder"
    assert (cache["tokens_before"], cache["tokens_after"]) == (16, 64)
    assert plan_resize(tmp_path, to=64, part="encoder").to_json()["kv_cache"] is None
    assert inspect(tmp_path, part="encoder").to_json()["kv_cache"]["tokens"] == 16


def test_plan_resize_states_no_cache_of_models_without_one(tmp_path: Path) -> None:
    pico.make(tmp_path / "bert", "bert")
    assert cache_of(tmp_path / "bert") is None
    assert plan_resize(tmp_path / "bert", to=64).explanation.cost == ""


def test_inspect_states_no_cache_of_a_gguf_file(tmp_path: Path) -> None:
    assert inspect(write_gguf(tmp_path / "model.gguf")).to_json()["kv_cache"] is None


def test_describe_layers_names_a_latent_cache_of_equal_sizes() -> None:
    layers = CachedLayers(
        count=2, kv_heads=1, key_size=16, value_size=16, max_tokens=None, is_latent=True
    )
    cache = KvCache(dtype="float32", part="", layers=(layers,))
    assert describe_layers(cache) == "2 layers x 32 latent values"


def test_inspect_states_the_cache_of_the_present_length(tmp_path: Path) -> None:
    save(tmp_path)
    cache = inspect(tmp_path).to_json()["kv_cache"]
    assert cache["tokens"] == 16
    assert cache["bytes"] == 3 * 16 * TOKEN_VALUES * 2
    assert cache["layers"] == [
        {
            "count": 3,
            "kv_heads": 2,
            "key_size": 8,
            "value_size": 8,
            "max_tokens": None,
            "is_latent": False,
        }
    ]


def test_resize_shows_what_the_new_length_costs(tmp_path: Path) -> None:
    save(tmp_path / "model")
    done = invoke("resize", str(tmp_path / "model"), "--to", "64", "--dry-run")
    assert "KV cache  3.1 kB -> 12.3 kB for one sequence in bfloat16" in done.stdout
    assert "3 layers x 2 KV heads x 8" in done.stdout
    done = invoke("resize", str(tmp_path / "model"), "--to", "64", "-o", str(tmp_path / "out"))
    assert "KV cache: 3.1 kB -> 12.3 kB for one sequence in bfloat16" in done.stderr
