"""Decoding loop for requests, shared by single calls, the server and books."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch

from ..core.errors import HiggsError
from ..core.sequence import Sequence
from .decoder import Decoder, Heard, Session
from .request import SpeechRequest
from .result import SpeechResult

Stages = Iterator[list[Sequence]]


class Driven(Protocol):
    """A request that the loop drives, such as a `SpeechRequest`."""

    @property
    def is_settled(self) -> bool: ...

    def hear(self, output: Heard) -> list[Sequence]: ...

    def result(self) -> object: ...


class Ended(NamedTuple):
    """A finished request: complete if `error` is None."""

    request: Driven
    error: BaseException | None


class Drive:
    """Decodes requests on one session: passes on new audio and submits retries.

    Call `step` while it `is_busy`. An error ends its own request only.
    """

    def __init__(self, session: Session):
        self.session = session
        self._stages: dict[Driven, Stages] = {}
        self._owners: dict[Sequence, Driven] = {}
        self._numbers = itertools.count(1)

    @property
    def rows(self) -> tuple[int, int]:
        """Number of sequences with frames, and of those that wait for theirs. Thread-safe."""
        owned = list(self._owners)
        running = sum(sequence.num_frames > 0 for sequence in owned)
        return running, len(owned) - running

    def add(self, request: Driven, stages: Stages) -> None:
        """Start a request. Raises HiggsError if it has no words or a prompt does not fit."""
        first = next(stages)
        self._stages[request] = stages
        self._submit(request, first, next(self._numbers))

    def drop(self, request: Driven) -> None:
        """Cancel a request. It yields nothing more."""
        self._stages.pop(request, None)
        dropped = [sequence for sequence, owner in self._owners.items() if owner is request]
        for sequence in dropped:
            del self._owners[sequence]
        self.session.drop(*dropped)

    @property
    def is_busy(self) -> bool:
        """True until all requests have ended."""
        return self.session.is_busy

    def step(self) -> list[Ended]:
        """Take a step of the session, and return the requests that ended in it."""
        return list(filter(None, map(self._hear, self.session.step())))

    def _hear(self, output: Heard) -> Ended | None:
        request = self._owners.get(output.sequence)
        if request is None:  # dropped since
            return None
        if (error := output.error) is not None:
            output.sequence.error = None  # breaks the cycle through the traceback's frames
            self.drop(request)
            return Ended(request, error)
        try:
            again = request.hear(output)
            if output.is_last:
                del self._owners[output.sequence]
            self._submit(request, again, output.sequence.caller)
            if request.is_settled and self._advance(request, output.sequence.caller):
                return Ended(request, None)
        except (HiggsError, torch.cuda.OutOfMemoryError) as error:
            self.drop(request)
            return Ended(request, error.with_traceback(None))  # its frames would keep what was heard
        return None

    def _advance(self, request: Driven, caller: int) -> bool:
        """Begin the request's next stage. True if there is none left."""
        sequences = next(self._stages[request], None)
        if sequences is None:
            del self._stages[request]
            return True
        self._submit(request, sequences, caller)
        return False

    def _submit(self, request: Driven, sequences: list[Sequence], caller: int):
        for sequence in sequences:
            sequence.caller = caller
            self._owners[sequence] = request
        self.session.submit(*sequences)


def speak(request: SpeechRequest, decoder: Decoder) -> SpeechResult:
    """Speak one request, each stage in its own session. Raises what the request and its listener raise."""
    for stage, sequences in request.stages():
        with decoder.session(stage) as session:
            drive = Drive(session)
            drive.add(request, iter([sequences]))
            while drive.is_busy:
                if errors := [one.error for one in drive.step() if one.error is not None]:
                    raise errors.pop()  # this frame must not keep a reference
                request.tick()
            request.decoded_by(session.report)
    return request.result()
