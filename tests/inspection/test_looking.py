"""Names, numbers and files about one source and its target."""

import base64
import json
import re
import shlex
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator
from hf_vanilla.inspection import attend, figure
from hf_vanilla.inspection.figure import draw_figure
from hf_vanilla.inspection.looking import agreement_of, arrays_of, facts_of, first_map, look, parts_of
from hf_vanilla.inspection.packing import packed, sparse
from hf_vanilla.inspection.tokens import members_of_words, source_tokens, target_tokens
from hf_vanilla.models import guard_vanilla
from hf_vanilla_cli import main

MakeTranslator = Callable[..., Translator]


# --- The library ----------------------------------------------------------------------------------------------------


def test_the_target_is_that_of_the_search(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    (best, *_) = translator.hypotheses("a few words", num_beams=4)
    found = attend(translator.model, translator.tokenizer, "a few words", num_beams=4)
    assert (found.target, found.target_ids) == (best.text, best.token_ids)
    assert found.score == pytest.approx(best.score, abs=1e-5)
    rows, columns = found.names("cross")
    assert found.maps.cross.shape[2:] == (len(rows), len(columns))
    assert columns == ["a", "␣", "f", "e", "w", "␣", "w", "o", "r", "d", "s", "</s>"]
    assert found.names("decoder")[1] == ["<s>", *rows[:-1]]
    assert found.names("encoder") == (columns, columns)


def test_a_given_target_has_the_score_of_scoring(make_translator: MakeTranslator) -> None:
    translator = make_translator(columns=2)
    found = attend(translator.model, translator.tokenizer, ("a few", "words"), "Xe, ß")
    score = translator.score(("a few", "words"), "Xe, ß")
    assert found.score == pytest.approx(score.normalised, abs=1e-5)
    assert found.log_probabilities == pytest.approx(score.token_log_probabilities, abs=1e-5)
    assert found.names("cross")[0] == ["X", "e", ",", "␣", "ß 1/2", "ß 2/2", "</s>"]
    assert found.names("cross")[1][5] == "<sep>"
    assert attend(translator.model, translator.tokenizer, ["a few", "words"], "Xe, ß").score == found.score


def test_a_model_loaded_from_a_folder_is_read_whatever_its_attention(run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run)
    found = {}
    for implementation in ("eager", "sdpa", "flex_attention"):
        model = AutoModelForSeq2SeqLM.from_pretrained(run, attn_implementation=implementation)
        found[implementation] = attend(model, tokenizer, "a few", "words").maps.cross
        assert model.config._attn_implementation == implementation
    assert found["sdpa"] == pytest.approx(found["eager"])
    assert found["flex_attention"] == pytest.approx(found["eager"])


@pytest.mark.parametrize(("source", "target"), [("", None), ("  ", "a")])
def test_an_empty_source_is_refused(source: str, target: str | None, make_translator: MakeTranslator) -> None:
    translator = make_translator()
    with pytest.raises(InvalidDataError, match="the source is empty"):
        attend(translator.model, translator.tokenizer, source, target)


def test_texts_that_would_be_cut_are_refused(make_translator: MakeTranslator) -> None:
    translator = make_translator(position_embedding_type="learned", max_position_embeddings=8)
    for texts in (("a few words", "a"), ("a", "a few words")):
        with pytest.raises(InvalidDataError, match="has 12 tokens, more than the limit of 8"):
            attend(translator.model, translator.tokenizer, *texts)


def test_a_model_in_training_is_left_as_it_was(
    make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights to the bit, hooks, mode, implementation; and searches are as fast as before."""
    translator = make_translator(dropout=0.5)
    model, searches = translator.model, []
    search = guard_vanilla.beam_search
    monkeypatch.setattr(guard_vanilla, "beam_search", lambda *each: searches.append(each) or search(*each))

    def state() -> tuple[object, ...]:
        hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
        return hooks, model.training, model.config._attn_implementation, torch.is_grad_enabled()

    weights, before = {name: weight.clone() for name, weight in model.state_dict().items()}, translator.translate("a")
    assert len(searches) == 1
    model.train()
    left = state()
    found = look(translator, "a few words")
    assert state() == left
    assert found.effect is not None
    model.eval()
    searches.clear()
    assert translator.translate("a") == before
    assert len(searches) == 1
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    again = look(translator, "a few words")  # dropout was off
    assert np.array_equal(again.attention.maps.cross, found.attention.maps.cross)


# --- Tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("bpe", "the café", "the ␣ c a f é </s>"),
        ("bpe", "  the", "␣ ␣ the* </s>"),
        ("bpe", "日 a", "␣ 日 1/3 日 2/3 日 3/3 a* </s>"),
        ("character", "e\u0301a", "é a </s>"),
        ("character", "aße", "a ß 1/2 ß 2/2 e </s>"),
        ("word", "the  unknown", "the unknown </s>"),
    ],
)
def test_tokens_are_the_characters_that_they_stand_for(kind: Any, text: str, shown: str) -> None:
    """A star stands for a space in front."""
    tokenizer = train_tokenizer(["the a é", "the the"], kind, vocab_size=266)
    ids = tokenizer(text)["input_ids"]
    tokens = source_tokens(tokenizer, (text,), ids)
    found = " ".join(f"{token}*" if token.has_space else str(token) for token in tokens)
    assert unicodedata.normalize("NFC", found) == unicodedata.normalize("NFC", shown)
    assert [token.is_special for token in tokens] == [False] * (len(tokens) - 1) + [True]


def test_tokens_of_a_word_are_together_and_others_alone() -> None:
    tokenizer = train_tokenizer(["the house"], "character")
    text = "the ho us"
    tokens = target_tokens(tokenizer, text, tokenizer(text)["input_ids"])
    assert members_of_words(tokens).tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 4, 5]
    assert parts_of(tokens).tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 4, 5]
    assert parts_of(tokens[:3]).tolist() == [0, 1, 2]  # hiding the only word would hide everything


# --- Numbers --------------------------------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    """Two tokens of the first part, one each of the others; of three rows two have the same first part."""
    weights = np.array([[0.3, 0.3, 0.4, 0.0], [0.1, 0.1, 0.2, 0.6], [0.1, 0.3, 0.5, 0.1], [0.25, 0.25, 0.25, 0.25]])
    effect = np.array([[2.0, 1.0, 0.5], [0.1, 0.2, 0.3], [0.9, 0.1, 0.5], [5.0, 6.0, 7.0]])
    parts = np.array([0, 0, 1, 2])
    found = agreement_of(weights, effect, parts, "output")
    assert found == pytest.approx({"same_top": 2 / 3, "rank_correlation": (1 + np.sqrt(3) / 2 - 0.5) / 3})
    shifted = agreement_of(np.roll(weights, 1, axis=0), effect, parts, "input")
    assert shifted == found
    assert agreement_of(weights[:1], effect[:1], parts, "output") is None


def test_the_first_map_is_the_alignment_if_one_was_chosen(make_translator: MakeTranslator) -> None:
    model = make_translator().model
    assert first_map(model)[0].layer == 2
    assert not first_map(model)[1]
    model.generation_config.alignment = {
        "layer": 1,
        "head": 3,
        "row": "input",
        "source_unit": "word",
        "target_unit": "word",
    }
    first, is_aligned = first_map(model)
    assert (first.layer, first.head, first.row, is_aligned) == (1, 3, "input", True)


def test_the_largest_weights_are_unpacked_with_gaps_over_255() -> None:
    """As the page does: gaps, then codes, in planes."""
    weights = np.zeros((2, 700), np.float32)
    weights[0, [3, 300, 699]] = [0.5, 0.25, 0.25]
    weights[1, [0, 1, 600]] = [0.1, 0.8, 0.1]
    planes = np.frombuffer(sparse(weights, 3), np.uint8).reshape(3, 3, 2)
    keys = (planes[0] + 256 * planes[1].astype(int)).cumsum(0).T
    assert keys.tolist() == [[3, 300, 699], [0, 1, 600]]
    assert pytest.approx(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), abs=0.004) == (planes[2].T / 255) ** 2


def test_packing_is_as_exact_as_it_says() -> None:
    weights = np.random.default_rng(3).dirichlet(np.full(40, 0.2), 30).astype(np.float32)
    data = zlib.decompress(base64.b64decode(packed([weights], None, np.zeros(5))), -zlib.MAX_WBITS)
    found = (np.frombuffer(data, np.uint8)[:1200].reshape(30, 40) / 255) ** 2
    assert found == pytest.approx(weights, abs=0.004)


def test_arrays_need_no_unpickling(make_translator: MakeTranslator, tmp_path: Path) -> None:
    looking = look(make_translator(), "a few words", "Xe ß")
    np.savez(tmp_path / "maps.npz", **arrays_of(looking))
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["cross"], looking.attention.maps.cross)
        assert arrays["target_tokens"].tolist() == ["X", "e", "␣", "ß 1/2", "ß 2/2", "</s>"]
        assert arrays["effect"].shape == (6, arrays["parts"].max() + 1)
        assert not arrays["decoder"][..., ~arrays["decoder_mask"]].any()
        assert arrays["target_is_special"].tolist() == [False] * 5 + [True]


# --- Pictures and the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "start"), [("m.svg", b"<?xml"), ("m.png", b"\x89PNG"), ("m.pdf", b"%PDF")])
def test_a_map_is_drawn(name: str, start: bytes, make_translator: MakeTranslator, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    translator = make_translator()
    attention = attend(translator.model, translator.tokenizer, "a $few$", "wo_rds")
    assert draw_figure(attention, tmp_path / name, "cross", 1, 2).read_bytes().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    for place, message in ((("cross", 3, 0), "--layer 4: the cross"), (("encoder", 0, 4), "--head 5: the model has")):
        with pytest.raises(InvalidDataError, match=message):
            draw_figure(attention, tmp_path / name, *place)  # type: ignore[arg-type]
    long = attend(translator.model, translator.tokenizer, "a" * 60, "a")
    with pytest.raises(InvalidDataError, match=r"map of 2 by 61 tokens cannot be read"):
        draw_figure(long, tmp_path / name, "cross", 0, None)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_the_command_writes_page_arrays_and_facts(run: Path, tmp_path: Path) -> None:
    page, arrays = tmp_path / "page.html", tmp_path / "maps.npz"
    done = invoke(run, "a few", "words", "--output", page, "--arrays", arrays, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["map"] | {"weights": None} == {
        "kind": "cross",
        "layer": 3,
        "head": "mean",
        "row": "output",
        "is_aligned": False,
        "weights": None,
    }
    with np.load(arrays) as found:
        assert np.array(facts["map"]["weights"]) == pytest.approx(found["cross"][2].mean(0)[:-1], abs=1e-6)
    assert "default-src 'none'" in page.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["maps.npz", "page.html", "run"]


def test_only_arrays_are_written_if_only_they_are_asked_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(run, "a few", "--arrays", "maps.npz").exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["maps.npz", "run"]
    assert invoke(run, "a few").exit_code == 0
    assert (tmp_path / "attention.html").exists()


SELECTIONS = (("kind", "cross"), ("layer", "1"), ("head", "mean"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "0"], "'0' is not a number from 1"),
        (["--layer", "mean"], "'mean' is not a number from 1"),
        (["--head", "two"], "'two' is not a number from 1, or mean"),
        (["--figure", "m.svg", "--output", "p.html"], "--output cannot be used with --figure"),
        (["--figure", "m.svg", "--layer", "1", "--layer", "2"], "draws one map"),
        (["--figure", "m.gif"], "m.gif: a picture is one of .svg, .png, .pdf"),
        (["--layer", "9"], "there is no such attention"),
        (["--head", "9"], "there is no such attention"),
        *((["--arrays", "m.npz", f"--{name}", value], "--arrays writes all weights") for name, value in SELECTIONS),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(run, "a few", "words", *arguments)
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_layers_and_heads_are_counted_from_one(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[object, ...]] = []
    monkeypatch.setattr(figure, "draw_figure", lambda _, file, *place: drawn.append(place) or file)
    picture = tmp_path / "m.svg"
    for arguments in (
        ["--kind", "encoder", "--layer", "2", "--head", "3"],
        ["--kind", "decoder", "--layer", "1", "--head", "mean"],
        ["--head", "4"],
        [],
    ):
        assert invoke(run, "a few", "words", "--figure", picture, *arguments).exit_code == 0
    places = [("encoder", 1, 2), ("decoder", 0, None), ("cross", 2, 3), ("cross", 2, None)]
    assert drawn == [(*place, "output") for place in places]
    page = tmp_path / "page.html"
    assert (
        invoke(run, "a few", "words", "--kind", "encoder", "--layer", 1, "--head", 2, "--output", page).exit_code == 0
    )
    assert '"kinds":{"encoder":{"layers":[0],"heads":[1],' in page.read_text()
    assert invoke(run, "a few", "words", "--head", "mean", "--output", page).exit_code == 0
    assert '"kinds":{"encoder":{"layers":[0,1],"heads":[],' in page.read_text()


def test_the_map_that_is_drawn_has_its_own_row_and_is_that_of_json(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen map reads the tokens: its rows are those of "words" without the end, and a start token before them."""
    config = json.loads((run / "generation_config.json").read_text(encoding="utf-8"))
    chosen = {"layer": 1, "head": 2, "row": "input", "source_unit": "word", "target_unit": "word"}
    (run / "generation_config.json").write_text(json.dumps(config | {"alignment": chosen}), encoding="utf-8")
    drawn: list[Any] = []
    monkeypatch.setattr(figure, "heat_map", lambda pyplot, *given: drawn.append(given) or pyplot.figure())
    reading, usual = ["<s>", *"words"], [*"words", "</s>"]
    position = ", at the position that reads the target token"
    for arguments, rows, title in (
        ([], reading, f"cross, layer 2, head 3{position}"),
        (["--layer", "2", "--head", "3"], reading, f"cross, layer 2, head 3{position}"),
        (["--head", "4"], usual, "cross, layer 2, head 4"),
        (["--layer", "1"], usual, "cross, layer 1, mean of the heads"),
        (["--kind", "decoder", "--layer", "2", "--head", "3"], usual, "decoder, layer 2, head 3"),
        (["--kind", "encoder", "--layer", "2"], [*"a", "␣", *"few", "</s>"], "encoder, layer 2, mean of the heads"),
    ):
        done = invoke(run, "a few", "words", "--figure", tmp_path / "m.svg", "--json", *arguments)
        assert done.exit_code == 0, done.output
        weights, *labels = drawn[-1]
        assert (labels[0], labels[2]) == (rows, title)
        found = json.loads(done.stdout)["map"]
        head = "mean" if found["head"] == "mean" else f"head {found['head']}"
        assert title.startswith(f"{found['kind']}, layer {found['layer']}, {head}")
        of_tokens = {"input": weights[1:], "output": weights[:-1], None: weights}[found["row"]]
        assert np.array(found["weights"]) == pytest.approx(of_tokens, abs=1e-6)
        assert found["is_aligned"] == (rows == reading)
        of_page = invoke(run, "a few", "words", "--output", tmp_path / "page.html", "--json", *arguments)
        assert json.loads(of_page.stdout)["map"] == found


def test_a_run_and_a_source_are_needed(run: Path) -> None:
    for arguments in ([], [run]):
        assert "give RUN and a source" in invoke(*arguments).output


def test_facts_have_the_agreement_of_the_first_map(make_translator: MakeTranslator) -> None:
    looking = look(make_translator(), "a few words", "Xe ß")
    assert facts_of(looking)["agreement_with_effect"] == looking.agreement[2][-1]["output"]
    assert torch.is_grad_enabled()


def test_what_is_said_of_looking_inside_works(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with the extra plots")
    readme = (Path(__file__).parents[2] / "docs" / "inspecting.md").read_text(encoding="utf-8")
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"`hf-vanilla (inspect [^`]*--figure[^`]*)`", readme)
    done = CliRunner().invoke(main, shlex.split(command))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "attention.svg").exists()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL) if "attend" in block)
    exec(block, {})  # noqa: S102 - our own document
    assert "(3, 4, " in capsys.readouterr().out
