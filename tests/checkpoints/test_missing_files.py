"""Folders that are no checkpoints themselves say what they are, and what to pass instead."""

import shlex
import shutil
from pathlib import Path

import pytest

from ctxextend import plan_resize, resize
from ctxextend.errors import CtxextendError

COMMIT = "0123456789" * 4


def error_of(reference: str | Path) -> CtxextendError:
    with pytest.raises(CtxextendError) as raised:
        plan_resize(reference, 1024)
    return raised.value


@pytest.mark.parametrize("below", ["", "snapshots"])
def test_a_folder_of_the_hub_cache_names_its_snapshots_and_the_hub_id(below: str) -> None:
    root = Path("models--owner--some--name")
    snapshot = root / "snapshots" / COMMIT
    resize("tiny-gpt2", 256, output=snapshot)
    error = error_of(root / below)
    assert error.message.endswith("is a folder of the Hub cache, and its checkpoints are below.")
    assert error.hint == f"Pass the Hub id: owner/some/name, or a snapshot: {snapshot.resolve()}"
    plan_resize(snapshot, 1024)

    shutil.rmtree(snapshot)
    assert error_of(root / below).hint == "Pass the Hub id: owner/some/name"


def test_a_folder_two_levels_above_a_checkpoint_names_it() -> None:
    resize("tiny-gpt2", 256, output="top/middle/longer")
    assert error_of("top").hint == "Found checkpoints in: middle/longer. Pass one with --subfolder."
    resize("tiny-gpt2", 256, output="top/other")
    assert error_of("top").hint == "Found checkpoints in: other. Pass one with --subfolder."


def test_variables_of_tensorflow_1_are_converted_with_transformers_4() -> None:
    folder = Path("it's bert")
    folder.mkdir()
    for name in ("bert_config.json", "bert_model.ckpt.index", "vocab.txt"):
        (folder / name).write_text("{}")
    (folder / "bert_model.ckpt.data-00000-of-00001").write_text("x")
    error = error_of(folder)
    assert "BERT's own format of TensorFlow 1" in error.message
    assert error.hint is not None
    assert '"transformers<5"' in error.hint
    *_, python, option, code = shlex.split(error.hint)
    assert (python, option) == ("transformers4/bin/python", "-c")
    compile(code, "hint", "exec")
    variables = folder.resolve() / "bert_model.ckpt"
    assert f"load_tf_weights_in_bert(model, config, {str(variables)!r})" in code


@pytest.mark.parametrize(
    ("name", "command"), [("m.zip", "unzip m.zip"), ("m.tar.gz", "tar -xf m.tar.gz")]
)
def test_an_archive_is_to_be_unpacked(name: str, command: str) -> None:
    Path(name).write_bytes(b"x")
    error = error_of(name)
    assert error.message == f"{name} is an archive."
    assert error.hint == f"Unpack it, and pass the folder of the checkpoint: {command}"
