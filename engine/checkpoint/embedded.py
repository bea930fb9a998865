"""Path and display name of the checkpoint that comes with the pack."""

from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "embedded"
EMBEDDED_NAME = "embedded (small, English)"
