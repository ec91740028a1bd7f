"""An alignment is the model's own attention, between words; reading it leaves the model as it was."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference import alignment_choice, alignments
from hf_vanilla.inference.alignment_choice import AlignmentChoice, choose_alignment
from hf_vanilla.inference.alignments import (
    Aligner,
    AlignmentSettings,
    AttentionMap,
    Row,
    between_units,
    cross_attentions,
    error_rate,
    inputs_of,
    links_of,
)
from hf_vanilla.inference.units import Membership
from hf_vanilla.inference.word_statistics import best_links, links_in_both_directions
from hf_vanilla.models import guard_vanilla

Model = VanillaForConditionalGeneration

WORDS = "ape bee cat dog elk fox".split()  # noqa: SIM905
SOURCES = [("dog bee ape",), ("cat",), ("elk fox cat ape dog bee fox ape",), ("",), ("bee elk",)]
TARGETS = ["ape bee dog elk", "fox cat", "bee", "cat", ""]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(WORDS, "word")


@pytest.fixture
def model(make_model: Callable[..., Model], tokenizer: PreTrainedTokenizerFast) -> Model:
    return make_model(vocab_size=len(tokenizer))


def aligner(model: Model, tokenizer: PreTrainedTokenizerFast, *attention: object, **arguments: int) -> Aligner:
    return Aligner(model, tokenizer, AlignmentSettings(AttentionMap(*attention)), **arguments)


# --- The attention --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["output", "input"])
@pytest.mark.parametrize("head", [None, 2])
def test_attention_is_that_of_the_model_at_the_row_asked_for(
    row: Row, head: int | None, model: Model, tokenizer: PreTrainedTokenizerFast
) -> None:
    (found,) = aligner(model, tokenizer, 1, head, row).align([SOURCES[0]], [TARGETS[0]])
    source = torch.tensor([[*tokenizer.convert_tokens_to_ids(SOURCES[0][0].split()), 2]])
    target = tokenizer.convert_tokens_to_ids(TARGETS[0].split())
    model.set_attn_implementation("eager")
    read = model(input_ids=source, decoder_input_ids=torch.tensor([[0, *target]]), output_attentions=True)
    heads = read.cross_attentions[1][0]
    expected = heads.mean(0) if head is None else heads[head]
    expected = expected[:-1] if row == "output" else expected[1:]
    assert found.weights == pytest.approx(expected[:, :-1].detach().numpy(), abs=1e-6)
    assert found.outside == pytest.approx(expected[:, -1].detach().numpy(), abs=1e-6)


def test_all_attention_of_a_word_is_on_words_and_outside(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    for found in aligner(model, tokenizer, 2).align(SOURCES, TARGETS):
        assert found.weights.sum(1) + found.outside == pytest.approx(1, abs=1e-6) or not found.weights.size


def test_padding_gets_no_attention(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = aligner(model, tokenizer, 0).encode(SOURCES, TARGETS)
    padded = inputs_of(model, pairs)
    with alignments.reading_attention(model), alignments.recorded(model, [0, 2]) as attentions:
        model.base_model(**padded)
    hidden = padded["attention_mask"][:, None, None].expand(-1, 4, padded["decoder_input_ids"].shape[1], -1) == 0
    assert hidden.any()
    for attention in attentions.values():
        assert attention[hidden].eq(0).all()


@pytest.mark.parametrize("max_tokens", [1, 12, 10_000])
def test_a_pair_is_aligned_as_if_it_were_alone(
    max_tokens: int, model: Model, tokenizer: PreTrainedTokenizerFast
) -> None:
    together = aligner(model, tokenizer, 1, 3, max_tokens=max_tokens).align(SOURCES, TARGETS)
    assert len(together) == len(SOURCES)
    for source, target, found in zip(SOURCES, TARGETS, together, strict=True):
        (alone,) = aligner(model, tokenizer, 1, 3).align([source], [target])
        assert found.weights == pytest.approx(alone.weights, abs=1e-6)
        assert found.weights.shape == (len(target.split()), len(source[0].split()))
        assert found.links == alone.links


def test_batches_are_bounded_by_tokens_and_by_attention_weights(
    model: Model, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = aligner(model, tokenizer, 0).encode([("ape " * length,) for length in range(1, 41)], ["bee"] * 40)

    def sizes(max_tokens: int) -> list[int]:
        batches = list(alignments.batches(pairs, 4, max_tokens))
        assert sorted(pair.index for batch in batches for pair in batch) == list(range(40))
        assert all(len(batch) * batch[0].length <= max_tokens for batch in batches)
        assert all(len(batch) * 4 * batch[0].length ** 2 <= alignments.MAX_WEIGHTS for batch in batches)
        return [len(batch) for batch in batches]

    assert len(sizes(10_000)) == 1
    assert len(sizes(100)) > 1
    monkeypatch.setattr(alignments, "MAX_WEIGHTS", 4 * 41**2)
    assert len(sizes(10_000)) > 1


def test_no_words_no_links(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    for source, target in ((("",), "cat"), (("cat",), ""), (("  ",), " "), (("",), "")):
        (found,) = aligner(model, tokenizer, 0).align([source], [target])
        assert (found.links, str(found)) == ((), "")
    assert aligner(model, tokenizer, 0).align([], []) == []


def test_what_a_model_has_found_is_read_token_by_token(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    plain = aligner(model, tokenizer, 0)
    ids = tokenizer.convert_tokens_to_ids(["fox", "cat"])
    for found in ([*ids, 2], ids, [*ids, 2, 2]):
        (given,) = plain.align([SOURCES[0]], ["fox cat"], target_ids=[found])
        assert given.weights == pytest.approx(plain.align([SOURCES[0]], ["fox cat"])[0].weights)


@pytest.mark.parametrize("row", ["output", "input"])
def test_a_target_that_was_cut_at_the_last_learned_position(
    row: Row, make_model: Callable[..., Model], tokenizer: PreTrainedTokenizerFast
) -> None:
    """Its last token is predicted, but never read."""
    changes = {"position_embedding_type": "learned", "max_position_embeddings": 6}
    plain = aligner(make_model(vocab_size=len(tokenizer), **changes), tokenizer, 1, 2, row)
    texts = ["ape bee dog elk fox cat", "ape bee dog elk fox"]
    ids = [tokenizer.convert_tokens_to_ids(text.split()) for text in texts]
    cut, whole = plain.align([SOURCES[0]] * 2, texts, target_ids=[ids[0], [*ids[1], tokenizer.eos_token_id]])
    assert len(whole.links) == 5
    if row == "input":
        assert cut.links == ()
    else:
        assert len(cut.links) == 6
        assert cut.weights[:5] == pytest.approx(whole.weights, abs=1e-6)
        assert cut.weights.sum(1) + cut.outside == pytest.approx(np.ones(6), abs=1e-6)


# --- The model afterwards -------------------------------------------------------------------------------------------


def state_of(model: Model) -> tuple[object, ...]:
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    return model.config._attn_implementation, hooks, [module.training for module in model.modules()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_model_is_changed_afterwards(
    implementation: str,
    fails: bool,
    model: Model,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.set_attn_implementation(implementation)
    model.train()
    model.model.encoder.eval()
    before, weights = state_of(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if fails:
        monkeypatch.setattr(model.model.decoder, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            aligner(model, tokenizer, 0).align(SOURCES, TARGETS)
    else:
        aligner(model, tokenizer, 0).align(SOURCES, TARGETS)
    assert state_of(model) == before
    assert torch.is_grad_enabled()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_dropout_does_not_change_an_alignment(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    before = aligner(model, tokenizer, 0).align(SOURCES[:1], TARGETS[:1])[0].weights
    assert aligner(model.train(), tokenizer, 0).align(SOURCES[:1], TARGETS[:1])[0].weights == pytest.approx(before)


def test_the_fast_search_is_still_taken_afterwards(
    model: Model, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    search = guard_vanilla.our_search
    monkeypatch.setattr(guard_vanilla, "our_search", lambda *a, **k: taken.append(1) or search(*a, **k))
    chosen = AlignmentChoice(AlignmentSettings(AttentionMap(1)), 0.25, 7)
    model.generation_config.alignment = chosen.as_dict()
    Aligner(model, tokenizer).align(SOURCES, TARGETS)
    model.generate(torch.tensor([[5, 6, 2]]), num_beams=2, max_length=6)
    assert taken


# --- From tokens to words to links ----------------------------------------------------------------------------------


def test_source_tokens_are_summed_and_target_tokens_averaged() -> None:
    """The source words have the tokens 0 and 1, and 2; the last one is <eos>. The target words have 0, and 1 and 2."""
    sources = Membership(np.array([0, 1, 2]), np.array([0, 0, 1]), 2, np.array([True, True, True, False]))
    targets = Membership(np.array([0, 1, 2]), np.array([0, 1, 1]), 2, np.array([True] * 3))
    attention = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.0, 0.1, 0.8, 0.1]])
    weights, outside = between_units(attention, sources, targets)
    assert weights == pytest.approx(np.array([[0.3, 0.3], [0.35, 0.5]]))
    assert outside == pytest.approx([0.4, 0.15])
    several, rest = between_units(np.stack([attention, attention[::-1]]), sources, targets)
    assert several[0] == pytest.approx(weights)
    assert several[1, 0] == pytest.approx([0.1, 0.8])
    assert rest.shape == (2, 2)


def test_a_source_token_of_two_characters_is_shared_out() -> None:
    sources = Membership(np.array([0, 0, 1]), np.array([0, 1, 2]), 3, np.array([True, True]))
    targets = Membership(np.array([0]), np.array([0]), 1, np.array([True]))
    assert between_units(np.array([[0.6, 0.4]]), sources, targets)[0] == pytest.approx(np.array([[0.3, 0.3, 0.4]]))


def test_the_strongest_source_word_is_linked_also_if_the_sentence_end_is_stronger() -> None:
    assert links_of(np.array([[0.1, 0.3], [0.0, 0.0], [0.02, 0.01]])) == ((1, 0), (0, 2))


def test_the_error_rate_is_that_of_a_case_worked_by_hand() -> None:
    """A has 5 links; S 3, of which A has 2; P 5, the sure ones among them, of which A has 3: 1 - (2 + 3) / (5 + 3)."""
    found, sure = [{(0, 0), (1, 1), (2, 2)}, {(0, 0), (3, 0)}], [{(0, 0), (1, 2)}, {(0, 0)}]
    possible = [{(0, 0), (1, 2), (1, 1)}, {(1, 0)}]  # (0, 0) of the second pair is sure, so it is possible as well
    assert error_rate(found, sure, possible) == pytest.approx(1 - 5 / 8)
    assert error_rate([{(0, 0)}], [{(0, 0)}], [set()]) == 0
    assert error_rate([{(0, 1)}], [set()], [{(0, 1)}]) == 0
    assert error_rate([set()], [set()], [set()]) == 0


# --- Which map is chosen --------------------------------------------------------------------------------------------

LAYER, HEAD = 1, 2


def planted(tokenizer: PreTrainedTokenizerFast, row: Row) -> Model:
    """
    A model with one head that attends to the source word equal to the target word, where that is read or predicted.

    It can predict, as target words follow each other in the order of the vocabulary.
    """
    size = len(tokenizer)
    width = 4 * size
    config = VanillaConfig(
        vocab_size=size, d_model=width, num_heads=4, d_ff=8, encoder_layers=1, decoder_layers=3, norm_first=True
    )
    model = VanillaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            for name, weights in layer.named_parameters():
                if "o_proj" in name or "fc2" in name:
                    weights.zero_()  # so that the states stay the embeddings
        model.get_input_embeddings().weight.copy_(torch.eye(size, width))
        attention = model.model.decoder.layers[LAYER].cross_attn
        words = torch.eye(size, width)
        for head in range(4):  # all others look for one and the same other word
            step = (row == "output") + 2 * (head != HEAD)
            attention.k_proj.weight[head * size : (head + 1) * size] = 10 * words
            attention.q_proj.weight[head * size : (head + 1) * size] = 10 * words.roll(step, 0)
    return model


def in_any_order(number: int) -> list[tuple[tuple[str], str]]:
    """Pairs of some words in any order, and the same words in the order of the alphabet."""
    random, pairs = Random(3), []  # noqa: S311
    for index in range(number):
        words = WORDS[index % 4 : index % 4 + 3]
        pairs.append(((" ".join(random.sample(words, len(words))),), " ".join(words)))
    return pairs


@pytest.mark.parametrize("row", ["output", "input"])
def test_the_planted_map_is_chosen_and_gives_the_planted_links(row: Row, tokenizer: PreTrainedTokenizerFast) -> None:
    model, pairs = planted(tokenizer, row), in_any_order(120)
    choice = choose_alignment(model, tokenizer, pairs[:40], pairs[40:])
    assert choice.settings == AlignmentSettings(AttentionMap(LAYER, HEAD, row), "word", "word")
    assert choice.pairs == 40
    found = Aligner(model, tokenizer, choice.settings).align(*zip(*pairs, strict=True))
    for ((source,), target), alignment in zip(pairs, found, strict=True):
        right = [(source.split().index(word), place) for place, word in enumerate(target.split())]
        assert list(alignment.links[1:]) == right[1:]
        assert (
            alignment.links[0] == right[0] or row == "output"
        )  # the first word cannot be foreseen from the one before


def test_the_other_row_of_the_same_head_is_seen_to_be_wrong(tokenizer: PreTrainedTokenizerFast) -> None:
    model, pairs = planted(tokenizer, "input"), in_any_order(120)
    words = [(source.split(), target.split()) for (source,), target in pairs]
    encoded = aligner(model, tokenizer, 0).encode(*zip(*pairs, strict=True))
    errors = alignment_choice.errors_of_maps(model, encoded, *links_in_both_directions(words, len(words)))
    assert len(errors) == 3 * 5 * 2
    assert errors[AttentionMap(LAYER, HEAD, "input")] < 0.05
    assert errors[AttentionMap(LAYER, HEAD, "output")] > 0.5


def test_the_choice_is_the_same_whenever_it_is_made(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = in_any_order(60)
    first = choose_alignment(model, tokenizer, pairs[:20], pairs[20:])
    torch.manual_seed(99)
    assert choose_alignment(model, tokenizer, pairs[:20], pairs[20:]) == first


def test_no_more_is_counted_than_asked_for(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = in_any_order(40)
    assert choose_alignment(model, tokenizer, pairs, pairs, max_cells=12 * 17).pairs == 17


def test_the_choice_travels_with_the_model(model: Model, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    settings = AlignmentSettings(AttentionMap(2, None, "input"), "character", "word")
    model.generation_config.alignment = AlignmentChoice(settings, 0.123456, 9).as_dict()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert AlignmentSettings.of(loaded) == settings
    assert loaded.generation_config.alignment["error"] == 0.1235


def test_a_model_without_a_choice_says_what_to_do(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InvalidDataError, match=r"no 'alignment' in its generation_config.json.*hf-vanilla train"):
        Aligner(model, tokenizer)


def test_statistics_find_which_words_translate_which() -> None:
    dictionary = {"ape": "affe", "bee": "biene", "cat": "katze", "dog": "hund", "elk": "elch", "fox": "fuchs"}
    pairs = [
        (source.split(), [*(dictionary[w] for w in target.split()), "!"]) for (source,), target in in_any_order(240)
    ]
    for (source, target), links in zip(pairs, best_links(pairs, 30), strict=False):
        right = {(source.index(word), target.index(dictionary[word])) for word in source}
        assert {link for link in links if link[1] < 3} == right
    sure, possible = links_in_both_directions(pairs, 30)
    assert all(one <= other for one, other in zip(sure, possible, strict=True))
    assert len(sure) == 30


def test_only_the_layers_asked_for_are_read(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = aligner(model, tokenizer, 0).encode(SOURCES, TARGETS)
    read = list(cross_attentions(model, pairs, [2, 0]))
    assert {pair.index for pair, _ in read} == {0, 1, 2}
    for pair, attentions in read:
        assert [a.shape for a in attentions] == [(4, len(pair.target_ids), len(pair.source_ids))] * 2
        assert not np.allclose(*attentions)
