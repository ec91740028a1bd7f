"""An export to CTranslate2 gives what the model gives, in probabilities, n-best lists and commands, or is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import hf_vanilla_cli
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.inference.beginnings import Beginnings
from hf_vanilla.inference.engine import EngineError
from hf_vanilla.inference.translator import Translator
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.export import export
from hf_vanilla.manifest import ManifestError

MakeTranslator = Callable[..., Translator]

TEXTS = [
    "a few words",
    "ten",
    "Some more words, and then MORE.",
    "xyz",
    "",
    "a b c d e f",
    "WORDS",
    "XYBeaLs XY",
    "few",
]
BEGUN = ["a", "te", "", "x", "few", "XY", "W", "", "Be"]


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Translator]:
    """`exported(translator, **options)`: the same by CTranslate2, loaded from an export."""

    def make(translator: Translator, **options: Any) -> Translator:
        for name in ("saved", "export"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        translator.model.save_pretrained(tmp_path / "saved")
        translator.tokenizer.save_pretrained(tmp_path / "saved")
        export(tmp_path / "saved", "ctranslate2", tmp_path / "export", **options)
        return Translator.from_pretrained(tmp_path / "export")

    return make


def log_probabilities(translator: Translator) -> torch.Tensor:
    texts = [text for text in TEXTS if text]
    scores = translator.score(texts, list(reversed(texts)))
    return torch.tensor([each for score in scores for each in score.token_log_probabilities])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True, "activation_function": "relu"},
        {"position_embedding_type": "learned", "max_position_embeddings": 50},
        {"d_kv": 5, "d_v": 3, "layer_norm_eps": 0.05},
        {"d_kv": 4, "d_v": 7, "norm_first": True},
        {"d_kv": 6, "d_v": 6, "encoder_layers": 1, "decoder_layers": 2},
        *({"activation_function": name} for name in ("gelu_new", "quick_gelu", "silu", "tanh", "sigmoid")),
    ],
    ids=str,
)
def test_every_configuration_has_the_same_probabilities(
    make_translator: MakeTranslator, exported: Callable[..., Translator], changes: dict[str, Any]
) -> None:
    translator = make_translator(**changes)
    expected = log_probabilities(translator)
    assert expected.std() > 1  # else nothing could differ
    torch.testing.assert_close(log_probabilities(exported(translator)), expected, atol=2e-5, rtol=1e-5)


def test_tied_embeddings_have_the_same_probabilities(
    make_translator: MakeTranslator, make_model: Callable[..., Model], exported: Callable[..., Translator]
) -> None:
    tokenizer = make_translator().tokenizer
    translator = Translator(make_model(vocab_size=len(tokenizer) + 3), tokenizer)  # some rows have no token
    translator.model.generation_config.update(max_length=24)
    expected = log_probabilities(translator)
    torch.testing.assert_close(log_probabilities(exported(translator)), expected, atol=2e-5, rtol=1e-5)


def test_what_ctranslate2_cannot_compute_is_refused_by_name(
    make_translator: MakeTranslator, exported: Callable[..., Translator]
) -> None:
    with pytest.raises(InteropError, match=r"activation_function \('mish'\) is not one that CTranslate2 computes"):
        exported(make_translator(activation_function="mish"))
    with pytest.raises(InteropError, match=r"--quantization \(int4\) must be one of float32, float16"):
        exported(make_translator(), quantization="int4")


GNMT = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}
BEAMS = {"num_beams": 4, "num_return_sequences": 4}


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 1, "min_length": 9, "no_repeat_ngram_size": 2},
        {"num_beams": 1, "suppress_tokens": [270, 275], "bad_words_ids": [[271, 272], [280], [2]]},
        {"num_beams": 1, "repetition_penalty": 1.3},
        {"num_beams": 1, "max_length_beyond_source": 1},
        {"num_beams": 1, "min_new_tokens": 6, "max_new_tokens": 8, "max_length": None},
        *(BEAMS | {"early_stopping": value} for value in (False, True, "never")),
        *(BEAMS | {"length_penalty": value} for value in (0.0, 0.6, 1.5)),
        *(BEAMS | GNMT | {"early_stopping": value} for value in (False, True)),
        BEAMS | GNMT | {"early_stopping": "never", "max_length_beyond_source": 3},
        BEAMS | {"max_length": 7},
        BEAMS | {"max_length_beyond_source": 0, "length_penalty": 1.5},
        {"num_beams": 8, "num_return_sequences": 2},
    ],
    ids=str,
)
def test_whole_n_best_lists_are_the_same(
    make_translator: MakeTranslator,
    exported: Callable[..., Translator],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Beginnings, "suppressed", anything_may_follow)
    ours = make_translator(norm_first=True)
    theirs = exported(ours)
    options = {name: value for name, value in options.items() if value is not None}
    for prefixes in (None, BEGUN):
        expected = ours.hypotheses(TEXTS, target_prefixes=prefixes, **options)
        found = theirs.hypotheses(TEXTS, target_prefixes=prefixes, **options)
        for want, have in zip(expected, found, strict=True):
            assert [one.token_ids for one in have] == [one.token_ids for one in want]
            assert [one.text for one in have] == [one.text for one in want]
            assert [one.score for one in have] == pytest.approx([one.score for one in want], abs=1e-4)
    assert len({row[0].text for row in expected}) > 5


@pytest.mark.parametrize(
    "options",
    [
        {"max_length_beyond_source": None, "min_length": None},
        {"length_penalty_type": None, "min_length": None},
        {"target_prefixes": [each and f"{each}," for each in BEGUN], "max_new_tokens": 4, "min_length": None},
    ],
    ids=lambda options: "-".join(options),
)
def test_none_in_the_call_switches_off_what_the_export_is_set_to(
    make_translator: MakeTranslator, exported: Callable[..., Translator], options: dict[str, Any]
) -> None:
    ours = make_translator(norm_first=True)
    settings = {"max_length_beyond_source": 0, "length_penalty_type": "gnmt", "length_penalty": 3.0}
    ours.model.generation_config.update(allow_custom_entries=True, **settings)
    theirs = exported(ours)
    for config in (ours.model.generation_config, theirs.engine.generation_config):
        config.update(min_length=9)  # which is not exported, as CTranslate2 does not follow it
    expected, found = (each.hypotheses(TEXTS, **options) for each in (ours, theirs))
    assert [row[0].token_ids for row in found] == [row[0].token_ids for row in expected]
    assert [row[0].score for row in found] == pytest.approx([row[0].score for row in expected], abs=1e-4)
    with pytest.raises(EngineError, match=r"min_length \(9\)"):
        theirs.translate(TEXTS)


def anything_may_follow(beginnings: Beginnings, end: object) -> list[int]:
    """What must not follow a beginning is the one part of them that CTranslate2 cannot do."""
    return []


def test_beginnings_that_must_not_go_on_are_refused(
    make_translator: MakeTranslator, exported: Callable[..., Translator]
) -> None:
    theirs = exported(make_translator())
    with pytest.raises(EngineError, match="a forced beginning that ends in a word or a space cannot be kept"):
        theirs.translate("a few words", target_prefixes="few")
    assert theirs.translate("a few words", target_prefixes="few,").startswith("few,")


def test_an_ending_right_behind_a_forced_beginning_is_found(
    make_translator: MakeTranslator, exported: Callable[..., Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CTranslate2 itself loses it."""
    monkeypatch.setattr(Beginnings, "suppressed", anything_may_follow)
    ours = make_translator(norm_first=True)
    theirs, texts = exported(ours), ["XYBeaLs"[: 1 + place % 7] * (1 + place // 7) for place in range(28)]
    begun, options = [text[:1] for text in texts], BEAMS | {"early_stopping": True}
    expected = ours.hypotheses(texts, target_prefixes=begun, **options)
    found = theirs.hypotheses(texts, target_prefixes=begun, **options)
    assert any(one.text == start for row, start in zip(expected, begun, strict=True) for one in row)
    assert [[one.token_ids for one in row] for row in found] == [[one.token_ids for one in row] for row in expected]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"do_sample": True}, "do_sample"),
        ({"min_length": 5, "num_beams": 2}, r"min_length \(5\) .* with num_beams=2"),
        ({"no_repeat_ngram_size": 2, "num_beams": 2}, "no_repeat_ngram_size"),
        ({"suppress_tokens": [7], "num_beams": 2}, "suppress_tokens"),
        ({"repetition_penalty": 1.2, "num_beams": 2}, "repetition_penalty"),
        ({"eos_token_id": [2, 5]}, r"eos_token_id \(\[2, 5\]\)"),
        ({"logits_processor": ["something"]}, "logits_processor"),
        ({"stop_strings": ["a"]}, "stop_strings"),
        ({"forced_eos_token_id": 0}, r"forced_eos_token_id \(0\)"),
        ({"forced_bos_token_id": 0, "num_beams": 1}, r"forced_bos_token_id \(0\)"),
    ],
)
def test_options_that_it_would_follow_otherwise_are_refused_by_name(
    make_translator: MakeTranslator, exported: Callable[..., Translator], options: dict[str, Any], named: str
) -> None:
    theirs = exported(make_translator())
    for texts in (TEXTS, []):
        with pytest.raises(EngineError, match=named):
            theirs.search(list(theirs._lines(texts, None)), **options)


