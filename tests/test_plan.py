"""The file route, end to end on pico models, judged by transformers and by the bytes."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open

import ctxextend
from ctxextend import CheckpointError, OutputError, ResizeError, plan_resize, resize, verify
from ctxextend.json_output import to_json
from ctxextend.tables.methods import METHODS
from tests import pico

MakePico = Callable[..., pico.Pico]

OLD, NEW = 16, 40
LENGTHS = [1, 2, 5, OLD, 17, NEW]


def table_name(folder: Path) -> str:
    return next(name for name in pico.tensor_bytes(folder) if "wpe" in name or "position_embeddings" in name)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize(
    ("model_type", "changes"), [("gpt2", {}), ("roberta", {"pad_token_id": 4, "max_position_embeddings": 21})]
)
def test_resize_changes_no_other_tensors_bytes_and_not_the_source(
    model_type: str, changes: dict[str, Any], shards: bool, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico(model_type, **changes).folder
    if shards:
        assert len(pico.shard(source)) > 1
    files = pico.contents(source)
    resize(source, to=NEW, output=tmp_path / "out")
    assert pico.contents(source) == files
    before, after, table = pico.tensor_bytes(source), pico.tensor_bytes(tmp_path / "out"), table_name(source)
    assert list(after) == list(before)
    for name in before:
        if name != table:
            assert after[name] == before[name]
    offset = before[table][1][0] - OLD
    assert after[table][:2] == (before[table][0], (NEW + offset, pico.WIDTH))
    assert after[table][2].startswith(before[table][2])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_resize_by_a_method_that_keeps_rows_leaves_logits_at_old_lengths_equal(
    method: str, make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2")
    resize(source.folder, to=NEW, **pico.by(method), output=tmp_path / "out")
    old, new = source.load(), source.load(tmp_path / "out")
    are_equal = [torch.equal(pico.logits(old, length), pico.logits(new, length)) for length in (1, 7, OLD)]
    assert all(are_equal) == METHODS[method].keeps_learned_rows


@pytest.mark.parametrize("model_type", ["gpt2", "roberta"])
@pytest.mark.parametrize("to", LENGTHS)
def test_resize_to_any_length(model_type: str, to: int, make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico(model_type)
    result = resize(source.folder, to=to, output=tmp_path / "out")
    new = source.load(tmp_path / "out")
    assert result.plan.method == ("truncate" if to < OLD else "copy")
    pico.logits(new, to)
    with pytest.raises((IndexError, RuntimeError)):
        pico.logits(new, to + 1)
    length = min(to, OLD)
    assert torch.equal(pico.logits(source.load(), length), pico.logits(new, length))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_resize_keeps_the_dtype(dtype: torch.dtype, make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", dtype=dtype).folder
    resize(source, to=NEW, method="linear", output=tmp_path / "out")
    name = table_name(source)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        table = file.get_tensor(name)
    assert (table.dtype, tuple(table.shape)) == (dtype, (NEW, pico.WIDTH))
    assert table.to(torch.float32).isfinite().all()


def test_resize_roberta_keeps_its_offset_rows_and_counts_positions(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("roberta").folder
    plan = plan_resize(source, to=4096, method="linear")
    assert to_json(plan)["tables"][0] | {"name": "", "file": ""} == {
        "name": "",
        "part": "",
        "file": "",
        "config_key": "max_position_embeddings",
        "max_len_before": 16,
        "max_len_after": 4096,
        "rows_before": 18,
        "rows_after": 4098,
        "offset": 2,
        "hidden_size": 8,
        "dtype": "F32",
    }
    plan.execute(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == 4098
    name = table_name(source)
    before, after = pico.tensor_bytes(source)[name][2], pico.tensor_bytes(tmp_path / "out")[name][2]
    row = 4 * pico.WIDTH
    assert after[: 3 * row] == before[: 3 * row]  # two offset rows and the first position
    assert after[-row:] == before[-row:]


def test_resize_recomputes_the_index(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    pico.shard(source.folder)
    index = source.folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    shard = values["weight_map"]["transformer.h.0.attn.c_attn.weight"]
    from safetensors.torch import load_file, save_file

    mask = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    save_file({**load_file(source.folder / shard), **mask}, source.folder / shard, metadata={"format": "pt"})
    values["weight_map"]["transformer.h.0.attn.bias"] = shard
    values["metadata"] |= {"total_size": values["metadata"]["total_size"] + 1024, "note": "kept"}
    index.write_text(json.dumps(values, indent=2) + "\n")

    result = resize(source.folder, to=NEW, output=tmp_path / "out")
    new = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors = pico.tensor_bytes(tmp_path / "out")
    assert new["weight_map"] == {name: file for name, file in values["weight_map"].items() if name in tensors}
    assert list(new["metadata"]) == list(values["metadata"])
    assert new["metadata"]["note"] == "kept"
    assert new["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    model = source.load(tmp_path / "out")
    assert new["metadata"]["total_parameters"] == model.num_parameters()
    assert "model.safetensors.index.json" in result.plan.files["edited"]


def test_resize_writes_only_the_shards_that_change(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    pico.shard(source)
    result = resize(source, to=NEW, output=tmp_path / "out")
    before, after = pico.contents(source), pico.contents(tmp_path / "out")
    changed = {name for name in before if before[name] != after[name]}
    assert {name for name in changed if name.endswith(".safetensors")} == set(result.plan.files["rewritten"])
    assert len(result.plan.files["rewritten"]) == 1


def test_resize_edits_config_in_place_and_keeps_its_formatting(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    text = (source / "config.json").read_text().rstrip().removesuffix("}").rstrip()
    text += ',\n  "n_ctx" : 16,\n\n\t"max_position_embeddings":16\n}'
    (source / "config.json").write_text(text)
    result = resize(source, to=NEW, output=tmp_path / "out")
    expected = text.replace('"n_positions": 16', '"n_positions": 40')
    expected = expected.replace('"n_ctx" : 16', '"n_ctx" : 40').replace('embeddings":16', 'embeddings":40')
    assert (tmp_path / "out" / "config.json").read_text() == expected
    assert to_json(result.plan)["config"] == {
        "n_positions": [16, 40],
        "max_position_embeddings": [16, 40],
        "n_ctx": [16, 40],
    }


def test_resize_states_a_length_that_the_config_left_to_transformers(make_pico: MakePico, tmp_path: Path) -> None:
    source = pico.make(tmp_path / "default", "bert", base=True)
    model = source.load()
    config = json.loads((source.folder / "config.json").read_text())
    model.config.max_position_embeddings = 512
    model.embeddings.position_embeddings = torch.nn.Embedding(512, pico.WIDTH)
    model.save_pretrained(source.folder)
    del config["max_position_embeddings"]
    (source.folder / "config.json").write_text(json.dumps(config))
    resize(source.folder, to=600, output=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == 600
    pico.logits(source.load(tmp_path / "out"), 600)


def test_resize_keeps_modes_and_copies_everything_else(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert").folder
    files = {"vocab.txt": b"\x00\xff words", "1_Pooling/config.json": b"{}", "LICENSE": b"mine", "a/b/c.bin": b"deep"}
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "pytorch_model.bin").write_bytes(b"stale")
    (source / "vocab.txt").chmod(0o600)
    (source / "config.json").chmod(0o640)
    result = resize(source, to=NEW, output=tmp_path / "out")
    out = pico.contents(tmp_path / "out")
    assert {name: out[name] for name in files} == files
    assert set(out) == {*pico.contents(source), "README.md", "ctxextend.yaml"} - {"pytorch_model.bin"}
    assert to_json(result.plan)["files"]["omitted"] == {"pytorch_model.bin": "PyTorch weights, not rewritten"}
    for name in ("vocab.txt", "config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).stat().st_mode == (source / name).stat().st_mode


@pytest.mark.parametrize(
    ("method", "flags"),
    [*((method, {}) for method in METHODS), ("hierarchical", {"alpha": 0.25}), ("random", {"seed": 7})],
)
def test_resize_recipe_of_every_method_makes_the_same_output_again(
    method: str, flags: dict[str, Any], make_pico: MakePico, tmp_path: Path
) -> None:
    source = make_pico("gpt2").folder
    asked = {**pico.by(method), "drop_last": 1, **flags}
    out = resize(source, to=NEW, **asked, output=tmp_path / "out").output
    recipe = yaml.safe_load((out / "ctxextend.yaml").read_text())
    effective = {"keep_first": 0, **METHODS[method].flags}
    assert recipe["resize"] == {"to": NEW, **effective, **asked}
    again = resize(recipe["source"], **recipe["resize"], output=tmp_path / "again")
    assert pico.contents(again.output) == pico.contents(out)
    assert verify(source, out).passed
    provenance = recipe["provenance"]
    table = provenance["tables"][0]
    assert (table["rows_before"], table["rows_after"], provenance["versions"]["numpy"]) == (OLD, NEW, np.__version__)
    for folder, when in ((source, "before"), (out, "after")):
        assert table[f"sha256_{when}"] == hashlib.sha256(pico.tensor_bytes(folder)[table["name"]][2]).hexdigest()


def test_resize_stretch_writes_the_number_of_rows_that_it_kept() -> None:
    out = resize("tiny-gpt2", to=300, method="stretch", output="out").output
    recipe = yaml.safe_load((out / "ctxextend.yaml").read_text())
    assert recipe["resize"] == {"to": 300, "method": "stretch", "keep_first": 20, "drop_last": 0}


def test_resize_takes_numpys_numbers_for_the_methods_flags(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    to: Any = np.int64(NEW)
    plan = plan_resize(source, to, "hierarchical", alpha=np.float32(0.25), keep_first=np.int32(1))
    values = to_json(plan)
    assert (values["alpha"], values["seed"], values["keep_first"], type(plan.max_len_after)) == (0.25, None, 1, int)
    plan.execute(tmp_path / "out")


def test_resize_to_fewer_writes_a_recipe_without_a_method(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    resize(source, to=5, output=tmp_path / "out")
    recipe = yaml.safe_load((tmp_path / "out" / "ctxextend.yaml").read_text())
    assert recipe["resize"] == {"to": 5}
    assert recipe["provenance"]["method"] == "truncate"
    again = resize(recipe["source"], **recipe["resize"], output=tmp_path / "again")
    assert pico.contents(again.output) == pico.contents(tmp_path / "out")


def test_resize_to_an_equal_length_is_a_copy_and_says_so(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    pico.add_tensors(source, {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)})  # which is dropped elsewhere
    result = resize(source, to=OLD, method="linear", output=tmp_path / "out")
    assert "has 16 positions already: the output is a copy. --method had nothing to do." in result.warnings[0]
    out = pico.contents(tmp_path / "out")
    assert all(out[name] == data for name, data in pico.contents(source).items())
    assert (result.plan.dropped, result.plan.files["rewritten"]) == ((), ())


def test_resize_adds_to_the_model_card(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    (source / "README.md").write_text("---\nlicense: mit\nbase_model: someone/else\n---\n# Mine\n\nKept.\n")
    card = (resize(source, to=NEW, output=tmp_path / "out").output / "README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\nbase_model: someone/else\n---\n# Mine\n\nKept.\n\n## Context length 40\n"
    )
    (source / "README.md").unlink()
    card = (resize(source, to=NEW, output=tmp_path / "out2").output / "README.md").read_text()
    assert card.startswith("---\nbase_model: pico-gpt2\n---\n# pico-gpt2-40\n")
    assert "has not been trained at 40" in card
    assert str(source) not in card


def test_resize_names_rows_that_hold_nan(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    model = source.load()
    with torch.no_grad():
        model.transformer.wpe.weight[3, 1] = math.nan
        model.transformer.wpe.weight[7, 0] = math.inf
    model.save_pretrained(source.folder)
    result = resize(source.folder, to=NEW, output=tmp_path / "out")
    assert result.warnings[-1] == (
        "transformer.wpe.weight holds NaN or infinity in rows 3, 7; 6 of the 40 rows that were written hold them."
    )
    after = resize(source.folder, to=NEW, method="sinusoidal", output=tmp_path / "waves").warnings[-1]
    assert "26 of the 40 rows" in after


def test_resize_of_a_sentence_transformers_sub_folder(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert", base=True)
    root = pico.nest(source.folder, tmp_path / "sentence")
    (root / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    result = resize(root, to=NEW, output=tmp_path / "out")
    assert json.loads((tmp_path / "out/0_Transformer/sentence_bert_config.json").read_text())["max_seq_length"] == NEW
    assert "0_Transformer/sentence_bert_config.json max_seq_length 8" in result.warnings[0]
    pico.logits(source.load(tmp_path / "out" / "0_Transformer"), NEW)


def test_resize_of_its_own_output_again(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2")
    resize(source.folder, to=NEW, output=tmp_path / "one")
    resize(tmp_path / "one", to=OLD, output=tmp_path / "two")
    before, after = pico.tensor_bytes(source.folder), pico.tensor_bytes(tmp_path / "two")
    assert before == after
    assert (tmp_path / "two" / "README.md").read_text().count("## Context length") == 2


def test_resize_keeps_header_order_and_metadata(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    resize(source, to=NEW, output=tmp_path / "out")

    def header(folder: Path) -> dict[str, Any]:
        data = (folder / "model.safetensors").read_bytes()
        found: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return found

    assert list(header(tmp_path / "out")) == list(header(source))
    assert header(tmp_path / "out")["__metadata__"] == header(source)["__metadata__"]


def test_plan_resize_writes_nothing_and_counts_every_byte(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    (source / "tf_model.h5").write_bytes(b"stale")
    before = pico.contents(tmp_path)
    plan = plan_resize(source, to=NEW)
    to_json(plan)
    plan.check_output(tmp_path / "out")
    assert pico.contents(tmp_path) == before
    moved: list[tuple[int, int]] = []

    def progress(advance: int, total: int, label: str = "") -> None:
        moved.append((advance, total))

    result = plan.execute(tmp_path / "out", progress=progress)
    assert sum(advance for advance, _ in moved) == result.bytes_written == plan.bytes_to_write == moved[0][1]
    assert result.bytes_written == sum(len(data) for data in pico.contents(tmp_path / "out").values())


# ---- bad input: a clear error, the source untouched, nothing left behind


def refused(source: Path, error: type[Exception], message: str, **options: Any) -> None:
    before = pico.contents(source.parent)
    with pytest.raises(error, match=message):
        resize(source, **{"to": NEW, "output": source.parent / "out", **options})
    assert pico.contents(source.parent) == before
    assert not list(source.parent.glob(".*ctxextend*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": 0}, "--to must be a whole number"),
        ({"to": 4.5}, "--to must be a whole number"),
        ({"keep_first": 16}, "--keep-first 16 by --method copy: of 16 learned positions none is left"),
        ({"drop_last": 16}, "--drop-last 16 by --method copy: of 16 learned positions none is left"),
        (
            {"keep_first": 8, "drop_last": 8},
            "--keep-first 8 and --drop-last 8 by .* of 16 learned positions none is left",
        ),
        (
            {"method": "hierarchical", "to": 257},
            "makes 256 positions of 16 learned ones .*--to 256 or fewer",
        ),
        (
            {"method": "hierarchical", "to": 102, "keep_first": 3, "drop_last": 4},
            "makes 81 positions of 9 learned ones and no more.*--to 84 or fewer",
        ),
        ({"method": "hierarchical", "drop_last": 14}, "makes 4 positions of 2 learned ones.*Use another method"),
        (
            {"method": "stretch"},
            "--keep-first 20 by --method stretch: of 16 .*--keep-first 8",
        ),
        ({"to": 8, "alpha": 0.3, "method": "hierarchical"}, "--method, --alpha has no meaning here"),
        ({"to": 8, "method": "linear"}, "--method has no meaning here: 8 positions are fewer than the 16"),
        ({"to": 8, "keep_first": 1, "drop_last": 1}, "--keep-first, --drop-last has no meaning here"),
    ],
)
def test_resize_refuses_what_cannot_be_served(options: dict[str, Any], message: str, make_pico: MakePico) -> None:
    refused(make_pico("gpt2").folder, ResizeError, message, **options)


def test_resize_refuses_a_table_and_a_config_that_disagree(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.edit_json(source / "config.json", n_positions=32)
    refused(
        source, CheckpointError, "states n_positions 32, so transformer.wpe.weight should have 32 rows, and it has 16"
    )
    pico.edit_json(source / "config.json", n_positions=16, max_position_embeddings=24)
    refused(source, CheckpointError, "states max_position_embeddings 24")
    pico.edit_json(source / "config.json", n_positions="16", max_position_embeddings=None)
    refused(source, CheckpointError, "n_positions is '16', and a gpt2 model needs a whole number")


def test_resize_refuses_roberta_with_another_pad_id_than_its_table(make_pico: MakePico) -> None:
    source = make_pico("roberta").folder
    pico.edit_json(source / "config.json", pad_token_id=17)
    refused(source, CheckpointError, "18 rows, and 18 of them stand in front of position 0")


def test_resize_refuses_two_tables_or_none(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    pico.add_tensors(source, {"wpe.weight": torch.ones(16, pico.WIDTH)})
    refused(source, CheckpointError, "two candidate tables, wpe.weight and transformer.wpe.weight")
    pico.edit_json(source / "config.json", model_type="bert", max_position_embeddings=16)
    refused(source, CheckpointError, "no position table was found; a bert model calls it embeddings.position_emb")


def test_resize_refuses_a_table_that_is_none(make_pico: MakePico) -> None:
    source = make_pico("gpt2").folder
    for tensor, message in (
        (torch.ones(16), "has shape"),
        (torch.ones(16, 8, dtype=torch.int8), "stored as I8"),
        (torch.ones(16, 0), "has shape"),
    ):
        pico.add_tensors(source, {"transformer.wpe.weight": tensor})
        refused(source, CheckpointError, message)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "sentence_bert_config.json"])
def test_resize_refuses_broken_json(name: str, make_pico: MakePico) -> None:
    source = make_pico("bert").folder
    (source / name).write_text('{"model_type": "bert", ')
    refused(source, CheckpointError, f"{name} is not valid JSON")


def test_resize_refuses_the_source_as_output(make_pico: MakePico) -> None:
    source = make_pico("bert").folder
    for force in (False, True):
        refused(source, OutputError, "overlap", output=source, force=force)
        refused(source, OutputError, "overlap", output=source / "out", force=force)


def test_resize_refuses_an_existing_output(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("bert").folder
    resize(source, to=NEW, output=tmp_path / "out")
    refused(source, OutputError, "exists")
    result = resize(source, to=24, output=tmp_path / "out", force=True)
    assert json.loads((result.output / "config.json").read_text())["max_position_embeddings"] == 24


def test_resize_where_memory_ends_says_so(make_pico: MakePico, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("ctxextend.plan.plan.resize_with_reserved", exhausted)
    refused(make_pico("gpt2").folder, ResizeError, "does not fit in this machine's memory")


def test_public_names_are_sorted_documented_and_real() -> None:
    assert ctxextend.__all__ == sorted(ctxextend.__all__)
    for name in ctxextend.__all__:
        value = getattr(ctxextend, name)
        assert isinstance(value, str) or value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ctxextend.nothing


# The interpreter itself may lie where nobody else can read it, so everything is imported and used once before.
AS_NOBODY = """
import os, sys, tempfile
from ctxextend import CtxextendError, resize
with tempfile.TemporaryDirectory() as folder:
    resize("tiny-gpt2", to=129, output=folder + "/out")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    resize(sys.argv[1], to=40, output=sys.argv[2])
