"""A run as weights of `torch.nn.Transformer`, with a module of PyTorch alone that has the same logits."""

import json
import shutil
from pathlib import Path

from safetensors.torch import save_file
from transformers import AutoTokenizer

from ..models.configuration_vanilla import VanillaConfig
from ..models.modeling_vanilla import VanillaForConditionalGeneration
from .errors import InteropError
from .plain_tokenizer import save_tokenizer
from .torch_layout import CODE, CONFIG, GENERATOR, TARGET, WEIGHTS, theirs

ACTIVATIONS = ("relu", "gelu", "silu", "swish", "tanh", "gelu_new")
FIELDS = (
    *("d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers", "norm_first", "activation_function"),
    *("position_embedding_type", "layer_norm_eps"),
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"),
)


def export(run: Path, output: Path) -> None:
    """Write weights, a small configuration, the module and the tokenizer into the empty folder `output`."""
    model = VanillaForConditionalGeneration.from_pretrained(run).eval()
    config = model.config
    _refuse_what_torch_has_not(config)
    weights = theirs(model.state_dict())
    if config.tie_word_embeddings:  # one matrix, stored once
        weights = {name: weight for name, weight in weights.items() if name not in (TARGET, GENERATOR)}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, output / WEIGHTS)
    said = {name: getattr(config, name) for name in FIELDS}
    if config.position_embedding_type == "learned":
        said["max_position_embeddings"] = config.max_position_embeddings
    (output / CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("plain_transformer.py"), output / CODE)
    save_tokenizer(AutoTokenizer.from_pretrained(run), output)


def _refuse_what_torch_has_not(config: VanillaConfig) -> None:
    head = config.d_model // config.num_heads
    if not (config.d_kv == config.d_v == head and head * config.num_heads == config.d_model):
        raise InteropError(
            f"torch.nn.Transformer has heads of d_model / num_heads only, and this model d_kv {config.d_kv} and d_v "
            f"{config.d_v}"
        )
    if config.activation_function not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise InteropError(f"activation_function {config.activation_function!r} is not in the module, only {known}")
    if isinstance(config.eos_token_id, list):
        raise InteropError(f"eos_token_id {config.eos_token_id}: the module knows one id that ends a text")
