"""Where the checkpoint that comes with the pack lies, and what it is called in lists. Opens no file."""

from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "embedded"
EMBEDDED_NAME = "embedded (small, English)"
