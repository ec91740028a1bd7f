"""A run directory as a training leaves it, also with what must not be published."""

from pathlib import Path

import torch
import yaml

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.evaluation.measurements import Measurement, Sample, add_to_report, weights_of
from hf_vanilla.evaluation.significance import Confidence
from hf_vanilla.files import sha256_of
from hf_vanilla.manifest import manifest_of

TEXTS = ["a few words", "ABCDEFGHIJKLMNOPQRSTUVWXYZ bcghijklmnpqtuvxyz ,."]


def exported_page(folder: Path, run: Path, **facts: object) -> Path:
    """A folder with the manifest of a page of this run."""
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "encoder.onnx").write_bytes(b"onnx")
    of_run = {"format": "page", "weights": {"model.safetensors": sha256_of(run / "model.safetensors")}}
    (folder / "manifest.json").write_text(manifest_of(folder, of_run | facts))
    return folder


def finished_run(folder: Path) -> Path:
    """What a training leaves: also what must not be published."""
    torch.manual_seed(5)
    tokenizer = train_tokenizer(TEXTS, "character")
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "num_heads": 4, "d_ff": 24}
    model = VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.generation_config.update(max_length=16, num_beams=3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = {"data": {"train": "/home/somebody/t.tsv", "source_language": "en", "target_language": "de"}}
    recipe["data"]["license"] = "cc-by-4.0"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (folder / "history.json").write_text('[{"step": 1, "loss": 2.5}]')
    (folder / "learning_curve.png").write_bytes(b"\x89PNG curve")
    (folder / "attention.svg").write_text("<svg/>")
    for private in ("training_args.bin", ".lock", "prepared.json", "notes.txt", "pytorch_model.bin"):
        (folder / private).write_text("{}")
    for private in ("data", "checkpoint-5", "unfinished"):
        (folder / private).mkdir()
        (folder / private / "model.safetensors").write_bytes(b"0")
    scores = {"bleu": 41.5, "bleu_signature": "nrefs:1|v:2.6"}
    samples = [Sample(("a few words",), "x", "y")]
    add_to_report(folder, "test", Measurement(scores, weights_of(folder), samples, {"bleu": Confidence(41.4, 0.5)}))
    return folder
