"""What `resize` suggests for types of transformers without an entry or rotary settings."""

import shlex
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers

from ctxextend import UnsupportedModelError, resize
from ctxextend.families.registry import ENTRIES
from tests.helpers import tiny
from tests.helpers.trainings import invoke

NEW = 96


def save_unknown(model_type: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Save a small model of a type as if it were new; return its class."""
    config = tiny.make_config(model_type)
    tiny.shrink(config)
    model_class = tiny.model_classes(model_type)[0]
    model_class(config).save_pretrained("new")
    monkeypatch.delitem(cast(dict[str, Any], ENTRIES), model_type)
    return model_class


@pytest.mark.parametrize(
    ("model_type", "table", "reserved"),
    [("biogpt", "embed_positions.weight", 2), ("gpt2", "wpe.weight", 0)],
)
def test_resize_suggests_the_table_that_follows_from_a_length_in_the_class(
    model_type: str, table: str, reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_class = save_unknown(model_type, monkeypatch)
    refused = invoke("resize", "new", "--to", NEW, "--output", "out")
    assert refused.exit_code == 1
    assert not Path("out").exists()
    assert (
        f"In transformers' {model_class.__name__}, {table} has a row for each unit of "
        in refused.stderr
    )
    flags = refused.stderr.partition("Specify it: ")[2].strip()
    done = invoke("resize", "new", "--to", NEW, *shlex.split(flags), "--output", "out")
    assert done.exit_code == 0, done.stderr
    model = model_class.from_pretrained("out")
    assert model.get_parameter(table).shape[0] == NEW + reserved
    assert model(input_ids=torch.ones(1, NEW, dtype=torch.long))[0].isfinite().all()


def test_resize_suggests_no_flags_if_several_tables_share_a_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _ = save_unknown("bart", monkeypatch)
    with pytest.raises(UnsupportedModelError) as caught:
        resize("new", NEW)
    assert caught.value.hint == (
        "In transformers' BartModel, encoder.embed_positions.weight and "
        "decoder.embed_positions.weight have a row for each unit of max_position_embeddings: all "
        "of them must change, and --tensor changes one."
    )


def test_resize_suggests_by_names_if_the_class_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _ = save_unknown("gpt2", monkeypatch)
    monkeypatch.setattr(transformers, "GPT2Model", None)
    monkeypatch.setattr(transformers, "AutoModel", None)
    refused = invoke("resize", "new", "--to", NEW)
    assert "In transformers'" not in refused.stderr
    assert "Candidate position tables: wpe.weight" in refused.stderr
