"""What the server answers: as LibreTranslate does, within its limits."""

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from fake_engines import PATIENCE, Held, MakeClient, until, upside_down
from starlette.testclient import TestClient

from hf_vanilla.inference.languages import Languages
from hf_vanilla.inference.translator import Hypothesis
from hf_vanilla.serving.app import Server, make_app
from hf_vanilla.serving.batcher import Found, Wanted
from hf_vanilla.serving.browsers import LOOPBACK
from hf_vanilla.serving.engine import TextTooLongError
from hf_vanilla.serving.limits import Limits

PAIR = {"source": "en", "target": "de"}


def test_a_text_and_a_list_are_answered_as_they_were_asked(make_client: MakeClient) -> None:
    client = make_client()
    assert client.post("/translate", json={"q": "abc", **PAIR}).json() == {"translatedText": "cba"}
    assert client.post("/translate", json={"q": ["abc", "de"], **PAIR}).json() == {"translatedText": ["cba", "ed"]}
    assert client.post("/translate", json={"q": [], **PAIR}).json() == {"translatedText": []}
    assert client.post("/translate", json={"q": " ", **PAIR}).json() == {"translatedText": " "}


def test_a_form_is_as_good_as_json(make_client: MakeClient) -> None:
    client = make_client()
    form = {"q": "grün & so", **PAIR, "format": "text", "api_key": "", "alternatives": "1"}
    found = client.post("/translate", data=form).json()
    assert found == {"translatedText": "os & nürg", "alternatives": ["os & nürg 1"], "scores": [0.0, -0.5]}
    assert client.post("/translate", data={**PAIR, "q": ["a b", "c d"]}).json() == {"translatedText": ["b a", "d c"]}


def test_each_line_of_a_text_is_translated_alone_and_stays_where_it_is(make_client: MakeClient) -> None:
    found = make_client().post("/translate", json={"q": "\nab\r\n\n  \ncd\n", **PAIR, "alternatives": 2}).json()
    assert found == {"translatedText": "\nba\n\n  \ndc\n", "alternatives": [], "scores": []}


def test_a_single_line_has_alternatives_and_scores_each_text_once(make_client: MakeClient) -> None:
    def translate(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        return [[Hypothesis(text, score) for text, score in zip("ABAC", (-1, -2, -3, -4), strict=True)] for _ in lines]

    found = make_client(translate).post("/translate", json={"q": ["x\n", "y\nz"], **PAIR, "alternatives": 3}).json()
    assert found["translatedText"] == ["A\n", "A\nA"]
    assert found["alternatives"] == [["B\n", "C\n"], []]
    assert found["scores"] == [[-1, -2, -4], []]


def test_nothing_is_detected_and_the_answer_says_so(make_client: MakeClient) -> None:
    client, unsure = make_client(), {"confidence": 0.0, "language": "en"}
    asked = {"q": "abc", "source": "auto", "target": "de"}
    assert client.post("/translate", json=asked).json() == {"translatedText": "cba", "detectedLanguage": unsure}
    asked["q"] = ["abc", "d"]
    assert client.post("/translate", json=asked).json()["detectedLanguage"] == [unsure, unsure]
    assert client.post("/detect", data={"q": "abc"}).json() == [unsure]
    assert client.post("/detect", json={}).status_code == 400


def test_languages_and_settings_are_what_clients_expect(make_client: MakeClient) -> None:
    client = make_client(max_characters=77)
    english, german = client.get("/languages").json()
    assert english == {"code": "en", "name": "en", "targets": ["de"]}
    assert german == {"code": "de", "name": "de", "targets": []}
    settings = client.get("/frontend/settings").json()
    assert (settings["charLimit"], settings["keyRequired"]) == (77, False)
    assert settings["language"]["target"]["code"] == "de"
    same = make_client(languages=Languages("en", "en")).get("/languages").json()
    assert same == [{"code": "en", "name": "en", "targets": ["en"]}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "missing q parameter"),
        ({"q": None}, "missing q parameter"),
        ({"q": 7}, "q must be a text or a list of texts"),
        ({"q": ["a", 7]}, "q must be a text or a list of texts"),
        ({"source": "fr"}, "fr is not supported: this server translates en to de"),
        ({"target": "en"}, "en is not supported"),
        ({"target": None}, "missing target parameter"),
        ({"target": ["de"]}, "target must be a text"),
        ({"format": "html"}, "html format is not supported"),
        ({"alternatives": 10}, "alternatives must be a number from 0 to 9"),
        ({"alternatives": -1}, "alternatives must be a number from 0 to 9"),
        ({"alternatives": "9" * 5000}, "alternatives must be a number from 0 to 9"),
        ({"alternatives": 10**40}, "alternatives must be a number from 0 to 9"),
        ({"alternatives": True}, "alternatives must be a number from 0 to 9"),
        ({"alternatives": [1]}, "alternatives must be a number from 0 to 9"),
        ({"q": "a" * 21}, r"request \(21\) exceeds text limit \(20\)"),
        ({"q": ["a" * 10, "b" * 11]}, r"request \(21\) exceeds text limit \(20\)"),
        ({"q": [""] * 5}, "5 texts exceed the limit of 4"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(make_client: MakeClient, fields: dict, said: str) -> None:
    def translate(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        raise AssertionError

    client = make_client(translate, max_characters=20, max_texts=4)
    asked = {"q": "text", **PAIR} | fields if fields else {}
    answer = client.post("/translate", json=asked)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    with pytest.raises(ValueError, match=said):
        raise ValueError(answer.json()["error"])


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b'["q"]', 400),
        ("application/json", b"[" * 20_000, 400),
        ("application/json", b'{"q": "\xff"}', 400),
        ("application/json", b'{"q": ' + b"9" * 5000 + b"}", 400),
        ("application/x-www-form-urlencoded", b"q=%ff", 400),
        ("application/x-www-form-urlencoded", b"a&" * 3000, 400),
        ("text/plain", b'{"q": "no preflight"}', 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("", b"", 415),
    ],
)
def test_bodies_that_cannot_be_read_are_refused(make_client: MakeClient, kind: str, body: bytes, status: int) -> None:
    answer = make_client().post("/translate", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"].startswith("Invalid request: the body")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://testserver:81"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://testserver:81"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://before-a-proxy.example"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
    ids=str,
)
def test_pages_of_other_sites_cannot_use_it(make_client: MakeClient, headers: dict[str, str], status: int) -> None:
    """A form of another site needs no permission to be sent. A link to the page is fine."""
    client = make_client()
    for answer in (
        client.post("/translate", data={"q": "abc", **PAIR}, headers=headers),
        client.post("/detect", json={"q": "abc"}, headers=headers),
    ):
        assert answer.status_code == status
        assert ("error" in answer.json()) is (status == 403)
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("127.0.0.1:5000", 200), ("localhost:5000", 200), ("[::1]:5000", 200)),
        *(("evil.example", 403), ("127.0.0.1.evil.example:5000", 403), ("[", 403), ("", 403)),
    ],
)
def test_on_loopback_a_name_that_leads_there_is_refused(host: str, status: int) -> None:
    server = Server(upside_down, Languages("en", "de"), Limits(), names=LOOPBACK)
    client = TestClient(make_app(server))
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/translate", json={"q": "abc", **PAIR}, headers=headers).status_code == status
    assert client.get("/", headers=headers).status_code == status
    server.batcher.close()


