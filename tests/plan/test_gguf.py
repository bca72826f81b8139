"""`resize` of GGUF files: what it writes, by the official package, and what it refuses."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ctxextend import OutputError, inspect, plan_resize, resize, run, verify
from ctxextend.checkpoint.gguf_header import RECIPE_KEY
from ctxextend.cli.app import build_app
from ctxextend.errors import (
    CheckpointError,
    CtxextendError,
    MethodError,
    RecipeError,
    ResizeError,
    SourceError,
)
from tests.helpers.gguf_files import (
    LENGTH,
    TABLE,
    WIDTH,
    other_tensors,
    quantised,
    read,
    types,
    write_gguf,
)
from tests.helpers.notes import texts
from tests.helpers.pico import LEARNED_METHODS, resize_settings

LONGER = 4 * LENGTH


def changes(before: Path, after: Path) -> dict[str, Any]:
    """Return the metadata that differ, but for the recipe and the number of pairs."""
    old, _ = read(before)
    new, _ = read(after)
    ignored = {RECIPE_KEY, "GGUF.kv_count"}
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    assert old.keys() <= new.keys()
    return {key: value for key, value in changed.items() if key not in ignored}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            None,
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": LENGTH,
            },
        ),
        ("theta", {"llama.rope.freq_base": pytest.approx(10_000 * 4 ** (16 / 14))}),
        ("limits", {}),
    ],
)
def test_resize_changes_only_these_metadata(
    method: str | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    result = resize(base, LONGER, method, output=tmp_path / "out.gguf", verify=True)
    assert changes(base, tmp_path / "out.gguf") == {"llama.context_length": LONGER, **expected}
    assert read(base)[1] == read(tmp_path / "out.gguf")[1]
    assert result.output == tmp_path / "out.gguf"


def test_resize_keeps_order_and_types_of_metadata(tmp_path: Path) -> None:
    base = tmp_path / "base.gguf"
    writer = gguf.GGUFWriter(base, "llama")
    writer.add_uint64("llama.context_length", LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(2)
    writer.add_float64("llama.rope.freq_base", 50_000.0)
    writer.add_array("general.tags", ["x", "y"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    resize(base, LONGER, "theta", output=tmp_path / "out.gguf")
    before = types(base)
    after = types(tmp_path / "out.gguf")
    assert list(after) == [*before, RECIPE_KEY]
    changed = {"llama.context_length": ["UINT32"], "llama.rope.freq_base": ["FLOAT32"]}
    assert {key: after[key] for key in before} == {**before, **changed}  # as llama.cpp reads them


@pytest.mark.parametrize("alignment", [8, 8192])
def test_resize_keeps_the_alignment(alignment: int, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf", alignment=alignment)
    resize(base, LONGER, output=tmp_path / "out.gguf", verify=True)
    assert read(base)[1] == read(tmp_path / "out.gguf")[1]
    old = gguf.GGUFReader(base)
    new = gguf.GGUFReader(tmp_path / "out.gguf")
    assert new.alignment == alignment
    assert new.data_offset % 4096 == old.data_offset % 4096  # file systems can share blocks


def test_resize_of_scaled_settings_raises_their_factor(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    for method in ("yarn", "linear"):
        twice = tmp_path / f"{method}-2x.gguf"
        resize(base, 2 * LENGTH, method, output=twice)
        resize(twice, 8 * LENGTH, output=tmp_path / f"{method}-8x.gguf")
        values, _ = read(tmp_path / f"{method}-8x.gguf")
        assert values["llama.rope.scaling.type"] == method
        assert values["llama.rope.scaling.factor"] == 8
        assert values["llama.rope.scaling.original_context_length"] == LENGTH
        assert values["llama.context_length"] == 8 * LENGTH
        assert list(values).count(RECIPE_KEY) == 1


def test_resize_states_the_length_that_linear_settings_serve(tmp_path: Path) -> None:
    # Its context length is the one before scaling, as in folders of transformers 4.
    values = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    base = write_gguf(tmp_path / "base.gguf", values=values)
    with pytest.raises(ResizeError, match=r"or after scaling\. Pass --trained-length "):
        resize(base, 8 * LENGTH, output=tmp_path / "out.gguf")
    for to in (4 * LENGTH, 8 * LENGTH):
        output = tmp_path / f"{to}.gguf"
        resize(base, to, output=output, trained_length=LENGTH, verify=True)
        assert verify(output).notes == ()
        values, _ = read(output)
        assert values["llama.context_length"] == to
        assert values["llama.rope.scaling.factor"] == to // LENGTH
        assert values["llama.rope.scaling.original_context_length"] == LENGTH
        assert inspect(output).agrees


def test_resize_keeps_the_base_of_layers_with_a_window(tmp_path: Path) -> None:
    stated = {"gemma3.rope.freq_base": 1e6, "gemma3.rope.freq_base_swa": 1e4}
    base = write_gguf(tmp_path / "gemma.gguf", "gemma3", values=stated)
    resize(base, LONGER, "theta", output=tmp_path / "out.gguf")
    assert changes(base, tmp_path / "out.gguf").keys() == {
        "gemma3.context_length",
        "gemma3.rope.freq_base",
    }


def test_resize_refuses_a_base_that_layers_with_a_window_would_take(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf", "olmo2")
    with pytest.raises(MethodError, match="layers with a sliding window"):
        resize(base, LONGER, "theta", output=tmp_path / "other.gguf")
    resize(base, LONGER, "yarn", output=tmp_path / "other.gguf")


# ---- learned tables


def random_table(rows: int = 16) -> Any:
    return np.random.default_rng(2).standard_normal((rows, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("method", LEARNED_METHODS)
def test_resize_of_a_table_creates_the_rows_of_the_folder(method: str, tmp_path: Path) -> None:
    table = random_table()
    folder = tmp_path / "folder"
    folder.mkdir()
    config = '{"model_type": "gpt2", "n_positions": 16, "n_embd": 32}'
    (folder / "config.json").write_text(config)
    save_file({"wpe.weight": table}, folder / "model.safetensors")
    settings = resize_settings(method)
    resize(folder, 40, **settings, output=tmp_path / "out")
    expected = load_file(tmp_path / "out" / "model.safetensors")["wpe.weight"]
    base = write_gguf(tmp_path / "base.gguf", "gpt2", table=table)
    resize(base, 40, **settings, output=tmp_path / "out.gguf", verify=True)
    _, tensors = read(tmp_path / "out.gguf")
    _, before = read(base)
    assert tensors.pop(TABLE) == (f"F32 [{WIDTH}, 40]", expected.tobytes())
    del before[TABLE]
    assert tensors == before
    assert changes(base, tmp_path / "out.gguf") == {"gpt2.context_length": 40}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
@pytest.mark.parametrize(("to", "alignment"), [(7, 32), (16, 8192), (33, 32), (33, 8192)])
def test_resize_moves_the_tensors_after_a_table(
    dtype: Any, to: int, alignment: int, tmp_path: Path
) -> None:
    table = random_table()
    if dtype == np.uint16:  # BF16: the upper half
        table = (table.view(np.uint32) >> 16).astype(np.uint16)
    base = write_gguf(
        tmp_path / "base.gguf", "bert", table=table.astype(dtype), alignment=alignment
    )
    resize(base, to, output=tmp_path / "out.gguf", verify=True)
    _, before = read(base)
    _, after = read(tmp_path / "out.gguf")
    kind, rows = after.pop(TABLE)
    old_kind, old_rows = before.pop(TABLE)
    assert after == before
    assert kind == old_kind.replace("16]", f"{to}]")
    shorter = min(len(rows), len(old_rows))
    assert rows[:shorter] == old_rows[:shorter]


@pytest.mark.parametrize("position", ["first", "last"])
@pytest.mark.parametrize("to", [7, 16, 33])
def test_resize_keeps_bytes_after_the_tensors(position: str, to: int, tmp_path: Path) -> None:
    tensors = {**other_tensors(), TABLE: random_table()}
    if position == "first":
        tensors = {TABLE: random_table(), **other_tensors()}
    values = {"gpt2.context_length": 16}
    base = write_gguf(tmp_path / "base.gguf", "gpt2", tensors=tensors, values=values)
    with base.open("ab") as file:
        file.write(b"more bytes")
    resize(base, to, output=tmp_path / "out.gguf", verify=True)
    assert (tmp_path / "out.gguf").read_bytes().endswith(b"more bytes")


def test_resize_of_a_quantised_table_names_the_route(tmp_path: Path) -> None:
    table = quantised(16)
    base = write_gguf(tmp_path / "base.gguf", "bert", table=table)
    with pytest.raises(CheckpointError, match="position_embd.weight has dtype Q8_0"):
        resize(base, 40, output=tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_resize_fixes_a_length_that_disagrees_with_the_table(tmp_path: Path) -> None:
    values = {"bert.context_length": 20}
    base = write_gguf(tmp_path / "base.gguf", "bert", table=random_table(), values=values)
    with pytest.raises(CheckpointError, match=r"base.gguf: bert.context_length is 20"):
        resize(base, 40, output=tmp_path / "out.gguf")
    resize(base, 16, fix_limits=True, output=tmp_path / "out.gguf")
    assert changes(base, tmp_path / "out.gguf") == {"bert.context_length": 16}


@pytest.mark.parametrize("architecture", ["bloom", "t5", "mpt"])
def test_resize_of_unlimited_positions_changes_the_length(
    architecture: str, tmp_path: Path
) -> None:
    base = write_gguf(tmp_path / "base.gguf", architecture)
    resize(base, LONGER, output=tmp_path / "out.gguf", verify=True)
    assert changes(base, tmp_path / "out.gguf") == {f"{architecture}.context_length": LONGER}


# ---- refused


@pytest.mark.parametrize(
    "method",
    ["dynamic", "longrope", "bands", "yarn:beta-fast=16"],
)
def test_resize_refuses_methods_that_the_format_cannot_state(method: str, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    with pytest.raises(MethodError, match=f"--method {method.partition(':')[0]}"):
        resize(base, LONGER, method, output=tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    "name",
    [
        "rope_freqs.weight",
        "rope.scaling.attn_factor",
    ],
)
def test_resize_scales_nothing_if_other_factors_apply(name: str, tmp_path: Path) -> None:
    tensors = other_tensors()
    values = {}
    if name.endswith(".weight"):
        tensors[name] = np.ones(8, np.float32)
    else:
        values = {f"llama.{name}": 2.0}
    base = write_gguf(tmp_path / "base.gguf", tensors=tensors, values=values)
    for method in (None, "yarn", "theta"):
        with pytest.raises(ResizeError, match=f"{name} applies too"):
            resize(base, LONGER, method, output=tmp_path / "out.gguf")
    resize(base, LONGER, "limits", output=tmp_path / "out.gguf", verify=True)
    assert changes(base, tmp_path / "out.gguf") == {"llama.context_length": LONGER}
    assert f"{name} applies too" in inspect(base).notes[0]


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("deepseek2", "gives yarn settings of this architecture another attention factor"),
        ("mistral3", "scales attention by the position of a token"),
    ],
)
@pytest.mark.parametrize("method", [None, "yarn", "linear"])
def test_resize_refuses_methods_that_an_architecture_reads_otherwise(
    method: str | None, architecture: str, reason: str, tmp_path: Path
) -> None:
    base = write_gguf(tmp_path / "base.gguf", architecture)
    if method is not None:
        with pytest.raises(MethodError, match=reason):
            resize(base, LONGER, method, output=tmp_path / "out.gguf")
        method = "theta"
    resize(base, LONGER, method, output=tmp_path / "out.gguf", verify=True)
    assert changes(base, tmp_path / "out.gguf").keys() == {
        f"{architecture}.context_length",
        f"{architecture}.rope.freq_base",
    }


@pytest.mark.parametrize("architecture", ["deepseek2", "mistral3"])
@pytest.mark.parametrize("method", [None, "yarn", "theta"])
def test_resize_of_scaled_settings_that_an_architecture_reads_otherwise_names_the_route(
    method: str | None, architecture: str, tmp_path: Path
) -> None:
    base = write_gguf(tmp_path / "base.gguf", architecture, values=yarn_values(architecture))
    with pytest.raises(ResizeError, match="yarn settings of architecture") as caught:
        resize(base, LONGER, method, output=tmp_path / "out.gguf")
    assert architecture in caught.value.message
    hint = str(caught.value.hint)
    assert "--method" not in hint
    assert "Resize the checkpoint that it was made from" in hint
    resize(base, LONGER, "limits", output=tmp_path / "out.gguf")


def yarn_values(architecture: str) -> dict[str, Any]:
    """Return metadata of yarn settings with factor 2."""
    return {
        f"{architecture}.rope.scaling.type": "yarn",
        f"{architecture}.rope.scaling.factor": 2.0,
        f"{architecture}.rope.scaling.original_context_length": LENGTH // 2,
    }


def test_resize_refuses_an_unknown_architecture(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf", "lama")
    with pytest.raises(CtxextendError, match="architecture 'lama' is not known"):
        resize(base, LONGER, output=tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--for", "vllm"], "--for: a GGUF file is planned as llama.cpp reads it"),
        (["--tune", "x.txt"], "--tune runs the model in transformers"),
        (["--edit-only"], "--edit-only does not apply to a GGUF file"),
    ],
)
def test_resize_refuses_flags_that_do_not_apply(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("text")
    base = write_gguf(tmp_path / "base.gguf")
    done = CliRunner().invoke(build_app(), ["resize", str(base), "--to", str(LONGER), *flags])
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert list(tmp_path.glob("*.gguf")) == [base]


@pytest.mark.parametrize("runtime", [None, "llama.cpp"])
def test_resize_states_what_llama_cpp_reads(runtime: str | None, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    output = tmp_path / "out.gguf"
    result = resize(base, LONGER, output=output, engine=runtime)
    assert result.serve == f"llama-server -m {output} -c {LONGER}"
    assert f"Reads {LONGER} tokens in llama.cpp." in texts(result, "engine")
    [statement] = result.planned.runtimes
    assert (statement.name, statement.outcome, statement.length) == ("llama.cpp", "serves", LONGER)
    assert statement.evidence.startswith("https://")


@pytest.mark.parametrize("name", ["no.gguf", "no.safetensors", "https://huggingface.co/a/b"])
def test_resize_of_a_missing_file_or_a_url_does_not_ask_the_hub(name: str) -> None:
    with pytest.raises(SourceError, match=f"{name} is not an existing folder or regular file"):
        resize(name, LONGER)


# ---- recipes


def test_run_reads_the_recipe_in_a_file(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    resize(base, LONGER, "linear", output=tmp_path / "out.gguf")
    run(tmp_path / "out.gguf", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()
    with pytest.raises(RecipeError, match="base.gguf contains no recipe"):
        run(base)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("train: {data: x.txt, steps: 1}", "train"),
        ("evaluate: {data: x.txt}", "evaluate"),
    ],
)
def test_run_refuses_the_sections_that_a_gguf_file_cannot_take(
    section: str, name: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "base.gguf")
    (tmp_path / "x.txt").write_text("text")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"source: base.gguf\nresize: {{to: {LONGER}}}\n{section}\n")
    with pytest.raises(CheckpointError, match="is a GGUF file, which transformers"):
        run(recipe, tmp_path / "out.gguf")
    run(recipe, tmp_path / "out.gguf", changes=[f"{name}=null"])


# ---- the output


@pytest.mark.parametrize("name", ["model", "model.bin", "new/", "model.gguf.part"])
def test_resize_asks_for_the_ending_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    arguments = ["resize", str(base), "--to", str(LONGER), "-o", f"{tmp_path}/{name}"]
    for more in ([], ["--verify"]):
        done = CliRunner().invoke(build_app(), [*arguments, *more])
        assert done.exit_code == 1
        message = done.stderr.replace("\n", " ")
        output = f"{tmp_path}/{name}".rstrip("/")
        assert f"The output {output} does not end in .gguf" in message
        assert f"--output {output}.gguf" in message
        assert list(tmp_path.iterdir()) == [base]
    planned = plan_resize(base, LONGER)
    with pytest.raises(OutputError, match="does not end in .gguf"):
        planned.output.at(tmp_path / name).check(force=False)


@pytest.mark.parametrize("name", ["folder", "folder.gguf"])
def test_resize_to_a_folder_names_a_file_in_it(name: str, tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    (tmp_path / name).mkdir()
    with pytest.raises(OutputError, match=f"The output .*{name} is a folder") as caught:
        resize(base, LONGER, output=tmp_path / name)
    hint = str(caught.value.hint)
    output = Path(hint.removeprefix("Use --output ").removesuffix("."))
    assert output.parent == tmp_path / name
    resize(base, LONGER, output=output)
    assert output.is_file()


def test_resize_replaces_only_a_gguf_file(tmp_path: Path) -> None:
    base = write_gguf(tmp_path / "base.gguf")
    output = tmp_path / "new" / "out.gguf"
    resize(base, LONGER, output=output)
    first = output.read_bytes()
    with pytest.raises(OutputError, match="exists"):
        resize(base, 2 * LENGTH, output=output)
    assert output.read_bytes() == first
    resize(base, 2 * LENGTH, output=output, force=True)
    assert read(output)[0]["llama.context_length"] == 2 * LENGTH
    for path in (tmp_path / "notes.gguf", tmp_path / "folder"):
        if path.suffix:
            path.write_text("notes")
        else:
            path.mkdir()
        with pytest.raises(OutputError, match="is not a GGUF file|is a folder"):
            resize(base, LONGER, output=path, force=True)
    with pytest.raises(OutputError, match="is the source"):
        resize(base, LONGER, output=base, force=True)
    link = tmp_path / "link.gguf"
    link.symlink_to(base)
    with pytest.raises(OutputError, match="is the source"):
        resize(base, LONGER, output=link, force=True)
    assert base.read_bytes() == write_gguf(tmp_path / "again.gguf").read_bytes()
