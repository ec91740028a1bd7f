"""Checkpoints of other toolkits in."""

from pathlib import Path
from typing import Any

import click

from .shared import working


class CheckpointPath(click.Path):
    """A file or a folder. For what looks like a name on the Hub, the error says how to have it here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from hf_vanilla.hub_name import hub_name, may_be_on_hub

        if not Path(value).exists() and "/" in str(value) and may_be_on_hub(str(value)):
            name = hub_name(str(value)).repository
            self.fail(
                f"{str(value)!r} does not exist. If it is a name on the Hub, download it first: hf download {name} "
                "--local-dir FOLDER",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@click.command(name="import")
@click.argument("checkpoint", type=CheckpointPath(exists=True, path_type=Path))
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
def import_(checkpoint: Path, toolkit: str, output: Path, segmented: bool) -> None:
    """
    Make a model directory of CHECKPOINT, a file or its folder, for `translate`, `train` (model.from) and `export`.

    Nothing in it is executed. What our model cannot compute exactly is refused.
    """
    with working():
        from hf_vanilla.interop.imports.checkpoint import import_checkpoint

        import_checkpoint(checkpoint, toolkit, output, segmented)
