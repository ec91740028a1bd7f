"""How many columns the sources of a model have."""

from pathlib import Path

import yaml
from transformers import PreTrainedTokenizerFast

from ..data.tokenizer import Columns
from ..run_directory import RECIPE


def columns_of(tokenizer: PreTrainedTokenizerFast, run: Path) -> int:
    """As the tokenizer says, else the run's recipe. One where neither does."""
    return columns_in(tokenizer) or columns_in_recipe(run) or 1


def columns_in(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """How many columns a source had in the training, if the tokenizer's configuration says so."""
    columns = Columns.of(tokenizer)
    return len(columns.source) if columns else None


def columns_in_recipe(run: Path) -> int | None:
    """The same for runs whose tokenizer does not say it, as their own recipe does."""
    try:
        corpora = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))["data"]["train"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):  # no run of ours
        return None
    first = corpora[0] if isinstance(corpora, list) else corpora
    source = first.get("source") if isinstance(first, dict) else None
    return len(source) if isinstance(source, list) else None
