"""The flags that serve a checkpoint itself: `resize --for ENGINE --dry-run --quiet`."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import transformers

from ctxextend import resize
from tests.helpers import mistral_format, pico, rotary_configs, rotary_models
from tests.helpers.gguf_files import write_gguf
from tests.helpers.json_schemas import check
from tests.helpers.notes import texts_in
from tests.helpers.rotary_configs import NEW, OLD, SECTIONS
from tests.helpers.trainings import invoke, succeed, unwrapped

VLLM = "--hf-overrides"
SGLANG = "--json-model-override-args"
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": OLD,
}
LLAMA_CPP_YARN = "-c 1024 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256"


def flags_of(folder: Path, runtime: str, method: str | None = None) -> str:
    """Return the flags that serve a folder at the new length."""
    options = ["--method", method] if method else []
    command = ["resize", folder, "--to", NEW, "--for", runtime, "--dry-run", "-q", *options]
    return succeed(*command).stdout.rstrip("\n")


def override_of(folder: Path, runtime: str, method: str | None = None) -> dict[str, Any]:
    """Return the values of config.json that flags replace."""
    _, override, *_ = shlex.split(flags_of(folder, runtime, method))
    values: dict[str, Any] = json.loads(override)
    return values


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
def test_engine_flags_of_llama_cpp_are_options(
    name: str, method: str | None, expected: str
) -> None:
    assert flags_of(rotary_configs.save(name), "llama.cpp", method) == expected


def test_engine_flags_of_llama_cpp_keep_a_yarn_type_and_its_first_length() -> None:
    rope = {**YARN, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    folder = rotary_configs.save("llama", rope_parameters=rope)
    assert (
        flags_of(folder, "llama.cpp")
        == "-c 1024 --rope-scaling yarn --rope-scale 16 --yarn-orig-ctx 64"
    )


def test_engine_flags_of_llama_cpp_cannot_state_a_llama3_type() -> None:
    done = invoke(*resize_words(rotary_configs.save("llama3"), "llama.cpp"), "-q")
    assert done.exit_code == 2
    assert "llama.cpp has no flags for the llama3 settings of this model." in done.stderr
    assert "Write a folder: remove --dry-run." in done.stderr


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
    ],
)
def test_engine_flags_of_vllm_and_sglang_are_an_override(
    name: str, method: str | None, override: dict[str, Any], options: str
) -> None:
    folder = rotary_configs.save(name)
    lengths = {"vllm": "--max-model-len", "sglang": "--context-length"}
    for runtime, flag in (("vllm", VLLM), ("sglang", SGLANG)):
        expected = [flag, json.dumps(override)]
        expected += options.format(length=lengths[runtime]).split()
        assert shlex.split(flags_of(folder, runtime, method)) == expected


@pytest.mark.parametrize("name", ["qwen2_vl-flat", "qwen2_vl-nested"])
def test_engine_flags_are_nested_as_in_the_loaded_config(name: str) -> None:
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
    assert override_of(folder, "sglang") == {**yarn, "text_config": yarn}
    # vLLM computes yarn of these types for another length.
    theta = {"rope_type": "default", "rope_theta": 4387299.918778503, "mrope_section": SECTIONS}
    assert override_of(folder, "vllm") == {
        "text_config": {"max_position_embeddings": NEW, "rope_parameters": theta}
    }


# ---- the same as a folder

OVERRIDDEN = [
    ("llama", "yarn"),
    ("llama", "linear"),
    ("llama", "theta"),
    ("llama", "limits"),
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
def test_engine_flags_override_a_config_as_resize_writes_it(name: str, method: str | None) -> None:
    folder = rotary_configs.save(name)
    resize(folder, NEW, method, output="out", engine="vllm")
    overridden = loaded_values(folder, **override_of(folder, "vllm", method))
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


def test_flags_of_vllm_state_both_lengths_of_params_json() -> None:
    folder = mistral_format.make("mistral")
    override = override_of(folder, "vllm")
    assert override["max_position_embeddings"] == override["max_seq_len"] == NEW
    assert override["rope_parameters"]["rope_type"] == "yarn"
    assert "max_seq_len" not in override_of(folder, "sglang")


# ---- the command


def resize_words(model: object, runtime: str, to: object = NEW) -> list[object]:
    """Return the command that prints the flags, or the plan without ``-q``."""
    return ["resize", model, "--to", to, "--for", runtime, "--dry-run"]


def test_resize_prints_only_the_flags_on_stdout() -> None:
    rotary_configs.save("llama")
    command = resize_words("llama", "llama.cpp", "4x")
    done = succeed(*command, "-q")
    assert done.stdout == f"{LLAMA_CPP_YARN}\n"
    assert done.stderr == ""
    assert succeed(*command).stdout.startswith("source    llama (llama)\n")
    assert not Path("llama-1024").exists()


def test_resize_json_has_the_flags_in_the_plan() -> None:
    rotary_configs.save("persimmon")
    done = succeed(*resize_words("persimmon", "llama.cpp"), "-q", "--json")
    values = json.loads(done.stdout)
    check(values, "resize")
    assert values["flags"] == LLAMA_CPP_YARN
    assert values["method"] == "yarn"
    (unknown,) = texts_in(values, "engine")
    assert unknown.startswith("No rule says what llama.cpp does with persimmon models")


@pytest.mark.parametrize("runtime", ["mlx", "tei"])
def test_flags_of_other_runtimes_are_refused(runtime: str) -> None:
    rotary_models.make("llama")
    method = "linear" if runtime == "mlx" else "theta"
    done = invoke(*resize_words("llama", runtime, "4x"), "-q", "--method", method)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "has no flags for rotary settings." in done.stderr
    hint = "Those of vllm, sglang and llama.cpp are known. Write a folder: remove --dry-run."
    assert hint in unwrapped(done.stderr)


def test_flags_of_rows_and_of_gguf_files_are_refused() -> None:
    pico.make(Path("gpt2"), "gpt2")
    done = invoke(*resize_words("gpt2", "vllm"), "-q")
    assert done.exit_code == 2
    assert done.stdout == ""
    message = "A longer context needs new rows of transformer.wpe.weight, which no flag states."
    assert message in unwrapped(done.stderr)
    assert "Write a folder: remove --dry-run." in unwrapped(done.stderr)
    write_gguf(Path("model.gguf"))
    done = invoke(*resize_words("model.gguf", "llama.cpp", "4x"), "-q")
    assert done.exit_code == 2
    assert "A GGUF file states its rotary settings itself." in unwrapped(done.stderr)
