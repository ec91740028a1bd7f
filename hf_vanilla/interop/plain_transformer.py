"""
A Transformer of PyTorch alone, written by hf_vanilla beside its weights. This file may be copied and changed.

    from transformer import load
    model, config = load(".")
    logits = model(source_ids, target_ids)

Sequences are padded with config["pad_token_id"] on the right. The target begins with
config["decoder_start_token_id"]; every text ends in config["eos_token_id"].
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

ACTIVATIONS = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "swish": nn.functional.silu,
}
ACTIVATIONS |= {"tanh": torch.tanh, "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh")}


class Transformer(nn.Module):
    def __init__(self, config: dict[str, Any], vocab_size: int):
        super().__init__()
        self.config = config
        width, is_pre_norm, eps = config["d_model"], config["norm_first"], config["layer_norm_eps"]
        settings = {
            "d_model": width,
            "nhead": config["num_heads"],
            "dim_feedforward": config["d_ff"],
            "dropout": 0.0,
            "activation": ACTIVATIONS[config["activation_function"]],
            "layer_norm_eps": eps,
            "batch_first": True,
            "norm_first": is_pre_norm,
        }
        # With post-norm the last layer has normalised already; nn.Transformer by itself would do it once more.
        norms = [nn.LayerNorm(width, eps=eps) if is_pre_norm else None for _ in range(2)]
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**settings), config["encoder_layers"], norms[0], enable_nested_tensor=False
        )
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**settings), config["decoder_layers"], norms[1])
        self.transformer = nn.Transformer(
            width, config["num_heads"], custom_encoder=encoder, custom_decoder=decoder, batch_first=True
        )
        self.source_embedding = nn.Embedding(vocab_size, width)
        self.target_embedding = nn.Embedding(vocab_size, width)
        self.generator = nn.Linear(width, vocab_size, bias=False)
        if config["position_embedding_type"] == "learned":
            self.source_positions = nn.Embedding(config["max_position_embeddings"], width)
            self.target_positions = nn.Embedding(config["max_position_embeddings"], width)

    def positions(self, length: int, table: str) -> Tensor:
        numbers = torch.arange(length, device=self.generator.weight.device)
        if self.config["position_embedding_type"] == "learned":
            return getattr(self, table)(numbers)
        width = self.config["d_model"]
        even = torch.arange(0, width, 2, dtype=torch.float32, device=numbers.device)
        angles = numbers[:, None].float() * torch.exp(even * (-math.log(10_000) / width))
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(self.generator.weight.dtype)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids of tokens, (batch, length) each, to logits: (batch, target length, vocabulary)."""
        scale = math.sqrt(self.config["d_model"])
        padding = source == self.config["pad_token_id"]
        states = self.transformer(
            self.source_embedding(source) * scale + self.positions(source.shape[1], "source_positions"),
            self.target_embedding(target) * scale + self.positions(target.shape[1], "target_positions"),
            tgt_mask=torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.generator(states)

    @torch.no_grad()
    def greedy(self, source: Tensor, max_length: int = 256) -> Tensor:
        """The most probable token again and again, until all sentences have ended."""
        eos, pad = self.config["eos_token_id"], self.config["pad_token_id"]
        target = torch.full((len(source), 1), self.config["decoder_start_token_id"], device=source.device)
        has_ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        while target.shape[1] < max_length and not has_ended.all():
            token = self(source, target)[:, -1].argmax(-1).masked_fill(has_ended, pad)
            target = torch.cat([target, token[:, None]], dim=1)
            has_ended |= token == eos
        return target


def load(folder: str | Path) -> tuple[Transformer, dict[str, Any]]:
    """The model in the precision of its weights, and its configuration."""
    config = json.loads((Path(folder) / "transformer.json").read_text(encoding="utf-8"))
    weights = load_file(Path(folder) / "weights.safetensors")
    embedding = weights["source_embedding.weight"]
    weights.setdefault("target_embedding.weight", embedding)  # one matrix for all three (3.4), stored once
    weights.setdefault("generator.weight", weights["target_embedding.weight"])
    model = Transformer(config, len(embedding)).to(embedding.dtype)
    model.load_state_dict(weights)
    return model.eval(), config
