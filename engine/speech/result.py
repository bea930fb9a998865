"""Result of `speak`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..core.config import FRAME_SAMPLES, SAMPLE_RATE
from ..voice.voice import Voice
from .verdict import DOUBTS, Verdict

END_OF_SPEECH = "end of speech"
FLAWS = {  # of an attempt
    "limit": "it did not end",
    "long": "it was too long for its text",
    "short": "it was too short for its text",
    "repeat": "it repeated itself",
    "silence": "it fell silent",
    "level": "it was clipped or almost silent",
    "again": "words were said again",
    "missing": "words were not heard",
    "cut": "a word was cut short",
    "added": "it had sounds that are not in the text",
    "unsure": "words may be wrong",
}
_PROBLEMS = DOUBTS | {  # of words, or of a chunk that starts with them
    "limit": "the chunk {words} was cut off",
    "long": "the chunk {words} is too long",
    "short": "the chunk {words} is too short",
    "repeat": "the chunk {words} repeats itself",
    "silence": "the chunk {words} falls silent",
    "level": "the chunk {words} is clipped or almost silent",
}
_QUOTED = 40  # maximum characters of a quoted chunk


def quoted(text: str) -> str:
    """Return the beginning of a text in quotation marks, on one line."""
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= _QUOTED else f'"{text[:_QUOTED].rstrip()}..."'


def duration(seconds: float, digits: int = 1) -> str:
    """Format seconds as s, min or h. digits: decimals of seconds and minutes."""
    if seconds < 90:
        return f"{seconds:.{digits}f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.{digits}f} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def in_words(flaws: Iterable[str]) -> str:
    """Return the flaws of an attempt as a clause."""
    return " and ".join(FLAWS[flaw] for flaw in dict.fromkeys(flaws))


@dataclass(frozen=True)
class DoubtfulWords:
    """Words that were not said once, or a bad chunk, and when. kind: key of FLAWS. start, end: seconds."""

    kind: str
    text: str
    start: float
    end: float

    def __str__(self) -> str:
        minutes, seconds = divmod(self.start, 60)
        return f"At {int(minutes)}:{seconds:04.1f}, {self.reason}."

    @property
    def reason(self) -> str:
        return _PROBLEMS[self.kind].format(words=quoted(self.text))

    def moved(self, by: float, tempo: float = 1.0) -> DoubtfulWords:
        """Return the same words sped up by `tempo` and then moved by seconds."""
        return replace(self, start=by + self.start / tempo, end=by + self.end / tempo)


def outcome(doubts: Collection[DoubtfulWords], checked: Collection[bool]) -> str:
    """Describe how speech came out. checked: True for each chunk whose words were checked."""
    count, unchecked = len(checked), sum(not one for one in checked)
    if cut := sum(one.kind == "limit" for one in doubts):
        return f"Cut off in {cut} of {count} chunks."
    if unchecked:
        which = "" if unchecked == count else f"{unchecked} of {count} chunks "
        return f"Spoken to the end, {which}not checked."
    if doubts:
        return f"Spoken to the end; {len(doubts)} {'place is' if len(doubts) == 1 else 'places are'} doubtful."
    return "Complete."


@dataclass(frozen=True)
class SpokenTurn:
    """A turn or chunk as spoken, and its samples from start to stop. Empty without words."""

    speaker: str
    text: str
    start: int
    stop: int
    frames: tuple[int, int] = (0, 0)  # start and stop in the codes
    lead: int = 0  # samples of the first frames' sound that lie before start, trimmed
    verdict: Verdict | None = None  # of a chunk; None if it was not checked
    flaws: tuple[str, ...] = ()  # of a chunk as a whole, keys of FLAWS

    @property
    def is_spoken(self) -> bool:
        return self.stop > self.start


def join_turns(
    turns: Sequence[tuple[str, str]], numbers: Sequence[int], chunks: Sequence[SpokenTurn]
) -> tuple[SpokenTurn, ...]:
    """Merge chunks into turns. A turn without chunks is empty and starts at the end of the previous one.

    turns: (speaker, text) of each. numbers: turn index of each chunk, ascending.
    """
    own: dict[int, list[SpokenTurn]] = {}
    for number, chunk in zip(numbers, chunks, strict=True):
        own.setdefault(number, []).append(chunk)
    joined, at, frame = [], 0, 0
    for number, (speaker, text) in enumerate(turns):
        parts = own.get(number) or [SpokenTurn(speaker, text, at, at, (frame, frame))]
        at, frame = parts[-1].stop, parts[-1].frames[1]
        joined.append(SpokenTurn(speaker, text, parts[0].start, at, (parts[0].frames[0], frame), parts[0].lead))
    return tuple(joined)


@dataclass(frozen=True)
class Retried:
    """A chunk with at least one bad attempt."""

    chunk: int  # from 1
    text: str
    flaws: tuple[tuple[str, ...], ...]  # per attempt: keys of FLAWS
    kept: int  # number of the kept attempt, from 1

    def __str__(self) -> str:
        why, attempts = in_words(self.flaws[0]), len(self.flaws)
        return f"chunk {self.chunk}, {quoted(self.text)}: {why}; kept attempt {self.kept} of {attempts}"


@dataclass(frozen=True)
class SpeechResult:
    """Speech, its codes, timings and warnings."""

    wav: torch.Tensor  # [T] float32, 24 kHz, host
    codes: torch.Tensor  # [T, K] int64, host
    elapsed: float  # seconds of work, without opening the model
    chunks: int  # number of chunks
    stopped: str  # stop reason, for users
    warnings: tuple[str, ...] = ()
    how: str = ""  # kernels and graphs, for users
    turns: tuple[SpokenTurn, ...] = ()  # one per input turn
    reused: int = 0  # chunks of a dialogue that came from the cache
    retried: tuple[Retried, ...] = ()  # chunks with a bad attempt
    said: tuple[SpokenTurn, ...] = ()  # one per chunk
    voices: Mapping[str, Voice] = field(default_factory=dict)  # by speaker, including generated ones
    peak_bytes: int = 0  # GPU memory, including the model; 0 on a CPU

    @property
    def complete(self) -> bool:
        """True if every chunk ended by itself."""
        return self.stopped == END_OF_SPEECH

    @property
    def checked(self) -> list[bool]:
        """True for each chunk whose words were checked."""
        return [chunk.verdict is not None for chunk in self.said]

    @property
    def doubts(self) -> tuple[DoubtfulWords, ...]:
        """Words that the check doubts, and bad chunks, in order."""
        doubts = []
        for chunk in self.said:
            start, stop = chunk.start / SAMPLE_RATE, chunk.stop / SAMPLE_RATE
            doubts += [DoubtfulWords(flaw, chunk.text, start, stop) for flaw in chunk.flaws if flaw != "limit"]
            for doubt in chunk.verdict.doubts if chunk.verdict else ():
                places = (chunk.start + frame * FRAME_SAMPLES - chunk.lead for frame in doubt.frames)
                start, end = (min(max(place, chunk.start), chunk.stop) / SAMPLE_RATE for place in places)
                doubts.append(DoubtfulWords(doubt.kind, doubt.text, start, end))
            doubts += [DoubtfulWords("limit", chunk.text, stop, stop)] if "limit" in chunk.flaws else []
        return tuple(doubts)

    def of_turn(self, number: int) -> SpeechResult:
        """Return a turn's wav, chunks and doubts, timed from its start. The rest is that of the whole speech."""
        turn = self.turns[number]
        own = (
            one
            for one in self.said
            if turn.start <= one.start
            and one.stop <= turn.stop
            # One without sound may lie where another turn ends.
            and (one.is_spoken or not turn.is_spoken or turn.start < one.start < turn.stop)
        )
        chunks = (replace(chunk, start=chunk.start - turn.start, stop=chunk.stop - turn.start) for chunk in own)
        return replace(self, wav=self.wav[turn.start : turn.stop], said=tuple(chunks))

    @property
    def outcome(self) -> str:
        """How the speech ended, for users."""
        if not self.complete:
            return f"Stopped at: {self.stopped}."
        return outcome(self.doubts, self.checked)

    @property
    def spoken_again(self) -> tuple[Retried, ...]:
        """Chunks with more than one attempt."""
        return tuple(chunk for chunk in self.retried if len(chunk.flaws) > 1)

    @property
    def frames(self) -> int:
        return len(self.codes)

    @property
    def seconds(self) -> float:
        """Seconds of audio, including pauses."""
        return len(self.wav) / SAMPLE_RATE

    @property
    def frames_per_second(self) -> float:
        return self.frames / self.elapsed if self.elapsed else 0.0

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio."""
        return self.elapsed / self.seconds if self.frames else 0.0
