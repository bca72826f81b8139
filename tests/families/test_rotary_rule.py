"""The rule for rotary types, on small sources in the style of transformers and on the installed."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ctxextend import UnsupportedModelError, list_families, plan_resize, resize
from ctxextend.errors import CheckpointError
from ctxextend.families import known_types, transformers_source
from ctxextend.families.known_types import FAMILIES, KnownFamilies, unclear_types, why_unclear
from ctxextend.families.registry import ENTRIES
from ctxextend.families.rope import read_rope, rotary_dim
from ctxextend.families.rotary_rule import rule_family
from ctxextend.families.schema import RotaryFacts, RotaryPositions
from ctxextend.families.transformers_source import UnclearSourceError
from tests.families.test_rope_settings import locate
from tests.helpers import pico
from tests.helpers.rotary_configs import SIZES, save_config

CONFIG = '''
class NewConfig(PreTrainedConfig):
    """A config.

Text in the first column, as some long docstrings have.
    """

    model_type = "new"
    default_theta = 50_000.0

    vocab_size: int = 32
    hidden_size: int = 128
    num_attention_heads: int = 4
    head_dim: int | None = None
    max_position_embeddings: int = 256 * 4
    rope_parameters: RopeParameters | dict | None = None

    def __post_init__(self, **kwargs):
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)
'''
MODEL = """
class NewRotaryEmbedding(nn.Module):
    def __init__(self, config: NewConfig, device=None):
        super().__init__()
        self.max_seq_len_cached = config.max_position_embeddings
        self.config = config
        self.rope_type = self.config.rope_parameters["rope_type"]
        rope_init_fn: Callable = self.compute_default_rope_parameters
        if self.rope_type != "default":
            rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = rope_init_fn(self.config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config, **kwargs):
        base = config.rope_parameters["rope_theta"]
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention_factor = 1.0
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
        return inv_freq, attention_factor

    @dynamic_rope_update
    def forward(self, x, position_ids):
        freqs = position_ids[..., None].float() * self.inv_freq.to(
            device=x.device, dtype=torch.float
        )
        emb = torch.cat((freqs, freqs), dim=-1)
        cos = emb.cos() * self.attention_scaling
        sin = emb.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


class NewModel(PreTrainedModel):
    pass
"""
# Of configs before the dataclasses.
CONSTRUCTOR = """
class NewConfig(PreTrainedConfig):
    model_type = "new"

    def __init__(
        self,
        vocab_size=32,
        hidden_size=128,
        num_attention_heads=4,
        max_position_embeddings=1024,
        rope_parameters: RopeParameters | None = None,
        **kwargs,
    ):
        self.rope_parameters = rope_parameters
        kwargs.setdefault("partial_rotary_factor", 0.5)
        super().__init__(**kwargs)
"""
SHARE = """\
        partial_rotary_factor = config.rope_parameters.get("partial_rotary_factor", 1.0)
        head_dim = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        dim = int(head_dim * partial_rotary_factor)
"""
SIZE = """\
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
"""
LAYERS = """
        if self.rope_parameters is None:
            self.rope_parameters = {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
            }
        super().__post_init__(**kwargs)

    def convert_rope_params_to_dict(self, **kwargs):
        # The settings are complete.
        return kwargs
"""
SUPER = "        super().__post_init__(**kwargs)\n"
NAMES = """
CONFIG_MAPPING_NAMES = OrderedDict(
    [
        ("new", "NewConfig"),
        ("twin", "TwinConfig"),
        ("view", "ViewConfig"),
    ]
)
"""


class Sources:
    """A folder with sources of models in the style of transformers."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.write("auto/auto_mappings.py", NAMES)
        self.write("auto/modeling_auto.py", '("twin", "NewModel")')
        self.write("new/configuration_new.py", CONFIG)
        self.write("new/modeling_new.py", MODEL)

    def write(self, name: str, text: str) -> None:
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.models / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """Return sources that are read instead of those of the installed transformers."""
    found = Sources(tmp_path / "models")
    transformers_source.installed_types.cache_clear()
    monkeypatch.setattr(transformers_source, "models_folder", lambda: found.models)
    forget_types()
    yield found
    transformers_source.installed_types.cache_clear()
    forget_types()


