"""`generate()` of transformers, unchanged, on this model: against loops, sums and brute force written by hand."""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from hf_vanilla import VanillaForConditionalGeneration as Model

BOS, PAD, EOS = 0, 1, 2
ROWS, NEW_TOKENS = 3, 16
TALKATIVE = {"norm_first": True, "position_embedding_type": "learned"}  # what `make_lively` then makes repeats itself

Source = dict[str, Tensor]
Output = GenerateEncoderDecoderOutput | GenerateBeamEncoderDecoderOutput

either_norm = pytest.mark.parametrize("norm_first", [False, True])
either_position = pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
either_search = pytest.mark.parametrize("num_beams", [1, 4])
either_side = pytest.mark.parametrize("padding_side", ["right", "left"])


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def make_lively(make_model: Callable[..., Model]) -> Callable[..., Model]:
    """
    Random models repeat one token for ever. In these a token calls for the fifth after it, <eos> calls loudest, and
    the sub-layers of the decoder, which see source and past, sway the choice.
    """

    def make(seed: int = 23, **changes: object) -> Model:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = make_model(tie_word_embeddings=False, **changes)
        for name, parameter in model.get_decoder().named_parameters():
            if "o_proj" in name or "fc2" in name:
                parameter.mul_(0.15)
        model.lm_head.weight.copy_(model.get_decoder().embed_tokens.weight.roll(5, dims=0))
        model.lm_head.weight[EOS] *= 2
        return model

    return make


@pytest.fixture
def model(make_lively: Callable[..., Model]) -> Model:
    return make_lively()


@pytest.fixture
def source(ragged: dict[str, Tensor]) -> Source:
    return {name: ragged[name] for name in ("input_ids", "attention_mask")}


def padded(source: Source, side: str) -> Source:
    ids = source["input_ids"]
    if side == "left":
        ids = torch.stack([row.roll(int((row == PAD).sum())) for row in ids])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def alone(source: Source, row: int) -> Source:
    return {"input_ids": source["input_ids"][row, source["attention_mask"][row] == 1][None]}


def repeated(source: Source, times: int) -> Source:
    return {name: value.repeat_interleave(times, dim=0) for name, value in source.items()}


def search(model: Model, source: dict[str, Any], **options: Any) -> Output:
    options = {"max_new_tokens": NEW_TOKENS, "return_dict_in_generate": True, "output_scores": True} | options
    return model.generate(**source, **options)


def said(sequence: Tensor | tuple[int, ...]) -> list[int]:
    """Everything up to the first <eos>."""
    tokens = list(map(int, sequence))
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def sentences(model: Model, source: dict[str, Any], **options: Any) -> list[list[int]]:
    return [said(sequence) for sequence in search(model, source, **options).sequences]


