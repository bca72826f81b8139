"""Texts with needles, and the questions about them."""

from dataclasses import replace

import numpy as np
import pytest

from ctxextend.lab.needle_text import KEY, NEEDLE, NeedleTexts
from ctxextend.lab.needles import NeedleWords

FIRST_WORD = 1000  # token of the first word; the haystack has tokens from 10 to 99
WORDS = NeedleWords(
    before=np.array([0]),
    between=np.array([1]),
    after=np.array([2]),
    as_key=np.arange(FIRST_WORD, FIRST_WORD + 300),
    as_value=np.arange(2 * FIRST_WORD, 2 * FIRST_WORD + 300),
    key_words=1,
)
HAYSTACK = np.random.default_rng(0).integers(10, 100, 2000)


def texts(needles: int = 8, **form: bool) -> NeedleTexts:
    return NeedleTexts(WORDS, HAYSTACK, seed=0, needles=needles, **form)


def statements(ids: list[int]) -> list[tuple[int, int, int]]:
    """Return where each line of a text starts in its haystack, and its key and its value."""
    found = list[tuple[int, int, int]]()
    haystack = 0
    index = 0
    while index < len(ids):
        if ids[index] != 0:
            haystack += 1
            index += 1
            continue
        _, key, between, value, after = ids[index : index + 5]
        assert (between, after) == (1, 2)
        found.append((haystack, key, value))
        index += 5
    return found


@pytest.mark.parametrize("form", [{}, {"is_masked": True}])
def test_text_is_shorter_by_its_questions(form: dict[str, bool]) -> None:
    text = texts(**form).text(400, 0)
    tokens = len(text.ids)
    if "is_masked" in form:
        tokens += sum(len(question.ids) + 2 for question in text.questions)
    else:
        tokens += max(len(question.ids) for question in text.questions)
    assert tokens == 400
    assert len(text.questions) == 8


def test_text_spreads_needles_evenly_from_start_to_end() -> None:
    lines = statements(texts().text(400, 0).ids.tolist())
    size = 400 - 8 * 5 - 3
    assert [position for position, _, _ in lines] == [round(index / 7 * size) for index in range(8)]
    assert [question.depth for question in texts().text(400, 0).questions] == pytest.approx(
        [index / 7 for index in range(8)]
    )


def test_questions_ask_for_the_values_of_their_needles() -> None:
    text = texts().text(400, 0)
    values = {key: value for _, key, value in statements(text.ids.tolist())}
    assert len(values) == len(set(values.values())) == 8
    for question in text.questions:
        before, key, between = question.ids.tolist()
        assert (before, between) == (0, 1)
        assert question.answer == values[key]
        others = set(values.values()) - {question.answer}
        assert set(question.rivals[KEY].tolist()) == others
        absent = set(question.rivals[NEEDLE].tolist())
        assert len(absent) == 9
        assert absent.isdisjoint(text.ids.tolist())
        assert question.labels.tolist() == [
            question.answer,
            *question.rivals[NEEDLE],
            *question.rivals[KEY],
        ]


def test_text_avoids_words_of_the_haystack() -> None:
    present = WORDS.as_value[:200]
    text = replace(texts(), haystack=np.concatenate([present, HAYSTACK])[:297]).text(340, 0)
    for _, key, value in statements(text.ids.tolist()):
        assert key >= FIRST_WORD + 200
        assert value >= 2 * FIRST_WORD + 200


def test_needles_fill_most_of_the_shortest_text() -> None:
    # A line has five tokens and a question three, of at most 60 % of the text.
    assert texts(6).shortest == 55
    for shortest, needles in ((55, 6), (63, 6), (64, 7), (200, 23), (10_000, 24)):
        assert texts(6).with_most_needles(shortest).needles == needles
    assert texts(6, is_masked=True).shortest == 100
    few = replace(WORDS, as_key=WORDS.as_key[:40], as_value=WORDS.as_value[:40], key_words=2)
    assert replace(texts(6), words=few).with_most_needles(10_000).needles == 10


def test_rivals_are_at_most_nine() -> None:
    for needles, counts in ((6, {NEEDLE: 9, KEY: 5}), (24, {NEEDLE: 9, KEY: 9})):
        for question in texts(needles).text(400, 0).questions:
            assert {task: len(rivals) for task, rivals in question.rivals.items()} == counts
