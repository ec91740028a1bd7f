"""Our own search is taken where it finds what transformers' would, and nowhere else."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from searches import EOS, SENTENCES, VOCAB, Recorder, Source, theirs
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import generation_vanilla, guard_vanilla, modeling_vanilla

MakeModel = Callable[..., Model]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def make_decided(make_decided: MakeModel) -> MakeModel:
    """Here it is enough to see which search is taken, and that its targets begin as they should."""

    def make(**changes: object) -> Model:
        model = make_decided(**changes)
        model.generation_config.max_length = 8
        return model

    return make


class Never(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Sudden(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] > 3)


class Favourite(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_add(-1, torch.tensor([7]), scores.new_ones(len(scores), 1))


class Silent(TextStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        pass


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "option",
    [
        {"no_repeat_ngram_size": 2},
        {"forced_bos_token_id": 0},
        {"return_dict_in_generate": True},
        {"return_dict_in_generate": True, "return_sequence_scores": True},
        {"do_sample": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())},
        {"stopping_criteria": [Never()]},
        {"logits_processor": [Favourite()]},
        {"decoder_position_ids": torch.ones(SENTENCES, 1, dtype=torch.long)},
        {"max_time": 100.0},
        {"eos_token_id": None},
        {"position_ids": torch.arange(12).flip(0).expand(SENTENCES, -1)},
        {"custom_generate": lambda *_, input_ids=None, **__: input_ids},
        {"generation_config": GenerationConfig(repetition_penalty=1.3)},
        {"generation_config": GenerationConfig(an_option_that_nobody_knows_yet=3)},
    ],
    ids=lambda option: " ".join(map(str, option)),
)
def test_whatever_more_is_asked_for_is_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder, option: dict[str, Any], num_beams: int
) -> None:
    make_decided().generate(**sources, **deepcopy(option), num_beams=num_beams)
    assert ours.times == 0


def test_what_the_models_own_generation_config_asks_for_counts_too(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    model.generation_config.no_repeat_ngram_size = 2
    assert torch.equal(model.generate(**sources), theirs(model, sources)[0])
    assert ours.times == 0


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "option",
    [
        {"do_sample": False},
        {"use_cache": True},
        {"return_dict_in_generate": False},
        {"generation_config": GenerationConfig(max_new_tokens=7)},
    ],
    ids=lambda option: " ".join(map(str, option)),
)
def test_what_changes_nothing_is_no_reason_against_ours(
    make_decided: MakeModel, sources: Source, ours: Recorder, option: dict[str, Any], num_beams: int
) -> None:
    model = make_decided()
    same = {name: value for name, value in option.items() if name != "return_dict_in_generate"}
    expected, _ = theirs(model, sources, num_beams=num_beams, **same)
    assert torch.equal(model.generate(**sources, num_beams=num_beams, **option), expected)
    assert ours.times == 1


def test_where_a_generation_config_comes_from_is_no_reason_against_ours(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    model.generation_config._commit_hash = "0123abc"  # as of one that was downloaded from the Hub
    model.generate(**sources)
    assert ours.times == 1


@pytest.mark.parametrize("given", ["inputs", "inputs_embeds", "encoder_outputs"])
def test_sources_in_every_form_are_searched_by_ours(
    make_decided: MakeModel, sources: Source, ours: Recorder, given: str
) -> None:
    model = make_decided()
    forms = {
        "inputs": sources["input_ids"],
        "inputs_embeds": model.get_input_embeddings()(sources["input_ids"]),
        "encoder_outputs": model.get_encoder()(**sources),
    }
    expected, _ = theirs(model, sources, num_beams=2)
    found = model.generate(**{given: forms[given]}, attention_mask=sources["attention_mask"], num_beams=2)
    assert torch.equal(found, expected)
    assert ours.times == 1


def test_two_forms_of_the_sources_at_once_are_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    outputs = model.get_encoder()(sources["input_ids"].flip(0), sources["attention_mask"].flip(0))
    model.generate(sources["input_ids"], attention_mask=sources["attention_mask"], encoder_outputs=outputs)
    assert ours.times == 0


def test_a_streamer_gets_its_tokens(make_decided: MakeModel, sources: Source, ours: Recorder) -> None:
    silent = Silent()
    found = make_decided().generate(input_ids=sources["input_ids"][:1], streamer=silent)
    assert silent.tokens == found[0].tolist()
    assert ours.times == 0


def test_what_generate_itself_prepares_on_top_is_not_dropped(
    make_decided: MakeModel, sources: Source, ours: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version of transformers may add a logits processor or a criterion of its own accord."""
    model = make_decided()
    plain = model.generate(**sources)
    for method, kind, more in (
        ("_get_logits_processor", LogitsProcessorList, Favourite()),
        ("_get_stopping_criteria", StoppingCriteriaList, Sudden()),
    ):
        usual = getattr(GenerationMixin, method)
        times = ours.times
        with monkeypatch.context() as patch:
            patch.setattr(GenerationMixin, method, lambda *a, u=usual, kind=kind, m=more, **k: kind([*u(*a, **k), m]))
            found = model.generate(**sources, max_new_tokens=9)
        assert ours.times == times
        assert not torch.equal(found, plain)


