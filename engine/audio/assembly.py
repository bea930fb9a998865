"""Sounds of chunks, in the text's order, as one waveform: edges, the gaps that were asked for, and who listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..core.config import SAMPLE_RATE
from .levels import spoken_part

FADE = SAMPLE_RATE // 200  # samples: where two chunks meet, neither stops or begins with a step


class Assembly:
    """Chunks join here. Where silence was asked for between two, it is exact, and what is silent at their edges goes.

    silences: seconds before each chunk and after the last; None where speech goes on, with the silence that is in it,
    and where nothing stands before or after.
    hear(wav): somebody who listens, to whom everything goes as soon as it is final.
    """

    def __init__(self, silences: Sequence[float | None], hear: Callable[[torch.Tensor], None] | None):
        self._silences, self._hear = silences, hear
        self._wavs: list[torch.Tensor] = []
        self._length = self._heard = 0  # samples that are final, and of those and the streamed chunk, heard
        self.spans: list[tuple[int, int]] = []  # of each chunk, samples from where to where

    def stream(self, wav: torch.Tensor) -> None:
        """The next chunk's sound so far, [n]: what no later sound changes is heard at once."""
        if self._silences[len(self.spans)] is not None and spoken_part(wav) is None:
            return  # where it begins is not known
        start, stop = self._edges(wav)
        stop -= FADE if self._follows() else 0
        self._tell(self._gap(), self._faded(wav[start:])[: max(0, stop - start)])

    def append(self, wav: torch.Tensor) -> None:
        """The next chunk's whole sound [n]."""
        start, stop = self._edges(wav)
        before, spoken = self._gap(), self._faded(wav[start:stop], at_end=self._follows())
        self._tell(before, spoken)
        at = self._length + len(before)
        self._add(before, spoken)
        self.spans.append((at, at + len(spoken)))

    def restart(self) -> None:
        """Void what was streamed of the next chunk; its listener starts it again."""
        self._heard = self._length

    def finish(self) -> torch.Tensor:
        """The last silence -> the whole waveform [n]."""
        rest = _silence(self._silences[-1])
        self._tell(rest)
        self._add(rest)
        return torch.cat([torch.empty(0), *self._wavs])

    @property
    def was_heard(self) -> bool:
        """True if part of the next chunk has been heard."""
        return self._heard > self._length

    def _add(self, *wavs: torch.Tensor):
        self._wavs += wavs
        self._length += sum(map(len, wavs))

    def _tell(self, *wavs: torch.Tensor):
        """Lets hear what follows on the final samples, as far as it has not been heard."""
        at = self._length
        for wav in wavs:
            if self._hear is not None and len(new := wav[self._heard - at :]):
                self._heard += len(new)
                self._hear(new)
            at += len(wav)

    def _gap(self) -> torch.Tensor:
        return _silence(self._silences[len(self.spans)])

    def _follows(self) -> bool:
        """True if anything follows the next chunk."""
        return len(self.spans) + 2 < len(self._silences) or self._silences[-1] is not None

    def _edges(self, wav: torch.Tensor) -> tuple[int, int]:
        """The samples of the next chunk that stay: all but the silence beside a gap."""
        before, after = self._silences[len(self.spans) :][:2]
        first, last = spoken_part(wav) or (0, len(wav))
        return 0 if before is None else first, len(wav) if after is None else last

    def _faded(self, wav: torch.Tensor, at_end: bool = False) -> torch.Tensor:
        """A copy that rises from nothing where something stands before it and, at_end, falls to nothing."""
        wav = wav.clone()
        size = min(FADE, len(wav))
        ramp = torch.arange(1, size + 1) / (size + 1)
        if self.spans or self._silences[0] is not None:
            wav[:size] *= ramp
        if at_end:
            wav[len(wav) - size :] *= ramp.flip(0)
        return wav


def _silence(seconds: float | None) -> torch.Tensor:
    """Samples that share one zero: a long silence takes no memory before it is joined to the rest."""
    return torch.zeros(1).expand(round((seconds or 0.0) * SAMPLE_RATE))
