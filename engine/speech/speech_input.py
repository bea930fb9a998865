"""Input of a call of speak: turns and settings, options of a dialogue, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import torch

from ..core.config import SamplingParams
from ..prompt.script import Turn
from ..voice.voice import Voice
from .kept_codes import SequenceStore


@dataclass(frozen=True)
class Listener:
    """Callbacks of a call of speak, in its thread. Any may raise to cancel; the engine stays usable.

    on_frame(done, expected): frames so far and in all, after every step. on_audio(wav): sound [n] float32 on the host,
    in order, as soon as it is final: of the first sequence while it is spoken, of others once nothing is wrong with
    them. on_restart(why): all sound so far is void, for the first sequence is spoken again; without it, it is not.
    """

    on_frame: Callable[[int, int], None] | None = None
    on_audio: Callable[[torch.Tensor], None] | None = None
    on_restart: Callable[[str], None] | None = None


@dataclass(frozen=True)
class SpeechInput:
    """Content of a request: turns, voices by speaker, settings, and v2's description of the recording."""

    turns: Ordered[Turn]
    voices: Mapping[str, Voice] = field(default_factory=dict)
    params: SamplingParams = SamplingParams()
    scene: str | None = None


@dataclass(frozen=True)
class DialogueOptions:
    """Options that apply to dialogues only."""

    kept: SequenceStore | None  # where chunks that have been said before come from, and those of now go to
    even: bool  # turns get the same loudness, once all is spoken
