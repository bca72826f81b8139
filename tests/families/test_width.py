"""The width that a config states is that of the position table."""

from pathlib import Path

import pytest

from ctxextend import CheckpointError, convert, inspect, resize, verify
from tests.helpers import pico
from tests.helpers.trainings import invoke, unwrapped


@pytest.mark.parametrize(
    ("model_type", "key"), [("bert", "hidden_size"), ("roberta", "hidden_size"), ("gpt2", "n_embd")]
)
def test_resize_refuses_a_config_that_states_another_width(
    model_type: str, key: str, tmp_path: Path
) -> None:
    source = pico.make(tmp_path / "source", model_type).folder
    width = 2 * pico.WIDTH
    pico.edit_json(source / "config.json", **{key: width})
    message = (
        rf"config\.json: {key} is {2 * pico.WIDTH}, but \S+ has {pico.WIDTH} columns\. "
        r"Correct config\.json"
    )
    with pytest.raises(CheckpointError, match=message):
        resize(source, to=40, output=tmp_path / "out")
    with pytest.raises(CheckpointError, match=message):
        resize(source, to=40, fix_limits=True, output=tmp_path / "out")
    if model_type == "gpt2":
        with pytest.raises(CheckpointError, match=message):
            convert(source, "rotary", 40, output=tmp_path / "out")
    done = invoke("inspect", source, "--check")
    assert done.exit_code == 3
    problem = f"config.json {key} is {2 * pico.WIDTH}"
    assert problem in unwrapped(done.stdout)
    limits = [limit for limit in inspect(source).limits if not limit.agrees]
    found = [(limit.key, limit.value, limit.fix) for limit in limits]
    expected = [(key, 2 * pico.WIDTH, None)]
    assert found == expected


def test_resize_accepts_a_config_without_a_width(tmp_path: Path) -> None:
    source = pico.make(tmp_path / "source", "bert").folder
    pico.edit_json(source / "config.json", hidden_size=None)
    resized = resize(source, to=40, output=tmp_path / "out")
    assert resized.output.exists()


def test_verify_fails_for_a_config_that_states_another_width_even_in_the_base(
    tmp_path: Path,
) -> None:
    source = pico.make(tmp_path / "source", "bert").folder
    resized = resize(source, to=40, output=tmp_path / "out")
    out = resized.output
    for folder in (source, out):
        pico.edit_json(folder / "config.json", hidden_size=2 * pico.WIDTH)
    for flags in ([], ["--deep"]):
        done = invoke("verify", out, "--base", source, *flags)
        assert done.exit_code == 3
        assert (
            "hidden_size is 16, but bert.embeddings.position_embeddings.weight has 8 columns"
            in done.stdout
        )
    verified = verify(out, source, deep=True)
    statuses = {check.name: check.status for check in verified.checks}
    assert statuses["loads"] == "failed"
    assert statuses["runs"] == "not checked"
