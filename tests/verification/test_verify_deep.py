"""`verify --deep`: what passes, fails or is not checked once transformers loads a checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ctxextend import Check, Verification, resize, verify
from ctxextend.verification import observe
from tests.helpers import pico
from tests.helpers.trainings import invoke
from tests.helpers.verifications import failed_checks

NEW = 256
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
# Values of config.json as files of transformers 4 state them.
OLD_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rope_theta": 10000,
    "rope_scaling": None,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-06,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
    "transformers_version": "4.40.0",
}
OLD_GEMMA3 = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 16,
    "rope_theta": 1000000,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "sliding_window_pattern": 2,
    "torch_dtype": "float32",
}


def checks_of(verification: Verification) -> dict[str, Check]:
    return {check.name: check for check in verification.checks}


def check_all_passed(verification: Verification) -> None:
    """Check that nothing failed, and all was checked."""
    assert all(check.passed for check in verification.checks), verification.checks


def read_config(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def write_config(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))


def save_llama(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **changes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def with_config(folder: Path, content: dict[str, Any]) -> Path:
    """Replace config.json by one of an older file, with the same sizes."""
    write_config(folder, {**SIZES, **content})
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def old_llama(folder: Path) -> Path:
    return with_config(save_llama(folder), OLD_LLAMA)


def save_gemma3(folder: Path) -> Path:
    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(**SIZES, head_dim=16, layer_types=layers)
    transformers.Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


def old_gemma3(folder: Path) -> Path:
    return with_config(save_gemma3(folder), OLD_GEMMA3)


def save_pico(model_type: str) -> Callable[[Path], Path]:
    return lambda folder: pico.make(folder, model_type).folder


def old_gpt2(folder: Path) -> Path:
    """Save a model with a config as OpenAI's GPT-2 has it, which states no dtype."""
    pico.make(folder, "gpt2")
    values = {
        "n_ctx": 16,
        "attn_pdrop": 0.1,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
    }
    write_config(folder, {**pico.CONFIGS["gpt2"], **values})
    return folder


def save_again(folder: Path, output: Path) -> Path:
    """Load a checkpoint in transformers and save it again, over a copy of the folder."""
    shutil.copytree(folder, output)
    architecture = read_config(folder)["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(folder)
    model.save_pretrained(output)
    return output


# Parameters with random values


def rename_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["transformer.h.0.mlp.renamed.weight"] = tensors.pop("transformer.h.0.mlp.c_fc.weight")
    save_file(tensors, path, metadata={"format": "pt"})


def test_verify_deep_fails_for_missing_parameters_even_if_the_base_lacks_them(
    tmp_path: Path,
) -> None:
    source = pico.make(tmp_path / "source", "gpt2").folder
    rename_tensor(source)
    out = resize(source, to=40, output=tmp_path / "out").output
    assert verify(out, source).passed  # the files are as they should be

    found = verify(out, source, deep=True)
    assert "but the model in transformers is not right (failed: loads)." in found.conclusion
    assert [check.status for check in found.checks[3:]] == ["failed", "not checked", "not checked"]
    checks = checks_of(found)
    assert checks["loads"].evidence == (
        "missing key: transformer.h.0.mlp.c_fc.weight (also in the base): its values are random",
        "unexpected key: transformer.h.0.mlp.renamed.weight (also in the base)",
    )
    assert "parameters of the model have random values: " in checks["runs"].evidence[0]


def test_verify_deep_accepts_missing_parameters_on_which_no_output_depends(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "bert").folder
    pico.edit_json(source / "config.json", architectures=["BertModel"])  # its pooler has no weights
    out = resize(source, to=40, output=tmp_path / "out").output
    result = verify(out, source, deep=True)
    assert result.passed
    loads = checks_of(result)["loads"]
    missing = (
        "missing key: pooler.dense.weight (also in the base): no output that is compared depends "
        "on it"
    )
    assert loads.status == "passed"
    assert missing in loads.evidence


def test_verify_deep_finds_a_missing_expert_that_no_input_reaches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = tmp_path / "source"
    experts: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 1}
    config = transformers.MixtralConfig(**SIZES, **experts)
    transformers.MixtralForCausalLM(config).save_pretrained(source)

    path = source / "model.safetensors"
    tensors = load_file(path)
    removed = [name for name in tensors if ".1." in name and "experts.7." in name]
    assert removed
    for name in removed:
        del tensors[name]
    save_file(tensors, path, {"format": "pt"})
    out = resize(source, to=NEW, output=tmp_path / "out").output
    assert "loads" in failed_checks(verify(out, source, deep=True))


# Models that cannot be checked


