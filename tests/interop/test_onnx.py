"""The ONNX graphs compute what the model computes, and the search over them finds what `generate()` finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla import Translator
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.tokenizer import Columns, train_tokenizer
from hf_vanilla.inference import onnx_engine
from hf_vanilla.inference.engine import EngineError, Found
from hf_vanilla.inference.onnx_search import DECODER, ENCODER, Beam, Graphs, Search, search_batch
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.export import export as export_to
from hf_vanilla.interop.onnx_graph import rounded
from hf_vanilla.interop.to_onnx import ACTIVATIONS, export, write_graphs
from hf_vanilla.run_directory import MODEL_CONFIG

MakeModel = Callable[..., Model]

SHAPES = [
    {},
    {"norm_first": True, "layer_norm_eps": 1e-3},
    {"position_embedding_type": "learned", "max_position_embeddings": 30, "tie_word_embeddings": False},
    {"d_kv": 5, "d_v": 3, "encoder_layers": 1},
]
SOURCES = [[7, 30, 12, 9, 2], [5, 2], [22, 8, 8, 40, 17, 33, 6, 2], [11, 3, 19, 2]]


def graphs_of(model: Model, folder: Path, **options: Any) -> Graphs:
    folder.mkdir(exist_ok=True)
    write_graphs(model, folder, **options)
    return Graphs(folder, threads=1)


def check_logits(model: Model, graphs: Graphs, ragged: dict[str, torch.Tensor], tolerance: float = 2e-5) -> None:
    """States, then logits and attention of a target in two steps, and of its first row by itself."""
    source, mask = ragged["input_ids"], ragged["attention_mask"]
    target = model.prepare_decoder_input_ids_from_labels(ragged["labels"])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = model(source, mask, decoder_input_ids=target, output_attentions=True, use_cache=False)
    asked = {"input_ids": source.numpy(), "attention_mask": mask.numpy()}
    states, *keys = graphs.encoder.run(["last_hidden_state", *(f"source.{each}" for each in graphs.layers)], asked)
    inside = mask.bool().numpy()
    np.testing.assert_allclose(
        states[inside], wanted.encoder_last_hidden_state.numpy()[inside], atol=tolerance, rtol=tolerance
    )
    source_states = {f"source.{name}": each for name, each in zip(graphs.layers, keys, strict=True)}
    first, past = graphs.decode(target[:, :2].numpy(), source_states | {"attention_mask": mask.numpy()}, None)
    last, _ = graphs.decode(target[:, 2:].numpy(), source_states | {"attention_mask": mask.numpy()}, past)
    scale = wanted.logits.abs().max().item()
    for found, position in ((first, 1), (last, -1)):
        np.testing.assert_allclose(found, wanted.logits[:, position].numpy(), atol=tolerance * scale, rtol=tolerance)
    none_yet = {f"past.{name}": each[:, :, :0] for name, each in zip(graphs.layers, past, strict=True)}
    whole = source_states | none_yet | {"input_ids": target.numpy(), "attention_mask": mask.numpy()}
    names = [f"attention.{layer}" for layer in range(model.config.decoder_layers)]
    logits, *attentions = graphs.decoder.run(["logits", *names], whole)
    np.testing.assert_allclose(logits, wanted.logits.numpy(), atol=tolerance * scale, rtol=tolerance)
    for found, expected in zip(attentions, wanted.cross_attentions, strict=True):
        np.testing.assert_allclose(found, expected.numpy(), atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(shape) or "paper")
def test_the_graphs_compute_the_logits_and_attention_of_the_model(
    shape: dict[str, Any], make_model: MakeModel, tmp_path: Path, ragged: dict[str, torch.Tensor]
) -> None:
    model = make_model(**shape)
    check_logits(model, graphs_of(model, tmp_path), ragged)


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"gelu"}))
def test_each_activation_is_that_of_the_model(
    activation: str, make_model: MakeModel, tmp_path: Path, ragged: dict[str, torch.Tensor]
) -> None:
    model = make_model(activation_function=activation, encoder_layers=1, decoder_layers=1)
    check_logits(model, graphs_of(model, tmp_path), ragged)


def test_padding_in_front_of_a_source_takes_up_no_position(make_model: MakeModel, tmp_path: Path) -> None:
    graphs = graphs_of(make_model(), tmp_path)
    ids, mask = np.array([[1, 1, 7, 30, 2]]), np.array([[0, 0, 1, 1, 1]])
    padded = graphs.encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})[0]
    plain = graphs.encoder.run(["last_hidden_state"], {"input_ids": ids[:, 2:], "attention_mask": mask[:, 2:]})[0]
    np.testing.assert_allclose(padded[:, 2:], plain, atol=1e-5)


def test_a_single_source_serves_any_number_of_hypotheses(make_model: MakeModel, tmp_path: Path) -> None:
    graphs = graphs_of(make_model(), tmp_path)
    source, tokens = graphs.encode(SOURCES[:1]), np.array([[0, 9], [0, 20], [0, 31]])
    repeated = {name: states.repeat(3, 0) for name, states in source.items()}
    np.testing.assert_array_equal(graphs.decode(tokens, source, None)[0], graphs.decode(tokens, repeated, None)[0])


def test_eight_bits_are_those_of_a_model_with_rounded_weights(
    make_model: MakeModel, tmp_path: Path, ragged: dict[str, torch.Tensor]
) -> None:
    """Only weights are rounded: to the nearest of 255 values of each row, and nothing while computing."""
    model = make_model(tie_word_embeddings=False)
    graphs = graphs_of(model, tmp_path, in_eight_bits=True)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                step = module.weight.abs().amax(1, keepdim=True) / 127
                whole = (module.weight / step).round()
                assert whole.abs().max() == 127
                module.weight.copy_(whole * step)
    check_logits(model, graphs, ragged)


def test_rows_of_zeros_stay_zeros_in_eight_bits() -> None:
    whole, scales = rounded(np.array([[0, 0], [0.5, -1]], np.float32))
    assert (whole * scales).tolist() == [[0, 0], [pytest.approx(64 / 127), -1]]


def test_tied_weights_are_stored_once(make_model: MakeModel, tmp_path: Path) -> None:
    sizes = []
    for tied in (True, False):
        graphs_of(make_model(tie_word_embeddings=tied, vocab_size=4000), tmp_path)
        sizes.append((tmp_path / DECODER).stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(4000 * 16 * 4, abs=500)


def decisive(model: Model, gain: float = 2.0) -> Model:
    """No two hypotheses so near that rounding could decide."""
    with torch.no_grad():
        output = model.lm_head.weight
        output.mul_(gain)
        output[2] = 0.35 * output[torch.tensor([7, 19, 23, 31, 38])].sum(0)
    return model


GNMT = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}
OPTIONS: list[dict[str, Any]] = [
    {"num_beams": 1, "max_length": 15},
    {"num_beams": 4, "num_return_sequences": 4, "max_length": 15},
    {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 9, "length_penalty": 0.4},
    {"num_beams": 5, "num_return_sequences": 5, "max_length": 12, "length_penalty": 0.0},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 12, "length_penalty": -0.5, "early_stopping": "never"},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 14, "length_penalty": 1.3, "early_stopping": True},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 14, "length_penalty": 1.7, "early_stopping": "never"},
    GNMT | {"num_beams": 4, "num_return_sequences": 4, "max_length_beyond_source": 4, "early_stopping": "never"},
    {"num_beams": 4, "num_return_sequences": 4, "max_length_beyond_source": 2, "max_length": 8},
    {"num_beams": 4, "num_return_sequences": 4, "max_length_beyond_source": 6, "max_new_tokens": 7},
    {"num_beams": 1, "max_length_beyond_source": 1, "length_penalty_type": "gnmt"},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 14, "min_length": 8},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 14, "min_new_tokens": 6},
    {"num_beams": 1, "max_length": 14, "min_new_tokens": 6},
    {"num_beams": 4, "num_return_sequences": 4, "max_length": 12, "suppress_tokens": [7, 19, 31]},
    {"num_beams": 4, "num_return_sequences": 4, "max_length": 12, "begin_suppress_tokens": [23, 38, 2]},
    {"num_beams": 4, "num_return_sequences": 4, "max_length": 12, "bad_words_ids": [[7], [19], [2]]},
    {"num_beams": 1, "max_length": 12, "bad_words_ids": [[7], [23]], "suppress_tokens": [19]},
    {"num_beams": 3, "num_return_sequences": 3, "max_length": 12, "eos_token_id": [2, 19]},
    {"num_beams": 3, "num_return_sequences": 2},
    {
        "num_beams": 4,
        "num_return_sequences": 4,
        "max_length": 12,
        "suppress_tokens": [7, 19],
        "renormalize_logits": True,
    },
    {"num_beams": 4, "num_return_sequences": 4, "max_length": 6, "forced_eos_token_id": 2, "length_penalty": 1.4},
    {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 4, "forced_eos_token_id": [9]},
    {"num_beams": 1, "max_length": 6, "forced_eos_token_id": 2, "bad_words_ids": [[7]], "renormalize_logits": True},
    {"num_beams": 4, "num_return_sequences": 4, "max_length_beyond_source": 1, "forced_eos_token_id": 2},
    {"num_beams": 3, "max_length_beyond_source": 1, "max_length": 40, "forced_eos_token_id": 2, "length_penalty": 2.0},
]


def found_by_generate(
    model: Model, beginnings: list[list[int]] | None, sources: list[list[int]] = SOURCES, **options: Any
) -> list[list[tuple[list[int], float]]]:
    longest = max(map(len, sources))
    ids = torch.tensor([[*row, *[1] * (longest - len(row))] for row in sources])
    given = None if beginnings is None else torch.tensor([[0, *row] for row in beginnings])
    found = model.generate(
        ids, attention_mask=(ids != 1).long(), decoder_input_ids=given, return_sequence_scores=True, **options
    )
    each = len(found.sequences) // len(sources)
    ends = options.get("eos_token_id", 2)
    rows = [until_end(row[1:], ends if isinstance(ends, list) else [ends]) for row in found.sequences.tolist()]
    pairs = list(zip(rows, found.sequences_scores.tolist(), strict=True))
    return [pairs[start : start + each] for start in range(0, len(pairs), each)]


def until_end(tokens: list[int], ends: list[int]) -> list[int]:
    last = next((place for place, token in enumerate(tokens) if token in ends), None)
    row = tokens if last is None else tokens[: last + 1]
    while row and row[-1] == 1:
        row = row[:-1]
    return row


def check_same(ours: Any, theirs: Any) -> None:
    for row, wanted in zip(ours, theirs, strict=True):
        assert [found.token_ids for found in row] == [tokens for tokens, _ in wanted]
        assert [found.score for found in row] == pytest.approx([score for _, score in wanted], abs=2e-6, rel=2e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_n_best_lists_are_those_of_generate(options: dict[str, Any], make_model: MakeModel, tmp_path: Path) -> None:
    model = decisive(make_model(tie_word_embeddings=False))
    model.generation_config.update(pad_token_id=1)
    graphs = graphs_of(model, tmp_path)
    settings = Search.of(model.generation_config.to_dict(), options)
    check_same(search_batch(graphs, SOURCES, settings), found_by_generate(model, None, **options))


ENDS: list[dict[str, Any]] = [
    {"early_stopping": stopping, "length_penalty": penalty, "max_length": 16, "num_beams": 3, "num_return_sequences": 3}
    for stopping in (False, True, "never")
    for penalty in (0.3, 1.0, 2.0)
]
ENDS.append(ENDS[-1] | {"max_length": 40, "max_length_beyond_source": 5})
MANY = [[3 + (7 * row * row + 11 * place * (row + 3)) % 38 for place in range(2 + row % 6)] + [2] for row in range(20)]


@pytest.mark.parametrize("options", ENDS, ids=lambda options: "-".join(map(str, options.values())))
def test_searches_end_where_those_of_generate_do(
    options: dict[str, Any], make_model: MakeModel, tmp_path: Path
) -> None:
    model = ending(make_model)
    found = search_batch(graphs_of(model, tmp_path), MANY, Search.of(model.generation_config.to_dict(), options))
    check_same(found, found_by_generate(model, None, MANY, **options))


@pytest.mark.parametrize(
    ("stopping", "penalty", "best", "wanted"),
    [
        (True, 1.0, -0.1, False),
        (False, 1.0, -3.1, False),  # -3.1 / 3 < -1, the worst that has ended
        (False, 1.0, -2.9, True),
        ("never", 1.0, -8.9, True),  # of all in the batch a target may have 9 tokens
        ("never", 1.0, -9.1, False),
        ("never", -1.0, -0.4, False),  # longer targets are worse then: -0.4 * 3 < -1
        ("never", -1.0, -0.3, True),
    ],
)
def test_a_search_goes_on_while_a_better_target_may_come(
    stopping: bool | str, penalty: float, best: float, wanted: bool
) -> None:
    search = Search((2,), 0, num_beams=2, length_penalty=penalty, early_stopping=stopping)
    beam = Beam(search, limit=5, most=9, running=[], ended=[Found([2], -0.5), Found([2], -1.0)])
    assert beam.may_improve(best, 3) is wanted


def ending(make_model: MakeModel) -> Model:
    """Its targets end after few or many tokens, so that it matters how long a search goes on."""
    model = make_model(tie_word_embeddings=False, norm_first=True)
    with torch.no_grad():
        output = model.lm_head.weight.mul_(0.7)
        targets = torch.randint(3, 41, (2, 12))
        states = model.model(torch.tensor([row[:2] for row in MANY[:2]]), decoder_input_ids=targets).last_hidden_state
        mean = states.mean((0, 1))
        output[2] = mean * 1.2 * model.lm_head(states).amax(-1).mean() / (mean @ mean)  # everywhere rather probable
    return model


@pytest.mark.parametrize("length_penalty_type", [None, "gnmt"])
def test_targets_go_on_from_given_beginnings(
    length_penalty_type: str | None, make_model: MakeModel, tmp_path: Path
) -> None:
    model = decisive(make_model(**SHAPES[2]))
    beginnings = [[9, 33], [12, 20], [40, 3], [9, 9]]
    options = {"num_beams": 4, "num_return_sequences": 4, "max_length": 13, "min_length": 7}
    options["length_penalty_type"] = length_penalty_type
    settings = Search.of(model.generation_config.to_dict(), options)
    found = search_batch(graphs_of(model, tmp_path), SOURCES, settings, beginnings)
    check_same(found, found_by_generate(model, beginnings, **options))


def test_a_batch_finds_what_its_sentences_find_alone(make_model: MakeModel, tmp_path: Path) -> None:
    graphs = graphs_of(decisive(make_model(tie_word_embeddings=False, vocab_size=300)), tmp_path)
    settings = Search((2,), 0, num_beams=5, num_return_sequences=5, max_length=15)
    together = search_batch(graphs, SOURCES, settings)
    alone = [search_batch(graphs, [source], settings)[0] for source in SOURCES]
    check_same(alone, [[(found.token_ids, found.score) for found in row] for row in together])


@pytest.mark.parametrize(
    "option",
    [
        {"do_sample": True},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[3], [4, 5]]},
        {"forced_eos_token_id": [2, 3]},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_the_search_does_not_do_is_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=next(iter(option))):
        Search.of({"eos_token_id": 2, "decoder_start_token_id": 0}, option)


def test_several_targets_of_one_forced_token_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    search = Search((2,), 0, num_beams=3, num_return_sequences=2, max_new_tokens=1, forced_eos_token_id=2)
    with pytest.raises(EngineError, match=r"num_return_sequences \(2\): where the only token is forced"):
        search_batch(graphs_of(make_model(), tmp_path), SOURCES, search)


def test_more_hypotheses_than_the_vocabulary_allows_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    graphs = graphs_of(make_model(), tmp_path)
    with pytest.raises(EngineError, match=r"num_beams \(21\) needs 42 tokens"):
        search_batch(graphs, SOURCES, Search((2,), 0, num_beams=21))


def test_numbers_that_are_none_are_an_error(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc1.bias[0] = torch.nan
    with pytest.raises(EngineError, match="no number"):
        search_batch(graphs_of(model, tmp_path), SOURCES, Search((2,), 0))


def test_an_export_has_graphs_tokenizer_and_settings_and_its_graphs_are_valid(
    make_model: MakeModel, tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(["ab cd"], "character")
    model = make_model(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    (tmp_path / "out").mkdir()
    export(tmp_path / "run", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {
        ENCODER,
        DECODER,
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        MODEL_CONFIG,
    }
    for name in (ENCODER, DECODER):
        onnx.checker.check_model(str(tmp_path / "out" / name), full_check=True)


@pytest.fixture
def both(make_model: MakeModel, tmp_path: Path) -> tuple[Translator, Translator]:
    """A `Translator` of a run, and one of its export."""
    tokenizer = train_tokenizer(["a few words", "ABCDEFGHIJ bcghi"], "character", columns=Columns((None, None)))
    model = decisive(make_model(vocab_size=len(tokenizer), tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight[3 : 5 + 256] = 0  # bytes are no text
    model.generation_config.update(num_beams=3, max_length=14)
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    export_to(tmp_path / "run", "onnx", tmp_path / "onnx")
    return Translator.from_pretrained(tmp_path / "run"), Translator.from_pretrained(tmp_path / "onnx")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 1},
        {"num_return_sequences": 4, "max_new_tokens": 6},
        {"target_prefixes": ["A few,", "", ",", "C,"], "num_beams": 4, "num_return_sequences": 2, "max_length": 8},
        {"generation_config": GenerationConfig(num_beams=2, length_penalty=0.2, max_length=9, eos_token_id=2)},
    ],
    ids=lambda options: "-".join(options) or "its own",
)
def test_a_translator_runs_on_an_export_with_the_same_results(
    options: dict[str, Any], both: tuple[Translator, Translator]
) -> None:
    texts = ["a few\twords", " \t", "ABC\tdefgh", "J\t"]
    found, wanted = (translator.hypotheses(texts, **options) for translator in reversed(both))
    for row, expected in zip(found, wanted, strict=True):
        assert [(each.text, each.token_ids) for each in row] == [(each.text, each.token_ids) for each in expected]
        assert [each.score for each in row] == pytest.approx([each.score for each in expected], abs=3e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length_beyond_source": 1},
        {"length_penalty_type": "gnmt", "length_penalty": 3.0},
        {"max_new_tokens": 3},
        {"num_beams": 5},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_none_in_the_call_switches_off_what_the_export_is_set_to(
    settings: dict[str, Any], both: tuple[Translator, Translator]
) -> None:
    texts = ["a few\twords", "AB\tC", "ABC\tdefgh", "J\t"]
    for translator in both:
        translator.engine.generation_config.update(allow_custom_entries=True, **settings)
    off = {next(iter(settings)): None}
    usual = both[0].hypotheses(texts)
    wanted, found = (translator.hypotheses(texts, **off) for translator in both)
    assert [row[0].token_ids for row in found] == [row[0].token_ids for row in wanted]
    scores = [row[0].score for row in wanted]
    assert [row[0].score for row in found] == pytest.approx(scores, abs=3e-6)
    assert [row[0].score for row in usual] != pytest.approx(scores, abs=1e-3)


def test_scores_of_targets_are_computed_in_batches_that_fit(
    both: tuple[Translator, Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, sizes, usual = ["a\tb", "AB\tC", "J\tJ"], [], Graphs.all_logits

    def recorded(*arguments: Any) -> Any:
        answer = usual(*arguments)
        sizes.append(answer[0].size)
        return answer

    monkeypatch.setattr(Graphs, "all_logits", recorded)
    wanted = both[1].score(texts, texts)
    most = 8 * both[1].engine.vocab_size
    assert max(sizes) > most
    sizes.clear()
    monkeypatch.setattr(onnx_engine, "MAX_LOGITS", most)
    found = both[1].score(texts, texts)
    assert max(sizes) <= most
    for score, expected in zip(found, wanted, strict=True):
        assert score.token_log_probabilities == pytest.approx(expected.token_log_probabilities, abs=1e-5)


def test_targets_have_the_same_scores_on_an_export(both: tuple[Translator, Translator]) -> None:
    wanted, found = (translator.score(["a few\tw", "AB\tC", "J\tJ"], ["words", "", "cba AB"]) for translator in both)
    for score, expected in zip(found, wanted, strict=True):
        assert score.token_log_probabilities == pytest.approx(expected.token_log_probabilities, abs=1e-5)


def test_a_translator_on_an_export_refuses_what_it_cannot_do(both: tuple[Translator, Translator]) -> None:
    with pytest.raises(EngineError, match="do_sample"):
        both[1].translate("a\tb", do_sample=True)
    with pytest.raises(EngineError, match="no_repeat_ngram_size"):
        both[1].translate("a\tb", no_repeat_ngram_size=2)


def test_an_activation_that_has_no_counterpart_is_refused_by_name(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(InteropError, match="'laplace' cannot be exported"):
        write_graphs(make_model(activation_function="laplace"), tmp_path)


def test_another_quantization_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InteropError, match="'int4'"):
        export(tmp_path, tmp_path, quantization="int4")
