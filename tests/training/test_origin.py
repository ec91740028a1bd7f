"""A training that starts from a model begins with exactly its weights and tokenizer, and says what cannot be taken."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from test_preparation import checkpoint
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, hub_name
from hf_vanilla.data.dataset import PairCollator, TrainingPairs
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import Encoder, train_tokenizer
from hf_vanilla.files import sha256_of
from hf_vanilla.inference.translator import Translator
from hf_vanilla.training import preparation
from hf_vanilla.training.arguments import arguments_here, training_arguments
from hf_vanilla.training.check import check
from hf_vanilla.training.origin import completed, load_weights
from hf_vanilla.training.preparation import checksum_of_tokenizer, prepare, read_prepared
from hf_vanilla.training.recipe import Recipe, RecipeError, load_recipe
from hf_vanilla.training.run import new_model, train

RECIPE = """
data:
  folder: texts
  train: {file: train.tsv, source: 0, target: 1}
  validation: {file: validation.tsv, source: 0, target: 1}
  max_source_length: 60
  max_target_length: 60
model: {from: origin}
training: {max_tokens: 600, max_steps: 4, learning_rate: 0.01, warmup_steps: 2, save_steps: 2, logging_steps: 1}
"""
SIZE = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "num_heads": 2, "d_kv": 5, "d_ff": 8}
EMBEDDING = "model.encoder.embed_tokens.weight"


def make_origin(folder: Path, tokenizer: PreTrainedTokenizerFast, **config: Any) -> VanillaForConditionalGeneration:
    """A model in a directory, as training leaves one. No weight of it is what a fresh model could have."""
    model = VanillaForConditionalGeneration(VanillaConfig(**{"vocab_size": len(tokenizer)} | SIZE | config))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    model.generation_config = GenerationConfig(num_beams=3, length_penalty=0.7, max_length=20, decoder_start_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a recipe, its texts and the model that it starts from."""
    (tmp_path / "texts").mkdir()
    lines = [f"small dog {number}\tkleiner Hund {number}\n" for number in range(40)]
    (tmp_path / "texts" / "train.tsv").write_text("".join(lines))
    (tmp_path / "texts" / "validation.tsv").write_text("".join(lines[:5]))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    make_origin(tmp_path / "origin", train_tokenizer(lines, "bpe", 275))
    return tmp_path


def recipe(place: Path, *changes: str) -> Recipe:
    return load_recipe(place / "recipe.yaml", changes)


def started(place: Path, *changes: str) -> tuple[VanillaForConditionalGeneration, PreTrainedTokenizerFast]:
    """The model and tokenizer that a training of the recipe begins with."""
    chosen = completed(recipe(place, *changes), place / "run")
    prepared = prepare(chosen, place / "run")
    model = new_model(chosen, prepared.tokenizer, prepared.origin)
    load_weights(model, chosen, prepared.origin)
    return model, prepared.tokenizer


def trained(place: Path, run: Path, *changes: str) -> dict[str, Tensor]:
    train(recipe(place, *changes), run, lambda *_: ["" for _ in range(5)], lambda *_: {})
    return load_file(run / "model.safetensors")


def test_a_training_begins_with_exactly_the_loss_of_its_origin(place: Path) -> None:
    changes = ["training.eval_on_start=true", "model.dropout=0.4", "training.learning_rate=0.1"]
    weights = trained(place, place / "run", *changes)
    history = json.loads((place / "run" / "history.json").read_text())
    origin = AutoModelForSeq2SeqLM.from_pretrained(place / "origin").eval()
    pairs = TrainingPairs(read_prepared(place / "run").validation)
    batch = PairCollator(1)([pairs[0, index] for index in range(5)])
    with torch.no_grad():
        loss = float(origin(**batch).loss)
    assert (history[0]["step"], history[0]["eval_loss"]) == (0, pytest.approx(loss, rel=1e-6))
    assert not torch.equal(weights[EMBEDDING], origin.state_dict()[EMBEDDING])  # then it learns


