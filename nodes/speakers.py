"""Match speakers to voices, and define the inputs that multi-speaker nodes share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from comfy_api.latest import io

from ..engine import Cast, HiggsError, Voice, speaker_key
from . import voice_files
from .comfy import types
from .comfy.linked import check_linked
from .comfy.remote_model import AnyModel
from .library.voice_folders import built_in_voices, find_voice, voice_called

SOCKETS = [f"voice_{number}" for number in range(1, 17)]


def voices_input(tooltip: str) -> io.Input:
    """Return the voice sockets. Connecting one adds another."""
    return io.Autogrow.Input(
        "voices",
        template=io.Autogrow.TemplateNames(types.Voice.Input("voice", optional=True), names=SOCKETS, min=1),
        optional=True,
        tooltip=tooltip,
    )


def even_loudness_input(tooltip: str) -> io.Input:
    return io.Boolean.Input("even_loudness", default=True, optional=True, advanced=True, tooltip=tooltip)


def by_name(voices: Mapping[str, Voice | None] | None) -> dict[str, Voice]:
    """Return the connected voices by socket number and by name. Raises HiggsError if an input is not a voice.

    A name such as "speaker 2" stands for the socket, not for the voice.
    """
    given = {name: voice for name, voice in (voices or {}).items() if voice is not None}
    check_linked(**given)
    connected = {name.rpartition("_")[2]: voice for name, voice in given.items()}
    return connected | {
        name: voice for voice in connected.values() if (name := speaker_key(voice.name)) and not name.isdecimal()
    }


def voice_doubts(sockets: Mapping[str, Voice], given: Mapping[str, Voice]) -> tuple[str, ...]:
    """Return a warning for each connected voice that may be misassigned. given: speaker -> voice, of all who speak."""
    used = set(map(id, given.values()))
    unused = [
        f"{number} ({voice.name})" if voice.name else number
        for number, voice in sockets.items()
        if number.isdecimal() and id(voice) not in used
    ]
    doubts = [f"No speaker uses the connected voice {' or '.join(unused)}."] if unused else []
    same = next((name for name, voice in given.items() if name and voice is given.get("")), "")
    doubts += [f"Text before the first name is spoken in the voice of {same}."] if same else []
    return tuple(doubts)


def voices_of(
    speakers: list[str],
    cast: Cast[Voice],
    model: AnyModel,
    lent: Callable[[list[str]], dict[str, Voice]] = lambda speakers: {},
) -> dict[str, Voice]:
    """Map speakers to voices: those of the cast, then `lent`, which gives voices to speakers who still have none.

    Leaves out speakers without one.
    """

    def load(name: str) -> Voice | None:
        path = voice_called(name)
        return voice_files.load(path, model) if path else None

    given = cast.assign(speakers, load, lambda declared: voice_files.load(_find_declared(declared), model))
    given |= lent([speaker for speaker in speakers if speaker not in given])
    without = [speaker for speaker in speakers if speaker not in given]
    if model.engine.planner.card.one_voice and len(speakers) > 1:
        taken = {speaker_key(voice.name) for voice in given.values()}
        clips = [clip for clip in built_in_voices() if speaker_key(clip.stem) not in taken] or built_in_voices()
        for place, speaker in enumerate(without):
            given[speaker] = voice_files.load(clips[place % len(clips)], model)
    return given


def voice_stamps(head: Mapping[str, str], names: Iterable[str]) -> list[list]:
    """Return the fingerprints of the voice files that a script declares in its head or calls by name."""
    files = list(filter(None, map(voice_called, names)))
    for declared in head.values():
        with contextlib.suppress(HiggsError):  # a connected voice, or one that the run reports as missing
            files.append(_find_declared(declared))
    return list(map(voice_files.fingerprint, files))


def _find_declared(name: str) -> Path:
    """Return the file of a voice that a script declares. Raises HiggsError if there is none, or several."""
    return voice_called(name) or find_voice(name)
