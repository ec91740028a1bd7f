"""What tests of the server share: an engine that waits, and clients."""

from collections.abc import Iterator

import pytest
from fake_engines import Clock, Held, MakeClient, upside_down
from inference.conftest import MakeTranslator, make_translator, run
from starlette.testclient import TestClient

from hf_vanilla.inference.languages import Languages
from hf_vanilla.serving.app import Server, make_app
from hf_vanilla.serving.limits import Limits

__all__ = ["MakeTranslator", "make_translator", "run"]

ENGLISH_TO_GERMAN = Languages("en", "de")


@pytest.fixture
def held() -> Iterator[Held]:
    engine = Held()
    yield engine
    engine.may_go_on.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """`make_client(**limits)`: a client of an application in this process, from English to German."""
    opened: list[TestClient] = []

    def make(translate: object = upside_down, languages: Languages = ENGLISH_TO_GERMAN, **limits: float) -> TestClient:
        client = TestClient(make_app(Server(translate, languages, Limits(**limits))))
        opened.append(client.__enter__())
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)
