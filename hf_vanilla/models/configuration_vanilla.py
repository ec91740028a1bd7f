"""The configuration of the Transformer of "Attention Is All You Need" (Vaswani et al., 2017)."""

from copy import deepcopy
from dataclasses import field, fields
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

POSITION_EMBEDDING_TYPES = ("sinusoidal", "learned")

# What the files beside saved weights hold, for the Auto classes and `pipeline` where this package is not installed.
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla.VanillaConfig",
    "AutoModel": "modeling_vanilla.VanillaModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla.VanillaForConditionalGeneration",
}
PIPELINE = {
    "impl": "pipeline_vanilla.TranslationPipeline",
    "pt": ["AutoModelForSeq2SeqLM"],
    "type": "text",
    "default": {},
}


def tensor_parallel_plan() -> dict[str, str]:
    """Split embeddings by the vocabulary, attentions by their heads, feed-forward networks by their hidden units."""
    columns = ("q_proj", "k_proj", "v_proj")
    attentions = ("encoder.layers.*.self_attn", "decoder.layers.*.self_attn", "decoder.layers.*.cross_attn")
    plan = {f"{attention}.{column}": "colwise" for attention in attentions for column in columns}
    plan |= {f"{attention}.o_proj": "rowwise" for attention in attentions}
    plan["encoder.embed_tokens"] = "embedding_rowwise"
    for stack in ("encoder", "decoder"):
        plan[f"{stack}.layers.*.feed_forward.fc1"] = "colwise"
        plan[f"{stack}.layers.*.feed_forward.fc2"] = "rowwise"
    return plan