except CtxextendError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def test_resize_without_permission_says_so(make_pico: MakePico, public_path: Path) -> None:
    source = Path(shutil.copytree(make_pico("gpt2").folder, public_path / "model"))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "model.safetensors").chmod(0o644)
    (public_path / "open").mkdir()
    (public_path / "open").chmod(0o777)

    def run() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", AS_NOBODY, str(source), str(public_path / "open" / "out")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for name, mode in (("model.safetensors", 0o600), ("1_Pooling", 0o700)):
        before = (source / name).stat().st_mode
        (source / name).chmod(mode)
        done = run()
        (source / name).chmod(before)
        assert done.returncode == 1, name
        assert "cannot be read: " in done.stderr
        assert "Permission denied" in done.stderr
        assert "Traceback" not in done.stderr
        assert list((public_path / "open").iterdir()) == []
    assert run().returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "linear"}, "short texts change too, since the positions moved; beyond 16"),
        ({"method": "linear", "keep_first": 3}, "since the positions moved but for the first 3; beyond 16"),
        ({"method": "sinusoidal", "scope": "all", "keep_first": 3}, "learned of positions is left but for the first 3"),
        ({"method": "sinusoidal", "keep_first": 3}, "texts that fitted before give exactly what they gave"),
    ],
)
def test_consequences_are_true_of_the_flags(options: dict[str, Any], said: str, make_pico: MakePico) -> None:
    assert said in plan_resize(make_pico("gpt2").folder, to=NEW, **options).consequences


