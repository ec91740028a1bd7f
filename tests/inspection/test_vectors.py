"""Vectors are those of the encoder, whatever is in the batch; neighbours are found without what all vectors share."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection.neighbours import MIN_TEXTS, isotropic, mean_cosine, neighbours_of, unit_vectors
from hf_vanilla.inspection.vectors import states_of, texts_for, vectors_for
from hf_vanilla_cli import main

LINES = ["a few", "few words, a few words", "s", "Be. XYBeaL", "cat saw"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return file


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


# --- States -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
def test_states_are_those_that_transformers_gives(make_model: Callable[..., Model], norm_first: bool) -> None:
    model = make_model(norm_first=norm_first, encoder_layers=3)
    ids = [[5, 9, 30, 7, 2], [11, 2], [4, 4, 21, 2]]
    found = dict(states_of(model, ids))
    for place, each in enumerate(ids):
        output = model.get_encoder()(torch.tensor([each]), output_hidden_states=True)
        expected = torch.stack(output.hidden_states)[:, 0].detach()
        assert found[place].shape == (4, len(each), 16)
        assert found[place] == pytest.approx(expected.numpy(), abs=1e-5)


def test_nothing_of_the_model_is_changed_also_after_an_error(make_model: Callable[..., Model]) -> None:
    model = make_model().train()
    list(states_of(model, [[5, 2]]))
    with pytest.raises(IndexError):
        list(states_of(model, [[5_000, 2]]))
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ValueError, match="text 1 has no tokens"):
        list(states_of(model, [[5], []]))


def test_a_text_has_the_same_vector_alone_and_in_any_batch(run: Path, data: Path, tmp_path: Path) -> None:
    together = vectors_for(run, data=data)
    for place, line in enumerate(LINES):
        alone = tmp_path / "alone.txt"
        alone.write_text(f"{line}\n", encoding="utf-8")
        found = vectors_for(run, data=alone)
        assert found.of_texts[0] == pytest.approx(together.of_texts[place], abs=1e-6)
        assert found.of_tokens[0] == pytest.approx(together.of_tokens[place], abs=1e-6)
    translator = Translator.from_pretrained(run, dtype=torch.float64)
    ids = translator.encode_batch(LINES)
    whole = dict(states_of(translator.model, ids))
    assert all(
        np.abs(states - whole[place]).max() < 1e-12
        for place, each in enumerate(ids)
        for _, states in states_of(translator.model, [each])
    )


def test_pools_are_the_mean_of_the_text_its_first_token_and_the_last(run: Path, data: Path) -> None:
    found = {pool: vectors_for(run, layer=0, pool=pool, data=data) for pool in ("mean", "first", "last")}
    for place, line in enumerate(LINES):
        tokens = found["mean"].of_tokens[place]
        assert len(tokens) == len(line) + 1  # characters, and <eos>
        assert found["mean"].of_texts[place] == pytest.approx(tokens[:-1].mean(0), abs=1e-6)
        assert found["first"].of_texts[place].tolist() == tokens[0].tolist()
        assert found["last"].of_texts[place].tolist() == tokens[-1].tolist()
    last = vectors_for(run, data=data)
    assert last.layer == 1
    translator = Translator.from_pretrained(run, dtype=torch.float64)
    for place, states in states_of(translator.model, translator.encode_batch(LINES)):
        assert found["mean"].of_tokens[place] == pytest.approx(states[1], abs=1e-6)
        assert last.of_tokens[place] == pytest.approx(states[2], abs=1e-6)
    assert np.abs(last.of_texts - found["mean"].of_texts).max() > 0.1


def test_texts_may_have_a_target_that_is_not_read(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.tsv"
    file.write_text("cat\tX\nsaw\n", encoding="utf-8")
    translator = Translator.from_pretrained(run)
    assert texts_for(run, translator, file).sources == [("cat",), ("saw",)]
    assert texts_for(run, translator, file, "few ").ids == translator.encode_batch(["few cat", "few saw"])
    for text, line in (("a\tb\tc\n", 1), ("a\n\n", 2)):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidDataError, match=rf"texts\.tsv:{line}: has not 1 filled columns"):
            texts_for(run, translator, file)


# --- Neighbours -------------------------------------------------------------------------------------------------------


def test_what_all_vectors_share_is_taken_out() -> None:
    """Ten texts in two versions each; a large common part and one large direction hide which belong together."""
    random = np.random.default_rng(3)
    own, direction = random.normal(size=(15, 40)), random.normal(size=40)
    pairs = np.repeat(own, 2, 0) + 0.05 * random.normal(size=(30, 40))
    vectors = pairs + 20 + 30 * random.normal(size=(30, 1)) * direction
    found = neighbours_of(vectors)
    partners = np.arange(30) ^ 1
    assert found.places[:, 0].tolist() == partners.tolist()
    assert found.places.shape == (30, 3)
    assert (np.diff(found.similarities) <= 0).all()
    plain = unit_vectors(vectors) @ unit_vectors(vectors).T - 2 * np.eye(30)
    assert (plain.argmax(1) == partners).mean() < 0.9
    assert abs(found.cosine_after) < 0.05 < abs(found.cosine_before)
    assert found.correction == "the mean of all texts and the 1 dominant direction are taken out"


def test_directions_that_are_taken_out_are_the_dominant_ones() -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 200)) * np.linspace(10, 1, 200)
    left, words = isotropic(vectors)
    before, after = (np.linalg.svd(each - each.mean(0), compute_uv=False) for each in (vectors, left))
    assert after[:47] == pytest.approx(before[2:49])
    assert "2 dominant directions" in words


def test_few_texts_are_compared_as_they_are() -> None:
    vectors = np.random.default_rng(0).normal(size=(MIN_TEXTS - 1, 8)) + 3
    left, words = isotropic(vectors)
    assert left.tolist() == vectors.tolist()
    assert words.startswith("none: 19 texts are fewer than the 20")
    assert neighbours_of(vectors[:2]).places.tolist() == [[1], [0]]
    assert neighbours_of(np.array([[1.0, 0], [-1, 0]])).places.tolist() == [[1], [0]]  # no text is its own neighbour
    with pytest.raises(InvalidDataError, match="one text has no neighbours"):
        neighbours_of(vectors[:1])


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    unit = unit_vectors(np.array([[1.0, 2], [3, -1], [0.5, 0.5], [0, 0]]))
    cosines = [unit[i] @ unit[j] for i in range(4) for j in range(4) if i != j]
    assert mean_cosine(unit) == pytest.approx(np.mean(cosines))


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_what_the_library_finds(run: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "vectors.npz"
    done = command(run, "--vectors", "--layer", 1, "--pool", "last", "--data", data, "--output", file, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts == {
        "layer": 1,
        "pool": "last",
        "texts": 5,
        "tokens": sum(map(len, LINES)) + 5,
        "size": 16,
        "vectors": str(file),
    }
    expected = vectors_for(run, layer=0, pool="last", data=data)
    with np.load(file) as arrays:  # nothing in it is pickled
        assert arrays["sentence_vectors"].tolist() == expected.of_texts.tolist()
        assert arrays["texts"].tolist() == LINES
        for place, tokens in enumerate(expected.of_tokens):
            first, end = arrays["first_tokens"][place : place + 2]
            assert arrays["token_vectors"][first:end].tolist() == tokens.tolist()
            assert arrays["token_ids"][first:end].tolist() == expected.texts.ids[place]


def test_the_command_shows_neighbours_and_what_was_corrected(run: Path, data: Path, tmp_path: Path) -> None:
    done = command(run, "--neighbours", "--data", data)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[::4] == LINES
    assert "correction for anisotropy: none: 5 texts" in done.stderr
    file = tmp_path / "both.npz"
    both = command(run, "--vectors", "--neighbours", "--data", data, "--output", file, "--json")
    facts = json.loads(both.stdout)
    with np.load(file) as arrays:
        near = neighbours_of(arrays["sentence_vectors"])
    assert [[each["text"] for each in text["nearest"]] for text in facts["texts"]] == [
        [LINES[other] for other in others] for others in near.places
    ]
    assert facts["mean_cosine_before"] == near.cosine_before


def test_texts_that_are_cut_are_named_in_one_line(run: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("a\n" + "a" * 1024 + "\n" + "a" * 1030 + "\n", encoding="utf-8")
    done = command(run, "--neighbours", "--data", long)
    assert done.exit_code == 0, done.output
    warning, *others = done.stderr.splitlines()
    assert warning.startswith("Warning: source 2 has 1,025 tokens; of it, and of others like it, only the first 1,024")
    assert [line.partition(":")[0] for line in others] == ["correction for anisotropy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vectors"], "give --output FILE.npz"),
        (["--vectors", "--output", "v.txt"], "give --output FILE.npz"),
        (["--neighbours", "--layer", "3"], "--layer 3: the encoder has the layers 1 to 2"),
        (["--neighbours", "--layer", "1", "--layer", "2"], "--neighbours reads one layer"),
        (["--neighbours", "--gold", "f"], "--gold cannot be used with --neighbours"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], message: str, run: Path, data: Path) -> None:
    done = command(run, *arguments, "--data", data)
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