def save_udop(folder: Path) -> Path:
    """Save a model that needs a bounding box for each token."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_decoder_layers": 1,
        "num_heads": 2,
        "vocab_size": 32,
        "image_size": 32,
        "patch_size": 16,
    }
    config = transformers.UdopConfig(**sizes)
    transformers.UdopForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_verify_deep_names_what_it_could_not_check_and_why(tmp_path: Path) -> None:
    source = save_udop(tmp_path / "source")
    out = resize(source, to=1024, output=tmp_path / "out").output
    done = invoke("verify", out, "--base", source, "--deep")
    assert done.exit_code == 0
    reason = "n_positions: the model does not run on text only: ValueError: Bbox is required"
    assert f"Not checked: runs, outputs ({reason}" in done.stdout.splitlines()[0]
    assert "passed  loads" in done.stdout
    assert "not checked  runs" in done.stdout
    assert "Not checked: " not in verify(out, source).conclusion


def test_verify_deep_fails_for_a_model_that_runs_on_text_only_in_the_base(tmp_path: Path) -> None:
    source = save_llama(tmp_path / "source")
    out = resize(source, to=NEW, output=tmp_path / "out").output
    pico.edit_json(out / "config.json", num_key_value_heads=4, num_attention_heads=1)
    runs = checks_of(verify(out, source, deep=True))["runs"]
    assert runs.status == "failed"
    assert "does not run on text only" in runs.evidence[0]


# Settings in another spelling, and buffers


@pytest.mark.parametrize(
    ("make", "methods"),
    [
        (save_llama, ("yarn", "switch", "linear", "dynamic", "theta")),
        (old_llama, ("yarn", "switch", "linear", "dynamic", "theta")),
        (save_gemma3, ("yarn", "linear")),
        (old_gemma3, ("yarn", "switch", "linear", "dynamic", "theta")),
        (save_pico("gpt2"), ("copy", "linear")),
        (old_gpt2, ("copy",)),
        (save_pico("bert"), ("copy",)),
    ],
)
def test_verify_passes_for_an_output_that_transformers_saved_again(
    make: Callable[[Path], Path], methods: tuple[str, ...], tmp_path: Path
) -> None:
    source = make(tmp_path / "source")
    for method in methods:
        out = resize(source, to=NEW, method=method, output=tmp_path / method).output
        again = save_again(out, tmp_path / f"{method}-again")
        result = verify(again, source, deep=True)
        check_all_passed(result)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            {"rope_theta": 20000},
            "rope_theta is 10000 by rope_scaling, which transformers follows, but "
            "20000 by rope_theta",
        ),
        ({"rms_norm_eps": 1e-05}, "config.json: rms_norm_eps is 1e-05, expected 1e-06"),
        ({"custom": 1}, "config.json: custom is 1, expected missing"),
        ({"num_key_value_heads": None}, "config.json: num_key_value_heads is null, expected 1"),
    ],
    ids=str,
)
def test_verify_fails_for_a_config_that_means_something_else(
    change: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    source = save_llama(tmp_path / "source")
    with_config(source, {**OLD_LLAMA, "num_key_value_heads": 1})
    out = resize(source, to=NEW, output=tmp_path / "out").output
    assert verify(out, source).passed
    # Defaults of transformers, and a number in another spelling.
    same = {"attention_dropout": 0.0, "head_dim": 16, "rope_theta": 10000.0}
    write_config(out, read_config(out) | same)
    assert verify(out, source).passed

    write_config(out, read_config(out) | change)
    assert difference in " | ".join(failed_checks(verify(out, source)).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_verify_deep_compares_frequencies_in_the_dtype_in_which_they_are_stored(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    source = tmp_path / "source"
    positions: dict[str, Any] = {"position_embedding_type": "rotary", "max_position_embeddings": 66}
    sizes: dict[str, Any] = {**pico.ENCODER, "hidden_size": 32, "vocab_size": 33, "pad_token_id": 1}
    config = transformers.EsmConfig(**sizes, **positions, mask_token_id=32)
    model: Any = transformers.EsmForMaskedLM(config)
    model.to(dtype).save_pretrained(source)
    stored = load_file(source / "model.safetensors")
    dtypes = {value.dtype for name, value in stored.items() if name.endswith("inv_freq")}
    assert dtypes == {dtype}

    out = resize(source, to=NEW, output=tmp_path / "out").output
    result = verify(out, source, deep=True)
    check_all_passed(result)
    evidence = checks_of(result)["loads"].evidence
    assert "esm.rotary_embeddings.inv_freq equals that of the base" in evidence


def add_position_ids(folder: Path, length: int, dtype: torch.dtype, name: str) -> None:
    position_ids = torch.arange(length).unsqueeze(0)
    pico.add_tensors(folder, {name: position_ids.to(dtype)})


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float16, torch.bfloat16])
def test_verify_compares_position_buffers_in_the_dtype_in_which_they_are_stored(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    source = pico.make_bros(tmp_path / "bros")
    name = "embeddings.position_ids"
    add_position_ids(source, 16, dtype, name)
    out = resize(source, to=40, output=tmp_path / "out").output
    assert verify(out, source, deep=True).passed
    again = save_again(out, tmp_path / "again")  # in int64 as transformers has it
    assert verify(again, source, deep=True).passed
    add_position_ids(out, 16, dtype, name)
    assert not verify(out, source).passed


def test_verify_accepts_the_position_buffer_of_the_new_length_and_no_other(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "bert").folder
    name = "bert.embeddings.position_ids"
    add_position_ids(source, 16, torch.int64, name)
    # The output is without it: transformers computes it.
    out = resize(source, to=40, output=tmp_path / "out").output
    add_position_ids(out, 40, torch.int64, name)
    assert verify(out, source).passed
    add_position_ids(out, 16, torch.int64, name)
    failed = failed_checks(verify(out, source))
    assert f"{name} is not the position buffer for the new length" in failed["tensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_verify_deep_passes_with_stored_frequencies_that_transformers_computes(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    source = old_llama(tmp_path / "source")
    exponents = torch.arange(0, 16, 2) / 16
    frequencies = (10000.0**-exponents).to(dtype)
    stored: dict[str, torch.Tensor] = {}
    for layer in range(2):
        stored[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies.clone()
    pico.add_tensors(source, stored)
    for method in ("yarn", "theta"):
        out = resize(source, to=NEW, method=method, output=tmp_path / method).output
        result = verify(out, source, deep=True)
        check_all_passed(result)


def test_verify_rejects_a_config_with_billions_of_layers_in_bounded_time(tmp_path: Path) -> None:
    source = old_llama(tmp_path / "source")
    out = resize(source, to=NEW, output=tmp_path / "out").output
    layers = 10**12  # of which transformers makes a list
    pico.edit_json(out / "config.json", num_hidden_layers=layers)
    fault = "config.json: num_hidden_layers is 1000000000000, expected 2"
    assert failed_checks(verify(out, source)) == {"files": fault}


def test_verify_deep_runs_an_output_whose_base_transformers_cannot_load(tmp_path: Path) -> None:
    base = pico.make(tmp_path / "base", "bert", base=True).folder
    config = read_config(base)
    del config["model_type"], config["architectures"]  # each would name the class
    write_config(base, config)
    output = resize(base, to=NEW, output=tmp_path / "out", model_type="bert").output
    verification = verify(output, deep=True)
    assert verification.passed
    found = [check.status for check in verification.checks[3:]]
    assert found == ["passed", "passed", "not checked"]
    assert f"Not checked: outputs (transformers cannot load {base}" in verification.conclusion

    write_config(output, read_config(output) | {"model_type": ""})
    refused = invoke("verify", output, "--deep")
    assert refused.exit_code == 1
    assert "Run verify without --deep." in refused.stderr


DIFFERENT = "outputs on short inputs must be identical to the base's"


@pytest.mark.parametrize(
    ("value", "passes", "evidence"),
    [
        (0.0, True, "bit-identical to the base's on inputs of 32 tokens, 64 tokens, 128 tokens"),
        (-0.0, True, "equal to the base's on inputs of 32 tokens, 64 tokens, 128 tokens, but for "),
        (0.5, False, DIFFERENT),
        (np.nan, False, DIFFERENT),
    ],
)
def test_verify_deep_calls_outputs_bit_identical_only_if_all_bits_are(
    value: float, passes: bool, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize("tiny-gpt2", NEW, method="last", output="out")

    def run(model: Any, *_: Any, **__: Any) -> torch.Tensor:
        is_base = model.config.n_positions < NEW
        return torch.tensor([1.0, 0.0 if is_base else value])

    monkeypatch.setattr(observe, "run_on_tokens", run)
    outputs = checks_of(verify("out", deep=True))["outputs"]
    assert outputs.evidence[0].startswith(evidence)
    assert outputs.passed == passes


@pytest.mark.parametrize(("fails_above", "status"), [(2, "not checked"), (64, "failed")])
def test_verify_deep_judges_no_failure_that_the_base_has_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_above: int, status: str
) -> None:
    source = save_llama(tmp_path / "source")
    out = resize(source, to=NEW, output=tmp_path / "out").output
    forward = transformers.LlamaModel.forward

    def failing(self: Any, input_ids: Any = None, **inputs: Any) -> Any:
        if input_ids.shape[1] > fails_above:
            raise RuntimeError(f"size {input_ids.shape[1] + 1} must match 2")
        return forward(self, input_ids, **inputs)

    monkeypatch.setattr(transformers.LlamaModel, "forward", failing)
    runs = checks_of(verify(out, source, deep=True))["runs"]
    assert runs.status == status
    assert f"fails on {NEW} tokens: RuntimeError: size {NEW + 1} must match 2" in runs.evidence[0]
    assert ("The base fails in the same way" in runs.evidence[0]) == (status == "not checked")
