"""The Chromium of this machine, for tests and trials of pages."""

import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium_of() -> str | None:
    """Where it is; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)
