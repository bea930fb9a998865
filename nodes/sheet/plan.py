"""Plan the files of rows: what each one's sound depends on, and what to speak for a selection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ...engine import FRAME_RATE, LinesRow, Pronunciations, SamplingParams, Turn, Voice, estimate_seconds
from .files import KINDS, file_name

# Without a voice, a speaker's first turns, up to 3 seconds, serve as the voice of the rest. Lengths are only known
# later, so turns count until three times that is estimated.
_FIRST_SECONDS = 9.0
_SEEDS = 1 << 64


@dataclass(frozen=True)
class LineTake:
    """A planned file: its text, and a fingerprint of everything its sound depends on."""

    file: str
    number: int  # of the take
    row: LinesRow
    turn: Turn
    fingerprint: str = ""


@dataclass(frozen=True)
class LinePlan:
    """All takes, sorted by take number, and the voices of speakers who have one."""

    takes: tuple[LineTake, ...]
    voices: Mapping[str, Voice]

    def to_speak(self, wanted: Collection[str]) -> tuple[list[LineTake], list[Turn], dict[str, Voice]]:
        """Return (takes, a turn for each, voices by the turns' speakers) needed for the wanted files.

        This includes extra takes. A speaker without a voice needs all preceding turns, since the first of them set its
        voice, and the noise of repeated words is numbered in order.
        """
        last = {take.turn.speaker: place for place, take in enumerate(self.takes) if take.file in wanted}
        takes, turns, voices = [], [], {}
        for place, take in enumerate(self.takes):
            speaker = take.turn.speaker
            if speaker in self.voices:
                if take.file in wanted:
                    # A separate speaker for each take, so other speakers of the same words make no difference.
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
    pronunciations: Pronunciations,
    voices: Mapping[str, Voice],
    others: Sequence[object],
    kind: str = KINDS[0],
) -> LinePlan:
    """Plan the files of `rows`, of a kind of KINDS. others: further JSON values that decide how all of them sound."""
    made = [
        LineTake(file_name(row, number, takes, kind), number, row, _turn(row, number, params, pronunciations))
        for number in range(1, takes + 1)
        for row in rows
    ]
    settings = asdict(params)
    # The turn has its own seed, a file has no gaps, and a check makes no other file of a row that is there.
    for name in ("seed", "turn_gap", "check"):
        del settings[name]
    known = {speaker: voice.digest() for speaker, voice in voices.items()}
    first: dict[str, list[LineTake]] = {}
    seconds: dict[str, float] = {}
    finished = []
    for take in made:
        turn, voice = take.turn, known.get(take.turn.speaker)
        leads = voice is None and seconds.get(turn.speaker, 0.0) < _FIRST_SECONDS
        # Without a voice, the earlier turns are the voice, and the name tells it from other speakers'.
        of = voice or [turn.speaker, *([lead.turn.text, lead.turn.seed] for lead in first.get(turn.speaker, ()))]
        sound = json.dumps([turn.text, turn.seed, of, settings, *others])
        finished.append(replace(take, fingerprint=hashlib.sha256(sound.encode()).hexdigest()))
        if leads:
            first.setdefault(turn.speaker, []).append(take)
            spoken = min(estimate_seconds(turn.text), params.max_frames / FRAME_RATE)
            seconds[turn.speaker] = seconds.get(turn.speaker, 0.0) + spoken
    return LinePlan(tuple(finished), voices)


def _turn(row: LinesRow, take: int, params: SamplingParams, pronunciations: Pronunciations) -> Turn:
    seed = params.seed if row.seed is None else row.seed
    return Turn(row.speaker, pronunciations.apply(row.text, row.speaker), (seed + take - 1) % _SEEDS)
