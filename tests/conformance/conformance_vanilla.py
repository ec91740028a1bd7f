"""The common tests of transformers on this model. scripts/conformance.py puts this file among theirs and runs it."""

import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, VanillaModel

from ...generation.test_utils import GenerationTesterMixin
from ...test_configuration_common import ConfigTester
from ...test_modeling_common import ModelTesterMixin, ids_tensor

# The tests choose what to check by these tables of names.
modeling_auto.MODEL_MAPPING_NAMES["hf_vanilla"] = "VanillaModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["hf_vanilla"] = "VanillaForConditionalGeneration"


class VanillaTester:
    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = encoder_layers = decoder_layers = 2
    num_attention_heads = 4
    decoder_start_token_id, pad_token_id, eos_token_id = 0, 1, 2

    def __init__(self, **changes: Any):
        self.changes = changes

    def get_config(self) -> VanillaConfig:
        sizes = {"vocab_size": 99, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "d_ff": 8}
        return VanillaConfig(**sizes, attention_dropout=0.1, **self.changes)

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaConfig, dict[str, torch.Tensor]]:
        source, target = (ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(3) for _ in range(2))
        masks = {"attention_mask": torch.ones_like(source), "decoder_attention_mask": torch.ones_like(target)}
        return self.get_config(), {"input_ids": source, "decoder_input_ids": target, **masks}

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class PostNormSinusoidalTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaModel, VanillaForConditionalGeneration)
    is_encoder_decoder = True
    changes: dict[str, Any] = {}

    def setUp(self) -> None:
        self.model_tester = VanillaTester(**self.changes)
        self.config_tester = ConfigTester(self, config_class=VanillaConfig, d_model=40)

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


class PreNormLearnedTest(PostNormSinusoidalTest):
    changes = {"norm_first": True, "position_embedding_type": "learned"}


class UntiedTest(PostNormSinusoidalTest):
    changes = {"tie_word_embeddings": False, "d_kv": 6, "d_v": 3}

    # Theirs reads the target through the encoder's matrix, which is another one here.
    test_inputs_embeds_matches_input_ids = None
