"""`ctxextend flags`: what a runtime is given instead of a new folder."""

import json
import os
import shlex
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import transformers

from ctxextend import CheckpointError, ResizeError, resize, runtime_flags
from tests.helpers import mistral_format, pico, rotary_configs, rotary_models
from tests.helpers.hub_server import Hub
from tests.helpers.json_schemas import check
from tests.helpers.rotary_configs import LISTS, NEW, OLD, SECTIONS
from tests.helpers.terminal import on_terminal
from tests.helpers.trainings import invoke, succeed, unwrapped

VLLM = "--hf-overrides"
SGLANG = "--json-model-override-args"
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": OLD,
}
LLAMA_CPP_YARN = "-c 1024 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256"


def flags_of(name: str, runtime: str, method: str | None = None) -> str:
    """Return the flags for one of the configs."""
    return runtime_flags(rotary_configs.save(name), NEW, runtime, method).flags


# ---- llama.cpp


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("llama", None, LLAMA_CPP_YARN),
        ("llama-old", None, f"{LLAMA_CPP_YARN} --rope-freq-base 500000"),
        ("gpt_neox", None, LLAMA_CPP_YARN),
        ("gemma3", None, LLAMA_CPP_YARN),
        ("llama", "linear", "-c 1024 --rope-scaling linear --rope-scale 4"),
        ("llama", "theta", "-c 1024 --rope-freq-base 43872.999187785"),
        ("llama", "yarn:factor=6", LLAMA_CPP_YARN.replace("scale 4", "scale 6")),
        ("llama", "limits", "-c 1024"),
        (
            "llama",
            "yarn:beta-slow=2",
            f"{LLAMA_CPP_YARN} --yarn-beta-fast 32 --yarn-beta-slow 2",
        ),
        # The file has the lists.
        ("phi3", None, "-c 1024"),
    ],
)
def test_runtime_flags_of_llama_cpp_are_options(
    name: str, method: str | None, expected: str
) -> None:
    result = runtime_flags(rotary_configs.save(name), NEW, "llama.cpp", method)
    assert result.flags == expected
    assert result.serve == f"llama-server -m MODEL.gguf {expected}"
    assert result.override == {}


def test_runtime_flags_of_llama_cpp_keep_a_yarn_type_and_its_first_length() -> None:
    rope = {**YARN, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    folder = rotary_configs.save("llama", rope_parameters=rope)
    flags = runtime_flags(folder, NEW, "llama.cpp").flags
    assert flags == "-c 1024 --rope-scaling yarn --rope-scale 16 --yarn-orig-ctx 64"


def test_runtime_flags_of_llama_cpp_cannot_state_a_llama3_type() -> None:
    with pytest.raises(ResizeError) as caught:
        flags_of("llama3", "llama.cpp")
    assert caught.value.message == ("llama.cpp has no flags for the llama3 settings of this model.")
    assert caught.value.hint == "Write a folder with `ctxextend resize`, and convert it."


# ---- vLLM and SGLang


@pytest.mark.parametrize(
    ("name", "method", "override", "options"),
    [
        (
            "llama",
            None,
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                },
            },
            "",
        ),
        # The base at the top level of an old file is carried.
        (
            "llama-old",
            None,
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 500000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                },
            },
            "",
        ),
        (
            "llama",
            "theta",
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {"rope_type": "default", "rope_theta": 43872.99918778503},
            },
            "",
        ),
        (
            "llama",
            "linear",
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "rope_type": "linear",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                },
            },
            "{length} 1024",
        ),
        # The settings are complete, even if they do not change.
        (
            "llama",
            "limits",
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "",
        ),
        # So is the part of a head that is rotated.
        (
            "gpt_neox",
            None,
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000,
                    "partial_rotary_factor": 0.25,
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                },
            },
            "",
        ),
        (
            "gemma3",
            None,
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 1000000.0,
                        "factor": 4.0,
                        "original_max_position_embeddings": 256,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            },
            "",
        ),
        (
            "llama3",
            None,
            {
                "max_position_embeddings": 1024,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500000.0,
                    "factor": 16.0,
                    "original_max_position_embeddings": 64,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            },
            "",
        ),
    ],
)
def test_runtime_flags_of_vllm_and_sglang_are_an_override(
    name: str, method: str | None, override: dict[str, Any], options: str
) -> None:
    folder = rotary_configs.save(name)
    lengths = {"vllm": "--max-model-len", "sglang": "--context-length"}
    for runtime, flag in (("vllm", VLLM), ("sglang", SGLANG)):
        result = runtime_flags(folder, NEW, runtime, method)
        assert result.override == override
        expected = [flag, json.dumps(override)]
        expected += options.format(length=lengths[runtime]).split()
        assert shlex.split(result.flags) == expected
        assert "\n" not in result.flags
    assert result.serve == (f"python -m sglang.launch_server --model-path {name} {result.flags}")


