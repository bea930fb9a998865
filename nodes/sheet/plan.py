"""Which files rows become, what each one's sound depends on, and what to speak for some of them. Reads no disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ...engine import FRAME_RATE, LinesRow, Pronunciations, SamplingParams, Turn, Voice, estimate_seconds
from .files import file_name

# What a speaker without a voice says first is the voice of the rest: the first turns until 3 seconds are spoken. How
# long they get is not known before, so as many turns count as are estimated at three times that.
_FIRST_SECONDS = 9.0
_SEEDS = 1 << 64


@dataclass(frozen=True)
class LineTake:
    """A file to be: what is said in it, and a fingerprint of all that its sound depends on."""

    file: str
    number: int  # of the take
    row: LinesRow
    turn: Turn
    fingerprint: str = ""


@dataclass(frozen=True)
class LinePlan:
    """Every take, all first ones before the second ones, and the voices of the speakers who have one."""

    takes: tuple[LineTake, ...]
    voices: Mapping[str, Voice]

    def to_speak(self, wanted: Collection[str]) -> tuple[list[LineTake], list[Turn], dict[str, Voice]]:
        """(takes, a turn for each, voices by the turns' speakers) that give the wanted files.

        There are others among them: of a speaker without a voice all that stand before, since its voice comes from the
        first of them, and the noise of words that it says again is numbered in order.
        """
        last = {take.turn.speaker: place for place, take in enumerate(self.takes) if take.file in wanted}
        takes, turns, voices = [], [], {}
        for place, take in enumerate(self.takes):
            speaker = take.turn.speaker
            if speaker in self.voices:
                if take.file in wanted:
                    # As a speaker of its own, so that it does not matter who else says the same words.
                    own = f"{speaker}  ({take.file})"  # with two spaces, which no speaker has
                    takes.append(take)
                    turns.append(replace(take.turn, speaker=own))
                    voices[own] = self.voices[speaker]
            elif place <= last.get(speaker, -1):
                takes.append(take)
                turns.append(take.turn)
        return takes, turns, voices


def plan(
    rows: Sequence[LinesRow],
    takes: int,
    params: SamplingParams,
    said: Pronunciations,
    voices: Mapping[str, Voice],
    others: Sequence[object],
) -> LinePlan:
    """The files of `rows`. others: what beside these decides how all of them sound, as JSON takes it."""
    made = [
        LineTake(file_name(row, number, takes), number, row, _turn(row, number, params, said))
        for number in range(1, takes + 1)
        for row in rows
    ]
    settings = asdict(params)
    for name in ("seed", "turn_gap"):  # the turn has its own seed, and no file a gap
        del settings[name]
    known = {speaker: _digest(voice) for speaker, voice in voices.items()}
    first: dict[str, list[LineTake]] = {}
    seconds: dict[str, float] = {}
    finished = []
    for take in made:
        turn, voice = take.turn, known.get(take.turn.speaker)
        leads = voice is None and seconds.get(turn.speaker, 0.0) < _FIRST_SECONDS
        # Without a voice, what was said before is the voice, and the name makes it another than the next speaker's.
        of = voice or [turn.speaker, *([lead.turn.text, lead.turn.seed] for lead in first.get(turn.speaker, ()))]
        sound = json.dumps([turn.text, turn.seed, of, settings, *others])
        finished.append(replace(take, fingerprint=hashlib.sha256(sound.encode()).hexdigest()))
        if leads:
            first.setdefault(turn.speaker, []).append(take)
            spoken = min(estimate_seconds(turn.text), params.max_frames / FRAME_RATE)
            seconds[turn.speaker] = seconds.get(turn.speaker, 0.0) + spoken
    return LinePlan(tuple(finished), voices)


def _turn(row: LinesRow, take: int, params: SamplingParams, said: Pronunciations) -> Turn:
    seed = params.seed if row.seed is None else row.seed
    return Turn(row.speaker, said.apply(row.text, row.speaker), (seed + take - 1) % _SEEDS)


def _digest(voice: Voice) -> str:
    return hashlib.sha256(
        voice.codes.numpy().tobytes() + repr((voice.codes.shape, voice.transcript)).encode()
    ).hexdigest()
