"""MarianMT as OPUS-MT has it: an output bias, two models of SentencePiece, and a vocabulary that lacks some pieces."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from hf_vanilla import Translator
from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.export import export
from hf_vanilla.interop.imports import marian
from hf_vanilla.interop.imports.checkpoint import import_checkpoint
from hf_vanilla.interop.imports.frame import assembled
from hf_vanilla.interop.imports.output_layer import with_bias
from hf_vanilla.models import guard_vanilla

DATA = Path(__file__).parent / "data" / "marian"
RECORDED = json.loads((DATA / "ids.json").read_text())
VOCABULARY = json.loads((DATA / "vocab.json").read_text())


@pytest.fixture
def opus(tmp_path: Path) -> tuple[Path, MarianMTModel]:
    """A checkpoint with every parameter random, and its model."""
    size, pad = len(VOCABULARY), VOCABULARY["<pad>"]
    sizes = {
        f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in {"attention_heads": 4}.items()
    }
    sizes |= {f"{stack}_ffn_dim": 24 for stack in ("encoder", "decoder")}
    config = MarianConfig(
        **sizes, vocab_size=size, d_model=16, encoder_layers=2, decoder_layers=3, activation_function="swish",
        scale_embedding=True, pad_token_id=pad, eos_token_id=0, bos_token_id=0, decoder_start_token_id=pad,
        forced_eos_token_id=0, max_position_embeddings=32,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        model.model.shared.weight[pad] = 0
        model.final_logits_bias.normal_()
    model.generation_config.update(num_beams=3, max_length=15, bad_words_ids=[[pad]])
    folder = tmp_path / "opus"
    model.save_pretrained(folder)
    for name in ("vocab.json", "source.spm", "target.spm"):
        shutil.copy(DATA / name, folder)
    return folder, model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pad = VOCABULARY["<pad>"]
    source, target = torch.randint(2, pad - 1, (3, 7)), torch.randint(2, pad - 1, (3, 5))
    source[1, 4:] = pad
    target[:, 0] = pad
    return source, (source != pad).long(), target


@torch.no_grad()
def test_logits_and_translations_are_those_of_marian(opus: tuple[Path, MarianMTModel], tmp_path: Path) -> None:
    folder, theirs = opus
    import_checkpoint(folder, "marian", tmp_path / "run")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    source, mask, target = batch()
    found, expected = (model(source, mask, target).logits for model in (ours, theirs))
    torch.testing.assert_close(found[..., : len(VOCABULARY)], expected, rtol=0, atol=5e-6)
    assert (found[..., len(VOCABULARY) :] < -99).all()  # pieces that the vocabulary lacks
    translations = [model.generate(source, attention_mask=mask).tolist() for model in (ours, theirs)]
    assert translations[0] == translations[1]
    assert (ours.generation_config.num_beams, ours.generation_config.max_length) == (3, 15)


def test_the_fast_search_does_what_opus_mt_asks_for(
    opus: tuple[Path, MarianMTModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, theirs = opus
    theirs.generation_config.renormalize_logits = True
    theirs.save_pretrained(folder)
    import_checkpoint(folder, "marian", tmp_path / "run")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    searched, usual = [], guard_vanilla.beam_search
    monkeypatch.setattr(guard_vanilla, "beam_search", lambda *given: searched.append(given[1]) or usual(*given))
    source, mask, _ = batch()
    translations = [model.generate(source, attention_mask=mask).tolist() for model in (ours, theirs)]
    assert translations[0] == translations[1]
    assert [(one.forced_last, one.renormalizes) for one in searched] == [(0, True)]


def test_a_token_that_never_comes_does_not_come_in_the_export(opus: tuple[Path, MarianMTModel], tmp_path: Path) -> None:
    """OPUS-MT says so of its <pad> (bad_words_ids)."""
    folder, theirs = opus
    pad, lines = VOCABULARY["<pad>"], RECORDED["lines"][:4]
    theirs.final_logits_bias[0, pad] = 9
    theirs.generation_config.renormalize_logits = True  # so do they
    theirs.save_pretrained(folder)
    import_checkpoint(folder, "marian", tmp_path / "run")
    export(tmp_path / "run", "onnx", tmp_path / "onnx")
    ours, exported = (Translator.from_pretrained(tmp_path / name) for name in ("run", "onnx"))
    wanted, found = (
        [[one.token_ids for one in each] for each in translator.hypotheses(lines, num_return_sequences=3)]
        for translator in (ours, exported)
    )
    assert found == wanted
    ours.model.generation_config.bad_words_ids = None
    assert ours.translate(lines) != exported.translate(lines)


@torch.no_grad()
def test_logits_are_exact_in_float64(opus: tuple[Path, MarianMTModel]) -> None:
    folder, theirs = opus
    found = marian.read(folder, segmented=False)
    for name in ("source", "target", "output", "bias"):
        setattr(found, name, getattr(found, name).double())
    found.weights = {name: weight.double() for name, weight in found.weights.items()}
    ours, theirs = assembled(found), theirs.double()
    # Marian's sinusoids are rounded from float64, ours computed in float32: ours for both.
    order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])
    positions = ours.model.encoder.embed_positions(torch.arange(32)).double()[:, order]
    for stack in (theirs.model.encoder, theirs.model.decoder):
        torch.testing.assert_close(stack.embed_positions.weight, positions, rtol=0, atol=3e-6)
        stack.embed_positions.weight.copy_(positions)
    source, mask, target = batch()
    result, expected = (model(source, mask, target).logits for model in (ours, theirs))
    torch.testing.assert_close(result[..., : len(VOCABULARY)], expected, rtol=0, atol=1e-12)
    probabilities = result.log_softmax(-1)[..., : len(VOCABULARY)], expected.log_softmax(-1)
    torch.testing.assert_close(*probabilities, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dead", [[], [3], [0, 15]])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_a_layer_norm_carries_a_bias_whatever_its_scale(dead: list[int], dtype: torch.dtype, error: float) -> None:
    layer_norm = torch.nn.LayerNorm(16, eps=1e-3, dtype=dtype)
    matrix, bias = torch.randn(9, 16, dtype=dtype), 5 * torch.randn(9, dtype=dtype)
    states = torch.randn(50, 16, dtype=dtype) * torch.logspace(-3, 3, 50, dtype=dtype)[:, None]
    with torch.no_grad():
        layer_norm.weight.copy_(torch.randn(16, dtype=dtype))
        layer_norm.weight[dead] = 0
        layer_norm.bias.copy_(torch.randn(16))
        expected = layer_norm(states) @ matrix.T + bias
        matrix, offset = with_bias(matrix, bias, layer_norm.weight, layer_norm.bias)
        layer_norm.bias.copy_(offset)
        torch.testing.assert_close(layer_norm(states) @ matrix.T, expected, rtol=0, atol=error)


def test_ids_are_those_of_sentencepiece_and_its_vocabulary(opus: tuple[Path, MarianMTModel], tmp_path: Path) -> None:
    model = import_checkpoint(opus[0], "marian", tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    found = tokenizer(RECORDED["lines"])["input_ids"]
    size = len(VOCABULARY)
    assert [[-1 if number >= size else number for number in ids] for ids in found] == RECORDED["ids"]
    assert any(
        -1 in ids for ids in RECORDED["ids"]
    )  # a missing piece takes part, and has the unknown token's embedding
    embeddings = model.get_input_embeddings().weight
    assert (len(embeddings), len(tokenizer)) == (size + len(RECORDED["missing"]),) * 2
    assert torch.equal(embeddings[size:], embeddings[VOCABULARY["<unk>"]].expand(len(embeddings) - size, -1))
    assert tokenizer.decode(RECORDED["target_ids"] + [0], skip_special_tokens=True) == RECORDED["target"]


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("encoder_ffn_dim .12. and decoder_ffn_dim .24.", {"encoder_ffn_dim": 12}),
        ("share_encoder_decoder_embeddings", {"share_encoder_decoder_embeddings": False}),
        ("is of type 'bart'", {"model_type": "bart"}),
        ("num_heads", {"encoder_attention_heads": 5, "decoder_attention_heads": 5}),
        ("decoder_layers: 4, and the weights are of 3", {"decoder_layers": 4}),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    opus: tuple[Path, MarianMTModel], tmp_path: Path, match: str, changes: dict[str, object]
) -> None:
    file = opus[0] / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(InteropError, match=match) as raised:
        import_checkpoint(opus[0], "marian", tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_damaged_model_of_pieces_is_refused(opus: tuple[Path, MarianMTModel], tmp_path: Path) -> None:
    whole = (opus[0] / "source.spm").read_bytes()
    for damaged in (b"", b"\xff" * 40, whole[:500], b"not a model"):
        (opus[0] / "source.spm").write_bytes(damaged)
        with pytest.raises(InteropError, match=r"source\.spm"):
            import_checkpoint(opus[0], "marian", tmp_path / "run")