def test_weights_and_tokenizer_are_those_of_the_origin_to_the_bit(place: Path) -> None:
    model, tokenizer = started(place)
    before = load_file(place / "origin" / "model.safetensors")
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert after.keys() - before.keys() == {"lm_head.weight"}
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
    there = AutoTokenizer.from_pretrained(place / "origin")
    assert checksum_of_tokenizer(tokenizer) == checksum_of_tokenizer(there)


def test_embeddings_grow_with_new_tokens_whose_rows_are_drawn_as_the_model_draws_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = load_file(place / "origin" / "model.safetensors")[EMBEDDING]
    with_tag = "data.train={file: texts/train.tsv, source: 0, target: 1, prefix: <2de>}"
    torch.manual_seed(3)
    model, tokenizer = started(place, with_tag)
    torch.manual_seed(3)
    config = VanillaConfig(**SIZE | {"vocab_size": len(before) + 1})
    fresh = VanillaForConditionalGeneration(config).state_dict()[EMBEDDING]
    found = model.state_dict()[EMBEDDING]
    assert len(tokenizer) == len(found) == len(before) + 1
    assert torch.equal(found[:-1], before)
    assert torch.equal(found[-1], fresh[-1])
    assert torch.equal(model.state_dict()["lm_head.weight"], found)
    assert Encoder(tokenizer).tag("<2de>") == len(before)
    there = AutoTokenizer.from_pretrained(place / "origin")
    assert there.get_vocab().items() <= tokenizer.get_vocab().items()


def test_an_embedding_with_rows_that_no_token_uses_stays_as_it_is(place: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(place / "origin")
    shutil.rmtree(place / "origin")
    before = make_origin(place / "origin", tokenizer, vocab_size=300, tie_word_embeddings=False).state_dict()
    model, _ = started(place)
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in before.items())
    make_origin(place / "origin", tokenizer, vocab_size=274)
    shutil.rmtree(place / "run")
    with pytest.raises(InvalidDataError, match=r"has 275 tokens and the model 274"):
        started(place)


def test_special_tokens_that_a_model_lacks_are_added(place: Path) -> None:
    """As models of the first versions, which had one column only and so no separator."""
    file = place / "origin" / "tokenizer.json"
    state = json.loads(file.read_text())
    state["model"]["vocab"]["not-sep"] = state["model"]["vocab"].pop("<sep>")
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "<sep>"]
    file.write_text(json.dumps(state))
    (place / "origin" / "tokenizer_config.json").write_text('{"eos_token": "</s>", "pad_token": "<pad>"}')
    model, tokenizer = started(place)
    assert tokenizer.sep_token_id == len(tokenizer) - 1 == 275
    assert model.config.vocab_size == 276


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ("d_model=16", "16 cannot be: ORIGIN has 12,"),
        ("encoder_layers=2", "2 cannot be: ORIGIN has 1,"),
        ("num_heads=4", "4 cannot be: ORIGIN has 2,"),
        ("d_kv=6", "6 cannot be: ORIGIN has 5,"),
        ("d_kv=null", "6 cannot be: ORIGIN has 5,"),
        ("d_ff=9", "9 cannot be: ORIGIN has 8,"),
        ("norm_first=true", "True cannot be: ORIGIN has False,"),
        ("activation_function=gelu", "'gelu' cannot be: ORIGIN has 'relu',"),
        ("position_embedding_type=learned", "'learned' cannot be: ORIGIN has 'sinusoidal',"),
        ("tie_word_embeddings=false", "False cannot be: ORIGIN has True,"),
        ("layer_norm_eps=1e-6", "1e-06 cannot be: ORIGIN has 1e-05,"),
    ],
)
def test_another_shape_or_function_is_refused_with_both_values(place: Path, change: str, both: str) -> None:
    key = change.partition("=")[0]
    both = both.replace("ORIGIN", str(place / "origin"))
    with pytest.raises(RecipeError, match=re.escape(f"model.{key}: {both}")):
        completed(recipe(place, f"model.{change}"), place / "run")


