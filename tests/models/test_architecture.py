"""The model computes what independent implementations of the same equations compute from the same weights."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

MakeModel = Callable[..., VanillaForConditionalGeneration]


def test_positions_are_the_papers_formula(make_model: MakeModel) -> None:
    model = make_model(d_model=32, num_heads=4).model.encoder.embed_positions
    expected = torch.tensor(
        [
            [(math.sin if dim % 2 == 0 else math.cos)(position / 10_000 ** (2 * (dim // 2) / 32)) for dim in range(32)]
            for position in range(200)
        ]
    )
    torch.testing.assert_close(model(torch.arange(200)), expected, rtol=0, atol=1e-5)


def test_the_encoder_reads_scaled_embeddings_plus_positions(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model()
    encoder = model.model.encoder
    source = ragged["input_ids"]
    seen = encoder(source, ragged["attention_mask"], output_hidden_states=True).hidden_states[0]
    expected = model.get_input_embeddings().weight[source] * 4 + encoder.embed_positions(torch.arange(7))
    mask = ragged["attention_mask"].bool()
    torch.testing.assert_close(seen[mask], expected[mask])


def five_line_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    wq: nn.Linear,
    wk: nn.Linear,
    wv: nn.Linear,
    wo: nn.Linear,
    heads: int,
    mask: Tensor,
) -> Tensor:
    q, k, v = (w(x).unflatten(-1, (heads, -1)).transpose(-2, -3) for w, x in ((wq, q), (wk, k), (wv, v)))
    scores = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask, -math.inf).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return wo(torch.einsum("bhts,bhsv->bthv", weights, v).flatten(-2))


@pytest.mark.parametrize("sizes", [{}, {"d_kv": 5}, {"d_kv": 3, "d_v": 7}], ids=str)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_attention_equals_five_lines_in_float64(make_model: MakeModel, sizes: dict[str, int], backend: str) -> None:
    model = make_model(attn_implementation=backend, **sizes).double()
    attention = model.model.decoder.layers[1].cross_attn
    target, source = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    mask = torch.rand(2, 1, 5, 7) > 0.3
    mask[..., 0] = True
    bias = torch.zeros_like(mask, dtype=torch.float64).masked_fill(~mask, -math.inf)
    found, _ = attention(target, bias, source)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    expected = five_line_attention(target, source, source, *projections, 4, mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
    theirs.out_proj.load_state_dict(ours.o_proj.state_dict())


@torch.no_grad()
def torch_transformer_like(model: VanillaForConditionalGeneration) -> nn.Transformer:
    """`torch.nn.Transformer` with the weights of `model`."""
    config = model.config
    shared = {"dropout": 0.0, "activation": nn.functional.gelu, "batch_first": True, "norm_first": config.norm_first}
    encoder_layer = nn.TransformerEncoderLayer(config.d_model, config.num_heads, config.d_ff, **shared)
    decoder_layer = nn.TransformerDecoderLayer(config.d_model, config.num_heads, config.d_ff, **shared)
    norms = [nn.LayerNorm(config.d_model) if config.norm_first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, config.encoder_layers, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers, norms[1])
    transformer = nn.Transformer(
        config.d_model, config.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    for ours, theirs in ((model.model.encoder, encoder), (model.model.decoder, decoder)):
        if config.norm_first:
            theirs.norm.load_state_dict(ours.layer_norm.state_dict())
        for our_layer, layer in zip(ours.layers, theirs.layers, strict=True):
            sublayers = [name for name in ("self_attn", "cross_attn", "feed_forward") if hasattr(our_layer, name)]
            for number, sublayer in enumerate(sublayers, 1):
                norm = getattr(our_layer, f"{sublayer}_sublayer").layer_norm
                getattr(layer, f"norm{number}").load_state_dict(norm.state_dict())
            copy_attention(our_layer.self_attn, layer.self_attn)
            if "cross_attn" in sublayers:
                copy_attention(our_layer.cross_attn, layer.multihead_attn)
            layer.linear1.load_state_dict(our_layer.feed_forward.fc1.state_dict())
            layer.linear2.load_state_dict(our_layer.feed_forward.fc2.state_dict())
    return transformer.eval()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_decoder_states_equal_those_of_torch_transformer(
    make_model: MakeModel, ragged: dict[str, Tensor], norm_first: bool, position_embedding_type: str
) -> None:
    model = make_model(norm_first=norm_first, position_embedding_type=position_embedding_type)
    source, mask = ragged["input_ids"], ragged["attention_mask"]
    target = model.prepare_decoder_input_ids_from_labels(ragged["labels"])
    found = model.model(source, mask, target).last_hidden_state

    embeddings = model.get_input_embeddings().weight * math.sqrt(16)
    padding = mask == 0
    expected = torch_transformer_like(model)(
        embeddings[source] + model.model.encoder.embed_positions(torch.arange(source.shape[1])),
        embeddings[target] + model.model.decoder.embed_positions(torch.arange(target.shape[1])),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def marian_like(model: VanillaForConditionalGeneration) -> MarianMTModel:
    """
    The Marian model of transformers with the weights of `model`, in another order of the residual dimensions.

    Marian puts all sines before all cosines, the paper takes turns. Nothing else in the model knows the order of the
    residual dimensions, so whatever reads or writes them is permuted alike.
    """
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function=config.activation_function,
            scale_embedding=True,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
        )
    ).eval()
    order = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    names = {
        "self_attn_sublayer.layer_norm": "self_attn_layer_norm",
        "cross_attn_sublayer.layer_norm": "encoder_attn_layer_norm",
        "feed_forward_sublayer.layer_norm": "final_layer_norm",
        "feed_forward.": "",
        "cross_attn.": "encoder_attn.",
        "o_proj": "out_proj",
    }
    state = {}
    for name, weight in model.state_dict().items():
        reads = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "embed_tokens.weight"))
        writes = "o_proj" in name or "fc2" in name or "layer_norm" in name
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[name] = weight[:, order] if reads or name == "lm_head.weight" else weight[order] if writes else weight
    state["model.decoder.embed_tokens.weight"] = state["model.encoder.embed_tokens.weight"]
    missing, unexpected = marian.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("embed_positions" in name or name in ("model.shared.weight", "final_logits_bias") for name in missing)
    return marian


def test_logits_equal_those_of_marian_in_its_own_basis(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model()
    found = model(**ragged)
    expected = marian_like(model)(**ragged)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("norm_first", [False, True])
def test_pre_norm_has_one_norm_more_in_each_stack(make_config: Callable[..., VanillaConfig], norm_first: bool) -> None:
    model = VanillaForConditionalGeneration(make_config(norm_first=norm_first))
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 3 * 3 + 2 * norm_first


def test_dropout_falls_where_the_paper_puts_it(make_config: Callable[..., VanillaConfig]) -> None:
    """On both sums of embeddings and positions and on the output of every sub-layer, nowhere else unless asked."""
    model = VanillaForConditionalGeneration(make_config(dropout=0.25)).train()
    calls = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(input_ids=torch.randint(3, 41, (2, 5)), labels=torch.randint(3, 41, (2, 4)))
    sublayers = [f"model.encoder.layers.{i}.{s}_sublayer" for i in range(2) for s in ("self_attn", "feed_forward")]
    sublayers += [
        f"model.decoder.layers.{i}.{s}_sublayer" for i in range(3) for s in ("self_attn", "cross_attn", "feed_forward")
    ]
    stacks = ["model.encoder", "model.decoder"]
    assert sorted(calls) == sorted(f"{place}.dropout" for place in stacks + sublayers)