def test_runtime_flags_are_one_line_of_shell_words() -> None:
    assert flags_of("llama", "vllm", "linear") == (
        """--hf-overrides '{"max_position_embeddings": 1024, "rope_parameters": """
        """{"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}' """
        "--max-model-len 1024"
    )


def test_runtime_flags_keep_the_lists_of_phi3() -> None:
    folder = rotary_configs.save("phi3")
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": OLD,
        **LISTS,
    }
    result = runtime_flags(folder, NEW, "vllm")
    assert result.override["max_position_embeddings"] == NEW
    assert result.override["rope_parameters"] == rope
    assert shlex.split(result.flags)[2:] == ["--max-model-len", "1024"]
    one_chunk = ["--chunked-prefill-size", "-1", "--disable-radix-cache"]
    assert shlex.split(runtime_flags(folder, NEW, "sglang").flags)[2:] == one_chunk


@pytest.mark.parametrize("name", ["qwen2_vl-flat", "qwen2_vl-nested"])
def test_runtime_flags_are_nested_as_in_the_loaded_config(name: str) -> None:
    folder = rotary_configs.save(name)
    yarn = {
        "max_position_embeddings": NEW,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1_000_000.0,
            "mrope_section": SECTIONS,
            "factor": 4.0,
            "original_max_position_embeddings": OLD,
        },
    }
    # SGLang copies the values of the text config before it applies the override.
    sglang = runtime_flags(folder, NEW, "sglang")
    assert sglang.override == {**yarn, "text_config": yarn}
    # vLLM computes yarn of these types for another length.
    vllm = runtime_flags(folder, NEW, "vllm")
    theta = {"rope_type": "default", "rope_theta": 4387299.918778503, "mrope_section": SECTIONS}
    assert vllm.override == {
        "text_config": {"max_position_embeddings": NEW, "rope_parameters": theta}
    }
    assert vllm.method == "theta"
    assert vllm.notes[0] == "vLLM does not apply yarn to qwen2_vl models: the method is theta."


# ---- the same as a folder

OVERRIDDEN = [
    ("llama", "yarn"),
    ("llama", "linear"),
    ("llama", "theta"),
    ("llama-old", "yarn"),
    ("llama3", None),
    ("qwen2", "yarn"),
    ("qwen3", "yarn"),
    ("phi", "yarn"),
    ("gpt_neox", "yarn"),
    ("gpt_neox", "theta"),
    ("modernbert", "yarn"),
    ("gemma3", "yarn"),
    ("gemma3", "linear"),
    ("phi3", None),
    ("qwen2_vl-flat", "theta"),
    ("qwen2_vl-nested", "theta"),
    ("mixtral", "yarn"),
]


