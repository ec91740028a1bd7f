"""From a port to a running server, until it is told to stop."""

import math
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from .limits import Limits

CONNECTIONS_PER_WAITING = 4  # beyond these, new ones are refused before they are read


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with this address, which refuses connections until the server runs. Port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # or a server could not start where another has just stopped
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(socket.SOMAXCONN)
    except (OSError, OverflowError) as error:
        opened.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(f"cannot listen at {host} port {port} ({reason}): choose another --port or --host") from None
    return opened


def address_of(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_until_stopped(app: Starlette, opened: socket.socket, limits: Limits, is_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. What was accepted before is answered."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_PER_WAITING * limits.max_waiting + 64,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 5,
    )
    before = signal.signal(signal.SIGTERM, _stop)  # uvicorn sends itself the signal again, when it has finished
    try:
        is_ready()
        uvicorn.Server(config).run(sockets=[opened])
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
