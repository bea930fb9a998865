"""How alike two voices sound, by the package resemblyzer where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..audio.resample import resample
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional

_HEARS = 16_000  # Hz


def likeness_to(clips: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], float] | None:
    """Return a function wav [n] -> cosine to the mean of clips of one voice, all at SAMPLE_RATE.

    None if resemblyzer cannot be used.
    """
    try:
        encoder = import_optional("resemblyzer", "VoiceEncoder")("cpu", verbose=False)
        prepare = import_optional("resemblyzer", "preprocess_wav")
    except HiggsError:
        return None

    def voice_print(wav: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(encoder.embed_utterance(prepare(resample(wav, SAMPLE_RATE, _HEARS).numpy())))

    centre = torch.stack([voice_print(clip) for clip in clips]).mean(0)
    return lambda wav: float(torch.cosine_similarity(voice_print(wav), centre, 0))