@strict
class VanillaConfig(PreTrainedConfig):
    """
    The size and the switches of a `VanillaModel`. Without arguments it is the paper's base model (Table 3).

    Args:
        vocab_size: Size of the joint source and target vocabulary (5.1; the paper's English-German has about 37,000).
        d_model: Width of the residual stream: embeddings and the output of every sub-layer (3.1).
        encoder_layers: Number of encoder layers, N (3.1).
        decoder_layers: Number of decoder layers, N (3.1).
        num_heads: Number of attention heads, h (3.2.2).
        d_kv: Size of each head's queries and keys, d_k (3.2.2). None means d_model / num_heads.
        d_v: Size of each head's values (3.2.2). None means d_model / num_heads. It is a field of its own because
            rows B of Table 3 change d_k alone.
        d_ff: Width of the hidden layer of the feed-forward networks (3.3).
        activation_function: Non-linearity of the feed-forward networks, by its name in transformers (3.3).
        position_embedding_type: "sinusoidal" (3.5) or "learned" (Table 3, row E).
        max_position_embeddings: The longest sequence. With learned positions it is their number, 1,024 unless given.
            Sinusoidal positions have no longest sequence: unless given, the configuration then has no such attribute,
            like T5's. Many tools compare it with a length wherever a configuration has it, so it must not be None.
        norm_first: False normalises after each residual sum (3.1). True normalises the input of each sub-layer, and
            the output of each stack once more (pre-norm; not in the paper).
        layer_norm_eps: What layer normalisation adds to the variance.
        dropout: Rate of dropout on the output of each sub-layer and on the sums of embeddings and positions (5.4).
        attention_dropout: Rate of dropout on attention weights (not in the paper).
        activation_dropout: Rate of dropout inside the feed-forward networks (not in the paper).
        label_smoothing: How much of the target probability is spread over the vocabulary in training (5.4).
        tie_word_embeddings: One matrix for source embedding, target embedding and output projection (3.4).
        use_cache: Whether forward returns the keys and values of the past unless told otherwise.
        bos_token_id: Id of the token that begins a sentence.
        pad_token_id: Id of the padding token.
        eos_token_id: Id, or ids, of the token that ends a sentence.
        decoder_start_token_id: Id of the token that the decoder starts from.
    """

    model_type = "hf_vanilla"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
    }
    base_model_tp_plan: ClassVar[dict[str, Any] | None] = tensor_parallel_plan()
    base_model_fsdp_plan: ClassVar[dict[Any, str]] = {
        "encoder.embed_tokens": "free_full_weight",
        "encoder.layers.*": "free_full_weight",
        "decoder.layers.*": "free_full_weight",
    }

    vocab_size: int = 37_000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_heads: int = 8
    d_kv: int | None = None
    d_v: int | None = None
    d_ff: int = 2048
    activation_function: str = "relu"
    position_embedding_type: str = "sinusoidal"
    # A default value would become an attribute of the class, which every instance then has; a factory's does not.
    # compare=False: the `__eq__` that dataclasses write for subclasses would fail where the attribute is absent.
    max_position_embeddings: int | None = field(default_factory=lambda: None, compare=False)
    norm_first: bool = False
    layer_norm_eps: float = 1e-5
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    label_smoothing: float | int = 0.1
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    # The padding id is not 0: transformers' beam search treats 0 like None, and pads finished sentences with <eos>.
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.num_heads > 0 and self.d_model % self.num_heads == 0:
            self.d_kv = self.d_model // self.num_heads if self.d_kv is None else self.d_kv
            self.d_v = self.d_model // self.num_heads if self.d_v is None else self.d_v
        if self.position_embedding_type == "learned" and not hasattr(self, "max_position_embeddings"):
            self.max_position_embeddings = 1024
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """`max_position_embeddings = None` removes the attribute."""
        if name == "max_position_embeddings" and value is None:
            self.__dict__.pop(name, None)
        else:
            super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        """Compares all fields, as dataclasses do, but a field may be absent."""
        names = [entry.name for entry in fields(self)]
        return type(other) is type(self) and all(getattr(self, n, None) == getattr(other, n, None) for n in names)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, but `kwargs` may also set a field that is absent (there, it would be ignored)."""
        own = {entry.name for entry in fields(cls)} - {entry.name for entry in fields(PreTrainedConfig)}
        given = {name: kwargs.pop(name) for name in own & kwargs.keys()}
        return super().from_dict(config_dict | given, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Says where the code is: all of it, whichever class is saved, and beside it, wherever it was loaded from."""
        return super().to_dict() | deepcopy({"auto_map": AUTO_MAP, "custom_pipelines": {"translation": PIPELINE}})

    def validate_architecture(self) -> None:
        """Refuse what cannot be built. Called by transformers whenever a configuration is made or saved."""
        self._check_sizes()
        self._check_names()
        for rate in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, rate) < 1:
                raise ValueError(f"{rate} ({getattr(self, rate)}) must be at least 0 and less than 1")
        if self.layer_norm_eps <= 0:
            raise ValueError(f"layer_norm_eps ({self.layer_norm_eps}) must be positive")

    def validate_token_ids(self) -> None:
        """Refuse special tokens that the embedding does not have (transformers itself would only warn)."""
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < self.vocab_size:
                    raise ValueError(
                        f"{name} ({token_id}) must be one of the vocabulary's ids, 0 to {self.vocab_size - 1}"
                    )

    def _check_sizes(self) -> None:
        for size in ("vocab_size", "d_model", "encoder_layers", "decoder_layers", "num_heads", "d_ff"):
            if getattr(self, size) <= 0:
                raise ValueError(f"{size} ({getattr(self, size)}) must be positive")
        for size in ("d_kv", "d_v"):
            if getattr(self, size) is None:
                heads = f"num_heads ({self.num_heads})"
                raise ValueError(f"d_model ({self.d_model}) must be divisible by {heads}, or {size} must be given")
        for size in ("d_kv", "d_v", "max_position_embeddings"):
            if hasattr(self, size) and getattr(self, size) <= 0:
                raise ValueError(f"{size} ({getattr(self, size)}) must be positive")
        if self.position_embedding_type == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model ({self.d_model}) must be even: sinusoidal positions pair a sine with a cosine")

    def _check_names(self) -> None:
        if self.position_embedding_type not in POSITION_EMBEDDING_TYPES:
            known = ", ".join(POSITION_EMBEDDING_TYPES)
            raise ValueError(f"position_embedding_type ({self.position_embedding_type!r}) must be one of {known}")
        if self.activation_function not in ACT2FN:
            known = ", ".join(sorted(ACT2FN))
            raise ValueError(f"activation_function ({self.activation_function!r}) must be one of {known}")


__all__ = ["VanillaConfig"]