def test_a_body_is_not_read_beyond_its_limit(make_client: MakeClient) -> None:
    limits = Limits(max_characters=100)
    read = []

    def pieces():
        for _ in range(1000):
            read.append(1000)
            yield b"x" * 1000

    client = make_client(max_characters=100)
    said = client.post("/translate", content=b"x" * (limits.max_body_bytes + 1))
    assert said.status_code == 413
    assert str(f"{limits.max_body_bytes:,}") in said.json()["error"]
    answers: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": next(stream), "more_body": True}

    async def send(message: dict) -> None:
        answers.append(message)

    stream = pieces()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/translate",
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    anyio.run(client.app, scope, receive, send)
    assert answers[0]["status"] == 413
    assert sum(read) <= limits.max_body_bytes + 2000


def test_other_addresses_and_methods_are_refused_in_json(make_client: MakeClient) -> None:
    client = make_client()
    for answer, status in ((client.get("/nothing"), 404), (client.get("/translate"), 405)):
        assert answer.status_code == status
        assert "error" in answer.json()


def test_a_character_of_any_kind_fits_into_the_body_that_the_limit_of_characters_allows(
    make_client: MakeClient,
) -> None:
    client, text = make_client(max_characters=3000), "\N{SMILING FACE WITH SUNGLASSES}" * 3000
    assert client.post("/translate", json={"q": text, **PAIR}).json()["translatedText"] == text
    assert client.post("/translate", data={"q": text, **PAIR}).json()["translatedText"] == text
    as_lines = "a\n" * 1500
    escaped = json.dumps({"q": text, **PAIR}, ensure_ascii=True)
    answer = client.post("/translate", content=escaped, headers={"Content-Type": "application/json"})
    assert answer.json()["translatedText"] == text
    assert client.post("/translate", json={"q": as_lines, **PAIR}).json()["translatedText"] == as_lines


