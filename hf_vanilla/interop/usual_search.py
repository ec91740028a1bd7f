"""Whether an engine does the search of a model's generation config: else it would refuse every translation."""

from collections.abc import Callable

from transformers import GenerationConfig

from ..inference.engine import EngineError
from ..inference.search_settings import SearchSettings
from ..run_directory import GENERATION_CONFIG
from .errors import InteropError


def refuse_other_searches(check: Callable[[SearchSettings], object], config: GenerationConfig) -> None:
    """Refuse a search that an engine does not do, before the export is written. `check` is the engine's own."""
    try:
        check(SearchSettings(config, None, {}))
    except EngineError as error:
        raise InteropError(
            f"{error}; or copy the directory, and take that out of the {GENERATION_CONFIG} there"
        ) from None
