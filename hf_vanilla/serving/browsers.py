"""
What a browser sends for a page of another site is refused: such pages may not use a server on their reader's machine.

Browsers say for which site they ask (Sec-Fetch-Site, or else Origin), which other programs do not; and where a site has
had its own name lead to this machine, that name is in Host.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OF_OUR_PAGE = ("same-origin", "none")  # none: the user typed the address, or an extension asks


class OwnPagesOnly:
    """
    Args:
        names: What Host may name; anything if there are none.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str] = ()):
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said = refusal_of(scope["method"], Headers(scope=scope), self.names) if scope["type"] == "http" else None
        app = self.app if said is None else JSONResponse({"error": said}, 403)
        await app(scope, receive, send)


def refusal_of(method: str, headers: Headers, names: Sequence[str]) -> str | None:
    """Why a request is refused; None if it is not."""
    host = headers.get("host", "")
    if names and name_of(host) not in names:
        return (
            f"this server answers for {', '.join(names)}, not for the Host {host:.80}: a proxy must send one of these"
        )
    if method in ("GET", "HEAD"):  # pages of other sites may link to ours, and cannot read it
        return None
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_ours = site in OF_OUR_PAGE if site else origin is None or origin.partition("://")[2] == host
    return None if is_ours else "pages of other sites may not use this server"


def name_of(host: str) -> str | None:
    """Without the port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
