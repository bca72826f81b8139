import pytest
import yaml

from ctxextend.card import model_card

SECTION = "## Context length 64\n\nWords.\n"
FINETUNE = {"base_model": "owner/old", "base_model_relation": "finetune"}


def card_of(old: str | None, base_model: str | None = "owner/old", is_adapter: bool = False) -> str:
    return model_card(old, base_model, is_adapter=is_adapter, title="old-64", section=SECTION)


def front_matter(card: str) -> object:
    text = card.lstrip("\ufeff")
    text = text.replace("\r\n", "\n").lstrip()
    _, stated, *_ = text.split("---\n")
    return yaml.safe_load(stated)


def test_model_card_appends_to_the_sources_card() -> None:
    content = "# Old\n\nText with --- and base_model: words.\n"
    card = card_of(f"---\nlicense: mit\ntags:\n- x\n---\n\n{content}")
    stated = front_matter(card)
    assert stated == {"license": "mit", "tags": ["x"], **FINETUNE}
    assert f"\n{content}\n## Context length 64\n" in card
    assert "old-64" not in card


@pytest.mark.parametrize(
    "stated", ["base_model: a/b\n", "base_model:\n- a/b\n- c/d\n", "base_model:\n  - a/b\n"]
)
@pytest.mark.parametrize("relation", ["", "base_model_relation: quantized\n"])
def test_model_card_sets_base_model_or_only_adds_the_relation(stated: str, relation: str) -> None:
    old = f"---\nlicense: mit\n{stated}{relation}language: en\n---\n# Old\n"
    card = card_of(old)
    assert front_matter(card) == {"license": "mit", "language": "en", **FINETUNE}

    kept = {"license": "mit", "language": "en", "base_model_relation": "adapter"}
    kept |= yaml.safe_load(f"{stated}{relation}")
    card_of_adapter = card_of(old, None, is_adapter=True)
    assert front_matter(card_of_adapter) == kept


@pytest.mark.parametrize("stated", ["license: mit\n", ""])
@pytest.mark.parametrize("path", ["/home/alice/m", "'./m'", "~/m", "\n  - /home/alice/m"])
def test_model_card_removes_a_base_model_that_is_a_local_path(path: str, stated: str) -> None:
    card = card_of(f"---\nbase_model: {path}\n{stated}---\n# Old\n", None)
    assert card == f"---\n{stated}---\n# Old\n\n{SECTION.strip()}\n"


@pytest.mark.parametrize("name", ["yes", "1.0", "2024-01-01", "null"])
def test_model_card_quotes_names_that_yaml_would_misread(name: str) -> None:
    found = front_matter(card_of(None, name))
    assert found == FINETUNE | {"base_model": name}


@pytest.mark.parametrize("old", [None, "# Old\n", "---\nlicense: mit\n---\n# Old\n"])
def test_model_card_omits_an_unknown_base_model(old: str | None) -> None:
    before = (old or "# old-64").strip()
    expected = f"{before}\n\n{SECTION.strip()}\n"
    assert card_of(old, None) == expected


@pytest.mark.parametrize(
    ("old", "stated"),
    [
        ("# Old\n", {}),
        ("# Old\r\n", {}),
        ("---\n---\n# Old\n", {}),
        ("---\r\nlicense: mit\r\n---\r\n# Old\r\n", {"license": "mit"}),
        ("---\nlicense: mit\n---\n```yaml\n\nbase_model: a/b\n```\n", {"license": "mit"}),
        ("\n---\nlicense: mit\n---\n# Old\n", {"license": "mit"}),
        ("\ufeff---\nlicense: mit\n---\n# Old\n", {"license": "mit"}),
        ("  \n\n---\nlicense: mit\n---\n# Old\n", {"license": "mit"}),
    ],
)
def test_model_card_finds_front_matter_as_the_hub_does(old: str, stated: dict[str, str]) -> None:
    card = card_of(old)
    assert front_matter(card) == stated | FINETUNE
    lines = card.count("\n")
    expected = lines if "\r\n" in old else 0
    assert card.count("\r\n") == expected


@pytest.mark.parametrize("old", ["---\n{license: mit}\n---\n# Old\n", "---\na: [\n---\n# Old\n"])
def test_model_card_keeps_front_matter_that_it_cannot_edit(old: str) -> None:
    card = card_of(old)
    assert card.startswith(old)