def forget_types() -> None:
    """Let the rule read all types again."""
    assert isinstance(FAMILIES, KnownFamilies)
    FAMILIES._found.clear()


def facts_of(model_type: str) -> RotaryFacts:
    """Return the facts that the rule finds for a type."""
    family = rule_family(model_type, KnownFamilies())
    assert family is not None
    (positions,) = family.tables
    assert isinstance(positions, RotaryPositions)
    return positions.rope


def test_rule_family_reads_defaults_of_a_config_class(sources: Sources) -> None:
    family = rule_family("new", KnownFamilies())
    assert family is not None
    assert family.defaults == {
        "max_position_embeddings": 1024,
        "hidden_size": 128,
        "num_attention_heads": 4,
    }
    facts = facts_of("new")
    assert facts.theta == {"": 50_000.0}
    assert facts.methods == ("yarn", "switch", "linear", "dynamic", "theta")
    assert not facts.needs_dim


def test_rule_family_reads_the_arguments_of_a_constructor(sources: Sources) -> None:
    sources.write("new/configuration_new.py", CONSTRUCTOR)
    sources.replace("new/modeling_new.py", SIZE, SHARE)
    facts = facts_of("new")
    assert facts.theta == {"": 10_000.0}
    assert facts.partial == 0.5


def test_rule_family_reads_settings_of_each_type_of_layers(sources: Sources) -> None:
    sources.replace("new/configuration_new.py", SUPER, LAYERS)
    sources.replace("new/modeling_new.py", "(config, **kwargs)", "(config, layer_type=None)")
    sources.replace("new/modeling_new.py", '["rope_theta"]', '[layer_type]["rope_theta"]')
    facts = facts_of("new")
    assert facts.theta == {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
    assert facts.local == ("sliding_attention",)
    assert not facts.old.reads_scaling


def test_rule_family_finds_the_model_class_of_another_type(sources: Sources) -> None:
    twin = CONFIG.replace("NewConfig", "TwinConfig").replace('"new"', '"twin"')
    sources.write("twin/configuration_twin.py", twin)
    assert facts_of("twin") == facts_of("new")


def test_rule_family_finds_the_language_model_of_a_multimodal_type(sources: Sources) -> None:
    view = """
class ViewConfig(PreTrainedConfig):
    model_type = "view"
    sub_configs_defaults = {
        "vision_config": ViewVisionConfig,
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="new"),
    }
"""
    sources.write("view/configuration_view.py", view)
    family = rule_family("view", KnownFamilies())
    assert family is not None
    (part,) = family.parts
    assert (part.config_key, part.model_type, part.may_state_type) == ("text_config", "new", True)
    # Positions of rows have a prefix that no config states.
    sources.replace("view/configuration_view.py", '"new")', '"bert")')
    assert rule_family("view", KnownFamilies()) is None


def test_rule_family_changes_only_limits_if_the_model_ignores_the_settings(
    sources: Sources,
) -> None:
    sources.write("new/modeling_new.py", "class NewModel(PreTrainedModel):\n    pass\n")
    assert facts_of("new").methods == ()


def test_rule_family_offers_no_dynamic_method_if_angles_do_not_follow_the_input(
    sources: Sources,
) -> None:
    sources.replace("new/modeling_new.py", "    @dynamic_rope_update\n", "")
    assert facts_of("new").methods == ("yarn", "linear", "theta")


def test_rule_family_ignores_a_size_that_the_class_overwrites(sources: Sources) -> None:
    condition = "        if self.head_dim is None:\n            self.head_dim"
    sources.replace("new/configuration_new.py", condition, "        self.head_dim")
    assert facts_of("new").dim_key == ""
    location = locate({"model_type": "new", **SIZES, "head_dim": 8})
    (layers,) = read_rope(location)
    assert rotary_dim(location, layers.parameters) == 32  # 128 / 4 heads


def test_rule_family_finds_no_model_that_contains_itself(sources: Sources) -> None:
    view = """
class ViewConfig(PreTrainedConfig):
    model_type = "view"
    sub_configs = {"text_config": ViewConfig}
"""
    sources.write("view/configuration_view.py", view)
    assert "view" not in FAMILIES


@pytest.mark.parametrize(
    ("stated", "theta"), [({"rope_theta": 123_456.0}, 123_456.0), ({}, 50_000.0)]
)
def test_read_rope_fills_default_settings_from_the_key_next_to_them(
    stated: dict[str, Any], theta: float, sources: Sources
) -> None:
    settings = """\
        if self.rope_parameters is None:
            self.rope_parameters = {"rope_type": "linear", "factor": 2.0}
"""
    sources.replace("new/configuration_new.py", SUPER, settings + SUPER)
    location = locate({"model_type": "new", **SIZES, **stated})
    (layers,) = read_rope(location)
    assert layers.parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": theta}
    empty = locate({"model_type": "new", **SIZES, **stated, "rope_parameters": {}})
    (layers,) = read_rope(empty)
    assert layers.parameters == {"rope_type": "default", "rope_theta": theta}


def test_read_rope_names_a_key_that_the_class_ignores(sources: Sources) -> None:
    settings = """\
        if self.rope_parameters is None:
            self.rope_parameters = {"rope_type": "default", "rope_theta": 20_000.0}
"""
    sources.replace("new/configuration_new.py", SUPER, settings + SUPER)
    with pytest.raises(CheckpointError) as caught:
        read_rope(locate({"model_type": "new", **SIZES, "rope_theta": 5.0}))
    assert caught.value.message == (
        "config.json states no rope_parameters, so transformers takes those of new, with "
        "rope_theta 20000.0; it ignores rope_theta 5.0."
    )


def test_rule_family_finds_classes_that_refuse_other_rope_types(sources: Sources) -> None:
    lookup = "rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]"
    sources.replace("new/modeling_new.py", lookup, 'raise ValueError("only default")')
    assert facts_of("new").methods == ("theta",)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("configuration", "(PreTrainedConfig)", "(OtherConfig)", "it is a subclass of OtherConfig"),
        (
            "configuration",
            "    vocab_size",
            "    rotary_dim: int = 8\n    vocab_size",
            "the field rotary_dim may change frequencies",
        ),
        (
            "configuration",
            SUPER,
            "        self.rope_parameters['rope_theta'] *= 2\n" + SUPER,
            "`self.rope_parameters['rope_theta'] *= 2` may change frequencies",
        ),
        (
            "configuration",
            SUPER,
            "        if self.rope_parameters is None:\n"
            "            self.rope_parameters = make_settings(self)\n" + SUPER,
            "rope_parameters of a config without any are computed",
        ),
        (
            "configuration",
            SUPER,
            SUPER + "\n    def convert_rope_params_to_dict(self, **kwargs):\n        return {}\n",
            "it converts rotary settings itself",
        ),
        (
            "configuration",
            "max_position_embeddings: int = 256 * 4",
            "max_position_embeddings: int | None = None",
            "it states no default of max_position_embeddings",
        ),
        (
            "configuration",
            "self.head_dim = self.hidden_size // self.num_attention_heads",
            "self.head_dim = 48",
            "it sets `self.head_dim = 48`",
        ),
        (
            "configuration",
            SUPER,
            "        self.max_position_embeddings *= 4\n" + SUPER,
            "it sets `self.max_position_embeddings *= 4`",
        ),
        (
            "configuration",
            "    default_theta = 50_000.0\n",
            "    default_theta = 50_000.0\n    attribute_map = {'n_ctx': LENGTH}\n",
            "attribute_map is computed",
        ),
        (
            "configuration",
            "    default_theta = 50_000.0\n",
            "    default_theta = 50_000.0\n    lambda: (yield) = 1\n",
            "class NewConfig(PreTrainedConfig): Python ",
        ),
        (
            "modeling",
            "dim, 2, dtype",
            "dim, 4, dtype",
            "has the line `inv_freq = 1.0 / base ** (tor",
        ),
        (
            "modeling",
            "        attention_factor = 1.0\n",
            "        attention_factor: float = 2.0\n",
            "NewRotaryEmbedding has the line `attention_factor: float = 2.0`",
        ),
        (
            "modeling",
            "        attention_factor = 1.0\n",
            "        attention_factor = 1.0\n        base *= 2\n",
            "NewRotaryEmbedding has the line `base *= 2`",
        ),
        (
            "modeling",
            "        return inv_freq, attention_factor\n",
            "        if config.scale:\n            inv_freq /= 4\n        return inv_freq, 1.0\n",
            "NewRotaryEmbedding has the line `if config.scale:`",
        ),
        (
            "modeling",
            "self.max_seq_len_cached = config.max_position_embeddings",
            "config = config.per_layer_config[0]",
            "NewRotaryEmbedding has the line `config = config.per_layer_config[0]`",
        ),
        (
            "modeling",
            "rope_init_fn(self.config)\n",
            "rope_init_fn(self.config)\n        inv_freq = inv_freq / 8\n",
            "NewRotaryEmbedding has the line `inv_freq = inv_freq / 8`",
        ),
        (
            "modeling",
            "        emb = torch.cat",
            "        freqs = freqs / 4\n        emb = torch.cat",
            "NewRotaryEmbedding has the line `freqs = freqs / 4`",
        ),
        (
            "modeling",
            "    def forward(self, x",
            "    def compute_longer(self, x",
            "NewRotaryEmbedding has no forward()",
        ),
        (
            "modeling",
            '        if self.rope_type != "default":\n'
            "            rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]\n",
            "",
            "NewRotaryEmbedding does not use the rope types of transformers",
        ),
        (
            "modeling",
            "def compute_default_rope_parameters(",
            "def compute_frequencies(",
            "its model reads rope_parameters in a way that is unknown",
        ),
    ],
)
def test_why_unclear_names_what_the_rule_does_not_cover(
    file: str, old: str, new: str, reason: str, sources: Sources
) -> None:
    assert why_unclear("new") == ""
    sources.replace(f"new/{file}_new.py", old, new)
    assert reason in why_unclear("new")
    assert unclear_types() == {"new": why_unclear("new")}


