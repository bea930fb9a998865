"""Speak the cues of a subtitle file on time: all batched, then again those that take too long."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..audio.tempo import check_tempo, with_tempo
from ..core.config import MOST_FILM_SECONDS, SAMPLE_RATE, CueParams, SamplingParams
from ..core.errors import HiggsError
from ..engines.speech_api import SpeechAPI
from ..prompt.chunking import estimate_frames
from ..prompt.cues import Cue, CueTurns, srt_time, write_srt
from ..prompt.script import Turn
from ..prompt.speakers import LEAST_REFERENCE_FRAMES, most_reference_frames
from ..prompt.tags import TAG_LIKE, delivery_slot
from ..speech.result import DoubtfulWords, SpeechResult, SpokenTurn, outcome
from ..speech.speech_input import Listener
from ..voice.voice import Voice, voice_of_speech
from ..words.cues import lines_of, words_by_turn
from ..words.word import Word, moved
from .timeline import Timeline

GROUP = 256  # cues whose speech is held in all its stages at once
_BETWEEN = 0.15  # seconds between two speakers of one cue
_FAST = 1.25  # ratio to the slot, above which the very fast tag is used
_NOTHING = 1.03  # inaudible speed-up, not worth another take


@dataclass(frozen=True)
class SpokenCue:
    """A cue and how it was fitted; times in seconds."""

    cue: CueTurns
    start: float  # when it is heard; for a cue without words, as in the file
    stop: float
    slot: float = 0.0  # time available at its own start
    spoken: float = 0.0  # length of its first speech
    pace: str = ""  # speed tag that made it shorter
    tempo: float = 1.0  # factor by which it was sped up

    @property
    def late(self) -> float:
        return self.start - self.cue.start


@dataclass(frozen=True)
class CueSpeech:
    """Speech of a subtitle file. sounds: (start in seconds, wav [n] at SAMPLE_RATE) of each cue with words."""

    cues: tuple[SpokenCue, ...]
    sounds: tuple[tuple[float, torch.Tensor], ...]
    parts: tuple[SpeechResult, ...]  # the calls that made it, without their sound
    warnings: tuple[str, ...]
    timed: tuple[tuple[Word, ...], ...] = ()  # words of each of the sounds, if asked for
    doubts: tuple[DoubtfulWords, ...] = ()
    checked: tuple[bool, ...] = ()  # for each chunk that is heard, if its words were checked

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(sorted(itertools.chain(*self.timed), key=lambda word: word.start))

    @property
    def outcome(self) -> str:
        return outcome(self.doubts, self.checked)

    @property
    def frames(self) -> int:
        """Return the frames made, including repeated ones."""
        return sum(part.frames for part in self.parts)

    @property
    def seconds(self) -> float:
        """Return when the last cue ends, in the file or as heard."""
        return max(max(one.stop, one.cue.stop) for one in self.cues)

    def to_srt(self, size: int = 0) -> str:
        """Return the file's cues at the times when they are heard, or lines of at most `size` words of each cue."""
        cues = [Cue(one.start, one.stop, one.cue.text) for one in self.cues]
        if size:
            cues = [line for words in self.timed for line in lines_of(words, size)]
        return write_srt(sorted(cues, key=lambda cue: cue.start))


def speak_cues(
    engine: SpeechAPI,
    cues: Sequence[CueTurns],
    voices: Mapping[str, Voice] = MappingProxyType({}),
    params: SamplingParams | None = None,
    fit: CueParams | None = None,
    listener: Listener | None = None,
    words: bool = False,
    **options: Any,
) -> CueSpeech:
    """Speak cues in order of their starts, each on time. Other arguments and options: see `Engine.speak_turns`.

    words: find when each word is heard, too.

    Only the listener's on_frame is called, since a cue may be spoken again to fit. Raises HiggsError before speaking
    anything, if no cue has a word or a cue is beyond MOST_FILM_SECONDS.
    """
    params = replace(params or SamplingParams(), turn_gap=0.0)
    return _CueRun(engine, voices, params, fit or CueParams(), listener, words, options).all(cues)


