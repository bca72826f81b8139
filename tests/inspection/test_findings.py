"""What a CI reads of `inspect`: findings as values, a short JSON object, GitHub's annotations."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ctxextend import Finding, inspect, resize
from tests.helpers import pico, rotary_models
from tests.helpers.json_schemas import check
from tests.helpers.trainings import invoke, make_encoder

MakePico = Callable[..., pico.Pico]
WPE = "transformer.wpe.weight"
PAGE = 60  # lines of a terminal


def errors_of(folder: Path) -> list[Finding]:
    return [finding for finding in inspect(folder).findings if finding.level == "error"]


# Findings


def test_findings_of_a_folder_that_agrees_are_empty() -> None:
    assert inspect("tiny-gpt2").findings == ()


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "roberta"])
def test_findings_state_the_value_that_agrees(model_type: str, make_pico: MakePico) -> None:
    folder = make_pico(model_type).folder
    key = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
    right = pico.config_of(folder)[key]
    pico.edit_json(folder / "config.json", **{key: 11})
    pico.write_json(folder / "tokenizer_config.json", {"model_max_length": 7})
    found = errors_of(folder)
    assert [finding.key for finding in found] == [key, "model_max_length"]
    assert [finding.found for finding in found] == [11, 7]
    assert [finding.expected for finding in found] == [right, 16]
    for finding in found:
        path = folder / finding.file
        pico.edit_json(path, **{finding.key: finding.expected})
    assert inspect(folder).agrees


def test_findings_name_a_command_that_fixes_them(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    pico.edit_json(folder / "config.json", n_positions=11)
    (finding,) = errors_of(folder)
    assert finding.fix is not None
    _, *words = shlex.split(finding.fix)
    assert invoke(*words, "--output", "fixed").exit_code == 0
    assert inspect("fixed").findings == ()


def test_findings_of_rows_are_warnings_that_do_not_fail(make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    table = load_file(folder / "model.safetensors")[WPE]
    table[3] = 0
    table[5, 2] = float("nan")
    pico.add_tensors(folder, {WPE: table})
    found = inspect(folder).findings
    assert [finding.level for finding in found] == ["warning", "warning"]
    assert [finding.found for finding in found] == ["NaN or infinity: 5", "zero rows: 3"]
    assert {(finding.file, finding.key) for finding in found} == {("model.safetensors", WPE)}
    assert invoke("inspect", folder, "--check").exit_code == 0


@pytest.mark.parametrize("method", ["copy", "zero", "linear"])
def test_findings_of_new_rows_are_one_notice(method: str) -> None:
    output = resize("tiny-gpt2", to=256, method=method, output="out").output
    levels = [finding.level for finding in inspect(output).findings]
    # Rows of zeros need more than training.
    assert levels == (["warning"] if method == "zero" else ["notice"])


# JSON


def break_limits(folder: Path) -> None:
    if not (folder / "config.json").exists():
        folder = folder / "0_Transformer"
    config = pico.config_of(folder)
    for key in ("n_positions", "max_position_embeddings"):
        if key in config:
            pico.edit_json(folder / "config.json", **{key: 11})


def save_model(kind: str, folder: Path) -> Path:
    """Save a model of a kind with all the files that such a model has."""
    if kind == "gpt2-like":
        shutil.copytree(inspect("tiny-gpt2").folder, folder)
    elif kind == "Llama-like":
        shutil.copytree(rotary_models.make(max_position_embeddings=16).folder, folder)
        pico.write_json(folder / "tokenizer_config.json", {"model_max_length": 16})
    else:
        return make_encoder(folder)
    return folder


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("kind", ["gpt2-like", "Llama-like", "BERT-like"])
def test_check_json_fits_a_screen(kind: str, tmp_path: Path, *, is_broken: bool) -> None:
    folder = save_model(kind, tmp_path / "model")
    if is_broken:
        break_limits(folder)
    done = invoke("inspect", folder, "--check", "--json")
    assert done.exit_code == (3 if is_broken else 0), done.output
    assert len(done.stdout.splitlines()) <= PAGE
    values = json.loads(done.stdout)
    check(values, "inspect")
    (model,) = values["models"]
    assert model["agrees"] is not is_broken
    assert len(model["limits"]) >= 2


def test_json_does_not_grow_with_rows(tmp_path: Path) -> None:
    output = resize("tiny-gpt2", to=4096, method="linear", output=tmp_path / "out").output
    assert len(invoke("inspect", output, "--json").stdout.splitlines()) < 200
    assert len(invoke("inspect", output, "--check", "--json").stdout.splitlines()) <= PAGE


# GitHub


def annotate(*arguments: object) -> list[str]:
    """Return the annotations of folders whose limits disagree."""
    done = invoke("inspect", *arguments, "--check", "--format", "github")
    assert done.exit_code == 3, done.output
    return done.stdout.splitlines()


@pytest.fixture
def broken(make_pico: MakePico, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder under the working directory whose config states another length."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    folder = Path(shutil.copytree(make_pico("gpt2").folder, "models/broken"))
    break_limits(folder)
    return folder


def test_github_format_points_at_the_line_of_a_key(broken: Path) -> None:
    (line,) = annotate(broken)
    lines = (broken / "config.json").read_text().splitlines()
    number = 1 + next(index for index, text in enumerate(lines) if '"n_positions"' in text)
    assert line.startswith(
        f"::error file=models/broken/config.json,line={number},title=config.json n_positions::"
    )
    assert "models/broken: 11, expected 16: " in line
    assert "%0AFix: ctxextend resize models/broken --to 16 --fix-limits" in line


def test_github_format_prints_paths_in_the_workspace(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(broken.parent.absolute()))
    (line,) = annotate(broken)
    assert line.startswith("::error file=broken/config.json,line=")


def test_github_format_names_no_file_outside_of_the_workspace(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    (line,) = annotate(broken)
    assert line.startswith("::error title=config.json n_positions::")


def test_github_format_escapes_what_has_a_meaning(broken: Path) -> None:
    strange = broken.rename("a,b:50%\rc\n::d")
    (line,) = annotate(strange)
    assert line.startswith("::error file=a%2Cb%3A50%25%0Dc%0A%3A%3Ad/config.json,line=")
    assert "::a,b:50%25%0Dc%0A::d: 11, expected 16" in line


def test_github_format_prints_nothing_of_a_folder_that_agrees() -> None:
    done = invoke("inspect", "tiny-gpt2", "--check", "--format", "github")
    assert done.exit_code == 0
    assert done.stdout.strip() == ""
    assert done.stderr == "tiny-gpt2: 128 positions, all files agree; rows look trained.\n"


def test_github_format_annotates_all_folders_and_levels(broken: Path) -> None:
    output = resize("tiny-gpt2", to=256, output="untrained").output
    first, second = annotate(broken, output)
    assert first.startswith("::error file=models/broken/config.json")
    assert second.startswith(
        f"::notice file=untrained/model.safetensors,title=model.safetensors {WPE}"
    )


def test_github_format_annotates_an_error(broken: Path) -> None:
    (broken / "config.json").write_text("{")
    done = invoke("inspect", broken, "--check", "--format", "github")
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("::error title=ctxextend inspect::")
    assert done.stderr.startswith("Error: ")


@pytest.mark.parametrize("indent", [None, 2])
def test_github_format_finds_nested_keys(indent: int | None, make_pico: MakePico) -> None:
    folder = Path(shutil.copytree(make_pico("gpt2").folder, "model"))
    truncation = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    text = json.dumps({"version": "1.0", "truncation": truncation, "model": {}}, indent=indent)
    (folder / "tokenizer.json").write_text(text)
    (line,) = annotate(folder)
    number = 1
    if indent:
        number = 1 + text[: text.index('"max_length"')].count("\n")
    assert f"tokenizer.json,line={number},title=" in line
    assert "title=tokenizer.json truncation.max_length::" in line
