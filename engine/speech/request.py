"""Requests: turns of text as sequences that decode together, joined to one waveform in text order."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator
from itertools import accumulate

import torch

from ..audio.assembly import Assembly
from ..audio.loudness import set_volume
from ..core.config import FRAME_RATE
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..prompt.chunking import estimate_frames, split_sentences
from ..prompt.plan import Chunk, plan
from ..prompt.sequences import Prompts, SequenceBuilder
from ..prompt.speakers import Speakers
from ..voice.voice import Voice
from . import ending
from .attempts import Attempts, seed_of
from .chunk_speech import ChunkSpeech, Take
from .decoder import Heard, SessionReport, Stage
from .result import Retried, SpeechResult, SpokenTurn, in_words, join_turns, quoted
from .speech_input import Listener, SpeechInput
from .verdict import DOUBTS, Verdict

_SOON = 20 * FRAME_RATE  # frames that are heard while a CPU speaks four of the next chunks together


class SpeechRequest:
    """A call of `speak`: yields sequences to decode, takes their output, and returns retries of bad attempts.

    The driver decodes the `stages` in order, passes output to `hear`, and also decodes the sequences that it returns.
    size: context positions and number of codebooks. In a dialogue, the noise of a chunk is numbered by how often its
    speaker has said the same text before, so adding or removing a turn changes no other. A generated voice depends on
    the speaker's name.
    """

    def __init__(self, builder: Prompts, size: tuple[int, int], given: SpeechInput, listener: Listener):
        self._began = time.perf_counter()
        self._size, self._listener = size, listener
        self._turns, self._params, self._reused = given.turns, given.params, 0
        self._is_dialogue, self._even = given.is_dialogue, given.even
        self._speakers = Speakers(given.voices, size[0])
        self._prompts = SequenceBuilder(
            builder, self._speakers, given.params, given.scene, *size, is_dialogue=given.is_dialogue
        )
        self._kept, self._reuses, self._retakes = given.kept, given.reuses, given.retakes
        of_voices = [(name, warning) for name, voice in given.voices.items() for warning in voice.warnings]
        self._warnings = [f"{name}: {warning}" if name else warning for name, warning in of_voices]
        self._chunks: list[Chunk] = []  # in text order
        self._parts: list[ChunkSpeech] = []  # one per chunk
        self._speaking: dict[Sequence, tuple[ChunkSpeech, Take]] = {}  # not judged yet
        self._spoken_chunks: list[SpokenTurn] = []  # complete chunks
        self._current = 0  # index of the part to be heard next
        self._streamed = (0, 0)  # part streamed last, and its samples so far
        self._done = self._remaining = 0  # frames of the whole text
        self._how, self._peak, self._slots = "", 0, 0

    def __enter__(self) -> SpeechRequest:
        return self

    def __exit__(self, *exc: object) -> None:
        """Drop references to the engine and the cycles of parts, because an exception may keep this object alive."""
        with contextlib.suppress(AttributeError):  # already closed
            del self._listener, self._kept, self._parts, self._speaking

    def stages(self) -> Iterator[tuple[Stage, list[Sequence]]]:
        """Yield the sequences of each stage. A stage must be settled before the next one is requested.

        Speakers without a voice come first, since their first words become their voice. Reused sequences are finished
        and only need their audio decoded. Raises HiggsError if a prompt does not fit.
        """
        self._plan()
        while places := self._speakers.reference_places(self._chunks, self._spoken()):
            yield self._begin(places)
            for speaker in {self._chunks[place].speaker for place in places}:
                self._speakers.refer(speaker, self._chunks, self._spoken())
        if places := [place for place, part in enumerate(self._parts) if part.spoken is None]:
            yield self._begin(places)
        if parts := [part for part in self._parts if part.retakes]:
            yield self._retake(parts)

    def decoded_by(self, report: SessionReport) -> None:
        self._how = report.how or self._how
        self._warnings += report.notes
        self._peak = max(self._peak, report.peak_bytes)

    @property
    def is_settled(self) -> bool:
        """True if no sequence awaits judgement."""
        return not self._speaking

    def result(self) -> SpeechResult:
        """Return the speech once all stages are settled."""
        sequences = [part.spoken for part in self._parts if part.spoken is not None]
        frames = [frames for sequence in sequences for frames in sequence.codes]
        codes = torch.cat(frames or [torch.empty((0, self._size[1]), dtype=torch.int64)])
        limits = sequences, self._params.max_frames, self._size[0]
        wav, chunks = self._assembly.finish(), tuple(self._spoken_chunks)
        turns = join_turns(
            [(turn.speaker, turn.text) for turn in self._turns], [one.turn for one in self._chunks], chunks
        )
        if self._is_dialogue:
            for given, turn in zip(self._turns, turns, strict=True):
                if turn.is_spoken:
                    set_volume(wav[turn.start : turn.stop], given.volume, self._even)
        prompts = self._prompts
        notes = [*self._warnings, *prompts.warnings]
        limited = f"; chunks of at most {prompts.most_seconds:g} s, the model's own limit" * prompts.is_limited
        return SpeechResult(
            wav,
            codes,
            time.perf_counter() - self._began,
            len(self._chunks),
            ending.stopped(*limits),
            tuple(dict.fromkeys([*ending.warnings(*limits), *notes])),
            (self._how or "none, as all speech was reused") + limited,
            turns,
            self._reused,
            self._retried(),
            chunks,
            self._speakers.voices,
            self._peak,
        )

    def _plan(self):
        prompts = self._prompts
        read_as, follows = prompts.spell_out, prompts.follows
        planned = plan(
            self._turns, self._params, self._is_dialogue, prompts.chunk_seconds, prompts.is_spoken, read_as, follows
        )
        self._chunks = planned.chunks
        self._warnings += planned.warnings
        if not self._chunks:
            why = " ".join(["There is nothing to speak: the script has no words.", *dict.fromkeys(prompts.warnings)])
            raise HiggsError(f"{why} Enter some text.")
        expected = [estimate_frames(prompts.spell_out(chunk.text).text) for chunk in self._chunks]
        self._remaining = sum(expected)
        soon = _SOON if self._listener.on_audio is not None else 0
        starts = accumulate(expected, initial=0)
        self._parts = [
            ChunkSpeech(chunk, place, start < soon)
            for place, (chunk, start) in enumerate(zip(self._chunks, starts, strict=False))
        ]
        self._share_retakes()
        ends = 0.0 if self._is_dialogue else None  # a turn sounds the same wherever it stands
        silences = [*(chunk.silence for chunk in self._chunks), planned.last_silence or ends]
        silences[0] = silences[0] or ends
        self._assembly = Assembly(silences, self._listener.on_audio)

    def _share_retakes(self):
        """Give each chunk the retakes of its sentences."""
        first = 0
        for part in self._parts if self._retakes else ():
            count = len(split_sentences(part.chunk.text))
            part.retakes = {at - first: times for at, times in self._retakes.items() if first <= at < first + count}
            first += count
        for beyond in sorted(at + 1 for at in self._retakes if self._retakes[at] and not 0 <= at < first):
            self._warnings.append(f"There is no sentence {beyond} to take again: the text has {first}.")

    def _spoken(self) -> list[Sequence | None]:
        return [part.spoken for part in self._parts]

    def _begin(self, places: list[int]) -> tuple[Stage, list[Sequence]]:
        """Build the sequences of these chunks, finished if they were spoken before."""
        sequences = []
        for place in places:
            part = self._parts[place]
            sequence = self._prompts.build(part.chunk)
            is_reused = self._kept is not None and self._reuses and self._kept.fill(sequence)
            listened = place == 0 and self._listener.on_audio is not None
            sequence.listened = listened and not is_reused
            part.attempts = Attempts(
                sequence,
                0 if is_reused or self._params.greedy else self._params.retries,
                functools.partial(self._passage, part.chunk),
                judged=self._params.retries > 0,
                may_restart=not listened or self._listener.on_restart is not None,
            )
            self._reused += is_reused
            part.take = self._take(part, sequence)
            sequences.append(sequence)
        return self._stage(sequences), sequences

    def _take(self, part: ChunkSpeech, sequence: Sequence) -> Take:
        """Take in a sequence that is to be decoded. A reused one expects no more frames."""
        sequence.checked, sequence.place, sequence.leads = self._params.check, part.place, part.leads
        take = Take(sequence.num_frames, sequence.remaining)
        self._speaking[sequence] = part, take
        return take

    def _passage(self, chunk: Chunk, spoken: Sequence, text: str, voice: Voice | None, number: int) -> Sequence:
        """Build the sequence of a passage of a chunk that was spoken."""
        sequence = self._prompts.build_passage(chunk, text, voice, seed_of(spoken, number))
        room = self._slots - len(sequence) - self._size[1] + 1
        sequence.budget = math.ceil(min(sequence.budget, room, sequence.bounds.longest + FRAME_RATE))
        return sequence

    def _retake(self, parts: list[ChunkSpeech]) -> tuple[Stage, list[Sequence]]:
        """Begin to take sentences again, now that no other chunk's voice can depend on them."""
        sequences = []
        for part in parts:
            assert part.attempts
            wanted, part.retakes = part.retakes, {}
            if not (again := part.attempts.retake(wanted)):
                self._warnings.append(f"{quoted(part.chunk.text)} was not checked, so no sentence was taken again.")
            for sequence in again:
                self._take(part, sequence)
            sequences += again
        self._append_ready()
        return self._stage(sequences), sequences

    def _stage(self, sequences: list[Sequence]) -> Stage:
        decoded = [sequence for sequence in sequences if not sequence.finished]
        if not decoded:
            return Stage(0)
        self._slots = slots = max(map(len, decoded)) + self._params.max_frames + self._size[1] - 1
        # A text's first chunk may use the single-row runner if it is alone.
        alone = not self._is_dialogue and len(decoded) == 1 and self._speaking[decoded[0]][0] is self._parts[0]
        is_given = not self._is_dialogue and self._speakers.voices.keys() == self._speakers.given.keys()
        return Stage(len(decoded), slots, alone, 0 if is_given else max(1, len(self._speakers.voices)))

    def hear(self, output: Heard) -> list[Sequence]:
        """Take output of a sequence, pass on audio in text order, and return the sequences to decode again.

        Raises HiggsError if audio that was heard already is void and the listener has no `on_restart`.
        """
        sequence = output.sequence
        part, take = self._speaking[sequence]
        if output.void:
            if take is part.take:  # else it mends a chunk, whose beginning stays
                self._restart(part, output.void)
            take.forget()
        self._done += sequence.num_frames - take.frames
        self._remaining += sequence.remaining - take.remaining
        take.frames, take.remaining = sequence.num_frames, sequence.remaining
        take.hear(output.wav)
        take.cleared = output.cleared
        again = self._judge(part, take, sequence) if output.is_last else []
        self._append_ready()
        self._stream()
        return again

    def _judge(self, part: ChunkSpeech, take: Take, sequence: Sequence) -> list[Sequence]:
        """Judge a finished sequence. Returns what to decode next."""
        assert part.attempts
        del self._speaking[sequence]
        again = part.attempts.add(sequence, take.wav())
        if part.spoken is not None:
            # Do not reuse turns that would be better if nobody had heard their beginning already. A text is reused
            # for retakes only, which keep what was heard.
            is_bad = any(part.attempts.flaws) or part.attempts.repairs
            is_bound = self._is_dialogue and part.attempts.original.listened and is_bad
            if self._kept is not None and not is_bound and not part.attempts.is_retaken:
                self._kept.keep(part.attempts.original, part.spoken)
            return []
        takes = [self._take(part, one) for one in again]
        self._remaining += sum(one.remaining for one in again)
        if not part.attempts.is_mending:
            self._restart(part, in_words(part.attempts.flaws[-1]))
            part.take = takes[0]
        return again

    def _restart(self, part: ChunkSpeech, why: str):
        """Void the audio of a part that was heard already."""
        if part is not self._parts[self._current] or not self._assembly.was_heard:
            return
        if self._listener.on_restart is None:
            raise HiggsError(f"Playback cannot continue: {why}. Run it again.")
        self._assembly.restart()
        self._streamed = (0, 0)
        self._listener.on_restart(why)

    def _stream(self):
        """Pass on new audio of the current part, as far as it stays.

        That is the first, or one that is not retried, as it comes; of any other, what comes before its bad sentences.
        """
        if self._listener.on_audio is None or self._current == len(self._parts):
            return
        part = self._parts[self._current]
        if part.attempts is None or part.spoken is not None or part.retakes or part.attempts.is_retaken:
            return  # there is none, or it is not what it will be
        if part.attempts.is_mending:
            wav = part.attempts.release()
        elif part.attempts.is_only or (self._current == 0 and not part.attempts.flaws):
            wav = part.take.wav()[: part.take.cleared] if part.take else torch.empty(0)
        else:
            return
        if self._streamed != (self._current, len(wav)):
            self._streamed = self._current, len(wav)
            self._assembly.stream(wav)

    def tick(self) -> None:
        """Report progress. Raises what the listener raises to cancel."""
        if self._listener.on_frame is not None:
            self._listener.on_frame(self._done, self._done + self._remaining)

    def _append_ready(self):
        while self._current < len(self._parts):
            part = self._parts[self._current]
            if part.attempts is None or part.attempts.kept is None or part.retakes:
                return
            self._append(part.chunk, part.attempts.kept, part.attempts)
            self._current += 1

    def _append(self, chunk: Chunk, spoken: Sequence, attempts: Attempts):
        """Add the next chunk as spoken in its kept attempt."""
        joined = self._assembly.append(attempts.take_wav())
        start, stop = self._assembly.spans[-1]
        first = self._spoken_chunks[-1].frames[1] if self._spoken_chunks else 0
        frames, lead = (first, first + spoken.num_frames), self._assembly.leads[-1]
        verdict = spoken.verdict if isinstance(spoken.verdict, Verdict) else None
        flaws = [flaw for flaw in attempts.flaws[attempts.number - 1] if flaw not in (*DOUBTS, "limit")]
        flaws += [] if spoken.ended else ["limit"]
        chunk_spoken = SpokenTurn(chunk.speaker, chunk.text, start, stop, frames, lead, verdict, tuple(flaws))
        self._spoken_chunks.append(chunk_spoken)
        if self._listener.on_chunk is not None:
            self._listener.on_chunk(chunk_spoken, joined)

    def _retried(self) -> tuple[Retried, ...]:
        retried = []
        for number, part in enumerate(self._parts, 1):
            if attempts := part.attempts:
                if any(attempts.flaws):
                    retried.append(Retried(number, part.chunk.text, tuple(attempts.flaws), attempts.number))
                for one in attempts.repairs:
                    flaws = tuple(one.flaws[one.is_wanted :])  # what is wanted was not tried because of flaws
                    retried += (
                        [Retried(number, one.text, flaws, one.kept - one.is_wanted)] if flaws and flaws[0] else []
                    )
        return tuple(retried)
