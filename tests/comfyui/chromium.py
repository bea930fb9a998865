"""The Chromium that pages are opened in. The benchmarks use it too."""

from __future__ import annotations

import shutil

ARGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync""".split()


def on_the_path() -> str | None:
    """The program, where there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
