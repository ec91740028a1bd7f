"""
A Hub on loopback, in memory: what huggingface_hub 2.4 asks of huggingface.co to publish and to load.

`hub.log` has all requests, and `hub.faults` functions that may answer a request in place of the Hub, wrongly.
"""

import base64
import hashlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_test"  # noqa: S105
LARGE = (".safetensors", ".onnx", ".wasm")  # what goes another way than in the commit itself
KNOWN_LICENSES = ("apache-2.0", "cc-by-4.0", "mit")


POINTER = b"xet:"  # stands for the contents of a file that came by xet


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    private: bool
    sdk: str | None
    refs: dict[str, str]
    commits: dict[str, dict[str, bytes]]
    large: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.refs.get(revision, revision)]

    def identity(self, path: str, data: bytes) -> str:
        if data.startswith(POINTER):
            return data.removeprefix(POINTER).decode()
        return hashlib.sha256(data).hexdigest() if path in self.large else git_hash(data)


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}  # "models/user/name"
        self.stored: dict[str, bytes] = {}  # large files by their SHA-256
        self.log: list[tuple[str, str]] = []  # method and path
        self.waited: list[float] = []  # what tests put here in place of sleeping
        self.faults: list[Callable[[Handler], bool]] = []
        self.xet: str | None = None  # where large files go by the protocol xet, which does not show them to this Hub
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a fault has cut are no news."""

    def requests(self, method: str, pattern: str) -> int:
        """How many there were."""
        return sum(1 for found, path in self.log if found == method and re.search(pattern, path))


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class Refused(Exception):  # noqa: N818
    def __init__(self, status: int, code: str = "", message: str = "refused"):
        super().__init__(message)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: Any) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers = {"Content_Type": "application/json", "Content_Length": len(content)} | headers
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @cached_property
    def data(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def do(self) -> None:
        url = urlsplit(self.path)
        self.__dict__.pop("data", None)  # of the request before on this connection
        with self.server.lock:
            self.server.log.append((self.command, url.path))
            if not any(fault(self) for fault in self.server.faults):
                self.route(url.path)

    def route(self, path: str) -> None:
        assert self.data is not None  # read it in any case
        try:
            for methods, pattern, call in ROUTES:
                if self.command in methods.split() and (found := re.fullmatch(pattern, path)):
                    call(self, **{name: unquote(value) for name, value in found.groupdict().items() if value})
                    return
            raise Refused(404, message=f"no such route: {path}")
        except Refused as error:
            code = {"X_Error_Code": error.code} if error.code else {}
            self.answer(error.status, {"error": str(error)}, X_Error_Message=str(error), **code)

    do_GET = do_HEAD = do_POST = do_PUT = do  # noqa: N815

    def require_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, message="Invalid credentials in Authorization header")

    def found(self, kind: str, repo: str, to_write: bool = False) -> Repository:
        if to_write:
            self.require_token()
            if not repo.startswith("user/"):
                raise Refused(403, message="You have no right to write here")
        repository = self.server.repositories.get(f"{kind}/{repo}")
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            raise Refused(401 if repository else 404, "RepoNotFound", "Repository not found")
        return repository

    def commit_of(self, repository: Repository, revision: str) -> str:
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def whoami(self) -> None:
        self.require_token()
        self.answer(200, {"type": "user", "name": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def create(self) -> None:
        self.require_token()
        asked = json.loads(self.data)
        kind, owner = asked.get("type", "model") + "s", asked.get("organization") or "user"
        if owner != "user":
            raise Refused(403, message="You don't have the rights to create a model under this namespace")
        repo = f"{owner}/{asked['name']}"
        url = f"{self.server.url}/{'' if kind == 'models' else kind + '/'}{repo}"
        if f"{kind}/{repo}" in self.server.repositories:
            self.answer(409, {"error": "You already created this repo", "url": url})
            return
        first = hashlib.sha1(repo.encode(), usedforsecurity=False).hexdigest()
        self.server.repositories[f"{kind}/{repo}"] = Repository(
            asked.get("visibility") == "private", asked.get("sdk"), {"main": first}, {first: {".gitattributes": b"*"}}
        )
        self.answer(200, {"url": url})

    def validate(self) -> None:
        asked = json.loads(self.data)
        front = yaml.safe_load(asked["content"].split("---\n")[1])
        wrong = front.get("license", "mit") not in KNOWN_LICENSES
        errors = [{"message": '"license" must be one of [...]'}] if wrong else []
        self.answer(400 if wrong else 200, {"errors": errors, "warnings": []})

    def preupload(self, kind: str, repo: str, revision: str) -> None:
        repository = self.found(kind, repo, to_write=True)
        files = repository.commits[self.commit_of(repository, revision)]
        answers = []
        for asked in json.loads(self.data)["files"]:
            path = asked["path"]
            known = {"oid": repository.identity(path, files[path])} if path in files else {}
            mode = "lfs" if path.endswith(LARGE) else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
        self.answer(200, {"files": answers})

    def large_files(self, repo: str, kind: str = "models") -> None:
        self.found(kind, repo, to_write=True)
        answers = []
        for asked in json.loads(self.data)["objects"]:
            oid, actions = asked["oid"], {}
            if oid not in self.server.stored:
                hrefs = {name: f"{self.server.url}/large-{name}/{oid}" for name in ("upload", "verify")}
                actions = {"actions": {name: {"href": href, "header": {}} for name, href in hrefs.items()}}
            answers.append({"oid": oid, "size": asked["size"], **actions})
        self.answer(200, {"transfer": "basic", "objects": answers}, Content_Type="application/vnd.git-lfs+json")

    def upload(self, oid: str) -> None:
        if hashlib.sha256(self.data).hexdigest() != oid:
            raise Refused(400, message="the checksum differs")
        self.server.stored[oid] = self.data
        self.answer(200)

    def verify(self, oid: str) -> None:
        self.answer(200 if len(self.server.stored.get(oid, b"")) == json.loads(self.data)["size"] else 404)

    def commit(self, kind: str, repo: str, revision: str) -> None:
        repository = self.found(kind, repo, to_write=True)
        before = self.commit_of(repository, revision)
        files, large = dict(repository.commits[before]), set(repository.large)
        for line in map(json.loads, self.data.splitlines()[1:]):
            path = line["value"]["path"]
            match line["key"]:
                case "file":
                    files[path] = base64.b64decode(line["value"]["content"])
                case "lfsFile":
                    oid = line["value"]["oid"]
                    if oid not in self.server.stored and not self.server.xet:
                        raise Refused(400, message="LFS pointer pointed to a file that does not exist")
                    files[path] = self.server.stored.get(oid, POINTER + oid.encode())
                    large.add(path)
                case "deletedFile":
                    del files[path]
                case other:
                    raise Refused(400, message=f"no such operation: {other}")
        new = hashlib.sha1(before.encode() + self.data, usedforsecurity=False).hexdigest()
        repository.commits[new], repository.refs[revision], repository.large = files, new, large
        self.answer(200, {"success": True, "commitOid": new, "commitUrl": f"{self.server.url}/{repo}/commit/{new}"})

    def xet_token(self, kind: str, repo: str, revision: str) -> None:
        self.found(kind, repo, to_write=True)
        self.answer(200, {"casUrl": self.server.xet, "accessToken": "xet", "exp": int(time.time()) + 3600})

    def branch(self, kind: str, repo: str, branch: str) -> None:
        repository = self.found(kind, repo, to_write=True)
        if branch in repository.refs:
            raise Refused(409, message="Reference already exists")
        repository.refs[branch] = repository.refs["main"]
        self.answer(200, {})

    def tag(self, kind: str, repo: str, revision: str) -> None:
        repository, tag = self.found(kind, repo, to_write=True), json.loads(self.data)["tag"]
        if tag in repository.refs:
            raise Refused(409, message="Tag reference exists already")
        repository.refs[tag] = self.commit_of(repository, revision)
        repository.tags.add(tag)
        self.answer(200, {})

    def info(self, kind: str, repo: str, revision: str = "main") -> None:
        repository = self.found(kind, repo)
        commit = self.commit_of(repository, revision)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[commit])]
        facts = {"_id": "0" * 24, "id": repo, "modelId": repo, "sha": commit, "private": repository.private}
        sdk = {"sdk": repository.sdk} if repository.sdk else {}
        self.answer(200, facts | sdk | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0, "gated": False})

    def tree(self, kind: str, repo: str, revision: str, path: str = "") -> None:
        repository = self.found(kind, repo)
        entries = []
        for name, data in sorted(repository.commits[self.commit_of(repository, revision)].items()):
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
            if name in repository.large:
                entry["lfs"] = {"oid": repository.identity(name, data), "size": len(data), "pointerSize": 134}
            if name.startswith(path):
                entries.append(entry)
        if path and not entries:
            raise Refused(404, "EntryNotFound", f"{path} does not exist on {revision}")
        self.answer(200, entries)

    def resolve(self, repo: str, revision: str, path: str, kind: str = "models") -> None:
        repository = self.found(kind, repo)
        commit = self.commit_of(repository, revision)
        data = repository.commits[commit].get(path)
        if data is None:
            self.answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            return
        headers = {"X_Repo_Commit": commit, "ETag": f'"{git_hash(data)}"', "Accept_Ranges": "bytes"}
        if path in repository.large:
            headers |= {"X_Linked_Etag": f'"{repository.identity(path, data)}"', "X_Linked_Size": str(len(data))}
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and self.command == "GET":
            start = int(asked.group(1))
            range_ = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.answer(206, data[start:], Content_Range=range_, **headers)
        else:
            self.answer(200, data, **headers)


API = r"/api/(?P<kind>models|spaces)/(?P<repo>[^/]+/[^/]+)"
PLAIN = r"/(?:(?P<kind>spaces)/)?(?P<repo>[^/]+/[^/]+)"
REVISION = r"(?P<revision>[^/]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate),
    ("POST", rf"{API}/preupload/{REVISION}", Handler.preupload),
    ("POST", rf"{API}/commit/{REVISION}", Handler.commit),
    ("GET", rf"{API}/xet-write-token/{REVISION}", Handler.xet_token),
    ("POST", rf"{API}/branch/(?P<branch>[^/]+)", Handler.branch),
    ("POST", rf"{API}/tag/{REVISION}", Handler.tag),
    ("POST", rf"{PLAIN}\.git/info/lfs/objects/batch", Handler.large_files),
    ("PUT", r"/large-upload/(?P<oid>[0-9a-f]{64})", Handler.upload),
    ("POST", r"/large-verify/(?P<oid>[0-9a-f]{64})", Handler.verify),
    ("GET", rf"{API}/tree/{REVISION}(?:/(?P<path>.+))?", Handler.tree),
    ("GET", rf"{API}/revision/{REVISION}", Handler.info),
    ("GET", API, Handler.info),
    ("GET HEAD", rf"{PLAIN}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
]


def times(number: int, pattern: str, what: int | str, after: int = 0) -> Callable[[Handler], bool]:
    """
    A fault of the first `number` requests whose method and path have a pattern.

    Args:
        what: A status to answer; "short", the connection is cut while the request is read; "lost", all is done as
            asked, and the connection is cut while that is answered.
        after: How many bytes are read or answered, or how many seconds a status 429 asks to wait.
    """
    left = [number]

    def fault(handler: Handler) -> bool:
        path = urlsplit(handler.path).path
        if not left[0] or not re.search(pattern, f"{handler.command} {path}"):
            return False
        left[0] -= 1
        if isinstance(what, int):
            assert handler.data is not None  # what was sent is read, so that the connection can be used again
            handler.answer(what, {"error": f"fault {what}"}, **({"Retry_After": after} if what == 429 else {}))
            return True
        if what == "short":
            handler.rfile.read(min(after, int(handler.headers.get("Content-Length") or 0)))
        else:
            handler.connection.sendall(answer_of(handler, path)[:after])
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return True

    return fault


def answer_of(handler: Handler, path: str) -> bytes:
    written, handler.wfile = handler.wfile, io.BytesIO()
    try:
        handler.route(path)
        return handler.wfile.getvalue()
    finally:
        handler.wfile = written
