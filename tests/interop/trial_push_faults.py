"""
Pushes under faults at random: statuses, connections cut at random bytes, tokens, repositories that exist, no network.

    python tests/interop/trial_push_faults.py --faults 60 [--xet] [--seed 1]

After each: all was published, in one commit with its tag; or one line says what to do, the repository is as it was, and
the same push without the fault succeeds and sends no file twice. With --xet large files go by hf_xet, into a folder.
"""

import argparse
import collections
import os
import random
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

os.environ.pop("HF_HUB_OFFLINE", None)  # before huggingface_hub is imported
os.environ["HF_HUB_DISABLE_XET"] = "0" if "--xet" in sys.argv else "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# hf_xet tries by itself for minutes, and nothing here can shorten its pauses.
os.environ |= {"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1", "HF_XET_CLIENT_RETRY_BASE_DELAY": "10ms"}

from fake_hub import POINTER, TOKEN, Hub, running, times
from finished_runs import finished_run
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import close_session
from huggingface_hub.utils import logging as hub_logging

from hf_vanilla.interop.errors import InteropError
from hf_vanilla.interop.hub import Pushed, push

STEPS = {
    "whoami": "GET /api/whoami",
    "card": "POST /api/validate-yaml",
    "create": "POST /api/repos/create",
    "info": "GET /api/models/user/name$",
    "preupload": "POST .*/preupload/",
    "commit": "/commit/",
    "tag": "/tag/",
}
CLASSIC = {"batch": "objects/batch", "upload": "PUT", "verify": "large-verify"}
XET = {"xet token": "xet-write-token"}
WHOLE = ("wrong token", "no network", "the repository exists", "somebody else's repository")


def pushed(run: Path, hub: Hub, token: str = TOKEN, url: str | None = None, name: str = "user/name") -> Pushed:
    close_session()
    return push(run, name, api=HfApi(endpoint=url or hub.url, token=token))[0]


def try_one(run: Path, hub: Hub, number: int, chance: random.Random, steps: dict[str, str]) -> str:
    """What happened; raises an AssertionError if it may not happen."""
    options, fault = {}, WHOLE[number // 6 % len(WHOLE)] if number % 6 == 0 else chance.choice([*steps])
    if fault == "wrong token":
        options = {"token": "hf_wrong"}
    elif fault == "no network":
        options = {"url": "http://127.0.0.1:9"}
    elif fault == "somebody else's repository":
        options = {"name": "other/name"}
    elif fault == "the repository exists":
        HfApi(endpoint=hub.url, token=TOKEN).create_repo("user/name")
    else:
        what = chance.choice([429, 500, 503, "short", "lost"])
        often, after = chance.choice([1, 2, 10**6]), chance.randrange(3) if what == 429 else chance.randrange(600)
        hub.faults = [times(often, steps[fault], what, after)]
        fault = f"{fault}, {what} after {after}, {'always' if often == 10**6 else often}"
    try:
        done = pushed(run, hub, **options)
        outcome = "published"
    except InteropError as error:
        outcome = str(error)
        assert "\n" not in outcome, outcome
        repository = hub.repositories.get("models/user/name")
        state = repository.files().keys() if repository else None
        is_untouched = repository is None or state == {".gitattributes"}
        assert is_untouched or "the files are there" in outcome or len(repository.commits) == 2, (outcome, state)
        hub.faults = []
        done = pushed(run, hub)
    check(run, hub, done)
    return f"{fault}: {outcome}"


def check(run: Path, hub: Hub, done: Pushed) -> None:
    """Everything is there, once."""
    repository = hub.repositories["models/user/name"]
    assert repository.refs["main"] == repository.refs[done.tag] == done.commit
    assert len(repository.commits) == 2, "more than one commit"
    files = repository.files()
    assert {"README.md", "config.json", "tokenizer.json", "pipeline_vanilla.py"} <= files.keys()
    weights = (run / "model.safetensors").read_bytes()
    pointer = POINTER + sha256(weights).hexdigest().encode()
    assert files["model.safetensors"] == (pointer if hub.xet else weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--xet", action="store_true")
    options = parser.parse_args()
    chance, steps = random.Random(options.seed), STEPS | (XET if options.xet else CLASSIC)  # noqa: S311
    sleep, outcomes = time.sleep, collections.Counter()
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    hub_logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        run = finished_run(Path(folder) / "my-run")
        for number in range(options.faults):
            with running() as hub:
                constants.ENDPOINT = hub.url
                hub.xet = f"local://{folder}/cas-{number}" if options.xet else None
                what = try_one(run, hub, number, chance, steps)
            outcomes["published" if what.endswith("published") else "refused, then published"] += 1
            print(f"{number + 1:3} {what}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), f"of {options.faults}")


if __name__ == "__main__":
    main()
