"""Loading of checkpoints with transformers."""

import json
from collections.abc import Callable

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from ctxextend import CheckpointError
from ctxextend.checkpoint.checkpoint import Checkpoint
from ctxextend.checkpoint.folder import open_checkpoint
from ctxextend.checkpoint.source import Source
from ctxextend.models.load import load
from tests.helpers import pico

MakePico = Callable[..., pico.Pico]


def test_load_names_the_checkpoint_that_transformers_refuses(make_pico: MakePico) -> None:
    checkpoint = open_refused(make_pico)
    with pytest.raises(CheckpointError, match=r"transformers cannot load .*pico-gpt2: ValueError"):
        load(checkpoint, None)


def test_load_without_values_fails_as_with_values(make_pico: MakePico) -> None:
    checkpoint = open_refused(make_pico)
    message = "transformers cannot load .*: ValueError"
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(CheckpointError, match=message):
        load(checkpoint, None)


def open_refused(make_pico: MakePico) -> Checkpoint:
    """Open a checkpoint whose hidden size is not a multiple of its number of heads."""
    folder = make_pico("gpt2").folder
    config = pico.config_of(folder)
    (folder / "config.json").write_text(json.dumps({**config, "n_head": 3}))
    return open_checkpoint(Source(str(folder), "folder", folder, folder.name))
