"""What was done to which cue, in numbers and in words."""

from __future__ import annotations

from ..prompt.cues import srt_time
from .speak import CueSpeech, SpokenCue

_LATE = 0.02  # seconds that nobody sees


def fit_counts(speech: CueSpeech) -> dict[str, float]:
    """Cues by what was done to them, some in several ways; `worst_late` and `worst_over` in seconds.

    `over`: it goes on beyond the time that it had.
    """
    with_words = [one for one in speech.cues if one.cue.turns]
    return {
        "cues": len(speech.cues),
        "silent": len(speech.cues) - len(with_words),
        "on_time": sum(not _done(one) for one in with_words),
        "faster": sum(bool(one.pace) for one in with_words),
        "stretched": sum(one.tempo > 1 for one in with_words),
        "shifted": sum(one.late > _LATE for one in with_words),
        "over": sum(_over(one) > _LATE for one in with_words),
        "worst_late": max([0.0, *(one.late for one in with_words)]),
        "worst_over": max([0.0, *map(_over, with_words)]),
    }


def cue_summary(speech: CueSpeech) -> str:
    """One sentence for all cues."""
    counts = fit_counts(speech)
    told = [f"{counts['on_time']} on time as spoken"]
    told += [f"{counts['faster']} spoken faster"] if counts["faster"] else []
    told += [f"{counts['stretched']} stretched"] if counts["stretched"] else []
    told += [f"{counts['shifted']} late by {counts['worst_late']:.2f} s at most"] if counts["shifted"] else []
    told += [f"{counts['silent']} without words"] if counts["silent"] else []
    return f"{counts['cues']} cues: {', '.join(told)}."


def cue_lines(speech: CueSpeech) -> list[str]:
    """A line for each cue: its number and time, who speaks, how long, and what was done."""
    return [f"{one.cue.number}  {srt_time(one.start)}  {_line(one)}" for one in speech.cues]


def _line(one: SpokenCue) -> str:
    if not one.cue.turns:
        return "no words"
    who = " and ".join(dict.fromkeys(turn.speaker for turn in one.cue.turns if turn.speaker))
    took = f"{one.spoken:.2f} s for {one.slot:.2f} s"
    return f"{who + ': ' if who else ''}{took}: {', '.join(_done(one)) or 'as spoken'}"


def _done(one: SpokenCue) -> list[str]:
    done = [f"spoken {one.pace.replace('_', ' ')}"] if one.pace else []
    done += [f"stretched to {one.tempo:.2f} times the speed"] if one.tempo > 1 else []
    done += [f"begins {one.late:.2f} s late"] if one.late > _LATE else []
    return done + ([f"ends {_over(one):.2f} s late"] if _over(one) > _LATE else [])


def _over(one: SpokenCue) -> float:
    return one.stop - (one.cue.start + one.slot)