def test_what_changes_no_function_is_taken_and_the_same_value_is_fine(place: Path) -> None:
    rates = ["dropout=0.35", "attention_dropout=0.05", "activation_dropout=0.15", "label_smoothing=0.25"]
    same = ["d_model=12", "d_kv=5", "d_v=null", "norm_first=false", "tie_word_embeddings=true"]
    model, _ = started(place, *(f"model.{change}" for change in [*rates, *same, "max_position_embeddings=99"]))
    for change in rates:
        key, _, value = change.partition("=")
        assert getattr(model.config, key) == float(value)
    assert model.config.max_position_embeddings == 99  # sinusoids have no limit: the number is for other tools
    assert model.model.encoder.dropout.p == 0.35


def test_learned_positions_may_become_more_but_not_fewer(place: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(place / "origin")
    shutil.rmtree(place / "origin")
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 50}
    before = make_origin(place / "origin", tokenizer, **learned).state_dict()
    with pytest.raises(
        RecipeError, match=r"max_source_length: 60 is more than .* model.max_position_embeddings \(50\)"
    ):
        completed(recipe(place), place / "run")
    with pytest.raises(
        RecipeError, match=r"model\.max_position_embeddings: 49 cannot be: .* has 50,.* to that or more"
    ):
        completed(recipe(place, "model.max_position_embeddings=49"), place / "run")
    model, _ = started(place, "model.max_position_embeddings=70")
    for stack in ("encoder", "decoder"):
        weight = model.state_dict()[f"model.{stack}.embed_positions.weight"]
        assert torch.equal(weight[:50], before[f"model.{stack}.embed_positions.weight"])
        assert weight.shape == (70, 12)
        assert 0.1 < float(weight[50:].std()) < 0.5  # drawn: 12^-0.5 = 0.29


Weights = dict[str, Tensor]
SELF = "model.encoder.layers.0.self_attn.q_proj.bias"


def missing(weights: Weights) -> None:
    del weights[SELF]


def one_more(weights: Weights) -> None:
    weights["model.another"] = torch.zeros(1)


def misshapen(weights: Weights) -> None:
    weights[SELF] = torch.zeros(9)


def not_a_number(weights: Weights) -> None:
    weights[SELF][3] = float("nan")


def quantised(weights: Weights) -> None:
    weights[SELF] = weights[SELF].to(torch.int8)


def no_longer_tied(weights: Weights) -> None:
    weights["lm_head.weight"] = weights[EMBEDDING] + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (missing, f"{SELF} is missing"),
        (one_more, "model.another is no weight of this model"),
        (misshapen, rf"{SELF} has the shape \(9,\), and config.json says \(10,\)"),
        (not_a_number, f"{SELF} has values that are not finite"),
        (quantised, f"{SELF} is I8, and must be one of F32, F16, BF16"),
        (no_longer_tied, "lm_head.weight is not model.encoder.embed_tokens.weight, though tie_word_embeddings"),
    ],
)
def test_weights_that_are_not_right_are_refused_by_name(
    place: Path, change: Callable[[Weights], None], said: str
) -> None:
    file = place / "origin" / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file)
    with pytest.raises(RecipeError, match=said):
        started(place)


