"""The width that a config states is that of the position table, in all model types."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from ctxextend import CheckpointError, convert, inspect, resize, verify
from ctxextend.positions.rows import stated_width
from ctxextend.positions.positions import Positions
from tests.helpers import model_types, pico, tiny
from tests.helpers.model_types import NOT_INSTANTIABLE, WITH_ROWS
from tests.helpers.small_model import architecture_of
from tests.helpers.trainings import invoke, unwrapped

# Tables as wide as no config key says, by model type and part.
NO_KEY = {("roformer", ""): "the size of a head", ("lilt", "layout"): "a share of hidden_size"}
# Whose embeddings are narrower than their layers, or have another key.
NARROW = ("albert", "deberta", "electra", "mobilebert", "xlm")
TYPES = WITH_ROWS - NOT_INSTANTIABLE.keys() - {*NARROW}


@pytest.mark.parametrize(
    "model_type",
    [*NARROW, *model_types.parameters(TYPES)],
)
def test_stated_width_names_the_key_of_the_width_of_each_table(model_type: str) -> None:
    found = set[Positions | str]()
    for built in tiny.buildable_classes(model_type, tiny.all_classes(model_type)):
        shapes = (*built.shapes.items(), *built.others.items())
        widths = {name: shape[-1] for name, shape in shapes if shape}
        for location in architecture_of(model_type, built.config).locations:
            for name in (name for name in location.names if name in widths):
                check_width_of(location, widths[name], built.config)
                found.add(location.usual_name)
    assert found or model_type in (
        "fsmt",
        "pegasus_x",
    )  # whose tables are computed in each forward pass


def check_width_of(location: Positions, columns: int, config: Any) -> None:
    stated = stated_width(location, -1)  # the key that an error would name
    table = (location.family.model_type, location.part)
    if table in NO_KEY:
        assert stated is None
        return
    assert stated is not None
    key, value = stated
    assert value == columns, f"{key} is {value}, but the table has {columns} columns"
    stated = reduce(getattr, key.split("."), config)
    assert stated == columns


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
