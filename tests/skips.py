"""The expected skips. If everything that tests need is installed, any other skip fails the run."""

from collections.abc import Iterable
from pathlib import Path


def unexpected(reasons: Iterable[str], list_: Path) -> list[str]:
    """Return the distinct reasons that no line of the list is a prefix of."""
    lines = map(str.strip, list_.read_text(encoding="utf-8").splitlines())
    allowed = tuple(line for line in lines if line and not line.startswith("#"))
    return [reason for reason in dict.fromkeys(reasons) if not reason.removeprefix("Skipped: ").startswith(allowed)]
