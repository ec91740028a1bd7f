"""A real server on loopback: LibreTranslate's own client, signals, a port in use, and languages from the run."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import uvicorn
import warm
from fake_engines import PATIENCE, Held, until, upside_down
from inference.conftest import MakeTranslator
from libretranslatepy import LibreTranslateAPI

from hf_vanilla.inference.languages import Languages, languages_of
from hf_vanilla.inference.translator import Hypothesis, Translator
from hf_vanilla.inspection.attention import attend_by
from hf_vanilla.serving import picture
from hf_vanilla.serving.app import Server, make_app
from hf_vanilla.serving.batcher import Translate, Wanted
from hf_vanilla.serving.engine import Drawn, Engine, TextTooLongError
from hf_vanilla.serving.limits import Limits
from hf_vanilla.serving.listening import address_of, bound_socket
from hf_vanilla.translation_page import MOST_DRAWN


@contextmanager
def serving(translate: Translate) -> Iterator[tuple[str, uvicorn.Server]]:
    """The address of a server that runs in a thread of this process."""
    app = make_app(Server(translate, Languages("en", "de"), Limits()))
    opened = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="warning"))
    thread = Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield address_of(opened), server
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        opened.close()


def metrics(address: str) -> str:
    return urllib.request.urlopen(f"{address}/metrics").read().decode()  # noqa: S310 - the address is ours


def test_the_client_of_libretranslate_works_unchanged() -> None:
    with serving(upside_down) as (address, _):
        client = LibreTranslateAPI(address, api_key="any")
        assert client.translate("grün & so?", "en", "de") == "?os & nürg"
        assert client.translate("abc", "auto", "de") == "cba"
        assert [each["code"] for each in client.languages()] == ["en", "de"]
        assert client.detect("abc") == [{"confidence": 0.0, "language": "en"}]
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            client.translate("abc", "en", "fr")
        assert "fr is not supported" in json.loads(refused.value.read())["error"]


def test_what_was_accepted_is_answered_when_a_server_stops(held: Held) -> None:
    with ThreadPoolExecutor(2) as pool, serving(held) as (address, server):
        client = LibreTranslateAPI(address)
        first = pool.submit(client.translate, "first", "en", "de")
        held.begun.get(timeout=PATIENCE)
        waits = pool.submit(client.translate, "waits", "en", "de")
        until(lambda: "hf_vanilla_waiting 1\n" in metrics(address))
        server.should_exit = True
        until(lambda: not server.servers[0].is_serving())
        with pytest.raises(urllib.error.URLError):
            client.translate("late", "en", "de", timeout=PATIENCE)
        held.may_go_on.set()
        assert (first.result(PATIENCE), waits.result(PATIENCE)) == ("tsrif", "stiaw")


def test_a_client_that_hangs_up_is_not_translated(held: Held) -> None:
    with serving(held) as (address, _), ThreadPoolExecutor(1) as pool:
        client = LibreTranslateAPI(address)
        first = pool.submit(client.translate, "first", "en", "de")
        held.begun.get(timeout=PATIENCE)
        host, port = address.removeprefix("http://").split(":")
        body = json.dumps({"q": "gone", "source": "en", "target": "de"})
        with socket.create_connection((host, int(port))) as opened:
            head = (
                f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            opened.sendall(f"{head}\r\n\r\n{body}".encode())
            until(lambda: "hf_vanilla_waiting 1\n" in metrics(address))
        until(lambda: "hf_vanilla_dropped_total 1\n" in metrics(address))
        held.may_go_on.set()
        assert first.result(PATIENCE) == "tsrif"
        assert held.begun.empty()


def test_the_command_serves_what_translate_gives_and_stops_at_sigterm(run: Path) -> None:
    texts = ["ab CD", "B", "Xe Ly, als Bein", "", "LsL"]
    expected = Translator.from_pretrained(run).translate(texts)
    command = [sys.executable, "-m", "hf_vanilla", "serve", str(run), "--port", "0", "--dtype", "float32"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            address = said.split(": ")[1].split(" ")[0]
            client = LibreTranslateAPI(address)
            assert [client.translate(text, "auto", "xx", timeout=PATIENCE) for text in texts] == expected
            evil = urllib.request.Request(f"{address}/health", headers={"Host": "evil.example"})  # noqa: S310 - ours
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(evil)  # noqa: S310 - the address is ours
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1 port 5000"),
        (["--host", "no such host"], "cannot listen at no such host port 5000"),
    ],
)
def test_an_address_that_cannot_be_had_is_an_error_in_one_line(run: Path, options: list[str], said: str) -> None:
    done = warm.run([sys.executable, "-m", "hf_vanilla", "serve", str(run), *options])
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_port_in_use_is_named() -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError, match=rf"cannot listen at 127.0.0.1 port {port} \(Address already in use\): choose"
        ):
            bound_socket("127.0.0.1", port)


@pytest.mark.parametrize(
    ("recipe", "card", "options", "expected"),
    [
        (None, None, {}, ("auto", "xx")),
        ("data: {source_language: en, target_language: de}", "language: [fr, it]", {}, ("en", "de")),
        (None, "language: [fr, it]", {}, ("fr", "it")),
        ("data: {source_language: en}", None, {"target": "cs"}, ("en", "cs")),
        ("data: {source_language: en, target_language: de}", None, {"source": "x"}, ("x", "de")),
        ("[" * 5000, "language: en", {}, ("auto", "xx")),
        ("data: {source_language: [en]}", None, {}, ("auto", "xx")),
    ],
)
def test_languages_come_from_options_recipe_and_card(
    tmp_path: Path, recipe: str | None, card: str | None, options: dict[str, str], expected: tuple[str, str]
) -> None:
    if recipe is not None:
        (tmp_path / "recipe.yaml").write_text(recipe)
    if card is not None:
        (tmp_path / "README.md").write_text(f"---\n{card}\n---\n# A card\n")
    assert languages_of(tmp_path, **options) == Languages(*expected)


def test_the_engine_gives_what_the_translator_gives_and_refuses_what_it_would_cut(
    make_translator: MakeTranslator,
) -> None:
    translator = make_translator()
    engine, texts = Engine(translator), ["ab CD", "e" * 2000, "B", "\ud800"]
    single, several = engine(texts, Wanted()), engine(texts, Wanted(5))
    for place in (0, 2, 3):
        assert single[place][0].text == translator.translate(texts[place])
        expected = translator.hypotheses(texts[place], num_return_sequences=5)
        assert [one.text for one in several[place]] == [one.text for one in expected]
        assert [one.score for one in several[place]] == pytest.approx([one.score for one in expected], abs=1e-5)
    for found in (single, several):
        assert isinstance(found[1], TextTooLongError)
        assert "2,001 tokens" in str(found[1])
    (narrow,) = Engine(translator, num_beams=1)(["ab CD"], Wanted())
    assert narrow[0].text == translator.translate("ab CD", num_beams=1)
    (widened,) = Engine(translator, num_beams=1)(["ab CD"], Wanted(5))
    assert len(widened) == 5


@pytest.mark.parametrize("row", ["output", "input"])
def test_translations_say_where_they_looked_if_that_is_asked(make_translator: MakeTranslator, row: str) -> None:
    """The rows of the chosen map, also of a translation that did not come to its end, and alike in every batch."""
    translator = make_translator()
    translator.model.generation_config.alignment = {
        "layer": 0,
        "head": 1,
        "row": row,
        "source_unit": "word",
        "target_unit": "word",
    }
    lines = ["ab CD", "B", "e" * 2000, "abc abc"]
    found = Engine(translator, max_length=9)(lines, Wanted(3, has_attention=True))
    assert isinstance(found[2], TextTooLongError)
    assert translator.model.config._attn_implementation == "sdpa"  # for the next translations
    translator.model.set_attn_implementation("eager")
    for place in (0, 1, 3):
        for each in found[place]:
            assert isinstance(each, Drawn)
            ids = [*each.token_ids, translator.tokenizer.eos_token_id]
            with torch.no_grad():
                seen = translator.model(
                    torch.tensor([translator.encode_batch([lines[place]])[0]]),
                    decoder_input_ids=torch.tensor([[translator.model.config.decoder_start_token_id, *ids[:-1]]]),
                    output_attentions=True,
                    use_cache=False,
                ).cross_attentions[0][0, 1]
            rows = seen[:-1] if row == "output" else seen[1:]
            assert np.abs(np.array(each.picture.weights) - rows.numpy()).max() < 6e-4
            assert len(each.picture.targets) == len(each.token_ids)
    expected = attend_by(translator, "ab CD", max_length=9)
    assert (found[0][0].picture.targets, found[0][0].picture.sources) == expected.names("cross")


def test_long_texts_have_no_picture_and_nothing_is_computed_for_them(
    make_translator: MakeTranslator, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    usual = picture.each_maps_of
    monkeypatch.setattr(picture, "each_maps_of", lambda *asked: looked.extend(map(len, asked[1])) or usual(*asked))
    engine = Engine(make_translator(), max_length=30)
    lines = ["e" * MOST_DRAWN, "e" * (MOST_DRAWN - 1)]  # and <eos>
    long, short = ([one.picture for one in each] for each in engine(lines, Wanted(2, has_attention=True)))
    assert looked == [MOST_DRAWN] * 2
    assert [len(each.weights[0]) for each in short] == [MOST_DRAWN] * 2
    assert [(len(each.sources), each.weights) for each in long] == [(MOST_DRAWN + 1, [])] * 2


def test_an_engine_without_attention_shows_none(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    translator.engine = SearchOnly(translator.engine)
    (found,) = Engine(translator)(["ab CD"], Wanted(2, has_attention=True))
    assert [type(each) for each in found] == [Hypothesis, Hypothesis]


class SearchOnly:
    """As the engines of exports."""

    def __init__(self, engine: object):
        self.engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)
