"""The server: which address answers what."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..inference.languages import Languages
from ..inference.translator import Hypothesis
from ..translation_page import PAGE
from .batcher import Batcher, ClosedError, Job, QueueFullError, Translate
from .browsers import OwnPagesOnly
from .engine import TextTooLongError
from .libretranslate import (
    RequestError,
    detection,
    fields_of,
    frontend_settings,
    language_list,
    translation_answer,
    translation_request,
)
from .limits import Limits
from .metrics import Metrics
from .page import files_of, page_of

RETRY_AFTER = {"Retry-After": "1"}
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "mjs": "text/javascript"}
GONE = 499  # what nginx calls a client that did not wait; nobody reads this answer

logger = logging.getLogger(__name__)


class Server:
    """
    What the addresses share.

    Args:
        translate: What computes, called from one thread only.
        columns: How many parts a source has.
        names: What clients may call this machine (Host); anything if there are none.
        clock: In seconds; the time of a request is measured by it.
    """

    def __init__(
        self,
        translate: Translate,
        languages: Languages,
        limits: Limits,
        columns: int = 1,
        names: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.languages = languages
        self.limits = limits
        self.names = names
        self.clock = clock
        self.metrics = Metrics()
        self.batcher = Batcher(translate, limits.max_waiting, clock)
        page = page_of(languages, limits, columns)
        self.policy = f"{page.policy}; frame-ancestors 'none'"
        self.files = files_of(page)

    async def translate(self, request: Request) -> Response:
        deadline = self.clock() + self.limits.seconds
        fields = fields_of(request.headers.get("content-type", ""), await self.body_of(request))
        asked = translation_request(fields, self.languages, self.limits)
        self.metrics.characters += sum(map(len, asked.texts))
        job = self.batcher.submit(asked.filled, asked.wanted, deadline)
        return JSONResponse(translation_answer(asked, await self.result_of(job, request), self.languages))

    async def detect(self, request: Request) -> Response:
        fields = fields_of(request.headers.get("content-type", ""), await self.body_of(request))
        if not isinstance(fields.get("q"), str):
            raise RequestError("Invalid request: missing q parameter")
        return JSONResponse(detection(self.languages))

    async def list_languages(self, request: Request) -> Response:
        return JSONResponse(language_list(self.languages))

    async def settings(self, request: Request) -> Response:
        return JSONResponse(frontend_settings(self.languages, self.limits))

    async def health(self, request: Request) -> Response:
        is_alive = self.batcher.is_alive
        return JSONResponse({"status": "ok" if is_alive else "stopping"}, 200 if is_alive else 503)

    async def show_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics.text(self.batcher), media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/") or PAGE
        kind = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(self.files[name], media_type=kind, headers={"Content-Security-Policy": self.policy})

    async def body_of(self, request: Request) -> bytes:
        """All of the body, of which no more is read than may be there, and for no longer than a request may take."""
        most = self.limits.max_body_bytes
        too_large = RequestError(f"Invalid request: the body has more than {most:,} bytes", 413)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            raise too_large
        body = bytearray()
        async with asyncio.timeout(self.limits.seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise too_large
        return bytes(body)

    async def result_of(self, job: Job, request: Request) -> list[list[Hypothesis]]:
        """What the job has found, unless its time is over or the client is gone first."""
        done: asyncio.Future[list[list[Hypothesis]]] = asyncio.wrap_future(job.result)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            seconds = max(0.0, job.deadline - self.clock())
            await asyncio.wait((done, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.batcher.give_up(job)
            gone.cancel()
        if done.done():
            return _checked(done)
        if gone.done() and not gone.cancelled():
            raise RequestError("the client is gone", GONE)
        raise TimeoutError


def _checked(done: "asyncio.Future[list[list[Hypothesis]]]") -> list[list[Hypothesis]]:
    """The result. A fault is told to the log, and not to the client."""
    try:
        return done.result()
    except (TextTooLongError, TimeoutError):
        raise
    except Exception as error:
        logger.exception("a text could not be translated: %s", type(error).__name__)
        raise RequestError("Cannot translate text", 500) from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(server: Server) -> Starlette:
    """The application, which closes the server's queue when it ends."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.batcher.close)

    routes = [
        *(Route(address, server.page) for address in ("/", *(f"/{name}" for name in server.files))),
        Route("/translate", server.translate, methods=["POST"]),
        Route("/detect", server.detect, methods=["POST"]),
        Route("/languages", server.list_languages),
        Route("/frontend/settings", server.settings),
        Route("/health", server.health),
        Route("/metrics", server.show_metrics),
    ]
    refusals: tuple[type[Exception], ...] = (
        *(RequestError, TextTooLongError, HTTPException, QueueFullError, ClosedError, TimeoutError),
        Exception,
    )

    async def refuse(request: Request, error: Exception) -> Response:
        return refusal(error, server.limits)

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(refusals, refuse),
        middleware=[Middleware(Counting, server=server), Middleware(OwnPagesOnly, names=server.names)],
    )


def refusal(error: Exception, limits: Limits) -> Response:
    """What LibreTranslate's clients read: an object whose `error` is a sentence."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, QueueFullError):
        return JSONResponse({"error": "Slowdown: too many requests wait; try again"}, 429, RETRY_AFTER)
    if isinstance(error, ClosedError):
        return JSONResponse({"error": "this server is stopping"}, 503, RETRY_AFTER)
    if isinstance(error, TimeoutError):
        said = f"this took longer than {limits.seconds:g} seconds: send less text, or try again later"
        return JSONResponse({"error": said}, 503, RETRY_AFTER)
    if isinstance(error, RequestError):
        return JSONResponse({"error": str(error)}, error.status)
    if isinstance(error, TextTooLongError):
        return JSONResponse({"error": f"Invalid request: {error}"}, 400)
    return JSONResponse({"error": "Internal Server Error"}, 500)  # the log has it


class Counting:
    """Counts the answers, and has no browser keep them or guess what they are."""

    def __init__(self, app: ASGIApp, server: Server):
        self.app = app
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: list[Any] = list(message.get("headers", []))
                headers += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": headers}
                self.server.metrics.count(message["status"], time.monotonic() - began)
            await send(message)

        await self.app(scope, receive, counted)
