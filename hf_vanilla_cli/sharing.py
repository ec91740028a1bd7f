"""Where models go."""

from dataclasses import asdict
from pathlib import Path

import click

from .shared import json_option, run_argument, working


@click.command()
@run_argument
@click.argument("name", metavar="USER/NAME")
@click.option("--private", is_flag=True, help="Only those who may see your repositories see it.")
@click.option("--revision", metavar="BRANCH", help="Write this branch; main if not given.")
@click.option(
    "--space",
    "page",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also publish this page, as `hf-vanilla export RUN --to page` makes it, as a Space of the same name.",
)
@json_option
def push(run: Path, name: str, private: bool, revision: str | None, page: Path | None, as_json: bool) -> None:
    """
    Publish RUN on the Hugging Face Hub as USER/NAME: model, tokenizer, code, card, recipe and scores.

    Neither the text of the training nor checkpoints are sent. What is sent is checked first, comes in one commit, and
    is not sent again where it has not changed. Log in before by `hf auth login`.
    """
    with working():
        import json

        from hf_vanilla.interop.hub import push as push_to_hub

        found = push_to_hub(run, name, private, revision, page)
        if as_json:
            click.echo(json.dumps([asdict(each) for each in found], indent=2))
            return
        for each in found:
            click.echo(f"{each.url} {each.tag}" + ("" if each.is_new else " (nothing had changed)"))