def test_weights_in_half_precision_are_taken_as_they_are(place: Path) -> None:
    file = place / "origin" / "model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(file).items()}, file)
    model, _ = started(place)
    assert model.dtype == torch.float32
    assert torch.equal(model.state_dict()[EMBEDDING], load_file(file)[EMBEDDING].float())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "marian"}, r"is of a model of type 'marian', and .* only start from one of type 'hf_vanilla'"),
        ({"model_type": ["x"]}, r"is of a model of type \['x'\]"),
        ({"d_model": 10**12}, r"has the shape \(10, 12\), and config\.json says \(10, 1000000000000\)"),
        ({"d_model": 10**30}, r"no such model can be built"),
        ({"encoder_layers": 10**12}, r"has \d+ weights, too few for the 1,000,000,000,002 layers"),
        ({"num_heads": "two"}, r"num_heads"),
        ({"eos_token_id": 4}, r"eos_token_id is 4, and tokenizer\.json has 2: they do not belong together"),
    ],
)
def test_a_configuration_that_is_not_right_is_refused(place: Path, config: dict[str, Any], said: str) -> None:
    file = place / "origin" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises((RecipeError, InvalidDataError), match=said) as refusal:
        started(place)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(place: Path, text: str) -> None:
    (place / "origin" / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json: (must be|cannot be read)"):
        started(place)


def test_only_safetensors_are_read(place: Path) -> None:
    (place / "origin" / "model.safetensors").rename(place / "origin" / "pytorch_model.bin")
    with pytest.raises(
        RecipeError,
        match=r"has no model\.safetensors \(only pytorch_model\.bin\): weights are read from safetensors, not from pi",
    ):
        started(place)
    (place / "origin" / "model.safetensors").write_text("no safetensors")
    with pytest.raises(RecipeError, match=r"model\.safetensors: cannot be read"):
        started(place)


def test_a_training_that_is_not_finished_is_started_from_by_its_checkpoint(place: Path) -> None:
    folder = place / "origin" / "checkpoint-7"
    folder.mkdir()
    for file in [path for path in (place / "origin").iterdir() if path.is_file()]:
        shutil.copy(file, folder)
    (place / "origin" / "model.safetensors").unlink()
    with pytest.raises(RecipeError, match=f"not finished; name one of its checkpoints, such as {folder}"):
        started(place)
    started(place, f"model.from={folder}")


def test_it_goes_on_bit_for_bit_when_the_origin_is_gone(place: Path) -> None:
    expected = trained(place, place / "unbroken")
    shutil.copytree(place / "unbroken", place / "broken")
    shutil.rmtree(place / "broken" / "checkpoint-4")
    (place / "broken" / "model.safetensors").unlink()
    shutil.rmtree(place / "origin")
    found = trained(place, place / "broken")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    assert AutoTokenizer.from_pretrained(place / "broken").eos_token_id == 2


def another_weight(origin: Path) -> None:
    weights = load_file(origin / "model.safetensors")
    weights[EMBEDDING][5, 5] += 1
    save_file(weights, origin / "model.safetensors", metadata={"format": "pt"})


def another_configuration(origin: Path) -> None:
    file = origin / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_eps": 1e-3}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_weight, r"its weights \(SHA-256 \w+\.\.\. before, \w+\.\.\. now\)"),
        (another_configuration, r"its layer_norm_eps \(1e-05 before, 0\.001 now\)"),
    ],
)
def test_an_origin_that_changes_before_the_first_checkpoint_is_noticed(
    place: Path, change: Callable[[Path], None], said: str
) -> None:
    started(place)
    change(place / "origin")
    with pytest.raises(RecipeError, match=f"run was begun with another origin: changed is {said}; bring back"):
        prepare(completed(recipe(place), place / "run"), place / "run")
    prepared = read_prepared(place / "run")  # as on another machine, or after the first rank had prepared
    model = new_model(completed(recipe(place), place / "run"), prepared.tokenizer, prepared.origin)
    with pytest.raises(RecipeError, match=f"origin changed since the run was prepared: {said}"):
        load_weights(model, recipe(place), prepared.origin)


def test_other_ranks_need_the_weights_only(place: Path) -> None:
    started(place)
    (place / "origin" / "tokenizer.json").unlink()
    chosen, prepared = completed(recipe(place), place / "run"), read_prepared(place / "run")
    load_weights(new_model(chosen, prepared.tokenizer, prepared.origin), chosen, prepared.origin)


def test_a_preparation_that_was_stopped_begins_again_with_a_changed_origin(place: Path) -> None:
    started(place)
    shutil.rmtree(place / "run" / "data")  # as if it had been stopped before anything was encoded
    another_weight(place / "origin")
    model, _ = started(place)
    changed = load_file(place / "origin" / "model.safetensors")[EMBEDDING]
    assert torch.equal(model.state_dict()[EMBEDDING], changed)