def uncached_greedy(model: Model, source: Source, prefix: list[int]) -> list[int]:
    tokens = list(prefix)
    while len(tokens) < len(prefix) + NEW_TOKENS and tokens[-1] != EOS:
        logits = model(**source, decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


def forced_logits(model: Model, source: Source, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of every token after the first, in one pass without a cache, and which of the tokens are not padding."""
    ends = (sequences[:, 1:] == EOS).long()
    return model(**source, decoder_input_ids=sequences[:, :-1], use_cache=False).logits, ends.cumsum(-1) - ends == 0


def likelihood(model: Model, source: Source, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and number of the tokens after the start token, <eos> included."""
    logits, is_said = forced_logits(model, source, sequences)
    log_probs = logits.log_softmax(-1).gather(-1, sequences[:, 1:, None]).squeeze(-1)
    return (log_probs * is_said).sum(-1), is_said.sum(-1)


def every_sentence(vocab_size: int, length: int) -> Tensor:
    """Each sentence of at most `length` tokens once, padded."""
    every = {tuple(said(tokens)) for tokens in product(range(vocab_size), repeat=length)}
    return torch.tensor([(BOS, *tokens, *[PAD] * (length - len(tokens))) for tokens in sorted(every)])


def distribution(logits: Tensor, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> Tensor:
    """Of the `top_k` likeliest tokens those whose likelier ones do not reach `top_p` together."""
    probs = (logits / temperature).softmax(-1)
    if top_k:
        probs = probs * (probs >= probs.topk(top_k).values[..., -1:])
        probs = probs / probs.sum(-1, keepdim=True)
    likelier = probs[..., None, :] > probs[..., :, None]
    probs = probs * ((likelier * probs[..., None, :]).sum(-1) < top_p)
    return probs / probs.sum(-1, keepdim=True)


def assert_same_search(one: Output, other: Output) -> None:
    assert one.sequences.tolist() == other.sequences.tolist()
    torch.testing.assert_close(one.scores, other.scores, atol=1e-5, rtol=0)


def assert_same_row(row: int, together: Output, single: Output, padding: int = 0) -> None:
    assert said(together.sequences[row, padding:]) == said(single.sequences[0])
    scores = tuple(step.unflatten(0, (ROWS, -1))[row] for step in together.scores[: len(single.scores)])
    torch.testing.assert_close(scores, single.scores, atol=1e-5, rtol=0)


@either_norm
@either_position
def test_greedy_search_is_the_loop_of_argmax(
    make_lively: Callable[..., Model], source: Source, norm_first: bool, position_embedding_type: str
) -> None:
    model = make_lively(norm_first=norm_first, position_embedding_type=position_embedding_type)
    expected = [uncached_greedy(model, alone(source, row), [BOS]) for row in range(ROWS)]
    assert len(set(map(len, expected))) > 1
    assert sentences(model, source) == sentences(model, source, num_beams=1) == expected


def test_beam_search_finds_likelier_sentences_than_greedy_search(model: Model, source: Source) -> None:
    greedy, beam = (search(model, source, num_beams=num, length_penalty=0.0).sequences for num in (1, 4))
    assert (likelihood(model, source, beam)[0] > likelihood(model, source, greedy)[0]).all()


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_as_wide_as_all_sentences_finds_what_brute_force_finds(
    make_lively: Callable[..., Model], source: Source, length_penalty: float
) -> None:
    every = every_sentence(vocab_size=6, length=4)
    source = source | {"input_ids": source["input_ids"] % 3 + 3}
    found, greedy = [], []
    for seed in range(24, 29):
        model = make_lively(seed, vocab_size=6)
        options = {"max_new_tokens": 4, "length_penalty": length_penalty, "early_stopping": "never"}
        beam = search(model, source, num_beams=216, **options)
        for row in range(ROWS):
            total, length = likelihood(model, repeated(alone(source, row), len(every)), every)
            best = (total / length**length_penalty).max(0)
            assert said(beam.sequences[row]) == said(every[best.indices])
            torch.testing.assert_close(beam.sequences_scores[row], best.values, atol=1e-5, rtol=0)
        found += map(said, beam.sequences)
        greedy += sentences(model, source, max_new_tokens=4)
    assert len(set(map(len, found))) > 1
    assert found != greedy


@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 0.6, 1.2])
def test_scores_of_beams_are_sorted_sums_of_log_probabilities_over_length_to_the_penalty(
    model: Model, source: Source, length_penalty: float
) -> None:
    beams = search(model, source, num_beams=6, num_return_sequences=6, length_penalty=length_penalty)
    total, length = likelihood(model, repeated(source, 6), beams.sequences)
    assert len(set(length.tolist())) > 1
    torch.testing.assert_close(beams.sequences_scores, total / length**length_penalty, atol=1e-5, rtol=0)
    assert (beams.sequences_scores.view(ROWS, 6).diff() <= 0).all()


@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 8, "top_p": 0.7, "temperature": 1.5}])
def test_sampling_draws_none_but_the_allowed_tokens(model: Model, source: Source, options: dict[str, float]) -> None:
    def are_allowed(**sampling: float) -> Tensor:
        drawn = search(model, alone(source, 0), do_sample=True, num_return_sequences=200, **sampling).sequences
        logits, is_said = forced_logits(model, repeated(alone(source, 0), 200), drawn)
        allowed = distribution(logits, **options) > 0
        return allowed.gather(-1, drawn[:, 1:, None]).squeeze(-1)[is_said]

    assert are_allowed(**{"top_k": 0} | options).all()
    assert not are_allowed(top_k=0).all()


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.6}, {"top_k": 8, "top_p": 0.7, "temperature": 1.5}]
)
def test_sampling_draws_tokens_as_often_as_their_probability_says(
    model: Model, source: Source, options: dict[str, float]
) -> None:
    draws = 20_000
    sampling = {"do_sample": True, "top_k": 0, "num_return_sequences": draws, "max_new_tokens": 1} | options
    counts = search(model, alone(source, 0), **sampling).sequences[:, 1].bincount(minlength=41)
    logits = model(**alone(source, 0), decoder_input_ids=torch.tensor([[BOS]])).logits[0, -1]

    def explains(probs: Tensor) -> bool:
        five_sigma = 5 * (draws * probs * (1 - probs)).sqrt()
        return bool(((counts - draws * probs).abs() <= five_sigma).all())

    assert explains(distribution(logits, **options))
    assert not explains(distribution(logits, **options | {"temperature": 0.9}))


