"""Several engines of one checkpoint, each on its own device, that speak together."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from .config import SamplingParams
from .crew import AtWork, Card, Crew, Done, Stage, TooSmall, described
from .engine import Engine
from .errors import HiggsError
from .interface import OnFrame, Speaking, SpeechInterface
from .prompt.script import Turn
from .relay import Relay, RelaySound, SoundMaker
from .request import DialogueOptions, Listener, SpeechRequest
from .result import SpeechResult
from .threads import one_thread
from .voice.voice import Voice


class Engines(SpeechInterface):
    """Speaks as an `Engine` does, on all of these that are open; the first one's checkpoint says how.

    The sequences of a call lie in one queue, from which each engine takes what it has rows for, in a thread of its own;
    one sequence alone goes to the first. An engine that runs out of memory or is closed meanwhile gives back what it
    has not finished, and the result's warnings say so. The codes are those of one engine where the devices are of one
    kind. Whoever listens hears a chunk when it is whole.
    """

    def __init__(self, engines: Sequence[Engine]):
        self._engines = list(engines)
        self.kept = self._engines[0].kept

    @property
    def devices(self) -> int:
        return sum(engine.opened for engine in self._engines)

    def knows_tag(self, tag: str) -> bool:
        return self._engines[0].knows_tag(tag)

    @contextlib.contextmanager
    def speaking(self, on_frame: OnFrame | None) -> Iterator[Speaking]:
        run = _EnginesRun([engine for engine in self._engines if engine.opened], relay := Relay(), on_frame)
        if not run.cards:
            raise HiggsError("The engine is not open. Open it before speaking.")
        with one_thread():
            yield Speaking(relay, run.tick, run.speak)

    def request(
        self,
        waveform: SoundMaker,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ) -> SpeechRequest:
        return self._engines[0].request(waveform, turns, voices, params, scene, listener, dialogue)

    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        return self._engines[0].with_warnings(speech, turns)


class Run(ABC):
    """One call, stage after stage, whoever decodes them: `decode` is theirs, and goes through `follow`.

    relay: what makes the request's sound.
    """

    def __init__(self, relay: Relay, on_frame: OnFrame | None):
        self._relay, self._on_frame = relay, on_frame
        self._crew: AtWork | None = None
        self.warnings: list[str] = []
        self.peak = 0  # bytes of a device's memory

    @abstractmethod
    def decode(self, request: SpeechRequest, stage: Stage) -> None:
        """Decodes a stage. Raises HiggsError where that cannot be done."""

    def tick(self, done: int, expected: int) -> None:
        """Progress of what is whole, and of what is under way."""
        if self._on_frame is not None:
            done += self._crew.frames if self._crew else 0
            self._on_frame(done, max(done, expected))

    def speak(self, request: SpeechRequest) -> SpeechResult:
        """All stages of a request."""
        for sequences in request.stages():
            jobs = [*sequences, *self._relay.wanted]
            self._relay.wanted.clear()
            if jobs:
                alone = bool(sequences) and request.is_single(sequences)
                slots = request.longest(sequences) if sequences else 1
                self.decode(request, Stage(jobs, slots, alone, request.own_voices))
            request.settle()
        speech = request.result()
        warnings = tuple(dict.fromkeys((*speech.warnings, *self.warnings)))
        return replace(speech, warnings=warnings, peak_bytes=self.peak)

    def follow(self, request: SpeechRequest, crew: AtWork) -> None:
        """Hands over what a crew has done, and to the crew what is to be spoken again, until nothing is missing."""
        self._crew = crew
        try:
            for done in crew:
                if done is not None:
                    self._hand_over(request, done)
                crew.add(*request.settle())
                request.tick()
        finally:
            self._crew = None

    def _hand_over(self, request: SpeechRequest, done: Done):
        """What was decoded, and its sound, to the request."""
        asked, spoken, wav = done
        if isinstance(asked, RelaySound):
            asked.deliver(wav)
            return
        assert spoken is not None  # but for codes
        asked.num_generated, asked.num_frames = spoken.num_generated, spoken.num_frames
        asked.finished, asked.ended = spoken.finished, spoken.ended
        asked.codes += spoken.codes
        self._relay.arrived = wav
        request.push(asked, torch.cat(spoken.codes))


class _EnginesRun(Run):
    """One call on the cards of this process."""

    def __init__(self, cards: list[Engine], relay: Relay, on_frame: OnFrame | None):
        super().__init__(relay, on_frame)
        self.cards = cards

    def decode(self, request: SpeechRequest, stage: Stage) -> None:
        crew = Crew(self.cards, stage)
        try:
            with crew:
                self.follow(request, crew)
        except (HiggsError, torch.cuda.OutOfMemoryError) as error:
            lost = [card for card, _ in crew.lost]
            left = [card for card in self.cards if card not in lost]
            if isinstance(error, TooSmall):
                left = left or self.cards[:1]  # by itself it may speak one chunk after another
            if len(lost) < len(crew.desks) or not left:
                raise
            self._leave(crew, left)
            return self.decode(request, replace(stage, jobs=crew.missing))
        self.peak = max(self.peak, *(desk.peak for desk in crew.desks))
        how = described((desk.card.kind, desk.how) for desk in crew.desks)
        request.decoded_by(how, [note for desk in crew.desks for note in desk.notes])
        self._leave(crew, [card for card in self.cards if card not in [lost for lost, _ in crew.lost]])

    def _leave(self, crew: Crew, left: list[Engine]):
        """Goes on with the cards that are left, and tells of the others."""
        self.cards = left
        self.warnings += [_lost(card, error) for card, error in crew.lost]


def _lost(card: Card, error: BaseException) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        why = "ran out of memory"
    elif card.is_closing:
        why = "was unloaded"
    else:
        why = str(error)
    return f"{card.label} {why}; the other devices spoke its part."
