"""BERTScore: bert-score's numbers from a local encoder, with empty and cut texts counted and a full protocol."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repro.evaluate import bertscore_encoder
from repro.evaluate.bertscore import (
    BertScorer,
    Encoder,
    comparable,
    embedded_encoder,
    rankings,
    shipped_baseline,
)
from repro.spec.errors import BadDataError, ConfigError, MissingError, ReproError
from tests.conftest import shared_case

WORDS = ["a", "short", "long", "line", "word", "of", "the", "sea", "sun", "rain", "falls", "on"]
POSITIONS = 64
LAYERS = 2
NO_MAXIMUM = 10**30  # what a tokenizer without one reports


def write_encoder(folder: Path, maximum: int = NO_MAXIMUM) -> Path:
    """A BERT of two layers with random weights, and a tokenizer of a few words."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    folder.mkdir(parents=True)
    BertTokenizer(
        vocab={word: index for index, word in enumerate(vocabulary)}, model_max_length=maximum
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=LAYERS, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=POSITIONS, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoders") / "tiny")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.load(folder, LAYERS)


def texts(count: int, longest: int = 30, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def columns(scores: Any) -> np.ndarray[Any, Any]:
    return np.stack([scores.precision, scores.recall, scores.f1])


def library(candidates: list[str], references: list[str], folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    import bert_score

    found = bert_score.score(
        candidates, references, model_type=str(folder), num_layers=LAYERS, device="cpu", nthreads=0, **options
    )
    return np.stack([values.numpy() for values in found])


def test_case_m07_only_rows_of_one_protocol_are_ranked() -> None:
    rows = [
        (row["method"], row["bertscore_f1"], row["protocol"])
        for row in json.loads(shared_case("M07/rows.json").read_text())
    ]
    assert sorted(rankings(rows).values()) == [["A", "C"], ["B"]]
    for absent in (None, ""):
        with pytest.raises(BadDataError, match="D: protocol: the row has no protocol"):
            rankings([*rows, ("D", 0.99, absent)])
        assert not comparable(absent, absent)
    assert comparable(rows[0][2], rows[2][2])
    assert not comparable(rows[0][2], rows[1][2])
    with pytest.raises(BadDataError, match="not finite"):
        rankings([("E", math.nan, rows[0][2])])


@pytest.mark.parametrize("idf", [False, True])
def test_case_m08_every_item_has_a_score_and_empty_and_cut_ones_are_counted(encoder: Encoder, idf: bool) -> None:
    case = json.loads(shared_case("M08/cands.json").read_text())
    assert encoder.max_tokens == POSITIONS
    found = BertScorer(encoder, idf=idf).score_all(case["cands"], case["refs"])
    scores = columns(found.raw)
    assert scores.shape == (3, 3)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert (found.empty, found.cut, found.n) == (1, 1, 3)
    assert (scores[:, 0] == 0).all()
    # The three references are one text, so that no token of them tells anything: idf gives all of them no weight.
    assert found.weightless == (2 if idf else 0)
    assert (scores[:, 1:] != 0).all() != idf
    assert idf or scores[2].argmax() == 2  # the pair of equal texts


def test_a_cut_text_scores_as_its_first_tokens(encoder: Encoder) -> None:
    words = (WORDS * 10)[: POSITIONS - 2]
    scorer = BertScorer(encoder)
    fits = scorer.score_all([" ".join(words)], ["the sea"])
    cut = scorer.score_all([" ".join([*words, "rain"])], ["the sea"])
    assert (fits.cut, cut.cut) == (0, 1)
    np.testing.assert_array_equal(columns(fits.raw), columns(cut.raw))


def test_empty_is_what_gives_no_token_on_either_side(encoder: Encoder) -> None:
    empty = ["", " \n\t", "\u200b"]
    found = BertScorer(encoder).score_all([*empty, "the sea", "", "the sea"], ["the sea"] * 3 + ["", "", "the sea"])
    assert found.empty == 5
    assert found.raw.f1.tolist()[:5] == [0.0] * 5
    assert found.raw.f1[5] == pytest.approx(1, abs=1e-6)
    assert found.raw.means()[2] == pytest.approx(1 / 6, abs=1e-6)


def test_no_pairs_give_no_scores(encoder: Encoder) -> None:
    found = BertScorer(encoder, idf=True).score_all([], [])
    assert len(found.raw.f1) == found.empty == found.cut == 0
    with pytest.raises(ValueError, match="no pairs"):
        found.raw.means()


@pytest.mark.parametrize("idf", [False, True])
def test_scores_are_those_of_bert_score(tmp_path: Path, idf: bool) -> None:
    folder = write_encoder(tmp_path / "tiny", maximum=24)  # bert-score cuts at what the tokenizer states
    candidates, references = texts(90, seed=1), texts(90, seed=2)
    found = BertScorer(Encoder.load(folder, LAYERS), idf=idf).score_all(candidates, references)
    assert found.cut > 0
    np.testing.assert_allclose(columns(found.raw), library(candidates, references, folder, idf=idf), atol=1e-6, rtol=0)


def test_rescaled_scores_are_those_of_bert_score_and_raw_ones_are_kept(tmp_path: Path, encoder: Encoder) -> None:
    folder = write_encoder(tmp_path / "tiny", maximum=POSITIONS)
    table = tmp_path / "baseline.tsv"
    table.write_text("LAYER,P,R,F\n0,0.1,0.1,0.1\n1,0.2,0.2,0.2\n2,0.31,0.32,0.33\n")
    candidates, references = texts(10, seed=3), texts(10, seed=4)
    scorer = BertScorer(encoder, baseline=table)
    found = scorer.score_all(candidates, references)
    theirs = library(candidates, references, folder, lang="en", rescale_with_baseline=True, baseline_path=str(table))
    assert found.rescaled is not None
    np.testing.assert_allclose(columns(found.rescaled), theirs, atol=3e-6, rtol=0)
    np.testing.assert_array_equal(
        columns(found.raw), columns(BertScorer(encoder).score_all(candidates, references).raw)
    )
    assert not comparable(scorer.protocol(), scorer.protocol(rescaled=True))


def test_the_order_of_the_pairs_and_their_copies_change_nothing(encoder: Encoder) -> None:
    candidates, references = texts(300, seed=5), texts(20, seed=6) * 15  # more than one set of kept vectors
    scorer = BertScorer(encoder, idf=True)
    whole = columns(scorer.score_all(candidates, references).raw)
    order = np.random.default_rng(0).permutation(300)
    moved = scorer.score_all([candidates[i] for i in order], [references[i] for i in order])
    np.testing.assert_array_equal(columns(moved.raw), whole[:, order])
    twice = scorer.score_all(candidates * 2, references * 2)
    plain = BertScorer(encoder)
    np.testing.assert_array_equal(columns(twice.raw)[:, :300], columns(twice.raw)[:, 300:])
    alone = [plain.score_all([candidates[i]], [references[i]]).raw.f1[0] for i in range(0, 300, 60)]
    together = plain.score_all(candidates, references).raw.f1[::60]
    np.testing.assert_allclose(alone, together, atol=1e-6, rtol=0)


def test_swapped_sides_swap_precision_and_recall_and_equal_texts_score_one(encoder: Encoder) -> None:
    first, second = texts(20, seed=7), texts(20, seed=8)
    scorer = BertScorer(encoder)
    there, back = scorer.score_all(first, second).raw, scorer.score_all(second, first).raw
    np.testing.assert_allclose(there.precision, back.recall, atol=1e-6)
    np.testing.assert_allclose(there.f1, back.f1, atol=1e-6)
    np.testing.assert_allclose(columns(scorer.score_all(first, first).raw), 1, atol=1e-6)
    assert (columns(there) <= 1 + 1e-6).all()


def test_the_protocol_holds_what_changes_a_score(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    from repro.records.schema import MetricValue

    plain = BertScorer(encoder).protocol()
    for part in (f"encoder={encoder.fingerprint[:12]}", "layer=2", "idf=no", "scale=raw", f"max_tokens={POSITIONS}"):
        assert part in plain
    assert "bert-score=0." in plain
    assert "transformers=" in plain
    other = write_encoder(tmp_path / "other", maximum=32)
    variants = [
        BertScorer(encoder, idf=True),
        BertScorer(Encoder.load(folder, 1)),
        BertScorer(Encoder.load(folder, LAYERS, max_tokens=32)),
        BertScorer(Encoder.load(other, LAYERS)),
    ]
    lines = {plain, *(scorer.protocol() for scorer in variants)}
    assert len(lines) == 5
    assert BertScorer(Encoder.load(folder, LAYERS)).protocol() == plain
    for line in lines:
        MetricValue(name="bertscore_f1", value=0.5, unit="1", n=1, protocol=line)  # fits a record
    with pytest.raises(ValueError, match="baseline"):
        BertScorer(encoder).protocol(rescaled=True)


def test_the_letters_t5_in_a_path_make_no_other_model_of_it(folder: Path, encoder: Encoder, tmp_path: Path) -> None:
    there = Encoder.load(shutil.copytree(folder, tmp_path / "for_t5"), LAYERS)
    assert there.fingerprint == encoder.fingerprint
    assert type(there.model) is type(encoder.model)


def test_weights_that_the_file_lacks_are_not_drawn_at_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_encoder(tmp_path / "tiny")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadDataError, match=r"lack encoder\.layer\.1\.output\.dense\.weight"):
        Encoder.load(folder, LAYERS)
    assert Encoder.load(folder, 1).layers == 1  # what is cut off is not needed


def test_loading_and_scoring_draw_nothing_from_the_global_generator(folder: Path) -> None:
    import torch

    before = torch.random.get_rng_state()
    BertScorer(Encoder.load(folder, LAYERS)).score_all(["the sea"], ["a word"])
    assert torch.equal(torch.random.get_rng_state(), before)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def damaged(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:100])


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (without("config.json"), MissingError, "no config.json"),
        (without("model.safetensors"), MissingError, "no weights"),
        (damaged("model.safetensors"), BadDataError, "cannot be loaded"),
        (damaged("config.json"), BadDataError, "cannot be loaded"),
        (damaged("tokenizer.json"), BadDataError, "cannot be loaded"),
    ],
)
def test_a_folder_that_is_no_whole_encoder_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], error: type[ReproError], message: str
) -> None:
    folder = write_encoder(tmp_path / "tiny")
    spoil(folder)
    with pytest.raises(error, match=message):
        Encoder.load(folder, LAYERS)


