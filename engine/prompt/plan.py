"""Split of a call's turns into chunks, one per sequence, and the silences between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..core.config import FRAME_RATE, MAX_PAUSE_SECONDS_IN_ALL, SamplingParams
from ..core.errors import HiggsError
from .chunking import estimate_frames, estimate_seconds, split_script
from .said import SaidText
from .script import Script, Turn, read_pauses
from .tags import every_tag, is_spoken
from .titles import join_titles

_MOST_SILENT = 4.0  # maximum total of pauses in long texts, as a multiple of the speech


@dataclass(frozen=True)
class Chunk:
    turn: int
    speaker: str
    text: str
    params: SamplingParams
    index: int  # see engine/core/sequence.py
    silence: float | None  # seconds before it; None joins it to the previous chunk


@dataclass(frozen=True)
class Plan:
    """Chunks in text order, seconds of silence after the last, and warnings."""

    chunks: list[Chunk]
    last_silence: float
    warnings: list[str]


def plan(
    turns: Sequence[Turn],
    params: SamplingParams,
    is_dialogue: bool,
    chunk_seconds: Callable[[Script, str], tuple[float, float]],
    is_spoken: Callable[[str], bool] = is_spoken,
    read_as: Callable[[str], SaidText] = SaidText,
    follows: Callable[[str], bool] = every_tag,
) -> Plan:
    """Split all turns into chunks. A dialogue's turn without words contributes only its pauses.

    chunk_seconds(script, speaker): maximum seconds of chunks and of the first one. is_spoken(text): True if a text is
    not silent. read_as(text): what the model says of it. follows(tag): True if it follows a control tag. Raises
    HiggsError if the pauses written in all turns are too long in total.
    """
    scripts = [read_pauses(turn.text, params.paragraph_gap) for turn in turns]
    if not is_dialogue:  # whose turns do not depend on who listens
        scripts = [join_titles(script, follows) for script in scripts]
    scripts = [replace(script, respellings=read_as(script.text).respellings) for script in scripts]
    check_pauses(scripts)
    chunks: list[Chunk] = []
    warnings: list[str] = []
    last_silence, occurrences = 0.0, Counter()  # silence at the end of the previous turn; counts of spoken chunks
    for number, (turn, script) in enumerate(zip(turns, scripts, strict=True)):
        warnings += script.warnings
        if is_dialogue and not is_spoken(script.text):
            last_silence += script.silence
            continue
        texts, silences = split_script(script, *chunk_seconds(script, turn.speaker))
        last_silence, before = silences[-1], last_silence + silences[0]
        # A turn starts a new segment even without silence before it, except for the first.
        begin = (before or params.turn_gap) if chunks else (before or None)
        own = params if turn.seed is None else replace(params, seed=turn.seed)
        counts = (
            occurrences
            if turn.occurrence is None
            else Counter({(turn.speaker, text): turn.occurrence for text in texts})
        )
        for text, silence in zip(texts, [begin, *(seconds or None for seconds in silences[1:-1])], strict=True):
            index = counts[turn.speaker, text] if is_dialogue else (turn.occurrence or 0) + len(chunks)
            counts[turn.speaker, text] += 1
            chunks.append(Chunk(number, turn.speaker, text, own, index, silence))
    return Plan(chunks, last_silence, warnings)


def check_pauses(scripts: Iterable[Script]) -> None:
    """Raise HiggsError if pauses exceed MAX_PAUSE_SECONDS_IN_ALL and _MOST_SILENT times the speech, for memory."""
    scripts = list(scripts)
    silence = sum(script.silence for script in scripts)
    if silence <= MAX_PAUSE_SECONDS_IN_ALL:
        return
    most = max(MAX_PAUSE_SECONDS_IN_ALL, _MOST_SILENT * sum(estimate_seconds(script.spoken_text) for script in scripts))
    if silence > most:
        raise HiggsError(
            f"The pauses in the text add up to {silence:,.0f} s, but at most {most:,.0f} s are allowed at once. "
            "Shorten them, or speak the text in parts."
        )


def planned_seconds(
    turns: Sequence[Turn], params: SamplingParams, is_dialogue: bool, read_as: Callable[[str], SaidText] = SaidText
) -> float:
    """Estimate the seconds of speech including pauses, as counted by a progress bar. 0 without words.

    read_as: see `plan`.
    """
    spoken = [turn for turn in turns if is_spoken(read_pauses(turn.text).text)]
    if not spoken:
        return 0.0
    planned = plan(
        turns, params, is_dialogue, lambda script, speaker: (params.chunk_seconds, math.inf), read_as=read_as
    )
    silence = planned.last_silence + sum(chunk.silence or 0.0 for chunk in planned.chunks)
    return silence + sum(estimate_frames(read_as(chunk.text).text) for chunk in planned.chunks) / FRAME_RATE
