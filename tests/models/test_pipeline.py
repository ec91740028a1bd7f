"""`pipeline("translation")` gives what transformers 4 gave: the oracle is `generate` and the tokenizer themselves."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import pipeline

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.data.tokenizer import Columns, train_tokenizer
from hf_vanilla.models.pipeline_vanilla import TranslationPipeline

pytestmark = pytest.mark.usefixtures("_own_cache_of_code")

TEXTS = ["a few words", "BAD, CAB.", "x", "", "a few words of more, BAD"]
LETTERS = ["a few words", "ABCDEFGHIJKLMNOPQRSTUVWXYZ bcghijklmnpqtuvxyz ,."]


@pytest.fixture
def loaded(make_model: Callable[..., VanillaForConditionalGeneration]) -> tuple[VanillaForConditionalGeneration, Any]:
    tokenizer = train_tokenizer(LETTERS, "character")
    model = make_model(vocab_size=len(tokenizer))
    model.generation_config.update(max_length=9, num_beams=3)
    return model, tokenizer


@pytest.fixture
def folder(loaded: tuple[VanillaForConditionalGeneration, Any], tmp_path: Path) -> Path:
    for part in loaded:
        part.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def translate(folder: Path) -> TranslationPipeline:
    return pipeline("translation", model=str(folder), trust_remote_code=True, device="cpu")


def by_hand(loaded: tuple[VanillaForConditionalGeneration, Any], text: str, **options: Any) -> list[str]:
    model, tokenizer = loaded
    return tokenizer.batch_decode(
        model.generate(**tokenizer(text, return_tensors="pt"), **options), skip_special_tokens=True
    )


def in_dictionaries(texts: list[str]) -> list[dict[str, str]]:
    return [{"translation_text": text} for text in texts]


def test_a_text_gives_a_list_and_a_list_one_dictionary_each(translate: Any, loaded: Any) -> None:
    expected = [by_hand(loaded, text) for text in TEXTS]
    assert len({text for (text,) in expected}) > 2
    assert translate(TEXTS[0]) == in_dictionaries(expected[0])
    assert translate(TEXTS) == in_dictionaries([text for (text,) in expected])
    assert translate(TEXTS[:1]) == in_dictionaries(expected[0])
    assert translate([]) == []


def test_a_generator_streams_a_list_for_each_text(translate: Any, loaded: Any) -> None:
    asked = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            asked.append(text)
            yield text

    found = translate(texts())
    assert next(found) == in_dictionaries(by_hand(loaded, TEXTS[0]))
    assert len(asked) < len(TEXTS)
    assert list(found) == [in_dictionaries(by_hand(loaded, text)) for text in TEXTS[1:]]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_batches_change_nothing(size: int, translate: Any) -> None:
    assert translate(TEXTS, batch_size=size) == translate(TEXTS)
    assert list(translate((text for text in TEXTS), batch_size=size)) == [translate(text) for text in TEXTS]


@pytest.mark.parametrize("size", [1, 2])
def test_several_results_of_each_text(size: int, translate: Any, loaded: Any) -> None:
    options = {"num_beams": 4, "num_return_sequences": 3}
    expected = [in_dictionaries(by_hand(loaded, text, **options)) for text in TEXTS]
    assert all(len(found) == 3 for found in expected)
    assert translate(TEXTS, batch_size=size, **options) == expected
    assert translate(TEXTS[1], **options) == expected[1]


def test_options_of_generation_may_be_given_at_once_or_with_each_call(folder: Path, loaded: Any) -> None:
    made = pipeline("translation", model=str(folder), trust_remote_code=True, device="cpu", num_beams=1, max_length=4)
    assert made(TEXTS[0]) == in_dictionaries(by_hand(loaded, TEXTS[0], num_beams=1, max_length=4))
    assert made(TEXTS[0], max_length=7) == in_dictionaries(by_hand(loaded, TEXTS[0], num_beams=1, max_length=7))
    assert made(TEXTS[0]) == in_dictionaries(by_hand(loaded, TEXTS[0], num_beams=1, max_length=4))


def test_a_result_with_scores_gives_its_texts(translate: Any, loaded: Any) -> None:
    assert translate(TEXTS[0], return_dict_in_generate=True, output_scores=True) == translate(TEXTS[0])


def test_tokens_in_place_of_texts(translate: Any, loaded: Any) -> None:
    model, tokenizer = loaded
    expected = model.generate(**tokenizer(TEXTS[0], return_tensors="pt"))[0]
    (found,) = translate(TEXTS[0], return_tensors=True)
    assert torch.equal(found["translation_token_ids"], expected)


def test_truncation_cuts_the_source(translate: Any, loaded: Any) -> None:
    translate.tokenizer.model_max_length = 6
    assert translate("a few words", truncation=True) == in_dictionaries(by_hand(loaded, "a few"))
    assert translate("a few words") == in_dictionaries(by_hand(loaded, "a few words"))


def test_type_and_device_are_those_that_are_asked_for(folder: Path) -> None:
    made = pipeline("translation", model=str(folder), trust_remote_code=True, device="cpu", dtype=torch.bfloat16)
    assert made.model.dtype == torch.bfloat16
    assert made.model.device.type == made.device.type == "cpu"
    assert made(TEXTS[0])[0].keys() == {"translation_text"}
    moved = pipeline("translation", model=str(folder), trust_remote_code=True, device="meta")
    assert moved.model.device.type == "meta"


def test_a_model_that_is_loaded_needs_no_folder(translate: Any, loaded: Any) -> None:
    model, tokenizer = loaded
    expected = translate(TEXTS)
    assert TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")(TEXTS) == expected
    assert model.pipeline(tokenizer, device="cpu", batch_size=2)(TEXTS) == expected
    with pytest.raises(ValueError, match="needs a tokenizer"):
        TranslationPipeline(model=model)


def test_without_a_task_it_is_the_one_that_is_taken(folder: Path, translate: Any) -> None:
    assert pipeline(model=str(folder), trust_remote_code=True, device="cpu")(TEXTS[0]) == translate(TEXTS[0])


def test_what_a_pipeline_loaded_is_saved_as_it_was(translate: Any, folder: Path, tmp_path: Path) -> None:
    """transformers puts classes into the configuration of a model that a pipeline has loaded."""
    translate.save_pretrained(tmp_path / "again")
    for name in ("config.json", "tokenizer.json", "generation_config.json", "pipeline_vanilla.py"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_what_is_no_text_is_named(translate: Any) -> None:
    for wrong in (7, None, ["a", 7]):
        with pytest.raises(ValueError, match="is not a text: give a string"):
            translate(wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {"columns": Columns((None, None))},
        {"columns": Columns((";",))},
        {"columns": Columns((None,), " ")},
        {"prefixes": ["<2de>"]},
    ],
)
def test_a_model_that_reads_more_than_a_text_is_refused(settings: dict[str, Any], loaded: Any) -> None:
    tokenizer = train_tokenizer(LETTERS, "character", **settings)
    with pytest.raises(ValueError, match=r"use `Translator\.from_pretrained` of hf_vanilla"):
        TranslationPipeline(model=loaded[0], tokenizer=tokenizer)
    plain = train_tokenizer(LETTERS, "character", columns=Columns(), prefixes=[])
    TranslationPipeline(model=loaded[0], tokenizer=plain)


def test_all_models_saved_name_all_classes(loaded: Any, folder: Path, tmp_path: Path) -> None:
    loaded[0].model.save_pretrained(tmp_path / "body")
    loaded[0].config.save_pretrained(tmp_path / "configuration")
    maps = [json.loads((place / "config.json").read_text())["auto_map"] for place in (folder, tmp_path / "body")]
    assert maps[0] == maps[1] == json.loads((tmp_path / "configuration" / "config.json").read_text())["auto_map"]
    assert maps[0].keys() == {"AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM"}
    code = {file.name for file in folder.glob("*_vanilla.py")}
    assert code == {file.name for file in (tmp_path / "body").glob("*_vanilla.py")}
    assert all(f"{module.partition('.')[0]}.py" in code for module in maps[0].values())


def test_what_is_saved_again_names_the_code_beside_it(make_config: Callable[..., Any], tmp_path: Path) -> None:
    """A configuration from the Hub names a repository, and one that a pipeline has read has classes in it."""
    make_config().save_pretrained(tmp_path / "first")
    config = make_config()
    config.auto_map = {"AutoModel": "user/name--modeling_vanilla.VanillaModel"}
    config.custom_pipelines = {"translation": {"impl": TranslationPipeline, "pt": (dict,)}}
    config.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "first" / "config.json").read_bytes()
