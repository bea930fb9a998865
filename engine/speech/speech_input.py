"""Input of `speak`: turns and settings, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import torch

from ..core.config import SamplingParams
from ..prompt.script import Turn
from ..voice.voice import Voice
from .kept_codes import SequenceStore
from .result import SpokenTurn


@dataclass(frozen=True)
class Listener:
    """Callbacks of `speak`, called in its thread. Any may raise to cancel; the engine stays usable.

    on_frame(done, expected): frames done and expected in total, after every step.
    on_audio(wav): audio [n] float32 on the host, in order. The first sequence is streamed while it is spoken, others
        once they pass the checks: if a sentence does not, what comes before it is heard while it is spoken again.
    on_restart(why): all audio so far is void, because the first sequence is spoken again. Without this callback, the
        first sequence is not retried.
    on_chunk(chunk, wav): a complete chunk, in order, and its audio [n] float32 as `on_audio` gets it.
    """

    on_frame: Callable[[int, int], None] | None = None
    on_audio: Callable[[torch.Tensor], None] | None = None
    on_restart: Callable[[str], None] | None = None
    on_chunk: Callable[[SpokenTurn, torch.Tensor], None] | None = None


@dataclass(frozen=True)
class SpeechInput:
    """Content of a request: turns, voices by speaker, settings, and v2's scene description.

    kept: cache that spoken chunks are added to. reuses: they are read from it, too. retakes: sentence of the speech,
    from 0 -> how often it is taken again. is_dialogue: its turns sound the same wherever they stand. even: equalise
    their loudness once all are spoken.
    """

    turns: Ordered[Turn]
    voices: Mapping[str, Voice] = field(default_factory=dict)
    params: SamplingParams = SamplingParams()
    scene: str | None = None
    kept: SequenceStore | None = None
    reuses: bool = False
    retakes: Mapping[int, int] = field(default_factory=dict)
    is_dialogue: bool = False
    even: bool = True
