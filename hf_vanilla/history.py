"""What the log of a training says of its validations."""

from collections.abc import Mapping
from typing import Any

TIMING = ("runtime", "samples_per_second", "steps_per_second")


def validation_scores(entry: Mapping[str, Any]) -> dict[str, float]:
    """The loss and the scores in an entry of the log; nothing if it is not a validation's."""
    found = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
    return {name: value for name, value in found.items() if name not in TIMING and not name.startswith("bleu_")}
