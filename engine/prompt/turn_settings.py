"""Settings beside a speaker's name: seed, volume, speed, and the manner in parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.errors import shown_name
from .names import Start
from .tags import manner_tags

_SPEEDS = {name.replace("_", " "): f"<|prosody:speed_{name}|>" for name in ("very_slow", "slow", "fast", "very_fast")}
_VOLUME = re.compile(r"(?:(?P<db>[+-]?\d{1,3}(?:\.\d+)?)\s*db|(?P<times>\d{1,3}(?:\.\d+)?))", re.IGNORECASE)
_SEED = re.compile(r"[0-9]{1,20}")
_LOUDEST = 4.0  # maximum gain factor


@dataclass
class TurnSettings:
    seed: int | None = None
    volume: float = 1.0
    leads: list[str] = field(default_factory=list)  # tags before the text


def settings_of(start: Start, knows_tag: Callable[[str], bool], warnings: list[str]) -> TurnSettings:
    """Parse the settings of a name. Adds to `warnings` for invalid ones. knows_tag: see `read_dialogue`."""
    given = TurnSettings(leads=manner_leads(start.manner, start.name, knows_tag, warnings))
    for setting in start.settings:
        name, _, value = (part.strip() for part in setting.partition(":"))
        speed, volume = _SPEEDS.get(value.replace("_", " ")), _VOLUME.fullmatch(value)
        if name == "seed" and _SEED.fullmatch(value):
            given.seed = int(value)
        elif name == "speed" and speed:
            given.leads.append(speed)
        elif name == "volume" and volume:
            times = 10 ** (float(volume["db"]) / 20) if volume["db"] else float(volume["times"])
            given.volume = min(_LOUDEST, times)
        else:
            warnings.append(
                f'"{shown_name(setting.strip())}" was left out for {start.name}. Use seed:24, volume:0.5 or '
                f"volume:-6dB, or one of speed: {', '.join(_SPEEDS)}."
            )
    return given


def manner_leads(manner: str, name: str, knows_tag: Callable[[str], bool], warnings: list[str]) -> list[str]:
    """Return the control tags for a manner that the model follows. Adds to `warnings` for other parts."""
    tags = manner_tags(manner)
    known = {part: tag for part, tag in tags.items() if tag and knows_tag(tag)}
    for part in filter(lambda part: part not in known, tags):
        why = f"the model has not learned {tags[part]}" if tags[part] else "there is no tag for it"
        warnings.append(f'"({part})" was left out for {name}: {why}.')
    return list(known.values())
