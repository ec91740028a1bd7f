"""A model of which one head per layer looks for the position at a certain distance, by its weights alone."""

import torch

from hf_vanilla import VanillaConfig
from hf_vanilla import VanillaForConditionalGeneration as Model

WIDTH, SHARPNESS = 32, 12.0


def rotation(steps: int) -> torch.Tensor:
    """R(k) with R(k) PE(p) = PE(p + k), in pairs of sine and cosine."""
    matrix = torch.zeros(WIDTH, WIDTH)
    for pair in range(WIDTH // 2):
        angle = torch.tensor(steps * 10_000 ** (-2 * pair / WIDTH))
        sine, cosine = angle.sin(), angle.cos()
        rows = slice(2 * pair, 2 * pair + 2)
        matrix[rows, rows] = torch.stack([torch.stack([cosine, sine]), torch.stack([-sine, cosine])])
    return matrix


def planted(steps: int = -1, vocab_size: int = 10) -> Model:
    """
    Head 0 of each self-attention looks for the position so far away: the embeddings are 0, W_Q = c R(k) and W_K = I.
    Head 1 has queries and keys of 0.
    """
    config = VanillaConfig(
        vocab_size=vocab_size, d_model=WIDTH, d_kv=WIDTH, d_v=2, num_heads=2, d_ff=8, encoder_layers=1, decoder_layers=1
    )
    model = Model(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
        for layer in (model.model.encoder.layers[0], model.model.decoder.layers[0]):
            attention = layer.self_attn
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight.zero_()
                projection.bias.zero_()
            attention.q_proj.weight[:WIDTH] = SHARPNESS * rotation(steps)
            attention.k_proj.weight[:WIDTH] = torch.eye(WIDTH)
    return model
