"""Links: type checks for socket inputs, since an API workflow may put a text there, and whether an output is used."""

from __future__ import annotations

import reprlib

from server import PromptServer

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


def is_used(node: str, output: int) -> bool:
    """True if the running prompt links an output of a kind of node to anything, or if there is no server to ask.

    All nodes of the kind count, since loops run copies under other ids. `fingerprint_inputs` needs it too: ComfyUI
    keeps results of nodes without asking what is connected.
    """
    server = getattr(PromptServer, "instance", None)  # scripts run nodes without a server
    if server is None:
        return True
    running, _ = server.prompt_queue.get_current_queue_volatile()
    prompts = [item[2] for item in running]
    links = ((prompt, value) for prompt in prompts for one in prompt.values() for value in one["inputs"].values())
    return any(
        isinstance(value, list) and value[1:] == [output] and prompt.get(str(value[0]), {}).get("class_type") == node
        for prompt, value in links
    )
