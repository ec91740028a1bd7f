"""A trained model in the form of another engine: a folder with a manifest, or a refusal of what cannot be exact."""

import inspect
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerFast

from ..files import new_folder, sha256_of
from ..inference.columns import columns_of
from ..inference.languages import languages_of
from ..manifest import MANIFEST, manifest_of
from ..models.configuration_vanilla import VanillaConfig
from ..run_directory import GENERATION_CONFIG, TOKENIZER
from ..version import __version__
from ..weights import CONFIG, check_model, read_json
from .errors import InteropError

FORMATS = {
    "ctranslate2": "CTranslate2, a fast engine for CPUs and GPUs; `Translator` and `translate` run on it",
    "transformers": "Marian, Pegasus or Blenderbot of transformers, without any code of ours",
    "onnx": "graphs of encoder and decoder for onnxruntime",
    "torch": "weights for torch.nn.Transformer",
    "page": "a page that translates in the browser of its reader, without a server",
}
"""The function `export(run, output, *, option=None, ...)` of the module `to_FORMAT` writes each."""

EXTRA = ("ctranslate2", "onnx", "onnxruntime")  # what `pip install 'hf_vanilla[export]'` brings


def export(run: Path, to: str, output: Path, **options: Any) -> dict[str, Any]:
    """
    Write a model into the new folder `output` in another format, and return its manifest.

    Args:
        options: Those of the format. None is the same as not given.
    """
    if to not in FORMATS:
        raise InteropError(f"there is no format {to!r}: give one of {', '.join(FORMATS)}")
    origin = made_from(run)
    try:
        write = import_module(f".to_{to}", __package__).export
        given = {name: value for name, value in options.items() if value is not None}
        refuse_options_of_others(to, given, set(inspect.signature(write).parameters))
        with new_folder(output) as folder:
            write(run, folder, **given)
            folders = [path.name for path in folder.iterdir() if path.is_dir()]
            if folders:
                raise InteropError(f"an export has no folders in it, and {to} made {folders[0]}")
            said = {name: value for name, value in given.items() if not isinstance(value, Path)}
            facts = {"format": to, "options": said, "hf_vanilla": __version__, **origin}
            (folder / MANIFEST).write_text(manifest_of(folder, facts), encoding="utf-8")
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise InteropError(f"--to {to} needs {error.name}: pip install 'hf_vanilla[export]'") from None
    return json.loads((output / MANIFEST).read_text(encoding="utf-8"))


def refuse_options_of_others(to: str, given: dict[str, Any], known: set[str]) -> None:
    for name in given:
        if name not in known - {"run", "output"}:
            raise InteropError(f"--{name.replace('_', '-')} is not an option of --to {to}")


def made_from(run: Path) -> dict[str, Any]:
    """What an export says of its origin: checksums of the weights, settings of the search, columns, languages."""
    weights = sorted(run.glob("model*.safetensors"))
    if not weights:
        raise InteropError(f"{run} has no model.safetensors: give a run directory, or another model directory")
    if not (run / TOKENIZER).is_file():
        raise InteropError(f"{run / TOKENIZER} is missing: an export needs the tokenizer")
    check_model(run)
    kind = read_json(run / CONFIG).get("model_type")
    if kind != VanillaConfig.model_type:
        raise InteropError(
            f"{run / CONFIG}: model_type is {kind!r:.40}, not {VanillaConfig.model_type!r}: exports are of our models"
        )
    has_settings = (run / GENERATION_CONFIG).is_file()
    settings = GenerationConfig.from_pretrained(run).to_diff_dict() if has_settings else {}
    return {
        "weights": {file.name: sha256_of(file) for file in weights},
        "generation": settings,
        "columns": columns_of(PreTrainedTokenizerFast.from_pretrained(run), run),
        "languages": asdict(languages_of(run)),
    }
