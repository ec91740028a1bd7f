"""The command line: parse, call, print. Heavy imports stay inside the commands."""

import json
import platform
from importlib import metadata

import click

from .version import __version__

REPORTED_PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "huggingface_hub")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hf-vanilla")
def main() -> None:
    """The Transformer of "Attention Is All You Need" for Hugging Face."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def env(as_json: bool) -> None:
    """Print what a bug report needs: versions, platform, devices."""
    import torch

    facts = {"hf_vanilla": __version__, "python": platform.python_version(), "platform": platform.platform()}
    facts |= {package: metadata.version(package) for package in REPORTED_PACKAGES}
    facts["threads"] = str(torch.get_num_threads())
    facts["cuda devices"] = str(torch.cuda.device_count())
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(f"{name}: {fact}" for name, fact in facts.items()))
