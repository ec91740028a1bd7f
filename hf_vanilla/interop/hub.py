"""
Sends a run to the Hub, and a page as a Space.

All files come in one commit, so that nobody ever finds half of a model, and the commit gets a tag that is made of the
contents. The client of the Hub tries some of its requests again, but not those that make a repository, check a card or
commit: here every step is tried again, from its beginning. That sends no file twice: what has arrived is not asked for.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, SpaceCard
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from ..manifest import MANIFEST, ManifestError, read_manifest
from ..messages import say
from ..weights import CONFIG
from .errors import InteropError
from .staging import Staged, is_ours, one_line, staged_page, staged_run

PAUSES = (1.0, 5.0, 20.0)  # seconds before each further try
LONGEST_PAUSE = 300.0  # if the Hub asks for a longer one, the user decides
PASSING = frozenset((408, 409, 412, 425, 429, 500, 502, 503, 504))  # 409 and 412: somebody else commits just now
MODEL, SPACE = "model", "space"
FILES, TAG = "the files", "the tag (the files are there)"  # the steps that change what is published

Found = TypeVar("Found")


@dataclass(frozen=True)
class Pushed:
    """
    What is on the Hub now.

    Args:
        commit: The commit that has it, which is an older one if nothing had changed.
        tag: Names that commit, for `from_pretrained(..., revision=...)`.
    """

    url: str
    commit: str
    tag: str
    is_new: bool


@dataclass(frozen=True)
class Place:
    """A repository, and the branch of it that is written."""

    name: str
    kind: str
    private: bool
    revision: str | None


def push(
    run: Path,
    name: str,
    private: bool = False,
    revision: str | None = None,
    page: Path | None = None,
    api: HfApi | None = None,
) -> list[Pushed]:
    """
    Publish a run as the model `name`, and an exported page as the Space of the same name.

    Args:
        name: With its owner: "user/name".
        revision: A branch, which is made if it is not there; main if not given.
        page: The folder of the page, if there is one.
        api: With another endpoint or token than those of this machine.
    """
    refuse_name(name)
    api = api or HfApi()
    staged = {Place(name, MODEL, private, revision): staged_run(run, name, name if page else None)}
    if page:
        staged[Place(name, SPACE, private, revision)] = staged_page(page, run, name)
    for place, files in staged.items():
        say(f"{place.kind} {name}: {len(files.files)} files, {files.size / 2**20:.1f} MiB, checked")
    tried("the token", api.whoami, name)
    for place, files in staged.items():
        card = (ModelCard if place.kind == MODEL else SpaceCard)(files.card)
        tried("the card", lambda card=card: card.validate(), name)  # type: ignore[misc]
    found = {place: examined(api, place) for place in staged}  # all of them before a file goes anywhere
    return [sent(api, place, files, found[place]) for place, files in staged.items()]


def refuse_name(name: str) -> None:
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InteropError(one_line(error)) from None
    if "/" not in name:
        raise InteropError(f"{name!r} has no owner: give the user or organisation, too, as in user/{name}")


@dataclass(frozen=True)
class Repository:
    """
    What is at a place.

    Args:
        commit: The newest one of the branch, and `files` are those in it.
    """

    url: str
    commit: str
    files: frozenset[str]


def examined(api: HfApi, place: Place) -> Repository:
    """The repository, and its branch, made if they are not there. Refused if files cannot be written to it."""
    name, kind = place.name, place.kind
    sdk = "static" if kind == SPACE else None
    url = tried(
        "making the repository",
        lambda: api.create_repo(name, private=place.private or None, repo_type=kind, space_sdk=sdk, exist_ok=True),
        name,
    )
    info: Any = tried("the repository", lambda: api.repo_info(name, repo_type=kind), name)
    if place.private and not info.private:
        raise InteropError(f"{url} is public, and stays it: make it private in its settings, or leave out --private")
    if getattr(info, "sdk", None) not in (None, sdk):
        raise InteropError(f"{url} is a Space with the SDK {info.sdk}, not static: choose another name")
    found = Repository(str(url), info.sha, files_in(info))
    refuse_another_model(place, found)
    if place.revision:
        branch = place.revision
        tried("the branch", lambda: api.create_branch(name, branch=branch, repo_type=kind, exist_ok=True), name)
        info = tried("the branch", lambda: api.repo_info(name, repo_type=kind, revision=branch), name)
        found = Repository(str(url), info.sha, files_in(info))
        refuse_another_model(place, found)
    return found


def files_in(info: Any) -> frozenset[str]:
    return frozenset(file.rfilename for file in info.siblings or ())


def refuse_another_model(place: Place, found: Repository) -> None:
    if place.kind == MODEL and CONFIG in found.files and "configuration_vanilla.py" not in found.files:
        raise InteropError(
            f"{found.url} has another model: choose another name, or delete it there; no file was changed"
        )


def sent(api: HfApi, place: Place, staged: Staged, found: Repository) -> Pushed:
    """Have a repository hold what is staged."""
    name, kind = place.name, place.kind
    old = sent_before(api, place, found) - staged.files.keys()
    commit = tried(FILES, lambda: committed(api, place, staged, old), name)
    tried(TAG, lambda: api.create_tag(name, tag=staged.tag, revision=commit, repo_type=kind, exist_ok=True), name)
    return Pushed(found.url, commit, staged.tag, is_new=commit != found.commit)


def sent_before(api: HfApi, place: Place, found: Repository) -> set[str]:
    """Those files of a repository that an earlier push may have sent: of a Space, what the page's manifest names."""
    if place.kind == MODEL:
        return {file for file in found.files if is_ours(file)}
    if MANIFEST not in found.files:
        return set()
    with TemporaryDirectory() as folder:
        tried(
            "the page before",
            lambda: api.hf_hub_download(
                place.name, MANIFEST, repo_type=place.kind, revision=found.commit, local_dir=folder
            ),
            place.name,
        )
        try:
            return found.files & read_manifest(Path(folder))["files"].keys()
        except ManifestError:  # not one of ours
            return set()


