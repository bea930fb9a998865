"""Sound as a request sees it, and sound that reaches it from elsewhere. Knows no codec and no device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch


class SoundInMaking(Protocol):
    """The sound of one sequence, as codec/waveform.py's `Sound`."""

    @property
    def is_complete(self) -> bool: ...

    @property
    def low_latency_frames(self) -> int: ...

    def push(self, codes: torch.Tensor) -> Iterable[None]: ...

    def finish(self) -> None: ...

    def wav(self) -> torch.Tensor: ...


class SoundMaker(Protocol):
    """Makes the sounds of a request, as codec/waveform.py's `Waveform`."""

    def sound(self, streamed: bool = False) -> SoundInMaking: ...


class Relay:
    """Stands in for a `Waveform` where several devices make the sound, each of what it decodes."""

    def __init__(self) -> None:
        self.arrived: torch.Tensor | None = None  # the sound of the sequence whose codes are handed over next
        self.wanted: list[RelaySound] = []  # of codes that nobody has decoded now

    def sound(self, streamed: bool = False) -> RelaySound:
        """A new sound. None is heard before it is whole."""
        return RelaySound(self)


class RelaySound:
    """The sound of one sequence, [n] float32 on the host: it arrives with the codes, or is wanted of them."""

    low_latency_frames = 0

    def __init__(self, relay: Relay):
        self._relay, self._wav = relay, None
        self.codes: list[torch.Tensor] = []  # [t, K] each

    @property
    def is_complete(self) -> bool:
        return self._wav is not None

    def push(self, codes: torch.Tensor) -> Iterable[None]:
        self.codes.append(codes)
        return ()

    def finish(self) -> None:
        """No more codes come."""
        self._wav, self._relay.arrived = self._relay.arrived, None
        if self._wav is None:
            self._relay.wanted.append(self)

    def deliver(self, wav: torch.Tensor) -> None:
        """What was wanted."""
        self._wav = wav

    def wav(self) -> torch.Tensor:
        return torch.empty(0) if self._wav is None else self._wav