@pytest.mark.parametrize("name", ["roberta-large", "microsoft/deberta-xlarge-mnli", "scibert-scivocab-uncased"])
def test_a_name_is_no_folder_and_is_not_looked_up(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match=f'no such folder: "{name}"') as refused:
        Encoder.load(name, 17)
    assert refused.value.exit_code == 69


@pytest.mark.parametrize(
    ("layers", "tokens", "message"),
    [(3, None, "layers"), (-1, None, "layers"), (LAYERS, 65, "64 positions"), (LAYERS, 2, "no room for a word")],
)
def test_numbers_that_the_model_does_not_allow_are_refused(
    folder: Path, layers: int, tokens: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Encoder.load(folder, layers, tokens)


def test_what_cannot_be_scored_is_refused(encoder: Encoder) -> None:
    scorer = BertScorer(encoder)
    with pytest.raises(BadDataError, match="1 candidates but 2 references"):
        scorer.score_all(["a"], ["a", "the"])
    with pytest.raises(BadDataError, match="references: item 1 is no text"):
        scorer.score_all(["a", "a"], ["a", None])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (None, MissingError),
        ("LAYER,P,R,F\n0,0.1,0.1,0.1\n", BadDataError),
        ("LAYER,P,R,F\n2,0.1,1.0,0.1\n", BadDataError),
        ("LAYER,P,R,F\n2,0.1,nan,0.1\n", BadDataError),
        ("LAYER,P,R,F\n2,0.1\n", BadDataError),
        ("nothing", BadDataError),
    ],
)
def test_a_baseline_is_a_table_with_the_layer(
    tmp_path: Path, encoder: Encoder, table: str | None, error: type[ReproError]
) -> None:
    path = tmp_path / "baseline.tsv"
    if table is not None:
        path.write_text(table)
    with pytest.raises(error):
        BertScorer(encoder, baseline=path)


