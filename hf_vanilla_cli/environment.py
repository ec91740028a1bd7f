"""What a bug report needs."""

import platform
from importlib import metadata
from typing import Any

import click

from .shared import json_option, show

REPORTED_PACKAGES = (
    *("hf_vanilla", "torch", "transformers", "accelerate"),
    *("datasets", "tokenizers", "safetensors", "huggingface_hub"),
)


@click.command()
@json_option
def env(as_json: bool) -> None:
    """Print what a bug report needs: versions, platform, devices."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {name: metadata.version(name) for name in REPORTED_PACKAGES}
    show(facts | {"threads": torch.get_num_threads(), "cuda devices": torch.cuda.device_count()}, as_json)