@pytest.mark.parametrize("name", ["generation_config.json", "model.safetensors.index.json"])
def test_resize_of_side_files_that_change_meanwhile(name: str, make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder
    pico.shard(source)
    plan = plan_resize(source, to=NEW)
    (source / name).write_text("{}")
    with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
        plan.execute(tmp_path / "out")
    (source / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} changed while it was read"):
        plan.execute(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_resize_says_where_new_rows_do_not_fit_the_dtype(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2", dtype=torch.float16)
    model = source.model_class.from_pretrained(source.folder, dtype=torch.float16)
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(torch.full((16, 8), 60000.0) * torch.tensor([1, -1]).repeat(64).view(16, 8))
        model.transformer.wpe.weight[::2] *= -1
    model.save_pretrained(source.folder)
    warning = resize(source.folder, to=NEW, method="sinusoidal", output=tmp_path / "out").warnings[-1]
    assert "go beyond what F16 can hold, and are infinite" in warning


def test_resize_of_names_that_are_no_text(make_pico: MakePico, tmp_path: Path) -> None:
    source = make_pico("gpt2").folder.rename(tmp_path / os.fsdecode(b"b\xffad: x"))
    (source / "README.md").write_bytes(b"# Caf\xe9\n")
    output = resize(source, to=NEW, output=tmp_path / "out").output
    card = (output / "README.md").read_bytes()
    assert b"\n# Caf\xe9\n" in card
    assert yaml.safe_load(card.split(b"---\n")[1].decode()) == {"base_model": "b\\xffad: x"}
    assert yaml.safe_load((output / "ctxextend.yaml").read_text())["resize"]["to"] == NEW


def test_check_output_foresees_a_disk_that_is_too_small(make_pico: MakePico, tmp_path: Path) -> None:
    plan = plan_resize(make_pico("gpt2").folder, to=10**12)
    with pytest.raises(OutputError, match="needs .* bytes"):
        plan.check_output(tmp_path / "not" / "yet" / "out")
