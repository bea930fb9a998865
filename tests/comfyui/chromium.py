"""The Chromium that opens pages, shared with the benchmarks."""

from __future__ import annotations

import shutil

ARGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync""".split()


def on_the_path() -> str | None:
    """Return the program's path, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