def test_a_source_without_any_token_is_attended_to_as_by_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    mask = sources["attention_mask"].index_fill(0, torch.tensor([1]), 0)
    expected, _ = theirs(model, sources | {"attention_mask": mask}, num_beams=2)
    assert torch.equal(model.generate(sources["input_ids"], attention_mask=mask, num_beams=2), expected)
    assert ours.times == 0


def test_a_vocabulary_smaller_than_a_step_of_the_search(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    """The first step has one hypothesis to go on from, so no more candidates than tokens."""
    model = make_decided()
    for num_beams, times in ((VOCAB // 2, 1), (VOCAB // 2 + 1, 1)):
        expected, _ = theirs(model, sources, num_beams=num_beams)
        assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)
        assert ours.times == times


def test_only_attention_that_is_known_to_take_our_masks(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    calls = []

    def counted(*arguments: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return sdpa_attention_forward(*arguments, **kwargs)

    AttentionInterface.register("somebodys_attention", counted)
    make_decided(attn_implementation="somebodys_attention").generate(**sources)
    assert calls
    assert ours.times == 0
    assert not guard_vanilla.is_exactly_ours(make_decided(attn_implementation="flex_attention"))


def test_where_weights_are_split_among_devices_transformers_searches(
    make_decided: MakeModel, sources: Source, ours: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_decided()
    with monkeypatch.context() as patch:
        patch.setattr(guard_vanilla, "is_deepspeed_zero3_enabled", lambda: True)
        assert not may_search(model)
    with monkeypatch.context() as patch:
        patch.setattr(Model, "tp_size", 2)
        assert not may_search(model)
    assert may_search(model)


def test_under_autocast_transformers_searches(make_decided: MakeModel, sources: Source, ours: Recorder) -> None:
    model = make_decided().float()
    with torch.autocast("cpu", torch.bfloat16):
        expected, _ = theirs(model, sources, num_beams=2)
        assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert ours.times == 0


def may_search(model: Any, num_beams: int = 1) -> bool:
    settings = {"eos_token_id": EOS, "num_beams": num_beams}
    return guard_vanilla.may_use_our_search(model, torch.ones(1, 3), settings, {})


def test_on_accelerators_greedy_search_is_that_of_transformers(make_decided: MakeModel) -> None:
    somewhere_else = SimpleNamespace(device=torch.device("cuda"), tp_size=None)
    assert guard_vanilla.suits_device(somewhere_else, {"num_beams": 2})
    assert not guard_vanilla.suits_device(somewhere_else, {"num_beams": 1})
    assert not guard_vanilla.suits_device(somewhere_else, {})


class WithAnotherForward(Model):
    def forward(self, *arguments: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*arguments, **kwargs)
        if outputs.logits is not None:
            outputs.logits = outputs.logits.roll(1, dims=-1)
        return outputs


class WithOtherInputs(Model):
    def prepare_inputs_for_generation(self, input_ids: Tensor, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        return super().prepare_inputs_for_generation(input_ids.roll(1, dims=0), *arguments, **kwargs)


@pytest.mark.parametrize("kind", [WithAnotherForward, WithOtherInputs])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_subclass_that_computes_something_else_does_so(
    make_decided: MakeModel, sources: Source, ours: Recorder, kind: type, num_beams: int
) -> None:
    model = make_decided()
    plain = model.generate(**sources, num_beams=num_beams)
    assert ours.times == 1
    model.__class__ = kind
    expected, _ = theirs(model, sources, num_beams=num_beams)
    assert not torch.equal(expected, plain)
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)
    assert ours.times == 1


class Negated(nn.Module):
    """Mixed into a part, it computes something else."""

    def forward(self, *arguments: Any, **kwargs: Any) -> Any:
        found = super().forward(*arguments, **kwargs)
        return (-found[0], *found[1:]) if isinstance(found, tuple) else -found


DECODER = "model.decoder"
LAYER = f"{DECODER}.layers.1"
PARTS = [
    *(LAYER, f"{LAYER}.self_attn", f"{LAYER}.cross_attn", f"{LAYER}.feed_forward", f"{DECODER}.embed_positions"),
    *(f"{LAYER}.self_attn_sublayer", f"{LAYER}.cross_attn_sublayer", f"{LAYER}.feed_forward_sublayer"),
    *(f"{LAYER}.feed_forward.dropout", f"{LAYER}.cross_attn_sublayer.dropout", f"{DECODER}.dropout"),
]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_another_class_is_called(make_decided: MakeModel, sources: Source, ours: Recorder, name: str) -> None:
    model = make_decided()
    plain = model.generate(**sources, num_beams=2)
    part = model.get_submodule(name)
    part.__class__ = type("Negated", (Negated, type(part)), {})
    expected, _ = theirs(model, sources, num_beams=2)
    assert not torch.equal(expected, plain)
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert ours.times == 1


def test_a_part_that_is_something_else_altogether_is_called(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    model.get_submodule(LAYER).feed_forward = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).double()
    expected, _ = theirs(model, sources, num_beams=2)
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert ours.times == 0


@pytest.mark.parametrize("name", ["", "model", DECODER, *PARTS])
def test_a_forward_that_was_replaced_on_one_module_is_called(
    make_decided: MakeModel, sources: Source, ours: Recorder, name: str
) -> None:
    model, calls = make_decided(), []
    expected = model.generate(**sources, num_beams=2)
    part = model.get_submodule(name)
    usual = part.forward
    part.forward = lambda *arguments, **kwargs: (calls.append(1), usual(*arguments, **kwargs))[1]
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert calls
    part.forward = usual  # as PEFT does when it has finished: nothing is replaced any more
    model.generate(**sources, num_beams=2)
    assert ours.times == 2


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Model, "prepare_inputs_for_generation"),
        (generation_vanilla.VanillaGenerationMixin, "prepare_inputs_for_generation"),
        (modeling_vanilla.VanillaAttention, "forward"),
        (modeling_vanilla.VanillaAttention, "attend"),
        (modeling_vanilla.VanillaDecoderLayer, "forward"),
        (modeling_vanilla.VanillaDecoder, "forward"),
        (modeling_vanilla.VanillaModel, "forward"),
    ],
)
def test_a_method_that_was_replaced_in_its_class_is_called(
    make_decided: MakeModel,
    sources: Source,
    ours: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    method: str,
) -> None:
    model, calls = make_decided(), []
    expected = model.generate(**sources, num_beams=2)
    usual = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *a, **k: (calls.append(1), usual(*a, **k))[1])
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert calls
    assert ours.times == 1


def test_hooks_are_called(make_decided: MakeModel, sources: Source, ours: Recorder) -> None:
    model, calls = make_decided(), []
    expected = model.generate(**sources, num_beams=2)
    own = [*PARTS, f"{LAYER}.self_attn.k_proj", "model.encoder.embed_tokens", "lm_head", "", "model", DECODER]
    for name in own:
        part = model.get_submodule(name)
        for register in (part.register_forward_hook, part.register_forward_pre_hook):
            handle = register(lambda *_: calls.append(1))
            assert torch.equal(model.generate(**sources, num_beams=2), expected)
            handle.remove()
            assert calls or name.endswith("embed_tokens")
            calls.clear()
    assert ours.times == 1


@pytest.mark.parametrize("asked", ["output_attentions", "output_hidden_states"])
def test_recording_outputs_once_is_no_reason_against_ours_afterwards(
    make_decided: MakeModel, sources: Source, ours: Recorder, asked: str
) -> None:
    model = make_decided(attn_implementation="eager")
    expected = model.generate(**sources, num_beams=2)
    model.generate(**sources, num_beams=2, **{asked: True, "return_dict_in_generate": True})
    assert any(module._forward_hooks for module in model.modules())
    assert ours.times == 1
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    assert ours.times == 2


def test_dropout_of_a_model_in_training_is_that_of_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided(dropout=0.2, activation_dropout=0.3).train()
    torch.manual_seed(3)
    expected, _ = theirs(model, sources, num_beams=2)
    torch.manual_seed(3)
    assert torch.equal(model.generate(**sources, num_beams=2), expected)
    model.get_decoder().layers[0].feed_forward.eval()
    model.generate(**sources, num_beams=1)
    assert ours.times == 0


class Adapted(nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        return super().forward(states) + states.roll(1, dims=-1)


def test_projections_that_are_more_than_linear_maps_are_called_by_ours(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    plain = model.generate(**sources, num_beams=3)
    for layer in model.get_decoder().layers:
        layer.self_attn.v_proj.__class__ = Adapted
    expected, _ = theirs(model, sources, num_beams=3)
    assert torch.equal(model.generate(**sources, num_beams=3), expected)
    assert not torch.equal(expected, plain)
    assert ours.times == 2


def test_prefix_tuning_reaches_the_search(make_decided: MakeModel, sources: Source) -> None:
    from peft import PrefixTuningConfig, TaskType, get_peft_model

    model = make_decided(decoder_layers=2).float()
    plain = model.generate(**sources, num_beams=2)
    tuned = get_peft_model(model, PrefixTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=4)).eval()
    torch.nn.init.normal_(tuned.prompt_encoder["default"].embedding.weight, std=3.0)
    expected, _ = theirs(tuned, sources, num_beams=2)
    assert not torch.equal(expected, plain)
    assert torch.equal(tuned.generate(**sources, num_beams=2), expected)
