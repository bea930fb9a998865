"""Feedback on a text while it is written: tags, hints, seconds, names. Never touches the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ...engine import (
    MAX_WRITTEN,
    Cast,
    Dialogue,
    HiggsError,
    SaidText,
    SamplingParams,
    TextCheck,
    Turn,
    cue_names,
    planned_seconds,
    read_cues,
    read_dialogue,
    read_lines,
    read_pronunciations,
    script_names,
    text_check,
    text_check_before,
)
from ..library.checkpoint_folders import AUTO, DOWNLOAD, find_checkpoint
from ..library.checkpoint_folders import fingerprint as files_of
from ..library.voice_folders import BUILT_IN, voice_called, voices

Said = Callable[[str], SaidText]
_MOST_NAMES = 64
KINDS = ("text", "script", "lines", "srt")
_GAPS = ("paragraph_gap", "turn_gap")


def tags_for(model: str) -> list[dict]:
    """Return a model's tags by group, with the reason if a tag has no effect. model: as Higgs Load Model calls it."""
    return [asdict(group) for group in _check_for(model).groups()]


def look(kind: str, text: str, model: str, settings: Mapping[str, float]) -> dict:
    """Return seconds (None if not known yet), hints with their positions, notes, names of speakers, and respellings.

    kind: one of KINDS. settings: `paragraph_gap` and `turn_gap` of SamplingParams, and `takes`. Raises HiggsError for
    an unknown kind, a text that is too long, or a setting out of range.
    """
    if kind not in KINDS:
        raise HiggsError(f"the kind of text is {kind[:40]!r}. It must be one of: {', '.join(KINDS)}.")
    if len(text) > MAX_WRITTEN:
        raise HiggsError(f"Texts over {MAX_WRITTEN:,} characters are not checked while you type.")
    given = {name: float(settings[name]) for name in _GAPS if name in settings}
    params = replace(SamplingParams(), **given)
    check = _check_for(model)
    script = _dialogue(text, check) if kind == "script" else None
    said, unsaid = (text, ()) if script is None else (script.said, script.unsaid)
    try:
        seconds = _seconds(kind, text, script, params, check.spell_out) * max(1.0, settings.get("takes", 1.0))
    except HiggsError:  # half a row or file name; if it stays so, the run reports it
        seconds = None
    place = _place_in(text)
    hints = [
        {"start": place(hint.start), "stop": place(hint.stop), "says": hint.says}
        for hint in check.hints(said, unsaid, directions=kind != "srt")
    ]
    notes, names = check.notes(said), _names(kind, text)
    return {"seconds": seconds, "hints": hints, "notes": notes, "names": names, "said": _said(kind, said, check)}


def _dialogue(script: str, check: TextCheck) -> Dialogue:
    """Read a script as the run does. The connected voices are not known: a name without another one may have one."""
    head, names = script_names(script)
    try:
        return read_dialogue(script, Cast(names, {}, head, voice_called).known, check.follows)
    except HiggsError:
        return read_dialogue(script, names, check.follows)


def _said(kind: str, text: str, check: TextCheck) -> list[dict]:
    """Return the parts of a text that are said otherwise than written. A sheet's cells have no places to show them at.

    entry: the line of `pronunciations` that says the same, empty if none does.
    """
    place = _place_in(text)
    return [
        {
            "start": place(one.start),
            "stop": place(one.stop),
            "said": one.spelling.strip(),
            "entry": _entry(text[one.start : one.stop].strip(), one.spelling.strip()),
        }
        for one in (() if kind == "lines" else check.respellings(text, kind == "srt"))
        if one.spelling.strip(" .,")
    ]


def _entry(written: str, said: str) -> str:
    entry = f"{written} = {said}"
    try:
        return entry if read_pronunciations(entry).apply(written) == said else ""
    except HiggsError:
        return ""


def _seconds(kind: str, text: str, script: Dialogue | None, params: SamplingParams, said: Said) -> float:
    """Estimate the length of the speech. For subtitles, return when the last cue ends."""
    if kind == "srt":
        return max(cue.stop for cue in read_cues(text).cues)
    if kind == "lines":
        rows = ([Turn(row.speaker, row.text)] for row in read_lines(text))
        return sum(planned_seconds(turns, params, is_dialogue=True, read_as=said) for turns in rows)
    turns = [Turn("", text)] if script is None else script.turns
    return planned_seconds(turns, params, is_dialogue=script is not None, read_as=said)


def _names(kind: str, text: str) -> list[str]:
    """Return names to offer where a turn begins: those in the text, then voices in models/voices."""
    if kind not in ("script", "srt"):
        return []
    try:
        head, names = script_names(text) if kind == "script" else cue_names(text)
    except HiggsError:  # no cue yet
        head, names = {}, ()
    return list(dict.fromkeys([*head, *names, *_voice_names()]))[:_MOST_NAMES]


def _voice_names() -> list[str]:
    """Return voices that a script can name."""
    plain = [name.removeprefix(f"{BUILT_IN}/").rpartition(".")[0] for name in voices()]
    return [name for name in plain if "/" not in name]


def _place_in(text: str) -> Callable[[int], int]:
    """Return a function from character positions to UTF-16 positions, which JavaScript uses."""
    if text.isascii() or max(text) < "\U00010000":
        return lambda at: at
    return lambda at: len(text[:at].encode("utf-16-le", "surrogatepass")) // 2


def _check_for(model: str) -> TextCheck:
    """Return the model's text check. If the model is not local, every tag counts as known."""
    if model.startswith(DOWNLOAD):
        return text_check_before(model.removeprefix(DOWNLOAD))
    try:
        folder = find_checkpoint(model or AUTO).path
        return _check_seen(folder, str(files_of(folder)))
    except HiggsError:
        return text_check_before()


@functools.lru_cache(8)
def _check_seen(folder: Path, seen: str) -> TextCheck:
    return text_check(folder)
