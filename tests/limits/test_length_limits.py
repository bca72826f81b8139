"""Length limits next to the table, that no test of an encoder or of generation changes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ctxextend import resize
from tests.helpers import pico


@pytest.mark.parametrize("stated", [None, 16, 10**30, 1e30, 4])
def test_resize_sets_the_limit_of_every_tokenizer(
    stated: float | None, make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    folder = make_pico("bert").folder
    pico.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    pico.edit_json(folder / "tokenizer_config.json", model_max_length=stated)
    output = resize(folder, 64, output=tmp_path / "out").output
    assert pico.read_json(output / "tokenizer_config.json")["model_max_length"] == 64


def test_resize_to_a_shorter_length_lowers_only_larger_limits(
    make_pico: Callable[..., pico.Pico], tmp_path: Path
) -> None:
    folder = make_pico("bert").folder
    limits = {"tokenizer_config.json": "model_max_length", "sentence_bert_config.json": ""}
    limits["sentence_bert_config.json"] = "max_seq_length"
    for file, stated in zip(limits, (16, 9), strict=True):
        pico.write_json(folder / file, {limits[file]: stated})
    output = resize(folder, 10, output=tmp_path / "out").output
    found = [pico.read_json(output / file)[key] for file, key in limits.items()]
    assert found == [10, 9]
