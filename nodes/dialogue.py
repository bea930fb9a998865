"""HiggsTTSDialogue: a script and its voices become AUDIO, all turns together. Knows no tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from comfy_api.latest import io

from ..engine import Dialogue, HiggsError, SamplingParams, Voice, read_dialogue, script_names, speaker_key
from . import audio, types, voice_files, widgets
from .memory import load_engine
from .node_errors import node_errors
from .patcher import HiggsPatcher
from .speak import advanced_inputs, describe, retries_input, said_as, sampling_inputs, with_bar
from .voice_folders import built_in_voices, find_voice, listed_pronunciations, voice_called

NAME = "Higgs Dialogue"
SCRIPT = """Anna: Did you hear that?
Tom: Hear what?
Anna: There. Somebody is at the door. [pause 1]
Tom: At this hour?"""
SOCKETS = [f"voice_{number}" for number in range(1, 17)]


class HiggsTTSDialogue(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSDialogue",
            display_name=NAME,
            category=types.CATEGORY,
            description="Turns a script of several speakers into speech, each with a voice of their own. All turns are "
            "generated together as far as memory allows.",
            search_aliases=["text to dialogue", "multi speaker", "conversation", "podcast", "tts", "higgs audio"],
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model."),
                io.String.Input(
                    "script",
                    multiline=True,
                    default=SCRIPT,
                    tooltip="Lines such as 'Anna: Hello' or '[Anna] Hello' begin a turn. [pause 1.5] is silence, # a "
                    "comment; ? tells the rest.",
                ),
                _voices_input(),
                *sampling_inputs(),
                widgets.number(
                    SamplingParams,
                    "turn_gap",
                    tooltip="Silence between turns, in seconds, where the script names no pause.",
                ),
                *advanced_inputs(),
                *_switches(),
                retries_input(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="24 kHz, one channel."),
                io.Audio.Output(
                    display_name="speakers", tooltip="The same with a channel for each speaker, as info lists them."
                ),
                io.String.Output(
                    display_name="info", tooltip="Length, speed, whether the text is complete, speakers and warnings."
                ),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, script: str | None, **others: object) -> list:
        """Speaks again when a voice file that the script names has changed. A linked script is None here."""
        head, names = script_names(script or "")
        files = filter(None, map(voice_called, [*head.values(), *names]))
        return [listed_pronunciations(), *(voice_files.fingerprint(path) for path in files)]

    @classmethod
    def execute(
        cls,
        model: HiggsPatcher,
        script: str,
        voices: Mapping[str, Voice | None] | None = None,
        scene: str = "",
        pronunciations: str = "",
        reuse: bool = True,
        even_loudness: bool = True,
        **settings: float,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            params = replace(SamplingParams(), **settings)
            sockets = _by_name(voices or {})
            dialogue = _read(script, sockets)
            if not dialogue.turns:
                raise HiggsError("the script is empty. Enter lines such as 'Anna: Hello'.")
            given = _voices(dialogue, sockets, model)
            said = said_as(pronunciations)
            turns = [replace(turn, text=said.apply(turn.text, turn.speaker)) for turn in dialogue.turns]
            what = turns, given, params, scene.strip() or None
            speech = with_bar(functools.partial(load_engine(model).speak_turns, *what, reuse=reuse, even=even_loudness))
        speakers = dialogue.speakers
        warnings = (*model.model.warnings, *dialogue.warnings)
        info = describe(speech, model.model.label, warnings, f"Speakers: {_listed(speakers)}")
        return io.NodeOutput(audio.from_speech(speech), audio.by_speaker(speech, speakers), info)


def _voices_input() -> io.Input:
    return io.Autogrow.Input(
        "voices",
        template=io.Autogrow.TemplateNames(types.Voice.Input("voice", optional=True), names=SOCKETS, min=1),
        optional=True,
        tooltip="Voices of the speakers, in the order in which they first speak; or by the voice's name or "
        "the socket's number, where the script uses these. Who has none gets a voice from the seed.",
    )


def _switches() -> list[io.Input]:
    return [
        io.Boolean.Input(
            "reuse",
            default=True,
            optional=True,
            advanced=True,
            tooltip="Speak only turns that have changed since an earlier run with this model. The speech is the same "
            "either way.",
        ),
        io.Boolean.Input(
            "even_loudness",
            default=True,
            optional=True,
            advanced=True,
            tooltip="Make turns equally loud, as far as 8 dB allow; volumes in the script count after that.",
        ),
    ]


def _by_name(voices: Mapping[str, Voice | None]) -> dict[str, Voice]:
    """The connected voices by their sockets' numbers, and by their own names."""
    connected = {name.rpartition("_")[2]: voice for name, voice in voices.items() if voice is not None}
    return connected | {speaker_key(voice.name): voice for voice in connected.values() if voice.name}


def _read(script: str, sockets: dict[str, Voice]) -> Dialogue:
    """The script; where it knows no voice by name, its speakers get the connected ones in turn, as far as they go."""
    head, names = script_names(script)
    with_voice = [name for name in names if speaker_key(name) in sockets or voice_called(name)]
    if head or with_voice:
        return read_dialogue(script, [*sockets, *reversed(with_voice)])  # as the script first spells them
    dialogue = read_dialogue(script)
    connected = [voice for name, voice in sockets.items() if name.isdecimal()]
    speakers = [speaker_key(speaker) for speaker in dialogue.speakers if speaker]
    sockets |= dict(zip(speakers, connected, strict=False))
    return dialogue


def _voices(dialogue: Dialogue, sockets: Mapping[str, Voice], model: HiggsPatcher) -> dict[str, Voice]:
    """Speaker -> voice, of those that have one. Who speaks before the first name has the first socket's."""
    found = {}
    heads = {speaker_key(name): named for name, named in dialogue.head.items()}
    for speaker in dialogue.speakers:
        named = heads.get(speaker_key(speaker))
        key = speaker_key(speaker if named is None else named)
        if key in sockets:
            found[speaker] = sockets[key]
        elif named is not None:
            found[speaker] = voice_files.load(voice_called(named) or find_voice(named), model)
        elif speaker and (path := voice_called(speaker)):
            found[speaker] = voice_files.load(path, model)
        elif not speaker and sockets:
            found[speaker] = next(iter(sockets.values()))
    without = [speaker for speaker in dialogue.speakers if speaker not in found]
    if model.engine.card.one_voice and len(dialogue.speakers) > 1:
        clips = built_in_voices()
        for place, speaker in enumerate(without):
            found[speaker] = voice_files.load(clips[place % len(clips)], model)
    return found


def _listed(speakers: list[str]) -> str:
    return ", ".join(f"{number} {name or '(no name)'}" for number, name in enumerate(speakers, 1))
