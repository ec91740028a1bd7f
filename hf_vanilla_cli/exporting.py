"""A trained model in the form of another engine."""

from pathlib import Path

import click

from .shared import json_option, model_argument, show, working

FORMATS = (
    "ctranslate2",
    "transformers",
    "onnx",
    "torch",
    "page",
)  # as in hf_vanilla.interop.export, which is slow to import


@click.command()
@model_argument
@click.option("--to", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder to make: new, or empty.")
@click.option(
    "--quantization",
    metavar="TYPE",
    help="In which type weights are stored. Of ctranslate2: float32 (if not given), int8, int16, float16, bfloat16, "
    "int8_float32, int8_float16 or int8_bfloat16. Of onnx and page: float32 (of onnx if not given) or int8.",
)
@click.option(
    "--engine",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Of page: the folder of the npm package onnxruntime-web; if not given, npm downloads it.",
)
@json_option
def export(run: str, to: str, output: Path, quantization: str | None, engine: Path | None, as_json: bool) -> None:
    """
    Write the model of RUN for another engine, exactly, or say what of it cannot be exact.

    RUN is a directory with a model, such as a run, or its name on the Hub: user/name or user/name@revision.

    \b
    ctranslate2   a fast engine for CPUs and GPUs; `hf-vanilla translate DIR` and `Translator` run on it
    transformers  Marian, Pegasus or Blenderbot of transformers, without any code of ours
    onnx          graphs of encoder and decoder for onnxruntime
    torch         weights for torch.nn.Transformer
    page          a page that translates in the browser of its reader, without a server

    The manifest in the folder has the checksums of its files and of the weights that they were made from.
    """
    with working():
        from hf_vanilla.hub_name import folder_of
        from hf_vanilla.interop.export import export as export_to

        # the cache has directories that are named by commits
        title = run if to == "page" and not Path(run).is_dir() else None
        manifest = export_to(folder_of(run), to, output, quantization=quantization, engine=engine, title=title)
        megabytes = sum(entry["size"] for entry in manifest["files"].values()) / 1e6
        show({"folder": str(output), "format": to, "files": len(manifest["files"]), "megabytes": megabytes}, as_json)