@pytest.mark.parametrize(("name", "method"), OVERRIDDEN)
def test_runtime_flags_override_a_config_as_resize_writes_it(name: str, method: str | None) -> None:
    folder = rotary_configs.save(name)
    result = runtime_flags(folder, NEW, "vllm", method)
    resize(folder, NEW, method, output="out", runtime="vllm")
    overridden = loaded_values(folder, **result.override)
    assert overridden == loaded_values(Path("out"))
    assert overridden["max_position_embeddings"] == NEW
    assert overridden != loaded_values(folder)


def loaded_values(folder: Path, **override: Any) -> dict[str, Any]:
    """Return the rotary settings and the length that transformers loads, for long inputs too."""
    config = transformers.AutoConfig.from_pretrained(folder, **override)
    text = config.get_text_config()
    settings = text.rope_parameters
    by_layer = [item for item in settings.values() if isinstance(item, dict)] or [settings]
    for item in by_layer:
        item.pop("type", None)  # of old readers
        item.setdefault("partial_rotary_factor", 1.0)
    trained = getattr(text, "original_max_position_embeddings", None)
    return {
        "rope_parameters": settings,
        "max_position_embeddings": text.max_position_embeddings,
        "original_max_position_embeddings": trained,
    }


def test_runtime_flags_of_sglang_contain_those_of_the_text_config() -> None:
    folder = rotary_configs.save("qwen2_vl-nested")
    result = runtime_flags(folder, NEW, "sglang", "linear")
    resize(folder, NEW, "linear", output="out")
    text_config = result.override["text_config"]
    assert loaded_values(folder, text_config=text_config) == loaded_values(Path("out"))
    assert result.override == {**text_config, "text_config": text_config}


# ---- refused


@pytest.mark.parametrize("runtime", ["mlx", "ctranslate2", "transformers", "onnx", "tei"])
def test_runtime_flags_refuse_a_runtime_without_flags(runtime: str) -> None:
    rotary_configs.save("llama")
    done = invoke("flags", "llama", "--to", "1k", "--for", runtime)
    assert done.exit_code == 1
    assert "has no flags for rotary settings." in done.stderr
    hint = f"ctxextend resize llama --to 1024 --for {runtime}"
    assert hint in unwrapped(done.stderr)
    assert "Runtimes with flags: vllm, sglang and llama.cpp." in unwrapped(done.stderr)
    assert done.stdout == ""


def test_runtime_flags_refuse_an_unknown_runtime_before_anything_else() -> None:
    done = invoke("flags", "no/such/folder", "--to", NEW, "--for", "vlm")
    assert done.exit_code == 2
    assert "Unknown runtime 'vlm'. Did you mean vllm?" in unwrapped(done.stderr)
    with pytest.raises(ResizeError, match="Did you mean vllm"):
        runtime_flags("no/such/folder", NEW, "vlm")


def test_runtime_flags_suggest_only_runtimes_with_flags() -> None:
    done = invoke("flags", "no/such/folder", "--to", NEW, "--for", "tgi")
    assert done.exit_code == 2
    assert unwrapped(done.stderr).endswith("Use one of vllm, sglang, llama.cpp.")


def test_runtime_flags_refuse_a_table_of_rows() -> None:
    source = pico.make(Path("gpt2"), "gpt2").folder
    with pytest.raises(ResizeError) as caught:
        runtime_flags(source, NEW, "vllm")
    assert caught.value.message == "A longer context needs new rows of wpe.weight."
    assert caught.value.hint == "Write a folder: ctxextend resize gpt2 --to 1024 --for vllm."


def test_runtime_flags_refuse_a_method_that_the_runtime_does_not_apply() -> None:
    with pytest.raises(ResizeError) as caught:
        flags_of("llama", "vllm", "dynamic")
    assert caught.value.message == (
        "vLLM does not load the dynamic settings of llama models: its table of angles ends at the "
        "old length."
    )
    assert caught.value.hint == "Use --method yarn or theta or linear."


def test_runtime_flags_refuse_a_length_that_needs_no_change() -> None:
    with pytest.raises(ResizeError, match="The model accepts 256 tokens"):
        runtime_flags(rotary_configs.save("llama"), 128, "vllm")


