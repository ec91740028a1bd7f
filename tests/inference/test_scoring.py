"""Log-probabilities of given targets are those of the model, whatever stands beside them."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch

from hf_vanilla.data.errors import TextWarning
from hf_vanilla.inference import scoring
from hf_vanilla.inference.scoring import log_probabilities
from hf_vanilla.inference.translator import Translator

MakeTranslator = Callable[..., Translator]

PAIRS = [("a few words", "words"), ("ten", "few few few"), ("", "x"), ("xyz", ""), ("more", "a b c d e f g h")]


def test_each_token_has_the_log_probability_that_the_model_gives_it(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    found = translator.score(*map(list, zip(*PAIRS, strict=True)))
    for (source, target), score in zip(PAIRS, found, strict=True):
        ids, targets = translator.encode_batch([source]), translator.encoder.targets([target])
        given = {"input_ids": torch.tensor(ids), "decoder_input_ids": torch.tensor([[0, *targets[0][:-1]]])}
        with torch.no_grad():
            expected = translator.model(**given).logits[0].log_softmax(-1)[range(len(targets[0])), targets[0]]
        assert score.token_log_probabilities == pytest.approx(expected.tolist(), abs=1e-5)
        assert score.log_probability == pytest.approx(expected.double().sum().item(), abs=1e-5)
        assert score.tokens == [*target, "</s>"]


def test_scores_do_not_depend_on_batches(make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = make_translator()
    ids = (
        [translator.encode_batch([source])[0] for source, _ in PAIRS],
        [translator.encoder.targets([target])[0] for _, target in PAIRS],
    )
    whole = log_probabilities(translator.model, *ids, max_tokens=10_000)
    monkeypatch.setattr(scoring, "MAX_LOGITS", 20 * translator.model.config.vocab_size)
    parts = log_probabilities(translator.model, *ids, max_tokens=10_000)
    for one, other, target in zip(whole, parts, ids[1], strict=True):
        assert len(one) == len(target)
        assert one == pytest.approx(other, abs=1e-5)


def test_a_target_that_is_too_long_has_no_score_and_is_named(make_translator: MakeTranslator) -> None:
    translator = make_translator(position_embedding_type="learned", max_position_embeddings=8)
    with pytest.warns(TextWarning, match="target 2 has 12 tokens, more than the limit of 8"):
        one, two, three = translator.score(["a", "b", "c"], ["ten", "a few words", "x"])
    assert math.isnan(two.log_probability)
    assert math.isfinite(one.log_probability + three.log_probability)


def test_a_pair_and_an_iterable_of_pairs(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = translator.score("ten", "few")
        (same,) = translator.score(iter(["ten"]), iter(["few"]))
    assert one == same
