"""Texts to texts, on the device that there is: each text has the same answer whatever stands around it."""

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

import hf_vanilla
from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.data.errors import TextWarning
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference import lines
from hf_vanilla.inference.beginnings import End
from hf_vanilla.inference.columns import columns_in_recipe
from hf_vanilla.inference.sampling import SeededSampling, seed_of
from hf_vanilla.inference.search_settings import SearchSettings
from hf_vanilla.inference.torch_engine import without_padding
from hf_vanilla.inference.translator import (
    ColumnsWarning,
    LongSourceWarning,
    Translator,
)

MakeTranslator = Callable[..., Translator]

TEXTS = [
    "a few words",
    "",
    "ten",
    "Some more words, and then MORE.",
    "xyz",
    "  ",
    "a b c d e f g h i j k l",
    "few",
    "WORDS",
]
LONG = TEXTS * 3


def test_the_promised_name_is_imported_when_asked_for() -> None:
    assert hf_vanilla.Translator is Translator
    assert "Translator" in dir(hf_vanilla)
    assert "Translator" in hf_vanilla.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Translatr'"):
        hf_vanilla.Translatr  # noqa: B018


def test_a_model_goes_to_the_accelerator_unless_told_where(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert Translator.from_pretrained(run).model.device.type == "meta"
    assert Translator.from_pretrained(run, device_map="cpu").model.device.type == "cpu"


def test_the_answer_has_the_form_of_the_question(make_translator: MakeTranslator, tmp_path: Path) -> None:
    translator = make_translator()
    found = translator.translate(TEXTS)
    assert [isinstance(each, str) for each in found] == [True] * len(TEXTS)
    assert translator.translate([]) == []
    assert [translator.translate(text) for text in TEXTS] == found
    assert [translator.translate((text,)) for text in TEXTS] == found
    assert translator.translate([[text] for text in TEXTS]) == found
    assert translator.translate(datasets.Dataset.from_dict({"text": TEXTS})["text"]) == found
    for some in (iter(TEXTS), (text for text in TEXTS), dict.fromkeys(TEXTS).keys()):
        answers = translator.translate(some)
        assert isinstance(answers, Iterator)
        assert list(answers) == found
    (tmp_path / "file").write_text("\n".join(TEXTS), encoding="utf-8")
    with (tmp_path / "file").open(encoding="utf-8") as text, (tmp_path / "file").open("rb") as raw:
        assert list(translator.translate(text)) == list(translator.translate(raw)) == found
    assert translator.translate(io.StringIO("ten\n\nxyz\n")).__next__() == found[2]


def test_a_generator_is_read_window_by_window(make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 3)
    read = []
    answers = make_translator().translate(read.append(number) or f"{number}" for number in range(8))
    assert read == []
    next(answers)
    assert read == [0, 1, 2]
    assert len(list(answers)) == 7


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (b"bytes", "bytes are no text"),
        (["a", b"b"], "source 2 has a bytes: give a text"),
        (["a", None], "source 2 has a NoneType"),
        ([["a", 3]], "source 1 has a int"),
        ([[]], "source 1 has a list"),
    ],
)
def test_what_is_no_text_is_named(make_translator: MakeTranslator, wrong: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        make_translator().translate(wrong)


def test_a_text_is_translated_alike_alone_in_any_batch_order_and_budget(make_translator: MakeTranslator) -> None:
    """In float32, with greedy, beam and scored search, sampling, and with forced beginnings."""
    translator = make_translator()
    texts = [*TEXTS, "few more", "more few words", "ten ten"]
    order = torch.randperm(len(texts)).tolist()
    begun = [text[: len(text) % 4].strip() for text in texts]
    for options in ({"num_beams": 1}, {"num_return_sequences": 3}):
        alone = [translator.hypotheses(text, **options) for text in texts]
        with_start = [
            translator.translate(text, target_prefixes=b, **options) for text, b in zip(texts, begun, strict=True)
        ]
        assert len({best.text for best, *_ in alone}) > 5  # else the test could not fail
        for budget in (60, 10_000):
            translator.max_tokens = budget
            together = translator.hypotheses([texts[place] for place in order], **options)
            for place, found in zip(order, together, strict=True):
                assert [each.token_ids for each in found] == [each.token_ids for each in alone[place]]
                assert [each.score for each in found] == pytest.approx([each.score for each in alone[place]], abs=1e-5)
            assert translator.translate(texts, target_prefixes=begun, **options) == with_start


def test_a_model_in_training_goes_on_training_and_is_translated_with_as_it_is_without_dropout(
    make_translator: MakeTranslator,
) -> None:
    translator = make_translator(dropout=0.5)
    found = translator.translate(TEXTS)
    translator.model.train()
    assert translator.translate(TEXTS) == found
    assert translator.model.training


def test_tabs_are_text_for_a_model_with_one_column_and_separate_columns_for_others(
    make_translator: MakeTranslator,
) -> None:
    one, two = make_translator(), make_translator(columns=2)
    assert one.columns_of("a\tb", 1) == ("a\tb",)
    assert two.columns_of("a\tb", 1) == ("a", "b")
    assert two.columns_of("a\tb\tc", 1) == ("a", "b\tc")
    assert two.translate("few\twords") == two.translate(("few", "words")) == two.translate([["few", "words"]])[0]
    assert two.encode_batch([("a", "b")])[0].count(two.tokenizer.sep_token_id) == 1
    with pytest.warns(
        ColumnsWarning, match="source 2 has 1 columns, separated by tabs, and the model was trained on 2"
    ):
        two.translate(["a\tb", "few"])


def test_a_run_from_before_tokenizers_had_columns_has_those_of_its_recipe(run: Path) -> None:
    tokenizer = train_tokenizer(["a few words"], "character")
    tokenizer.init_kwargs.pop("columns", None)
    tokenizer.save_pretrained(run)
    assert Translator.from_pretrained(run).columns == 1
    for source, columns in (("[a, b, c]", 3), ("a", None), ("{column: a, as: words}", None)):
        (run / "recipe.yaml").write_text(f"data: {{train: [{{file: x.tsv, source: {source}, target: d}}]}}")
        assert columns_in_recipe(run) == columns
        assert Translator.from_pretrained(run).columns == (columns or 1)


def test_too_long_a_source_is_cut_and_named(make_translator: MakeTranslator) -> None:
    learned = make_translator(position_embedding_type="learned", max_position_embeddings=8)
    assert learned.max_source_length == 8
    with pytest.warns(LongSourceWarning, match="source 2 has 12 tokens; of it, .* only the first 8 are used"):
        found = learned.translate(["ten", "a few words", "some more words"])
    assert found == learned.translate(["ten", "a few w", "some mo"])
    sinusoidal = make_translator()
    with pytest.warns(
        LongSourceWarning, match="source 1 has 1,000,001 tokens; of it, .* only the first 1,024 are used"
    ):
        assert len(sinusoidal.translate(["x" * 1_000_000], max_length=3)) == 1


def test_n_best_is_sorted_and_its_scores_are_those_of_the_given_targets(make_translator: MakeTranslator) -> None:
    """Within 1e-4, for all length penalties, greedy search and targets that are cut at the limit of length."""
    translator = make_translator()
    texts = [text for text in TEXTS if text.strip()]
    settings = ({}, {"length_penalty": 0.3}, {"length_penalty": 0.6, "length_penalty_type": "gnmt"}, {"num_beams": 1})
    for options in settings:
        number = 1 if options.get("num_beams") == 1 else 3
        found = translator.hypotheses(texts, num_return_sequences=number, **options)
        vars(translator.model.generation_config).update(options)
        compared = 0
        for text, each in zip(texts, found, strict=True):
            assert len(each) == number
            assert [other.score for other in each] == sorted((other.score for other in each), reverse=True)
            for hypothesis in each:
                target = translator.encoder.targets([hypothesis.text])[0]
                if target == hypothesis.token_ids:
                    compared += 1
                    score = translator.score(text, hypothesis.text)
                    assert score.normalised == pytest.approx(hypothesis.score, abs=1e-4)
                    assert sum(score.token_log_probabilities) == pytest.approx(score.log_probability)
        assert compared >= 3


def test_n_best_is_as_wide_as_it_has_to_be(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    assert len(translator.hypotheses("ten", num_return_sequences=5)) == 5
    with pytest.raises(ValueError, match=r"num_return_sequences \(5\) must not be greater than num_beams \(3\)"):
        translator.hypotheses("ten", num_return_sequences=5, num_beams=3)
    assert [each.text for each in translator.hypotheses("", num_return_sequences=2)] == ["", ""]


def test_translations_begin_as_they_are_told_and_go_on_as_generate_does(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    texts, begun = ["a few words", "ten", "WORDS", "xyz", ""], ["ten", "", "a b", "xy" * 20, "few"]
    found = translator.hypotheses(texts, target_prefixes=begun)
    for text, start, (best, *_) in zip(texts, begun, found, strict=True):
        assert best.text.startswith(start)
        if text and start:
            model, ids = translator.model, translator.encode_batch([text])
            prefix = [0, *translator.encoder.targets([start])[0][:-1]]
            limit = {"max_length": 24 + len(prefix) - 1}
            limit["begin_suppress_tokens"] = translator.beginnings.suppressed(End.WORD)
            expected = model.generate(torch.tensor(ids), decoder_input_ids=torch.tensor([prefix]), **limit)[0].tolist()
            assert [0, *best.token_ids] == expected
            assert len(expected) > len(prefix)
    assert found[4][0].text == "few"
    assert translator.translate("ten", target_prefixes="wo").startswith("wo")
    with pytest.raises(ValueError, match="there are 1 targets, and more sources than that"):
        translator.translate(["a", "b"], target_prefixes=["a"])
    with pytest.raises(ValueError, match="there are 1 sources, and more targets than that"):
        translator.translate(["a"], target_prefixes=["a", "b"])


def test_a_seed_draws_the_same_for_a_line_whatever_stands_around_it(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    options = {"do_sample": True, "seed": 5, "temperature": 1.3, "num_return_sequences": 2}
    found = translator.hypotheses(LONG, **options)
    translator.max_tokens = 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = translator.hypotheses(LONG, **options)
    assert [[each.token_ids for each in of_one] for of_one in again] == [
        [each.token_ids for each in of_one] for of_one in found
    ]
    assert again[0][0].score == pytest.approx(found[0][0].score, abs=1e-5)
    drawn = {each.text for line in range(0, len(LONG), len(TEXTS)) for each in found[line]}
    assert len(drawn) > 5  # the same text in other lines, and the second sample of a line, are drawn anew
    assert translator.hypotheses(LONG, **options | {"seed": 6}) != found
    torch.manual_seed(1)
    free = translator.translate(LONG, do_sample=True)
    assert translator.translate(LONG, do_sample=True) != free
    torch.manual_seed(1)
    assert translator.translate(LONG, do_sample=True) == free
    with pytest.raises(ValueError, match="a seed is for sampling"):
        translator.translate("ten", seed=3)


def test_samples_are_drawn_from_what_temperature_top_k_and_top_p_leave() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -3.0])
    settings = {"temperature": 0.8, "top_k": 3, "top_p": 0.95}
    seeds = [seed_of(7, number, 0) for number in range(6000)]
    sampling = SeededSampling(settings.get, seeds)
    drawn = sampling(torch.zeros(6000, 1, dtype=torch.long), logits.expand(6000, -1)).argmax(-1)
    expected = (logits[:3] / 0.8).softmax(-1)
    assert (drawn.bincount(minlength=5)[:3] / 6000).tolist() == pytest.approx(expected.tolist(), abs=0.02)
    assert drawn.max() == 2


OF_SAMPLING = [
    *({"temperature": 0.7}, {"top_h": 0.4}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.1}, {"typical_p": 0.5}),
    *({"epsilon_cutoff": 0.02}, {"eta_cutoff": 0.2}),
    {"temperature": 1.5, "top_h": 0.9, "top_k": 20, "top_p": 0.95, "typical_p": 0.9, "epsilon_cutoff": 0.03},
]


@pytest.mark.parametrize("settings", OF_SAMPLING, ids=lambda settings: "-".join(settings))
def test_samples_are_drawn_from_what_generate_draws_from(
    settings: dict[str, Any], make_model: Callable[..., VanillaForConditionalGeneration]
) -> None:
    settings = {"top_k": 0} | settings
    ids, more = torch.tensor([[5, 7, 9, 2], [6, 8, 2, 1]]), {"return_dict_in_generate": True, "max_new_tokens": 1}
    drawn = make_model().generate(ids, do_sample=True, output_scores=True, output_logits=True, **more, **settings)
    ours = SeededSampling(settings.get, [1, 2]).warpers(drawn.sequences[:, :1], drawn.logits[0])
    assert torch.equal(ours, drawn.scores[0])
    assert not torch.equal(ours, drawn.logits[0])


def test_none_in_the_call_switches_off_what_shapes_samples() -> None:
    def top_k(**generation: Any) -> object:
        return SearchSettings(GenerationConfig(top_k=7), None, {"do_sample": True, **generation}).of_sampling("top_k")

    assert (top_k(), top_k(top_k=3), top_k(top_k=None)) == (7, 3, 0)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_models_of_other_types_have_the_scores_of_their_own_search(num_beams: int) -> None:
    tokenizer = train_tokenizer(["a few words"], "character")
    sizes = {"d_model": 16, "max_position_embeddings": 40, "vocab_size": len(tokenizer), "forced_eos_token_id": None}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 24}
    model = BartForConditionalGeneration(BartConfig(**sizes, init_std=0.5)).eval()
    options = {"num_beams": num_beams, "max_length": 9, "length_penalty": 0.6}
    found = Translator(model, tokenizer).hypotheses(["a few words", "few"], num_return_sequences=num_beams, **options)
    for text, row in zip(["a few words", "few"], found, strict=True):
        wanted = model.generate(
            input_ids=torch.tensor([[*tokenizer(text)["input_ids"]]]),
            num_return_sequences=num_beams,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        steps = model.compute_transition_scores(
            wanted.sequences, wanted.scores, getattr(wanted, "beam_indices", None), normalize_logits=num_beams == 1
        )
        assert [hypothesis.token_ids for hypothesis in row] == [
            without_padding(target[1:], 1, 2) for target in wanted.sequences.tolist()
        ]
        expected = [
            sum(step[: len(one.token_ids)].tolist()) / len(one.token_ids) ** 0.6
            for one, step in zip(row, steps, strict=True)
        ]
        assert [hypothesis.score for hypothesis in row] == pytest.approx(expected, abs=1e-4)


def test_new_tokens_are_counted_behind_a_beginning_also_where_targets_follow_their_source(
    make_translator: MakeTranslator,
) -> None:
    translator = make_translator()
    translator.model.generation_config.max_length_beyond_source = 2
    begun = translator.encoder.targets(["XY, XYBeaLs,"])[0][:-1]
    ids = torch.tensor(translator.encode_batch(["ten"]))
    for number, most in ((3, 3), (30, ids.shape[1] + 2)):
        lengths = {"max_new_tokens": number, "min_new_tokens": most}
        (found,) = translator.hypotheses("ten", target_prefixes="XY, XYBeaLs,", **lengths)
        given = {"decoder_input_ids": torch.tensor([[0, *begun]]), "max_length_beyond_source": 2 + len(begun)}
        (wanted,) = translator.model.generate(ids, **given, **lengths).tolist()
        assert found.token_ids == wanted[1:]
        assert len(found.token_ids) == len(begun) + most


def test_one_target_for_several_sources_is_no_row_of_characters(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    for texts in (["a", "b", "c"], (text for text in ("a", "b", "c"))):
        for ask in (translator.score, lambda texts, targets: translator.translate(texts, target_prefixes=targets)):
            with pytest.raises(TypeError, match="'Der' is one target, and there may be several sources"):
                ask(texts, "Der")
    assert translator.translate("a", target_prefixes="Der,").startswith("Der,")


def test_targets_end_at_their_end_or_before_the_padding() -> None:
    assert without_padding([5, 6, 2, 1, 1], 1, 2) == [5, 6, 2]
    assert without_padding([5, 6, 1, 1], 1, 2) == [5, 6]
    assert without_padding([5, 6], 1, 2) == [5, 6]


STRANGE = [
    *("\ud800", "a\udfffb", "\0", "a\0b", "\r", "a\rb", "\u2028\u2029\x85\x0b\x0c", "\ufeff", "\ufffd\uffff"),
    *("e" + "\u0301" * 1000, "\u202eabc\u202c", "שלום", "سلام", "👩‍👩‍👧‍👦🏳️‍🌈", "\U0010ffff\U000e0001\U00020000"),
    *("<s>", "</s>", "<pad> </s> <unk><sep>", "<0x0A>", "<2de>", "\t", "a\tb\tc", "   ", "\u3000\xa0", "x" * 5_000),
]


def test_strange_texts_have_an_answer_each(make_translator: MakeTranslator) -> None:
    for columns in (1, 2):
        translator = make_translator(columns=columns)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextWarning)
            found = translator.translate(STRANGE)
            assert len(found) == len(STRANGE)
            "".join(found).encode()
            assert [translator.translate(text) for text in STRANGE[:12]] == found[:12]
            assert len(translator.score(STRANGE, STRANGE)) == len(STRANGE)


def test_special_tokens_in_a_text_are_text(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    ids = translator.encode_batch(["a </s><pad><s>"])[0]
    assert ids.count(translator.tokenizer.eos_token_id) == 1
    assert {translator.tokenizer.pad_token_id, translator.tokenizer.bos_token_id}.isdisjoint(ids)
    assert isinstance(translator.model, VanillaForConditionalGeneration)
