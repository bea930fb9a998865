"""Number widgets of the engine's settings: default, range and step are those of the field. Writes no number itself."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import range_of


def number(settings: type, name: str, **options: str | bool) -> io.Input:
    """The widget of a number in SamplingParams or EngineConfig, an optional input of that name."""
    default, (low, high, step) = getattr(settings, name), range_of(settings, name)
    kind = io.Int if isinstance(default, int) else io.Float
    return kind.Input(name, default=default, min=low, max=high, step=step, optional=True, **options)
