import yaml

from ctxextend.checkpoints.card import model_card

SECTION = "## Context length 64\n\nWords.\n"


def front_matter(card: str) -> object:
    return yaml.safe_load(card.split("---\n")[1])


def test_model_card_of_a_source_without_one() -> None:
    card = model_card(None, "gpt2", "gpt2-64", SECTION)
    assert card == "---\nbase_model: gpt2\n---\n# gpt2-64\n\n## Context length 64\n\nWords.\n"


def test_model_card_keeps_the_sources_card_and_adds_to_it() -> None:
    old = "---\nlicense: mit\ntags:\n- x\n---\n\n# Old\n\nText with --- and base_model: words.\n"
    card = model_card(old, "owner/old", "ignored", SECTION)
    assert front_matter(card) == {"license": "mit", "tags": ["x"], "base_model": "owner/old"}
    assert "\n# Old\n\nText with --- and base_model: words.\n\n## Context length 64\n" in card
    assert "ignored" not in card


def test_model_card_replaces_a_base_model_in_every_form() -> None:
    for stated in ("base_model: a/b\n", "base_model:\n- a/b\n- c/d\n", "base_model:\n  - a/b\n"):
        card = model_card(f"---\nlicense: mit\n{stated}language: en\n---\n# Old\n", "owner/old", "", SECTION)
        assert front_matter(card) == {"license": "mit", "language": "en", "base_model": "owner/old"}


def test_model_card_keeps_the_base_model_where_none_is_given() -> None:
    card = model_card("---\nbase_model: a/b\n---\n# Old\n", None, "", SECTION)
    assert front_matter(card) == {"base_model": "a/b"}


def test_model_card_without_front_matter_gets_one() -> None:
    card = model_card("# Old\n", "gpt2", "", SECTION)
    assert card.startswith("---\nbase_model: gpt2\n---\n# Old\n")


def test_model_card_with_empty_front_matter_and_windows_line_ends() -> None:
    assert front_matter(model_card("---\n---\n# Old\n", "gpt2", "", SECTION)) == {"base_model": "gpt2"}
    card = model_card("---\r\nlicense: mit\r\n---\r\n# Old\r\n", "gpt2", "", SECTION)
    assert yaml.safe_load(card.replace("\r\n", "\n").split("---\n")[1]) == {"license": "mit", "base_model": "gpt2"}
