"""Which skips are expected. A skip is no pass, so where all that tests need is installed, others fail the run."""

from collections.abc import Iterable
from pathlib import Path


def unexpected(reasons: Iterable[str], list_: Path) -> list[str]:
    """The reasons, each once, that begin like no line of the list."""
    lines = map(str.strip, list_.read_text(encoding="utf-8").splitlines())
    allowed = tuple(line for line in lines if line and not line.startswith("#"))
    return [reason for reason in dict.fromkeys(reasons) if not reason.removeprefix("Skipped: ").startswith(allowed)]