def test_resize_refuses_a_type_whose_settings_are_unclear(sources: Sources) -> None:
    save_config(Path("model"), {"model_type": "new", **SIZES})
    assert plan_resize("model", 1024).plan.method == "yarn"
    forget_types()
    sources.replace("new/configuration_new.py", "(PreTrainedConfig)", "(OtherConfig)")
    with pytest.raises(UnsupportedModelError, match="NewConfig: it is a subclass of OtherConfig"):
        resize("model", 1024, output="out")
    assert not Path("out").exists()


def test_list_families_leaves_out_entries_whose_parts_transformers_lacks(
    sources: Sources,
) -> None:
    listed = {table.model_type for table in list_families()}
    assert {"new", "bert", "gpt_neox"} <= listed
    assert not {"colpali", "llama"} & listed  # the text model of ColPali is found by the rule


def test_entries_differ_from_what_the_rule_finds() -> None:
    for model_type, entry in ENTRIES.items():
        with suppress(UnclearSourceError):
            assert rule_family(model_type, FAMILIES) != entry, f"{model_type} needs no entry"


def test_rule_finds_types_without_an_entry_in_the_installed_transformers() -> None:
    found = [name for name in FAMILIES if known_types.is_found_by_rule(name)]
    assert {"llama", "qwen3", "llava"} <= set(found)
    assert len(found) > 150
    assert unclear_types() == {}


def test_resize_of_a_type_found_by_rule_loads_in_transformers() -> None:
    config: dict[str, Any] = {"model_type": "qwen3", **SIZES, "rope_theta": 500_000.0}
    save_config(Path("source"), config)
    resize("source", 1024, output="out")
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained("out")
    assert loaded.max_position_embeddings == 1024
    assert loaded.rope_parameters["rope_type"] == "yarn"
    assert loaded.rope_parameters["rope_theta"] == 500_000.0
    assert pico.config_of("out")["rope_theta"] == 500_000.0
