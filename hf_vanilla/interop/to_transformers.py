"""A run as a directory of Marian, Pegasus or Blenderbot, which transformers loads without code of ours."""

from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoTokenizer, GenerationConfig

from ..messages import say
from ..models.generation_vanilla import KEYS as OUR_KEYS
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from ..run_directory import ALIGNMENT, WEIGHTS
from .plain_tokenizer import save_tokenizer
from .stock_classes import stock_config, stock_model_like


def export(run: Path, output: Path) -> None:
    """Write the class that computes exactly the same into the empty folder `output`; refuse if there is none."""
    model = VanillaForConditionalGeneration.from_pretrained(run).eval()
    stock_config(model.config)
    stock = stock_model_like(model)
    stock.config.architectures = [type(stock).__name__]
    stock.config.dtype = model.dtype
    stock.config.save_pretrained(output)
    _generation(model.generation_config).save_pretrained(output)
    # With the positions, which `save_pretrained` would leave out for Marian to compute in another precision.
    weights = {name: weight.contiguous() for name, weight in stock.state_dict().items()}
    tied = getattr(stock, "all_tied_weights_keys", {})
    save_file(
        {name: weight for name, weight in weights.items() if name not in tied}, output / WEIGHTS, {"format": "pt"}
    )
    save_tokenizer(AutoTokenizer.from_pretrained(run), output)


def _generation(config: GenerationConfig) -> GenerationConfig:
    """What of the search transformers knows; a penalty that is only ours is named."""
    found = config.to_dict()
    lost = [
        f"{key} ({found[key]!r})" for key in sorted({*OUR_KEYS, ALIGNMENT} & found.keys()) if found[key] is not None
    ]
    if lost := [key for key in lost if not key.startswith(ALIGNMENT)]:
        say(f"transformers' own classes do not know {', '.join(lost)}: generate() searches without")
    kept = {key: value for key, value in found.items() if key not in {*OUR_KEYS, ALIGNMENT, "transformers_version"}}
    return GenerationConfig(**{key: value for key, value in kept.items() if value is not None})
