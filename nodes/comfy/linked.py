"""Type checks for socket inputs: an API workflow may put a text or a number there."""

from __future__ import annotations

import reprlib

from ...engine import HiggsError, Voice
from .patcher import HiggsPatcher
from .remote_model import ServerModel

_TAKEN = {
    "model": ((HiggsPatcher, ServerModel), "Connect Higgs Load Model or Higgs TTS Server."),
    "voice": (Voice, "Connect Higgs Load Voice or Higgs Voice."),
}


def check_linked(**inputs: object) -> None:
    """Raise HiggsError if an input such as `model`, `voice` or `voice_3` did not come from a node of the pack."""
    for name, value in inputs.items():
        kind, remedy = _TAKEN[name.partition("_")[0]]
        if not isinstance(value, kind):
            raise HiggsError(f"{name} is {reprlib.repr(value)}, not a {name.partition('_')[0]}. {remedy}")
