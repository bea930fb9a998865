"""One call of speak: turns of text as sequences that decode together, and one waveform in the text's order.

Knows nothing of what decodes the sequences.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch

from . import ending
from .audio.assembly import Assembly
from .audio.loudness import set_volume
from .config import SamplingParams
from .decode.kept_codes import SequenceStore
from .decode.takes import Takes
from .errors import HiggsError
from .prompt.chunking import estimate_frames
from .prompt.plan import Chunk, plan
from .prompt.script import Turn
from .prompt.sequences import Prompts, SequenceBuilder
from .prompt.speakers import Speakers
from .relay import SoundInMaking, SoundMaker
from .result import Retaken, SpeechResult, SpokenTurn, in_words, join_turns
from .sequence import Sequence
from .voice.voice import Voice


@dataclass(frozen=True)
class Listener:
    """Whom a request tells: as for `Engine.speak`; all may raise."""

    on_frame: Callable[[int, int], None]
    on_audio: Callable[[torch.Tensor], None] | None = None
    on_restart: Callable[[str], None] | None = None


@dataclass(frozen=True)
class DialogueOptions:
    """What a request of several speakers has that one text has not."""

    kept: SequenceStore | None  # where chunks that have been said before come from, and those of now go to
    even: bool  # turns get the same loudness, once all is spoken


@dataclass(eq=False)
class _Part:
    """A chunk on its way to sound."""

    chunk: Chunk
    takes: Takes | None = None  # of its sequence, once it has one
    sound: SoundInMaking | None = None  # of the take that is being spoken

    @property
    def spoken(self) -> Sequence | None:
        """The take that is kept."""
        return self.takes.kept if self.takes else None


class SpeechRequest:
    """Turns on their way to sound: says what is to be decoded, takes the codes, and asks again for what came out badly.

    Whoever decodes goes through `stages`, hands over codes by `push`, and decodes what `settle` returns as well.

    size: the context's positions, and codebooks. waveform: makes the sound; other requests may share it. dialogue: None
    for one text. Of a dialogue the noise is numbered by how often the same speaker has said the same before, so that a
    turn more or less changes no other; and a speaker's own voice depends on its name.
    """

    def __init__(
        self,
        builder: Prompts,
        size: tuple[int, int],
        waveform: SoundMaker,
        turns: Ordered[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ):
        self._began = time.perf_counter()
        self._size, self._waveform, self._listener = size, waveform, listener
        self._turns, self._params, self._dialogue, self._reused = turns, params, dialogue, 0
        self._speakers = Speakers(voices, size[0])
        self._prompts = SequenceBuilder(builder, self._speakers, params, scene, *size, is_dialogue=dialogue is not None)
        self._kept = dialogue.kept if dialogue else None
        self._warnings: list[str] = []
        self._chunks: list[Chunk] = []  # in the text's order, and so are their parts
        self._parts: list[_Part] = []
        self._speaking: dict[Sequence, _Part] = {}  # those that are not judged yet
        self._ending: list[tuple[Sequence, SoundInMaking]] = []  # of those, what only waits for its last windows
        self._current = 0  # the part that is heard now
        self._streamed = (0, 0)  # the part that was streamed last, and samples of it
        self._done = self._remaining = 0  # frames, over the whole text
        self._how = ""

    def __enter__(self) -> SpeechRequest:
        return self

    def __exit__(self, *exc: object) -> None:
        """Lets go of the engine's parts: an exception that ends the call refers to this object for longer."""
        with contextlib.suppress(AttributeError):  # closed before
            del self._waveform, self._listener, self._kept, self._dialogue

    def stages(self) -> Iterator[list[Sequence]]:
        """What is to be decoded, all of it known to fit; before the next stage that must be settled.

        First what becomes the voice of a speaker without one, then all else; none where all of it was said before.
        Raises HiggsError for a prompt that does not fit.
        """
        self._plan()
        while places := self._speakers.reference_places(self._chunks, self._spoken()):
            yield self._begin(places)
            for speaker in {self._chunks[place].speaker for place in places}:
                self._speakers.refer(speaker, self._chunks, self._spoken())
        yield self._begin([place for place, part in enumerate(self._parts) if part.spoken is None])

    def longest(self, sequences: Ordered[Sequence]) -> int:
        """Positions that the longest of them may take."""
        return max(map(len, sequences)) + self._params.max_frames + self._size[1] - 1

    def is_single(self, sequences: Ordered[Sequence]) -> bool:
        """Whether they may go the way of one row: a text's first chunk, where it is alone."""
        return self._dialogue is None and len(sequences) == 1 and self._speaking[sequences[0]] is self._parts[0]

    @property
    def own_voices(self) -> int:
        """Voices whose prefixes are of no use to later requests: those of a dialogue, and those made of this text."""
        is_given = self._dialogue is None and self._speakers.voices.keys() == self._speakers.given.keys()
        return 0 if is_given else max(1, len(self._speakers.voices))

    def low_latency_frames(self, sequence: Sequence) -> int:
        """Frames that its first sound takes, while somebody waits for it; else 0."""
        sound = self._speaking[sequence].sound
        return sound.low_latency_frames if sound else 0

    def decoded_by(self, how: str, notes: Ordered[str]) -> None:
        """What decodes the next stage, in words for users, and what there is to warn of."""
        self._how = how
        self._warnings += notes

    @property
    def is_settled(self) -> bool:
        """Whether all sequences so far are judged."""
        return not self._speaking

    def result(self) -> SpeechResult:
        """The whole text, once all stages are settled."""
        sequences = [part.spoken for part in self._parts if part.spoken is not None]
        frames = [frames for sequence in sequences for frames in sequence.codes]
        codes = torch.cat(frames or [torch.empty((0, self._size[1]), dtype=torch.int64)])
        limits = sequences, self._params.max_frames, self._size[0]
        wav, said, retaken = self._assembly.finish(), self._said(), self._retaken()
        turns = join_turns(
            [(turn.speaker, turn.text) for turn in self._turns], [one.turn for one in self._chunks], said
        )
        if self._dialogue:
            for asked, turn in zip(self._turns, turns, strict=True):
                if turn.is_spoken:
                    set_volume(wav[turn.start : turn.stop], asked.volume, self._dialogue.even)
        told = [*self._warnings, *self._prompts.warnings]
        return SpeechResult(
            wav,
            codes,
            time.perf_counter() - self._began,
            len(self._chunks),
            ending.stopped(*limits),
            tuple(dict.fromkeys([*ending.warnings(*limits), *ending.flawed(retaken), *told])),
            self._how or "none, all of it had been spoken before",
            turns,
            self._reused,
            retaken,
            said,
            self._speakers.voices,
        )

    def _plan(self):
        """Chunks, and what will become of them."""
        prompts = self._prompts
        planned = plan(self._turns, self._params, self._dialogue is not None, prompts.chunk_seconds, prompts.is_spoken)
        self._chunks = planned.chunks
        self._warnings += planned.warnings
        if not self._chunks:
            why = " ".join(["There is nothing to say: the script has no word.", *dict.fromkeys(prompts.warnings)])
            raise HiggsError(f"{why} Enter some text.")
        self._remaining = sum(estimate_frames(chunk.text) for chunk in self._chunks)
        self._parts = [_Part(chunk) for chunk in self._chunks]
        ends = 0.0 if self._dialogue is not None else None  # a turn sounds the same wherever it stands
        silences = [*(chunk.silence for chunk in self._chunks), planned.last_silence or ends]
        silences[0] = silences[0] or ends
        self._assembly = Assembly(silences, self._listener.on_audio)

    def _spoken(self) -> list[Sequence | None]:
        return [part.spoken for part in self._parts]

    def _begin(self, places: list[int]) -> list[Sequence]:
        """The sequences of these chunks, but for those that have been said before."""
        reused, sequences = [], []
        for place in places:
            part = self._parts[place]
            sequence = self._prompts.build(part.chunk)
            is_reused = self._kept is not None and self._kept.fill(sequence)
            (reused if is_reused else sequences).append(sequence)
            part.takes = self._takes(place, sequence, is_reused)
            listened = place == 0 and self._listener.on_audio is not None
            part.sound = self._waveform.sound(streamed=listened and not is_reused)
            self._speaking[sequence] = part
        for sequence in reused:
            self._reused += 1
            self._done -= sequence.num_frames  # progress is of what is decoded
            self.push(sequence, sequence.codes[0])
        return sequences

    def _takes(self, place: int, sequence: Sequence, is_reused: bool) -> Takes:
        heard_for_good = place == 0 and self._listener.on_audio is not None and self._listener.on_restart is None
        once = is_reused or heard_for_good or self._params.greedy
        return Takes(sequence, 0 if once else self._params.retries, judged=self._params.retries > 0)

    def push(self, sequence: Sequence, frames: torch.Tensor) -> None:
        """Frames [t, K] of a sequence that have become final."""
        self._done += len(frames)
        self._remaining += sequence.remaining - max(0, sequence.expected - sequence.num_frames + len(frames))
        part = self._speaking[sequence]
        assert part.sound is not None
        for _ in part.sound.push(frames):
            self._stream()
            self.tick()
        if sequence.finished:
            part.sound.finish()
            self._ending.append((sequence, part.sound))

    def settle(self) -> list[Sequence]:
        """Judges what is whole, and lets hear what is next in the text's order -> what is to be spoken again."""
        again = []
        for sequence, sound in [one for one in self._ending if one[1].is_complete]:
            self._ending.remove((sequence, sound))
            again += self._judge(self._speaking.pop(sequence), sequence, sound.wav())
        self._stream()
        while self._current < len(self._parts) and (takes := self._parts[self._current].takes) and takes.kept:
            self._assembly.append(takes.take_wav())
            self._current += 1
        return again

    def _judge(self, part: _Part, sequence: Sequence, wav: torch.Tensor) -> list[Sequence]:
        """The chunk's next take where this one is bad; else one is kept."""
        assert part.takes
        part.sound, again = None, part.takes.add(sequence, wav)
        if again is None:
            # A bad take that had no second one, because it was heard already, is nothing to go by.
            if self._kept is not None and part.spoken and not (part.takes.is_only and any(part.takes.flaws)):
                self._kept.keep(part.takes.asked, part.spoken)
            return []
        if part is self._parts[self._current] and self._assembly.was_heard and self._listener.on_restart is not None:
            self._assembly.restart()
            self._listener.on_restart(in_words(part.takes.flaws[-1]))
        self._remaining += again.expected
        part.sound = self._waveform.sound()
        self._speaking[again] = part
        return [again]

    def _stream(self):
        """Lets hear what is there of the part that is heard now: the first, or one that will not be spoken again."""
        if self._listener.on_audio is None or self._current == len(self._parts):
            return
        part = self._parts[self._current]
        if part.sound and part.takes and (part.takes.is_only or (self._current == 0 and not part.takes.flaws)):
            wav = part.sound.wav()
            if self._streamed != (self._current, len(wav)):  # as after most steps
                self._streamed = self._current, len(wav)
                self._assembly.stream(wav)

    def tick(self) -> None:
        """Tells how far it is. Raises what the listener raises to cancel."""
        self._listener.on_frame(self._done, self._done + self._remaining)

    def _said(self) -> tuple[SpokenTurn, ...]:
        found, at = [], 0
        for part, (start, stop) in zip(self._parts, self._assembly.spans, strict=True):
            frames = at, at + (part.spoken.num_frames if part.spoken else 0)
            found.append(SpokenTurn(part.chunk.speaker, part.chunk.text, start, stop, frames))
            at = frames[1]
        return tuple(found)

    def _retaken(self) -> tuple[Retaken, ...]:
        return tuple(
            Retaken(number, part.chunk.text, tuple(part.takes.flaws), part.takes.number)
            for number, part in enumerate(self._parts, 1)
            if part.takes and any(part.takes.flaws)
        )