def test_sampling_is_reproducible_under_a_seed(model: Model, source: Source) -> None:
    def drawn(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return sentences(model, source, do_sample=True)

    assert drawn(1) == drawn(1) != drawn(2)


@either_position
def test_a_target_prefix_is_kept_and_continued_as_without_a_cache(
    make_lively: Callable[..., Model], source: Source, position_embedding_type: str
) -> None:
    model = make_lively(position_embedding_type=position_embedding_type)
    prefixes = torch.tensor([[BOS, 5, 6], [BOS, 8, 9], [BOS, 11, 3]])
    expected = [uncached_greedy(model, alone(source, row), prefixes[row].tolist()) for row in range(ROWS)]
    assert sentences(model, source, decoder_input_ids=prefixes) == expected


@either_search
@either_position
@pytest.mark.parametrize("cache", [None, "static"])
def test_target_prefixes_padded_left_are_continued_as_each_alone(
    make_lively: Callable[..., Model], source: Source, position_embedding_type: str, num_beams: int, cache: str | None
) -> None:
    model = make_lively(position_embedding_type=position_embedding_type)
    prefixes = torch.tensor([[BOS, 5, 6, 7], [PAD, PAD, BOS, 8], [PAD, BOS, 9, 10]])
    mask = (prefixes != PAD).long()
    given = {"decoder_input_ids": prefixes, "decoder_attention_mask": mask, "cache_implementation": cache}
    together = search(model, source, num_beams=num_beams, **given)
    for row in range(ROWS):
        prefix = prefixes[row, mask[row] == 1]
        single = search(model, alone(source, row), num_beams=num_beams, decoder_input_ids=prefix[None])
        assert_same_row(row, together, single, padding=4 - len(prefix))


@either_search
@pytest.mark.parametrize(
    ("option", "value", "holds"),
    [
        ("forced_bos_token_id", 7, lambda tokens: tokens[1] == 7),
        ("min_new_tokens", 6, lambda tokens: len(tokens) > 7),
        ("bad_words_ids", [[14], [20, 25]], lambda tokens: 14 not in tokens and (20, 25) not in pairwise(tokens)),
        ("no_repeat_ngram_size", 2, lambda tokens: len(set(pairwise(tokens))) == len(tokens) - 1),
    ],
)
def test_a_constraint_holds_for_every_output(
    make_lively: Callable[..., Model],
    source: Source,
    num_beams: int,
    option: str,
    value: object,
    holds: Callable[[list[int]], bool],
) -> None:
    model = make_lively(**TALKATIVE)
    assert not all(map(holds, sentences(model, source, num_beams=num_beams)))
    assert all(map(holds, sentences(model, source, num_beams=num_beams, **{option: value})))


@either_search
@either_side
def test_a_static_cache_changes_nothing(model: Model, source: Source, padding_side: str, num_beams: int) -> None:
    source = padded(source, padding_side)
    dynamic = search(model, source, num_beams=num_beams)
    assert_same_search(search(model, source, num_beams=num_beams, cache_implementation="static"), dynamic)


@either_norm
@either_position
@either_side
def test_cached_logits_are_the_uncached_ones_at_every_length(
    make_model: Callable[..., Model],
    ragged: dict[str, Tensor],
    source: Source,
    padding_side: str,
    norm_first: bool,
    position_embedding_type: str,
) -> None:
    model = make_model(norm_first=norm_first, position_embedding_type=position_embedding_type)
    source, cache = padded(source, padding_side), None
    target = model.prepare_decoder_input_ids_from_labels(ragged["labels"])
    for length in range(1, target.shape[1] + 1):
        uncached = model(**source, decoder_input_ids=target[:, :length], use_cache=False)
        cached = model(**source, decoder_input_ids=target[:, length - 1 : length], past_key_values=cache)
        cache = cached.past_key_values
        torch.testing.assert_close(cached.logits, uncached.logits[:, -1:], atol=1e-5, rtol=0)
    assert cache.get_seq_length() == target.shape[1]


@either_search
@either_side
@either_position
def test_a_padded_batch_says_what_each_sentence_says_alone(
    make_lively: Callable[..., Model],
    source: Source,
    padding_side: str,
    num_beams: int,
    position_embedding_type: str,
) -> None:
    model = make_lively(position_embedding_type=position_embedding_type)
    together = search(model, padded(source, padding_side), num_beams=num_beams)
    assert len({len(said(sequence)) for sequence in together.sequences}) > 1
    for row in range(ROWS):
        assert_same_row(row, together, search(model, alone(source, row), num_beams=num_beams))


@either_search
@pytest.mark.parametrize("given", ["encoder_outputs", "inputs_embeds"])
def test_sources_encoded_or_embedded_before_are_searched_like_their_ids(
    model: Model, source: Source, given: str, num_beams: int
) -> None:
    prepared = {
        "encoder_outputs": model.get_encoder()(**source),
        "inputs_embeds": model.get_input_embeddings()(source["input_ids"]),
    }
    inputs = {given: prepared[given], "attention_mask": source["attention_mask"]}
    assert_same_search(search(model, inputs, num_beams=num_beams), search(model, source, num_beams=num_beams))


@either_search
def test_outputs_have_the_documented_shapes(make_lively: Callable[..., Model], source: Source, num_beams: int) -> None:
    B, S, D, H, N = ROWS, 7, 16, 4, 41
    hypotheses = B * num_beams
    asked = dict.fromkeys(("output_attentions", "output_hidden_states", "output_logits"), True)
    outputs = search(make_lively(attn_implementation="eager"), source, num_beams=num_beams, **asked)
    steps = range(1, len(outputs.scores) + 1)
    assert len(steps) >= outputs.sequences.shape[1] - 1 > 1

    def shapes(tensors: Any) -> Any:
        return list(tensors.shape) if isinstance(tensors, Tensor) else [shapes(tensor) for tensor in tensors]

    assert shapes(outputs.scores) == shapes(outputs.logits) == [[hypotheses, N] for _ in steps]
    assert shapes(outputs.encoder_attentions) == [[B, H, S, S]] * 2
    assert shapes(outputs.encoder_hidden_states) == [[B, S, D]] * (2 + 1)
    assert shapes(outputs.decoder_attentions) == [[[hypotheses, H, 1, step]] * 3 for step in steps]
    assert shapes(outputs.cross_attentions) == [[[hypotheses, H, 1, S]] * 3 for _ in steps]
    assert shapes(outputs.decoder_hidden_states) == [[[hypotheses, 1, D]] * (3 + 1) for _ in steps]


@either_search
def test_nothing_but_padding_follows_the_end_of_a_sentence(model: Model, source: Source, num_beams: int) -> None:
    sequences = search(model, source, num_beams=num_beams).sequences
    rests = [sequence[len(said(sequence)) :].tolist() for sequence in sequences]
    assert len(set(map(len, rests))) > 1
    assert all(set(rest) <= {PAD} for rest in rests)


@pytest.mark.parametrize("helper", ["prompt_lookup_num_tokens", "assistant_model"])
def test_guessing_ahead_says_what_greedy_search_says_in_fewer_steps(
    make_lively: Callable[..., Model], source: Source, helper: str
) -> None:
    model, smaller, steps = make_lively(**TALKATIVE), make_lively(**TALKATIVE, decoder_layers=1), []
    model.lm_head.register_forward_hook(lambda *_: steps.append(1))
    guessed = [
        sentences(model, alone(source, row), **{helper: smaller if helper == "assistant_model" else 3})[0]
        for row in range(ROWS)
    ]
    assert len(steps) < sum(len(tokens) - 1 for tokens in guessed)
    assert guessed == sentences(model, source)


def test_generation_defaults_survive_saving(model: Model, source: Source, tmp_path: Path) -> None:
    ids = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": BOS}
    before = model.generate(**source, max_new_tokens=NEW_TOKENS).tolist()
    model.generation_config = GenerationConfig(
        num_beams=3, length_penalty=0.3, max_new_tokens=9, no_repeat_ngram_size=2, **ids
    )
    model.save_pretrained(tmp_path)
    loaded = Model.from_pretrained(tmp_path)
    assert loaded.generation_config == model.generation_config
    assert loaded.generate(**source).tolist() == model.generate(**source).tolist() != before
