"""Assembly of chunks into one waveform, in text order: trimmed edges, exact gaps, and streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..core.config import SAMPLE_RATE
from .levels import spoken_part

FADE = SAMPLE_RATE // 200  # samples; avoids clicks between chunks


class Assembly:
    """Joins chunks. A requested silence is exact, because silence at the edges beside it is trimmed.

    silences: seconds before each chunk and after the last. None keeps the chunk's own silence, where speech continues
    and at the ends of the text.
    on_audio(wav): callback that gets all audio once it is final.
    """

    def __init__(self, silences: Sequence[float | None], on_audio: Callable[[torch.Tensor], None] | None):
        self._silences, self._on_audio = silences, on_audio
        self._wavs: list[torch.Tensor] = []
        self._length = self._streamed = 0  # samples that are final; samples heard, including the streamed chunk
        self.spans: list[tuple[int, int]] = []  # (start, stop) samples of each chunk
        self.leads: list[int] = []  # samples trimmed from the start of each chunk

    def stream(self, wav: torch.Tensor) -> None:
        """Pass on the next chunk's audio so far, [n], as far as it is final."""
        edges = self._edges(wav)
        if edges is None and self._silences[len(self.spans)] is not None:
            return  # its start is unknown
        start, stop = edges or (0, len(wav))
        stop -= FADE if self._follows() else 0
        before, rest = self._gap(), wav[start:]
        if self._streamed < self._length + len(before) + FADE:
            rest = self._faded(rest)
        self._pass_on(before, rest[: max(0, stop - start)])

    def append(self, wav: torch.Tensor) -> torch.Tensor:
        """Add the next chunk's complete audio [n]. Returns it as it was joined."""
        start, stop = self._edges(wav) or (0, len(wav))
        before, spoken = self._gap(), self._faded(wav[start:stop], at_end=self._follows())
        self._pass_on(before, spoken)
        at = self._length + len(before)
        self._add(before, spoken)
        self.spans.append((at, at + len(spoken)))
        self.leads.append(start)
        return spoken

    def restart(self) -> None:
        """Void the streamed audio of the next chunk."""
        self._streamed = self._length

    def finish(self) -> torch.Tensor:
        """Add the last silence and return the whole waveform [n]."""
        rest = _silence(self._silences[-1])
        self._pass_on(rest)
        self._add(rest)
        return torch.cat([torch.empty(0), *self._wavs])

    @property
    def was_heard(self) -> bool:
        """True if part of the next chunk was heard."""
        return self._streamed > self._length

    def _add(self, *wavs: torch.Tensor):
        self._wavs += wavs
        self._length += sum(map(len, wavs))

    def _pass_on(self, *wavs: torch.Tensor):
        """Pass on the samples after the final ones that were not heard yet."""
        at = self._length
        for wav in wavs:
            if self._on_audio is not None and len(new := wav[self._streamed - at :]):
                self._streamed += len(new)
                self._on_audio(new)
            at += len(wav)

    def _gap(self) -> torch.Tensor:
        return _silence(self._silences[len(self.spans)])

    def _follows(self) -> bool:
        """True if anything follows the next chunk."""
        return len(self.spans) + 2 < len(self._silences) or self._silences[-1] is not None

    def _edges(self, wav: torch.Tensor) -> tuple[int, int] | None:
        """Return (start, stop) samples of the next chunk without the silence beside gaps. None if all is silence."""
        before, after = self._silences[len(self.spans) :][:2]
        if before is None and after is None:
            return 0, len(wav)
        if (spoken := spoken_part(wav)) is None:
            return None
        return 0 if before is None else spoken[0], len(wav) if after is None else spoken[1]

    def _faded(self, wav: torch.Tensor, at_end: bool = False) -> torch.Tensor:
        """Return a copy, faded in if anything precedes it, and faded out if `at_end`."""
        wav = wav.clone()
        size = min(FADE, len(wav))
        ramp = torch.arange(1, size + 1) / (size + 1)
        if self.spans or self._silences[0] is not None:
            wav[:size] *= ramp
        if at_end:
            wav[len(wav) - size :] *= ramp.flip(0)
        return wav


def _silence(seconds: float | None) -> torch.Tensor:
    """Return zeros expanded from one element, so that a long silence takes no memory until joined."""
    return torch.zeros(1).expand(round((seconds or 0.0) * SAMPLE_RATE))