def test_runtime_flags_reject_settings_that_change_nothing() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'fix_limits'"):
        runtime_flags("llama", NEW, "vllm", fix_limits=True)  # type: ignore[call-arg]


# ---- the command


def test_flags_prints_only_the_flags_on_stdout() -> None:
    rotary_configs.save("llama")
    done = succeed("flags", "llama", "--to", "4x", "--for", "llama.cpp")
    assert done.stdout == f"{LLAMA_CPP_YARN}\n"
    effects, *others = done.stderr.splitlines()
    assert effects.startswith(
        "Not yet trained at 1024. Outputs for short inputs change too, because positions move; "
    )
    assert effects.endswith("keep neighbours apart.")  # llama.cpp applies no switch
    assert others == ["256 -> 1024 tokens, yarn:", f"  llama-server -m MODEL.gguf {LLAMA_CPP_YARN}"]
    quiet = succeed("flags", "llama", "--to", "4x", "--for", "llama.cpp", "--quiet")
    assert quiet.stderr == ""


@pytest.mark.parametrize(
    ("name", "runtime"),
    [("llama", "vllm"), ("gemma3", "sglang"), ("phi", "llama.cpp"), ("persimmon", "llama.cpp")],
)
def test_flags_json_matches_its_schema(name: str, runtime: str) -> None:
    folder = rotary_configs.save(name)
    done = succeed("flags", folder, "--to", NEW, "--for", runtime, "--json")
    values = json.loads(done.stdout)
    check(values, "flags")
    result = runtime_flags(folder, NEW, runtime)
    assert values["flags"] == result.flags
    assert values["override"] == result.override
    assert values["serve"] == result.serve
    assert values["warnings"] == [*result.warnings]
    assert values["method"] == "yarn"


def test_flags_warns_of_an_unknown_pair() -> None:
    rotary_configs.save("persimmon")
    done = succeed("flags", "persimmon", "--to", NEW, "--for", "llama.cpp")
    assert done.stdout == f"{LLAMA_CPP_YARN}\n"
    assert "No rule says what llama.cpp does with persimmon models" in done.stderr


@pytest.mark.parametrize(("runtime", "name"), [("llama.cpp", "llama.cpp"), ("sglang", "SGLang")])
def test_flags_warn_of_an_attention_factor_that_the_runtime_ignores(
    runtime: str, name: str
) -> None:
    folder = rotary_configs.save("llama")
    found = runtime_flags(folder, NEW, runtime, "yarn:attention-factor=1.1")
    assert found.warnings == (
        f"The settings state an attention_factor, which {name} ignores: outputs differ from those "
        "of transformers.",
    )
    assert runtime_flags(folder, NEW, runtime, "yarn").warnings == ()
    assert runtime_flags(folder, NEW, "vllm", "yarn:attention-factor=1.1").warnings == ()


def test_flags_of_vllm_say_that_short_inputs_get_the_frequencies_of_long_ones() -> None:
    rotary_configs.save("llama")
    done = succeed("flags", "llama", "--to", NEW, "--for", "vllm", "--method", "switch")
    assert "vLLM gives every input the frequencies of long ones" in unwrapped(done.stderr)


def test_flags_say_what_happens_to_short_inputs_if_they_change() -> None:
    folder = rotary_configs.save("llama")
    changed = "Outputs for short inputs change too"
    assert [changed in note for note in runtime_flags(folder, NEW, "vllm").notes] == [True]
    (kept,) = runtime_flags(folder, NEW, "vllm", "switch").notes
    assert changed not in kept


def test_resize_for_a_runtime_suggests_only_what_it_applies() -> None:
    rotary_models.make("llama")
    hint = "To keep outputs for short inputs, use --method switch"
    command = ("resize", "llama", "--to", "4x", "--dry-run", "--for")
    assert hint not in unwrapped(succeed(*command, "vllm").stderr)
    assert f"{hint}." in unwrapped(succeed(*command, "transformers").stderr)