def committed(api: HfApi, place: Place, staged: Staged, old: set[str]) -> str:
    """One commit of all that has changed; its hash. If nothing has, that of the newest commit."""
    additions = [CommitOperationAdd(file, content) for file, content in sorted(staged.files.items())]
    deletions = [CommitOperationDelete(file) for file in sorted(old)]
    found = api.create_commit(
        place.name,
        [*additions, *deletions],
        commit_message=f"hf-vanilla push ({staged.tag})",
        revision=place.revision,
        repo_type=place.kind,
    )
    return found.oid


def tried(step: str, call: Callable[[], Found], name: str) -> Found:
    """The result of a step, which is tried again as long as its failures may pass."""
    for pause in (*PAUSES, None):
        try:
            return call()
        except (HTTPError, OSError, RuntimeError, ValueError) as error:  # the client of the Hub raises all of these
            wait = None if pause is None else pause_after(error, pause)
            if wait is None:
                raise InteropError(explained(step, error, name)) from None
            say(f"{step}: {reason(error)}; again in {wait:.0f} s")
            time.sleep(wait)
    raise AssertionError


def pause_after(error: Exception, pause: float) -> float | None:
    """How long to wait before the next try; None if it would fail as well."""
    cause = cause_of(error)
    if isinstance(cause, HfHubHTTPError):
        if cause.response.status_code not in PASSING:
            return None
        asked = cause.response.headers.get("Retry-After", "")
        wait = max(pause, float(asked)) if asked.isdecimal() else pause
        return wait if wait <= LONGEST_PAUSE else None
    never = isinstance(cause, LocalTokenNotFoundError | OfflineModeIsEnabled | FileNotFoundError)
    return None if never or type(cause) is ValueError else pause


def cause_of(error: BaseException) -> BaseException:
    """The answer of the Hub, or the failure of the network, that an error of the client comes from."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, HTTPError):
            return found
        found = found.__cause__ or found.__context__
    return error


def reason(error: Exception) -> str:
    cause = cause_of(error)
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        known = {status.value: status.phrase for status in HTTPStatus}
        return f"the Hub answered {status} ({known.get(status, 'unknown')})"
    return f"{type(cause).__name__}: {one_line(cause)}"


def explained(step: str, error: Exception, name: str) -> str:
    """What went wrong, and what to do next."""
    cause = cause_of(error)
    again = "give the same command again, which sends only what is missing"
    if isinstance(cause, LocalTokenNotFoundError):
        return "there is no token of the Hub: log in by `hf auth login`, or set HF_TOKEN"
    if isinstance(cause, OfflineModeIsEnabled):
        return "the Hub is not asked, as HF_HUB_OFFLINE is set: unset it"
    if isinstance(cause, RevisionNotFoundError):
        return f"{name}: {one_line(cause)}; choose another --revision"
    if isinstance(cause, HfHubHTTPError):
        said = f"{step}: {reason(error)}"
        if cause.response.status_code == 401:
            return f"{said}: the token is not valid, or may not see {name}: log in by `hf auth login`, or set HF_TOKEN"
        if cause.response.status_code == 403:
            return f"{said}: the token may not write {name}: choose a name of your own, or a token with the role write"
        if cause.response.status_code in PASSING:
            return f"{said}: wait a while, then {again}"
        unchanged = "" if step in (FILES, TAG) else "no file was changed; "
        return f"{said}: {cause.server_message or one_line(cause)}: {unchanged}put that right, and push again"
    return f"{step}: {reason(error)}: is there a network? Then {again}"
