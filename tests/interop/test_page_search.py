"""The search of the page, run by node over logits of a model, finds what `generate()` finds."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_onnx import (
    ENDS,
    MANY,
    OPTIONS,
    SHAPES,
    SOURCES,
    MakeModel,
    check_same,
    decisive,
    ending,
    found_by_generate,
)

import hf_vanilla.interop
from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.inference.engine import Found
from hf_vanilla.interop.to_page import settings_of

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node to run JavaScript with")
PAGE = Path(hf_vanilla.interop.__file__).parent / "page"


class Searcher:
    """search.mjs in node, which asks here for logits."""

    def __init__(self) -> None:
        command = [str(NODE), str(Path(__file__).with_name("ask_search.mjs")), str(PAGE / "search.mjs")]
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, what: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    @torch.no_grad()
    def search(self, model: Model, source: list[int], settings: dict[str, Any]) -> dict[str, Any]:
        states = model.get_encoder()(input_ids=torch.tensor([source]))
        answer = self.say({"length": len(source), "settings": settings})
        while "rows" in answer:
            rows = torch.tensor(answer["rows"])
            repeated = (states.last_hidden_state.expand(len(rows), -1, -1),)
            logits = model(encoder_outputs=repeated, decoder_input_ids=rows, use_cache=False).logits[:, -1]
            values = [None if value != value else value for value in logits.flatten().tolist()]
            answer = self.say({"logits": values, "width": logits.shape[1]})
        return answer


@pytest.fixture(scope="module")
def searcher() -> Iterator[Searcher]:
    running = Searcher()
    yield running
    running.process.kill()
    running.process.communicate()


def settings_for(model: Model, options: dict[str, Any]) -> dict[str, Any]:
    """As the page has them for a model with these in its generation config."""
    for name, value in options.items():
        setattr(model.generation_config, name, value)
    number = options.get("num_return_sequences", 1)
    return settings_of(model) | {"num_return_sequences": number}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_n_best_lists_are_those_of_generate(options: dict[str, Any], make_model: MakeModel, searcher: Searcher) -> None:
    model = decisive(make_model(tie_word_embeddings=False))
    wanted = [found_by_generate(model, None, [source], **options)[0] for source in SOURCES]
    settings = settings_for(model, options)
    found = [searcher.search(model, source, settings)["found"] for source in SOURCES]
    check_same([[Found(each["tokens"], each["score"]) for each in row] for row in found], wanted)


@pytest.mark.parametrize("options", ENDS[::3] + ENDS[1:8:3], ids=lambda options: "-".join(map(str, options.values())))
def test_searches_end_where_those_of_generate_do(
    options: dict[str, Any], make_model: MakeModel, searcher: Searcher
) -> None:
    model = ending(make_model)
    wanted = [found_by_generate(model, None, [source], **options)[0] for source in MANY]
    settings = settings_for(model, options)
    found = [searcher.search(model, source, settings)["found"] for source in MANY]
    check_same([[Found(each["tokens"], each["score"]) for each in row] for row in found], wanted)


def test_learned_positions_end_the_search(make_model: MakeModel, searcher: Searcher) -> None:
    """`generate()` of the model itself would fail there, as it reads tokens that have no position."""
    model = make_model(**SHAPES[2] | {"max_position_embeddings": 9})
    settings = settings_for(model, {"max_length": 40, "num_beams": 3, "suppress_tokens": [2]})
    found = searcher.search(model, SOURCES[1], settings)["found"]
    assert [len(each["tokens"]) for each in found] == [9]


def test_numbers_that_are_none_are_an_error(make_model: MakeModel, searcher: Searcher) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.decoder.layers[0].feed_forward.fc1.bias[0] = torch.nan
    assert "no number" in searcher.search(model, SOURCES[0], settings_for(model, {"num_beams": 2}))["error"]
