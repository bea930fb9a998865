"""Report how each cue was fitted, in numbers and in words."""

from __future__ import annotations

from ..prompt.cues import srt_time
from ..speech.result import duration
from .speak import CueSpeech, SpokenCue

_LATE = 0.02  # seconds: later is noticed


def fit_counts(speech: CueSpeech) -> dict[str, float]:
    """Count cues by how they were fitted, some in several ways. `worst_late` and `worst_over` are in seconds.

    `over`: the cue continues beyond its time.
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
    counts = fit_counts(speech)
    labels = {
        "faster": "spoken faster",
        "stretched": "stretched",
        "shifted": f"starting up to {duration(counts['worst_late'], 2)} late",
        "over": f"ending up to {duration(counts['worst_over'], 2)} late",
    }
    done = [f"{counts[name]} {words}" for name, words in labels.items() if counts[name]]
    changed = counts["cues"] - counts["silent"] - counts["on_time"]
    parts = [f"{counts['on_time']} on time without changes"]
    parts += [f"{changed} changed ({', '.join(done)})"] if changed else []
    parts += [f"{counts['silent']} without words"] if counts["silent"] else []
    return f"{counts['cues']} {'cue' if counts['cues'] == 1 else 'cues'}: {', '.join(parts)}."


def cue_lines(speech: CueSpeech) -> list[str]:
    """Return a line per cue: number, time, speaker, length, and how it was fitted."""
    return [f"{one.cue.number}  {srt_time(one.start)}  {_line(one)}" for one in speech.cues]


def _line(one: SpokenCue) -> str:
    if not one.cue.turns:
        return "no words"
    who = " and ".join(dict.fromkeys(turn.speaker for turn in one.cue.turns if turn.speaker))
    took = f"{duration(one.spoken, 2)} of speech for {duration(one.slot, 2)}"
    return f"{who + ': ' if who else ''}{took}: {', '.join(_done(one)) or 'unchanged'}"


def _done(one: SpokenCue) -> list[str]:
    done = [f"spoken {one.pace.replace('_', ' ')}"] if one.pace else []
    done += [f"stretched to {one.tempo:.2f} times the speed"] if one.tempo > 1 else []
    done += [f"starts {duration(one.late, 2)} late"] if one.late > _LATE else []
    return done + ([f"ends {duration(_over(one), 2)} late"] if _over(one) > _LATE else [])


def _over(one: SpokenCue) -> float:
    return one.stop - (one.cue.start + one.slot)
