"""`resize --for ENGINE`: a method that the engine applies, or an error and no output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from ctxextend import ResizeError, resize, verify
from ctxextend.runtimes.engines import ENGINES, Outcome
from tests.helpers import pico, rotary_configs
from tests.helpers.json_schemas import check
from tests.helpers.notes import texts, texts_in
from tests.helpers.rotary_configs import NEW
from tests.helpers.trainings import invoke, succeed, unwrapped

FLAGS = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256"


def resize_for(name: str, runtime: str, *flags: object) -> Result:
    """Run `resize --for` on one of the configs; the output is the folder ``out``."""
    folder = rotary_configs.save(name)
    return invoke("resize", folder, "--to", NEW, "--for", runtime, "--output", "out", *flags)


def assert_refused(done: Result, message: str, hint: str) -> None:
    """Check the error of a command that has written nothing."""
    assert done.exit_code != 0
    assert message in unwrapped(done.stderr)
    assert hint in unwrapped(done.stderr)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("name", "runtime", "method", "serve"),
    [
        ("llama", "vllm", "yarn", "vllm serve out"),
        # The default is yarn, which CTranslate2 refuses.
        (
            "llama",
            "ctranslate2",
            "theta",
            "ct2-transformers-converter --model out --output_dir out-ct2",
        ),
        (
            "llama",
            "transformers",
            "yarn",
            "python -c 'from transformers import AutoModel; AutoModel.from_pretrained(\"out\")'",
        ),
        # The default stays where an option makes it right.
        (
            "gpt_neox",
            "llama.cpp",
            "yarn",
            "python convert_hf_to_gguf.py out --outfile out.gguf && "
            f"llama-server -m out.gguf -c 1024 {FLAGS} --rope-freq-base 10000",
        ),
        ("phi3", "vllm", "limits", "vllm serve out --max-model-len 1024"),
    ],
)
def test_resize_chooses_a_method_that_the_runtime_applies(
    name: str, runtime: str, method: str, serve: str
) -> None:
    done = resize_for(name, runtime, "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    check(result, "resize")
    assert result["method"] == method
    assert result["serve"] == serve
    assert serve in unwrapped(done.stderr)
    outcomes = {item["name"]: item["outcome"] for item in result["runtimes"]}
    assert outcomes["transformers"] == "serves"
    assert verify("out")


def test_resize_says_why_another_method_was_chosen() -> None:
    done = resize_for("llama", "ctranslate2")
    assert done.exit_code == 0
    assert "CTranslate2 does not apply yarn to llama models: the method is theta." in done.stderr
    assert done.stdout == "out\n"
    assert (
        "In CTranslate2:\n  ct2-transformers-converter --model out --output_dir out-ct2\n"
        in done.stderr
    )
    recipe = yaml.safe_load(Path("out/ctxextend.yaml").read_text())
    assert recipe["resize"]["method"] == "theta:factor=4"
    assert "for" not in recipe["resize"]


@pytest.mark.parametrize(
    ("outcome", "notes"),
    [
        (
            Outcome.SERVES,
            ("mlx-lm is not known to apply yarn to llama models: the method is theta.",),
        ),
        (Outcome.REFUSES, ()),
    ],
)
def test_resize_prefers_a_known_method_and_says_so(
    outcome: Outcome, notes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = ENGINES["transformers"].rules[0]._replace(positions=("theta",), outcome=outcome)
    monkeypatch.setitem(ENGINES, "mlx", ENGINES["mlx"]._replace(rules=(rule,)))
    result = resize(rotary_configs.save("llama"), NEW, output="out", engine="mlx")
    assert set(notes) <= set(texts(result, "method"))
    # What is unknown is not worse than what is wrong.
    expected = "theta" if notes else "yarn"
    assert result.plan.method == expected
    assert bool(texts(result, "engine", "warning")) == (not notes)


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("vllm", "--max-model-len 1024"),
        ("sglang", "--chunked-prefill-size -1 --disable-radix-cache"),
    ],
)
def test_resize_states_the_attention_factor_of_switch_as_the_runtime_reads_it(
    runtime: str, options: str
) -> None:
    done = resize_for("llama", runtime, "--method", "switch", "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["serve"].endswith(options)
    assert not [text for text in texts_in(result) if "attention_factor" in text]
    settings = json.loads(Path("out/config.json").read_text())["rope_parameters"]
    assert settings["attention_factor"] == 1
    assert settings["short_mscale"] == 1
    assert settings["long_mscale"] == 1
    assert verify("out")


def test_resize_warns_of_an_unknown_pair_and_writes_it() -> None:
    done = resize_for("persimmon", "mlx", "--json")
    assert done.exit_code == 0, done.stderr
    warning = (
        "No rule says what mlx-lm does with persimmon models: compare its outputs for long inputs "
        "with those of transformers."
    )
    assert warning in unwrapped(done.stderr)
    result = json.loads(done.stdout)
    assert warning in texts_in(result, "engine")
    assert result["method"] == "yarn"
    assert result["serve"] == "mlx_lm.server --model out"
    assert Path("out/config.json").exists()


def test_resize_for_a_runtime_extends_a_learned_table(make_pico: Callable[..., Any]) -> None:
    source = make_pico("gpt2").folder
    done = succeed("resize", source, "--to", 64, "--for", "llama.cpp", "-o", "out", "--json")
    result = json.loads(done.stdout)
    assert result["method"] == "copy"
    assert result["serve"] == (
        "python convert_hf_to_gguf.py out --outfile out.gguf && llama-server -m out.gguf -c 64"
    )
    encoder = make_pico("bert").folder
    result = resize(encoder, 64, output="encoder", engine="llama.cpp")
    assert result.serve is not None
    assert result.serve.endswith("-m encoder.gguf -c 64 --embeddings -b 64 -ub 64")


# ---- refused


@pytest.mark.parametrize("runtime", ["vlm"])
def test_resize_refuses_an_unknown_runtime_before_it_opens_the_model(runtime: str) -> None:
    done = invoke("resize", "no/such/folder", "--to", NEW, "--for", runtime)
    assert done.exit_code == 2
    assert f"Unknown engine '{runtime}'." in done.stderr
    with pytest.raises(ResizeError, match=f"Unknown engine '{runtime}'"):
        resize("no/such/folder", NEW, engine=runtime)


@pytest.mark.parametrize(
    ("name", "runtime", "method", "message", "hint"),
    [
        (
            "llama",
            "llama.cpp",
            "dynamic",
            "llama.cpp ignores the dynamic settings of llama models.",
            "Use --method yarn, theta or linear.",
        ),
        (
            "llama",
            "ctranslate2",
            "yarn",
            "CTranslate2 does not load the yarn settings of llama models: RoPE scaling of this "
            "type is not yet implemented.",
            "Use --method theta",
        ),
    ],
)
def test_resize_refuses_a_method_that_a_runtime_does_not_apply(
    name: str, runtime: str, method: str, message: str, hint: str
) -> None:
    done = resize_for(name, runtime, "--method", method)
    assert_refused(done, message, hint)
    with pytest.raises(ResizeError) as caught:
        resize(name, NEW, method, output="out", engine=runtime)
    assert caught.value.message == message
    assert not Path("out").exists()


def test_resize_refuses_tensor_names_that_a_runtime_does_not_read(
    make_pico: Callable[..., Any],
) -> None:
    source = make_pico("gpt2").folder
    done = invoke("resize", source, "--to", 64, "--for", "mlx-lm", "-o", "out")
    assert_refused(
        done,
        "mlx-lm does not load gpt2 models: it expects tensor names without transformer.",
        "The output would be right in transformers, transformers 4, vLLM",
    )


def test_convert_says_what_runtimes_do(make_pico: Callable[..., pico.Pico]) -> None:
    source = make_pico("gpt2").folder
    done = succeed("convert", source, "--scheme", "rotary", "--to", 64, "-o", "out", "--json")
    result = json.loads(done.stdout)
    check(result, "convert")
    found = {item["name"]: item for item in result["runtimes"]}
    assert found["llama.cpp"] == {
        "name": "llama.cpp",
        "version": found["llama.cpp"]["version"],
        "outcome": "ignores",
        "ignores": [],
        "length": 64,
        "option": "--rope-freq-base 1000",
        "reason": "",
        "evidence": "run",
    }
    assert result["serve"] is None
    assert "llama.cpp" not in done.stderr


# ---- checkpoints that only one engine reads

QUANTISED = {"quantization": {"group_size": 64, "bits": 4}}  # as mlx-lm states it


def test_only_mlx_is_named_for_its_own_weights() -> None:
    source = rotary_configs.save("llama", **QUANTISED)
    done = succeed("resize", source, "--to", NEW, "-o", "out", "--json")
    result = json.loads(done.stdout)
    assert [item["name"] for item in result["runtimes"]] == ["mlx-lm"]
    assert result["serve"] == "mlx_lm.server --model out"
    assert "transformers" not in done.stderr
    assert verify("out")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--for", "vllm"), "--for: only mlx-lm reads llama."),
        (("--tune", "x.txt"), "--tune runs the model in transformers, but only mlx-lm"),
    ],
)
def test_what_the_only_engine_cannot_do_is_refused(flags: tuple[str, ...], message: str) -> None:
    source = rotary_configs.save("llama", **QUANTISED)
    Path("x.txt").write_text("text")
    done = invoke("resize", source, "--to", NEW, "-o", "out", *flags)
    assert_refused(done, message, "the checkpoint from before quantisation")


def test_a_method_that_the_only_engine_does_not_apply_is_not_chosen() -> None:
    source = rotary_configs.save("gpt_neox", **QUANTISED)
    assert resize(source, NEW, output="out").plan.method == "theta"