def test_bert_scores_own_baselines_are_found_by_name() -> None:
    path = shipped_baseline("roberta-large")
    assert path is not None
    assert path.read_text().startswith("LAYER,P,R,F")
    assert shipped_baseline("roberta-large/../roberta-large") is None
    assert shipped_baseline("tiny") is None


def test_offline_holds_while_it_lasts_and_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with bertscore_encoder.offline():
        assert huggingface_hub.is_offline_mode()
        assert os.environ["TRANSFORMERS_OFFLINE"] == "1"
    assert not huggingface_hub.is_offline_mode()
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert "TRANSFORMERS_OFFLINE" not in os.environ


def test_the_encoder_from_the_wheel_tells_paraphrases_from_other_texts() -> None:
    encoder = Encoder.load(embedded_encoder(), bertscore_encoder.EMBEDDED_LAYERS)
    assert encoder.max_tokens == 512
    close, far = BertScorer(encoder).score_all(
        ["the cat sat on the mat", "the cat sat on the mat"],
        ["a cat was sitting on the mat", "quarterly revenue fell by four percent"],
    ).raw.f1  # fmt: skip
    assert close > 0.7 > 0.3 > far


def test_an_encoder_that_is_not_the_known_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bertscore_encoder, "EMBEDDED_SHA256", "0" * 64)
    with pytest.raises(BadDataError, match="sha256 53aa51172d14"):
        embedded_encoder()
    monkeypatch.setattr(bertscore_encoder, "EMBEDDED_FOLDER", "elsewhere")
    with pytest.raises(MissingError, match="without elsewhere"):
        embedded_encoder()
    monkeypatch.setattr(bertscore_encoder, "EMBEDDED_DIST", "no-such-distribution")
    with pytest.raises(MissingError, match="no-such-distribution is not installed"):
        embedded_encoder()
