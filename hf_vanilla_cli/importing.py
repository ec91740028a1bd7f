"""Checkpoints of other toolkits in."""

from pathlib import Path
from typing import Any

import click

from .shared import working


@click.command(name="import")
@click.argument("checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--from",
    "toolkit",
    type=click.Choice(["joeynmt", "fairseq", "torch", "marian"]),
    required=True,
    help="What wrote the checkpoint. `marian` is MarianMT as transformers stores it, such as OPUS-MT; `torch` is the "
    "layout that `export --to torch` writes.",
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The folder that is written.")
@click.option(
    "--segmented",
    is_flag=True,
    help="The texts that the model will get are segmented already, as its toolkit read them: tokens between spaces.",
)
def import_(checkpoint: Path, toolkit: Any, output: Path, segmented: bool) -> None:
    """
    Make a model directory of CHECKPOINT, a file or its folder, for `translate`, `train` (model.from) and `export`.

    Nothing in it is executed. What our model cannot compute exactly is refused.
    """
    with working():
        from hf_vanilla.interop.imports.frame import import_checkpoint

        import_checkpoint(checkpoint, toolkit, output, segmented)