def test_whoever_comes_to_a_full_queue_is_told_to_come_again(make_client: MakeClient, held: Held) -> None:
    client = make_client(held, max_waiting=2)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, "/translate", json={"q": "first", **PAIR})]
        assert held.begun.get(timeout=PATIENCE)[0] == ["first"]
        asked += [pool.submit(client.post, "/translate", json={"q": "waits", **PAIR}) for _ in range(2)]
        until(lambda: "hf_vanilla_waiting 2\n" in client.get("/metrics").text)
        refused = client.post("/translate", json={"q": "too many", **PAIR})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "Slowdown" in refused.json()["error"]
        held.may_go_on.set()
        assert [each.result(PATIENCE).json()["translatedText"] for each in asked] == ["tsrif", "stiaw", "stiaw"]


def test_a_request_that_takes_too_long_is_answered_and_its_text_is_never_translated(
    make_client: MakeClient, held: Held
) -> None:
    client = make_client(held, seconds=0.05)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/translate", json={"q": "first", **PAIR})
        held.begun.get(timeout=PATIENCE)
        answer = client.post("/translate", json={"q": "late", **PAIR})
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("this took longer than 0.05 seconds")
        held.may_go_on.set()
        assert first.result(PATIENCE).status_code == 503
    until(lambda: "hf_vanilla_batches_total 1\n" in client.get("/metrics").text)
    assert "hf_vanilla_dropped_total 2\n" in client.get("/metrics").text
    assert held.begun.empty()


def test_the_text_of_a_client_that_has_gone_is_never_translated(held: Held) -> None:
    """By the protocol between server and application, as a test client cannot hang up."""
    server = Server(held, Languages("en", "de"), Limits())
    app = make_app(server)
    body = json.dumps({"q": "gone", **PAIR}).encode()
    kind = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/translate",
        "headers": kind,
        "query_string": b"",
        "root_path": "",
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    sent: list[int] = []

    async def receive() -> dict:
        return messages.pop(0)

    async def send(message: dict) -> None:
        sent.append(message.get("status", 0))

    busy = server.batcher.submit(["busy"], Wanted(), math.inf)
    held.begun.get(timeout=PATIENCE)
    anyio.run(app, scope, receive, send)
    assert sent[0] == 499
    held.may_go_on.set()
    assert busy.result.result(PATIENCE)[0][0].text == "ysub"
    server.batcher.close()
    assert held.begun.empty()


def test_a_line_that_the_model_would_cut_is_refused_and_a_fault_shows_nothing_of_itself(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def translate(lines: Sequence[str], wanted: Wanted) -> list[Found]:
        if lines == ["fault"]:
            raise RuntimeError("secret")
        return [TextTooLongError("a line has 9 tokens")]

    client = make_client(translate)
    long = client.post("/translate", json={"q": "long", **PAIR})
    assert (long.status_code, long.json()) == (400, {"error": "Invalid request: a line has 9 tokens"})
    fault = client.post("/translate", json={"q": "fault", **PAIR})
    assert (fault.status_code, fault.json()) == (500, {"error": "Cannot translate text"})
    assert "RuntimeError" in caplog.text  # the server's log has it
    assert client.get("/health").json() == {"status": "ok"}


def test_health_and_metrics_tell_what_happens(make_client: MakeClient) -> None:
    client = make_client()
    assert (client.get("/health").status_code, client.get("/health").json()) == (200, {"status": "ok"})
    client.post("/translate", json={"q": ["abc\nd", ""], **PAIR})
    client.post("/translate", json={"q": "abc"})
    shown = client.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = shown.text.splitlines()
    for line in (
        'hf_vanilla_requests_total{status="200"} 3',
        'hf_vanilla_requests_total{status="400"} 1',
        "hf_vanilla_characters_total 5",
        "hf_vanilla_lines_total 2",
        "hf_vanilla_batches_total 1",
        "hf_vanilla_waiting 0",
    ):
        assert line in lines
    assert sum(line.startswith("# TYPE ") for line in lines) == sum(line.startswith("# HELP ") for line in lines)


def test_a_server_that_stops_is_not_healthy_and_takes_nothing() -> None:
    server = Server(upside_down, Languages("en", "de"), Limits())
    client = TestClient(make_app(server))  # without its beginning and end
    server.batcher.close()
    assert client.get("/health").status_code == 503
    assert client.post("/translate", json={"q": "late", **PAIR}).status_code == 503


def test_the_page_allows_its_own_style_and_script_only_and_escapes_names(make_client: MakeClient) -> None:
    client = make_client(languages=Languages('"><script>', "</title>"))
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert policy.endswith("frame-ancestors 'none'")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert answer.text.count("<script") == answer.text.count("</script>") == 1
    assert answer.text.count("</title>") == 1
    assert "http:" not in answer.text
    assert "https:" not in answer.text
    for name in re.findall(r'(?:src|href)="([^"]*[a-z])"', answer.text):
        kind = client.get(f"/{name}").headers["content-type"]
        assert kind == ("text/css" if name.endswith("css") else "text/javascript") + "; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