class _CueSound(NamedTuple):
    """A cue's speech [n], its words if asked for, its doubts, and for each chunk if its words were checked."""

    wav: torch.Tensor
    words: list[Word]
    doubts: list[DoubtfulWords]
    checked: list[bool]

    @property
    def faults(self) -> tuple[int, int]:
        """Unchecked chunks, then doubts: fewer are better."""
        return self.checked.count(False), len(self.doubts)


class _CueRun:
    def __init__(
        self,
        engine: SpeechAPI,
        voices: Mapping[str, Voice],
        params: SamplingParams,
        fit: CueParams,
        listener: Listener | None,
        words: bool,
        options: Mapping[str, Any],
    ):
        self._options = options
        self._engine, self._voices, self._params, self._fit = engine, dict(voices), params, fit
        self._wants_words = words
        self._own: dict[str, Voice] = {}  # of speakers who got none, as they said only one chunk
        self._on_frame, self._done, self._ahead = listener and listener.on_frame, 0, 0
        self._parts: list[SpeechResult] = []

    def all(self, cues: Sequence[CueTurns]) -> CueSpeech:
        if not (with_words := [cue for cue in cues if cue.turns]):
            raise HiggsError("no cue contains anything to speak. Enter subtitles with words.")
        last = max(cues, key=lambda cue: cue.stop)
        if last.stop > MOST_FILM_SECONDS:
            raise HiggsError(
                f"cue {last.number} ends at {srt_time(last.stop)}, but subtitles can be spoken only up to "
                f"{srt_time(MOST_FILM_SECONDS)}. Correct its times, or split the file."
            )
        warnings = self._check()
        timeline, spoken, sounds, timed = Timeline(with_words, self._fit), [], [], []
        doubts, checked = [], []
        self._ahead = sum(_frames(cue) for cue in with_words)
        for first in range(0, len(with_words), GROUP):
            group = with_words[first : first + GROUP]
            self._ahead -= sum(map(_frames, group))
            slots = [timeline.slot(first + at) for at in range(len(group))]
            for cue, slot, (sound, at_first, pace) in zip(group, slots, self._group(group, slots), strict=True):
                wav = sound.wav
                place = timeline.place(len(wav) / SAMPLE_RATE)
                checked += sound.checked
                if not len(wav):  # pronunciations, or a model without tags, left no word, or it said none
                    spoken.append(SpokenCue(replace(cue, turns=()), cue.start, cue.stop))
                    doubts += [doubt.moved(cue.start) for doubt in sound.doubts]
                    continue
                wav = with_tempo(wav, place.tempo)
                stop = place.start + len(wav) / SAMPLE_RATE
                spoken.append(SpokenCue(cue, place.start, stop, slot, at_first, pace, place.tempo))
                sounds.append((place.start, wav))
                timed.append(tuple(moved(sound.words, place.start, place.tempo)))
                doubts += [doubt.moved(place.start, place.tempo) for doubt in sound.doubts]
        warnings += [warning for part in self._parts for warning in part.warnings]
        spoken_cues = iter(spoken)
        every = tuple(next(spoken_cues) if cue.turns else SpokenCue(cue, cue.start, cue.stop) for cue in cues)
        parts = tuple(self._parts)
        shown = tuple(dict.fromkeys(warnings))
        return CueSpeech(every, tuple(sounds), parts, shown, tuple(timed), tuple(doubts), tuple(checked))

    def _check(self) -> list[str]:
        """Return a warning for each requested feature that is not available here."""
        if self._fit.stretch > 1:
            try:
                check_tempo()
            except HiggsError as error:
                self._fit = replace(self._fit, stretch=1.0)
                return [f"Speech that is too long for its cue was not stretched: {error}"]
        return []

    def _group(self, cues: Sequence[CueTurns], slots: Sequence[float]) -> list[tuple[_CueSound, float, str]]:
        """Return, for each cue, its speech, its first length, and the speed tag that shortened it."""
        spoken = [(sound, len(sound.wav) / SAMPLE_RATE, "") for sound in self._say([cue.turns for cue in cues])]
        again = {}
        if self._fit.faster:
            for at, (cue, slot, (_, seconds, _)) in enumerate(zip(cues, slots, spoken, strict=True)):
                pace = "fast" if seconds <= _FAST * slot else "very_fast"
                if seconds > _NOTHING * slot and self._engine.planner.knows_tag(_tag(pace)) and not _has_pace(cue):
                    again[at] = pace
        faster = [[replace(turn, text=_tag(pace) + turn.text) for turn in cues[at].turns] for at, pace in again.items()]
        for (at, pace), sound in zip(again.items(), self._say(faster) if faster else [], strict=True):
            first, seconds, _ = spoken[at]
            if 0 < len(sound.wav) < len(first.wav) and sound.faults <= first.faults:  # not by losing words
                spoken[at] = sound, seconds, pace
        self._voices = self._own | self._voices
        return spoken

    def _say(self, cues: Sequence[Sequence[Turn]]) -> list[_CueSound]:
        before, ahead = self._done, self._ahead

        def tick(done: int, expected: int) -> None:
            if self._on_frame is not None:
                self._on_frame(before + done, before + expected + ahead)

        turns = [turn for cue in cues for turn in cue]
        speech = self._engine.speak_turns(turns, self._voices, self._params, listener=Listener(tick), **self._options)
        self._done += speech.frames
        self._voices |= speech.voices  # speakers keep the voices they got
        timed = words_by_turn(speech, self._engine.words(speech)) if self._wants_words else [[]] * len(turns)
        spans, gap = iter(enumerate(timed)), torch.zeros(round(_BETWEEN * SAMPLE_RATE))
        sounds = []
        for cue in cues:
            wavs, words, doubts, checked = [gap[:0]], [], [], []
            for number, own in itertools.islice(spans, len(cue)):
                turn = speech.of_turn(number)
                wavs += [gap] if len(turn.wav) and any(map(len, wavs)) else []
                at = sum(map(len, wavs)) / SAMPLE_RATE
                words += moved(own, at)
                doubts += [one.moved(at) for one in turn.doubts]
                checked += turn.checked
                wavs.append(turn.wav.cpu())
                self._keep_voice(speech.turns[number], turn)
            sounds.append(_CueSound(torch.cat(wavs), words, doubts, checked))
        earlier = sum(part.chunks for part in self._parts)
        retried = tuple(replace(chunk, chunk=earlier + chunk.chunk) for chunk in speech.retried)
        self._parts.append(replace(speech, wav=torch.empty(0), turns=(), said=(), retried=retried))
        return sounds

    def _keep_voice(self, turn: SpokenTurn, speech: SpeechResult):
        """Keep a turn's speech as its speaker's voice in later groups, if it is long enough and there is no other."""
        speaker, codes = turn.speaker, speech.codes[slice(*turn.frames)]
        if len(codes) >= LEAST_REFERENCE_FRAMES and speaker not in self._voices and speaker not in self._own:
            most = most_reference_frames(self._engine.planner.context)
            text = " ".join(chunk.text for chunk in speech.said)
            transcript = text if speech.complete and len(codes) <= most else None
            self._own[speaker] = voice_of_speech(codes[:most], transcript, "first cue")


def _frames(cue: CueTurns) -> int:
    return sum(estimate_frames(turn.text) for turn in cue.turns)


def _tag(pace: str) -> str:
    return f"<|prosody:speed_{pace}|>"


def _has_pace(cue: CueTurns) -> bool:
    """True if the file itself sets the speed of something in the cue."""
    return any(delivery_slot(tag[0]) == "speed" for turn in cue.turns for tag in TAG_LIKE.finditer(turn.text))