def test_values_that_ask_for_nothing_are_not_refused(
    make_translator: MakeTranslator, exported: Callable[..., Translator]
) -> None:
    ours = make_translator()
    neutral = {"min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
    neutral |= {"diversity_penalty": 0.0, "top_k": 0, "temperature": 0.5, "do_sample": False, "num_beams": 2}
    assert exported(ours).translate(TEXTS, **neutral) == ours.translate(TEXTS, num_beams=2)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16"])
def test_quantised_weights_are_smaller_and_near(
    make_translator: MakeTranslator, exported: Callable[..., Translator], tmp_path: Path, name: str
) -> None:
    translator = make_translator()
    expected = log_probabilities(translator)
    exported(translator)
    whole = (tmp_path / "export" / "model.bin").stat().st_size
    found = log_probabilities(exported(translator, quantization=name))
    assert (tmp_path / "export" / "model.bin").stat().st_size < 0.97 * whole
    assert 0 < (found - expected).abs().mean() < 0.3
    assert torch.equal(log_probabilities(translator), expected)


def command(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(hf_vanilla_cli.main, list(map(str, arguments)), **more)


def test_commands_take_an_export_in_place_of_a_run(run: Path, tmp_path: Path) -> None:
    made = command("export", run, "--to", "ctranslate2", "--output", tmp_path / "export")
    assert made.exit_code == 0, made.output
    text = "\n".join(TEXTS) + "\n"
    options = ["--n-best", 3, "--dtype", "float32"]
    expected = command("translate", run, *options, input=text)
    assert command("translate", tmp_path / "export", *options, input=text).stdout == expected.stdout
    assert expected.stdout.count("\n") == 3 * len(TEXTS)
    pairs = "".join(f"{text}\tten\n" for text in TEXTS)
    scores = [command("score", folder, input=pairs).stdout.split() for folder in (run, tmp_path / "export")]
    assert list(map(float, scores[1])) == pytest.approx(list(map(float, scores[0])), abs=0.05)  # auto may be bfloat16
    refused = command("translate", tmp_path / "export", "--alignments", input=text)
    assert refused.exit_code == 1
    assert "this needs the model itself, not an export of it" in refused.output.splitlines()[-1]


def test_a_type_that_the_processor_does_not_have_is_refused_in_a_line(run: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    missing = {"float16", "bfloat16"} - ctranslate2.get_supported_compute_types("cpu")
    if not missing:
        pytest.skip("this processor has all types")
    assert command("export", run, "--to", "ctranslate2", "--output", tmp_path / "export").exit_code == 0
    name = min(missing)
    for options in ([], ["--device", "cpu"]):
        done = command("translate", tmp_path / "export", "--dtype", name, *options, input="a\n")
        assert (done.exit_code, type(done.exception)) == (1, SystemExit)
        assert f"Error: {tmp_path / 'export'} cannot compute on cpu in {name}" in done.stderr


def test_the_export_knows_columns_and_positions(
    make_translator: MakeTranslator, exported: Callable[..., Translator]
) -> None:
    two = make_translator(columns=2, position_embedding_type="learned", max_position_embeddings=9)
    theirs = exported(two)
    assert theirs.columns == 2
    assert theirs.max_source_length == 9
    assert theirs.translate("few\twor") == two.translate("few\twor")
    assert theirs.translate("few\twor", num_beams=1) == two.translate("few\twor", num_beams=1)


@pytest.mark.parametrize("name", ["model.bin", "config.json", "shared_vocabulary.json", "manifest.json"])
def test_an_export_that_was_changed_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    export(run, "ctranslate2", tmp_path / "export")
    file = tmp_path / "export" / name
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(ManifestError, match=name):
        Translator.from_pretrained(tmp_path / "export")
    assert name in command("translate", tmp_path / "export", input="ten\n").output.splitlines()[-1]