def test_a_preparation_that_was_stopped_goes_on_with_its_tokenizer(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(place)
    shutil.rmtree(place / "run" / "data")
    monkeypatch.delattr(preparation, "tokenizer_of")  # it is not made again
    started(place)


def test_another_origin_is_another_recipe(place: Path) -> None:
    shutil.copytree(place / "origin", place / "other")
    started(place)
    checkpoint(place / "run")
    (place / "recipe.yaml").write_text(RECIPE.replace("origin", "other"))
    with pytest.raises(RecipeError, match=r"was begun with another recipe: model\.from \(origin before, other now\)"):
        prepare(completed(recipe(place), place / "run"), place / "run")


def test_the_search_is_that_of_the_origin_unless_the_recipe_says_otherwise(place: Path) -> None:
    found = started(place, "generation.length_penalty=0.5")[0].generation_config
    assert (found.num_beams, found.length_penalty) == (3, 0.5)
    assert found.max_length == 61  # 20 would cut the targets that training takes
    shutil.rmtree(place / "run")
    (place / "origin" / "generation_config.json").write_text(
        '{"max_length_beyond_source": 30, "output_scores": true, "custom_generate": "evil/repo", "bos_token_id": 7}'
    )
    found = started(place)[0].generation_config
    assert (found.num_beams, found.max_length, found.max_length_beyond_source) == (1, None, 30)
    assert not found.output_scores
    assert found.bos_token_id == 0
    assert not hasattr(found, "custom_generate")
    shutil.rmtree(place / "run")
    (place / "origin" / "generation_config.json").unlink()
    found = started(place)[0].generation_config
    assert (found.num_beams, found.max_length) == (4, 61)  # as for any training


def test_the_search_of_an_origin_may_name_any_of_its_tokens(place: Path) -> None:
    """As OPUS-MT forbids its padding, the last of 58,101 tokens."""
    make_origin(place / "origin", PreTrainedTokenizerFast.from_pretrained(place / "origin"), vocab_size=9000)
    (place / "origin" / "generation_config.json").write_text('{"max_length": 20, "bad_words_ids": [[8999]]}')
    chosen = completed(recipe(place), place / "run")
    arguments_here(chosen, place / "run")
    assert chosen.generation["bad_words_ids"] == [[8999]]


def test_the_default_rate_follows_from_the_width_of_the_origin(place: Path) -> None:
    text = RECIPE.replace("learning_rate: 0.01, ", "")
    (place / "recipe.yaml").write_text(text)
    chosen = completed(recipe(place), place / "run")
    assert training_arguments(chosen, place / "run").learning_rate == pytest.approx((12 * 2) ** -0.5)


def cached(hub: Path, name: str, folder: Path) -> None:
    """Put a folder where a download from the Hub would have put it."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    shutil.copytree(folder, repository / "snapshots" / "0123abcd")


def test_a_model_of_the_hub_is_known_by_its_id_and_its_code_is_not_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((place / "origin" / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForSeq2SeqLM": "evil.Evil", "AutoTokenizer": "evil.Evil"}
    (place / "origin" / "config.json").write_text(json.dumps(config))
    (place / "origin" / "evil.py").write_text("raise SystemExit('code that came with the model was run')")
    cached(place / "hub", "some/model", place / "origin")
    shutil.rmtree(place / "origin")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "hub"))
    asked: list[Sequence[str]] = []
    usual = hub_name.snapshot_download
    monkeypatch.setattr(
        hub_name,
        "snapshot_download",
        lambda name, allow_patterns, **options: (asked.append(allow_patterns), usual(name, **options))[1],
    )
    model, _ = started(place, "model.from=some/model")
    assert model.config.d_model == 12
    assert {name.rpartition(".")[2] for names in asked for name in names} == {"json", "safetensors"}
    recorded = json.loads((place / "run" / "prepared.json").read_text())["origin"]
    assert (recorded["name"], recorded["is_on_hub"]) == ("some/model", True)
    assert "auto_map" not in (place / "run" / "tokenizer_config.json").read_text()
    file = place / "hub" / "models--some--model" / "snapshots" / "0123abcd" / "model.safetensors"
    assert recorded["checksums"]["weights"] == sha256_of(file)


def test_a_name_that_is_neither_a_directory_nor_on_the_hub_is_refused_in_one_line(place: Path) -> None:
    for name in ("nobody/nothing", "../elsewhere/run"):
        with pytest.raises(RecipeError, match=r"^model\.from: .*(is no directory here|is not a directory).*$"):
            completed(recipe(place, f"model.from={name}"), place / "run")


def test_no_path_of_this_machine_is_recorded_as_the_origin(place: Path) -> None:
    started(place)
    recorded = json.loads((place / "run" / "prepared.json").read_text())["origin"]
    assert (recorded["name"], recorded["is_on_hub"]) == ("origin", False)
    assert str(place) not in json.dumps(recorded)
    assert str(place) not in (place / "run" / "recipe.yaml").read_text()


def with_tokenizer(place: Path, name: str = "origin") -> list[str]:
    """Overrides for a training from scratch with the tokenizer of a folder."""
    sizes = [f"model.{key}={size}" for key, size in SIZE.items()]
    return ["model.from=null", f"tokenizer.from={place / name}", *sizes]


def test_an_existing_tokenizer_is_trained_with_and_reaches_the_model(place: Path) -> None:
    changes = [*with_tokenizer(place), "tokenizer.dropout=0.1"]
    state = json.loads((place / "origin" / "tokenizer.json").read_text())
    names = {"</s>": "[END]", "<pad>": "[PAD]"}
    text = json.dumps(state)
    for ours, theirs in names.items():
        text = text.replace(json.dumps(ours), json.dumps(theirs))
    (place / "origin" / "tokenizer.json").write_text(text)
    settings = {"eos_token": "[END]", "pad_token": "[PAD]", "unk_token": "<unk>"}
    (place / "origin" / "tokenizer_config.json").write_text(json.dumps(settings))
    for file in ("model.safetensors", "config.json"):
        (place / "origin" / file).unlink()
    trained(place, place / "run", *changes, "training.max_steps=1")
    config = json.loads((place / "run" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"], config["vocab_size"]) == (2, 1, 275)
    translator = Translator.from_pretrained(place / "run")
    assert len(translator.translate([("small dog",), ("a",)])) == 2
    assert translator.tokenizer("small")["input_ids"][-1] == 2
    shutil.rmtree(place / "origin")
    prepare(recipe(place, *changes, "training.max_steps=1"), place / "run")  # the run has the tokenizer itself


def test_a_tokenizer_and_a_model_cannot_both_be_given(place: Path) -> None:
    with pytest.raises(RecipeError, match=r"tokenizer\.from: cannot stand beside model\.from"):
        completed(recipe(place, "tokenizer.from=origin"), place / "run")


@pytest.mark.parametrize(
    "start", [lambda _: ["training.learning_rate=5e-5"], with_tokenizer], ids=["model", "tokenizer"]
)
def test_check_finds_nothing_wrong_with_what_is_right_where_one_starts_from(
    place: Path, start: Callable[[Path], list[str]]
) -> None:
    """It names no vocab_size, which the recipe does not have; and with a model low rates and few epochs are usual."""
    report = check(recipe(place, "training.max_steps=50", "training.eval_steps=10", *start(place)), place / "run")
    assert report.facts["vocabulary"] == "275 tokens"
    wrong = re.compile(r"vocab_size|tokenizer\.kind|learning rate|target tokens")
    assert not [finding for finding in map(str, report.findings) if wrong.search(finding)]
    assert not (place / "run").exists()


def test_check_finds_a_tokenizer_that_does_not_fit(place: Path) -> None:
    train_tokenizer(["quite another text"] * 50, "bpe", 600, lowercase=True).save_pretrained(place / "origin")
    numbers = "".join(f"{number}\n" for number in range(700))
    train_tokenizer([numbers], "word", 700, lowercase=True).save_pretrained(place / "words")
    found = " ".join(map(str, check(recipe(place, *with_tokenizer(place)), place / "run").findings))
    assert "does not give back 40 of 40 targets, such as 'kleiner Hund 0'" in found
    found = " ".join(map(str, check(recipe(place, *with_tokenizer(place, "words")), place / "run").findings))
    assert "of the training tokens are unknown words: take a model or tokenizer that has them" in found
    assert "of the tokens of tokenizer.from occur fewer than 5 times" in found
