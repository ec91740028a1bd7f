"""A run as a directory of Marian, Pegasus or Blenderbot, which transformers loads without code of ours."""

import math
from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoTokenizer, GenerationConfig

from ..models.generation_vanilla import KEYS as OUR_KEYS
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..run_directory import ALIGNMENT, GENERATION_CONFIG, WEIGHTS
from .errors import InteropError
from .plain_tokenizer import save_tokenizer
from .stock_classes import stock_model_like


def export(run: Path, output: Path) -> None:
    """Write the class that computes exactly the same into the empty folder `output`; refuse if there is none."""
    model = VanillaForConditionalGeneration.from_pretrained(run).eval()
    search = _generation(model.generation_config)
    stock = stock_model_like(model)
    stock.config.architectures = [type(stock).__name__]
    stock.config.dtype = model.dtype
    stock.config.save_pretrained(output)
    search.save_pretrained(output)
    # With the positions, which `save_pretrained` would leave out for Marian to compute in another precision.
    weights = {name: weight.contiguous() for name, weight in stock.state_dict().items()}
    tied = getattr(stock, "all_tied_weights_keys", {})
    save_file(
        {name: weight for name, weight in weights.items() if name not in tied}, output / WEIGHTS, {"format": "pt"}
    )
    save_tokenizer(AutoTokenizer.from_pretrained(run), output)


def _generation(config: GenerationConfig) -> GenerationConfig:
    """The same search in keys that transformers knows. Refused by name, unless there is one."""
    found = {key: value for key, value in config.to_dict().items() if value is not None}
    penalty, beyond = (found.get(key) for key in OUR_KEYS)
    has_beams, exponent = found.get("num_beams", 1) > 1, found.get("length_penalty", 1.0)
    longest = math.inf if "max_new_tokens" in found else found.get("max_length", math.inf)
    refusals = {
        # Without beams nothing is divided, and with the exponent 0 all is divided by 1.
        f"length_penalty_type {penalty!r} (with num_beams above 1)": penalty and has_beams and exponent != 0,
        # Of a source without any token the limit is this much.
        f"max_length_beyond_source {beyond!r}": beyond is not None and longest > 1 + beyond,
    }
    if lost := [what for what, holds in refusals.items() if holds]:
        raise InteropError(
            f"generate() of transformers' own classes does not know {' and '.join(lost)}, and would find something "
            f"else: if that will do, copy the directory and take this out of the {GENERATION_CONFIG} there"
        )
    left_out = {*OUR_KEYS, ALIGNMENT, "transformers_version"}
    if not has_beams:
        left_out.add("length_penalty")  # it has no effect, and such a config is refused when it is saved
    return GenerationConfig(**{key: value for key, value in found.items() if key not in left_out})