def test_flags_show_only_the_command_on_a_terminal() -> None:
    rotary_configs.save("llama")
    command = [sys.executable, "-m", "ctxextend", "flags", "llama", "--to", "4x"]
    environment = os.environ | {"TERM": "dumb", "COLUMNS": "200"}
    shown = on_terminal([*command, "--for", "llama.cpp"], environment)
    assert shown.splitlines()[-1] == f"llama-server -m MODEL.gguf {LLAMA_CPP_YARN}"
    assert shown.count(LLAMA_CPP_YARN) == 1
    quiet = on_terminal([*command, "--for", "llama.cpp", "--quiet"], environment)
    assert quiet == f"{LLAMA_CPP_YARN}\n"


def test_flags_serves_a_folder_that_starts_with_a_dash() -> None:
    rotary_configs.save("llama").rename("-llama")
    done = succeed("flags", "--to", NEW, "--for", "vllm", "--json", "--", "-llama")
    assert json.loads(done.stdout)["serve"].startswith("vllm serve ./-llama --hf-overrides ")


def test_flags_takes_the_trained_length_and_the_model_type() -> None:
    folder = rotary_configs.save("llama")
    flags = runtime_flags(folder, NEW, "llama.cpp", trained_length=128).flags
    assert flags == "-c 1024 --rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 128"
    result = runtime_flags(folder, NEW, "vllm", model_type="mistral")
    assert result.model_type == "mistral"


def test_flags_warns_of_a_length_that_may_have_been_raised_by_hand() -> None:
    folder = rotary_configs.save("llama")
    pico.write_json(folder / "tokenizer_config.json", {"model_max_length": 64})
    sentence = f"states {OLD} tokens without scaling: if the model was trained at 64, pass"
    for runtime in ("vllm", "sglang", "llama.cpp"):
        done = succeed("flags", folder, "--to", NEW, "--for", runtime)
        assert f"{sentence} --trained-length 64" in unwrapped(done.stderr)
    (warning,) = runtime_flags(folder, NEW, "vllm").warnings
    assert f"{sentence} --trained-length 64" in warning
    assert runtime_flags(folder, NEW, "vllm", trained_length=64).warnings == ()
    assert runtime_flags(folder, NEW, "vllm", "limits").warnings == ()


def test_flags_downloads_only_the_config(hub: Hub) -> None:
    hub.add("owner/model", rotary_configs.save("llama"))
    done = succeed("flags", "owner/model", "--to", NEW, "--for", "vllm")
    assert shlex.split(done.stdout)[0] == "--hf-overrides"
    assert "  vllm serve owner/model --hf-overrides" in done.stderr
    assert hub.downloaded() == {"config.json"}


def test_flags_state_both_lengths_of_params_json() -> None:
    folder = mistral_format.make("mistral")
    override = runtime_flags(folder, NEW, "vllm").override
    assert override["max_position_embeddings"] == override["max_seq_len"] == NEW
    assert override["rope_parameters"]["rope_type"] == "yarn"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rope_theta": 10_000.0}, "rope_theta is 10000.0, and by config.json 1000000.0"),
        ({"max_seq_len": 100}, "max_seq_len is 100, and the context length 256"),
    ],
)
def test_flags_of_vllm_refuse_configs_that_disagree(params: dict[str, Any], message: str) -> None:
    mistral_format.make(params=params)
    with pytest.raises(CheckpointError, match=message):
        runtime_flags("mistral", NEW, "vllm")


def test_flags_of_a_nested_text_config_have_its_values() -> None:
    override = runtime_flags(rotary_configs.save("qwen2_vl-nested"), NEW, "vllm").override
    path = ("text_config", "rope_parameters", "mrope_section")
    found: Any = reduce(lambda values, key: values[key], path, override)
    assert found == SECTIONS
