"""HiggsTTSDialogue: a script and its voices become AUDIO, all turns together. Knows no tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from comfy_api.latest import io

from ..engine import Dialogue, HiggsError, SamplingParams, Voice, read_dialogue, script_names, to_srt
from . import audio, types, voice_files, widgets
from .linked import check_linked
from .memory import load_engine
from .node_errors import node_errors
from .remote_model import AnyModel
from .speak import advanced_inputs, describe, retries_input, said_as, sampling, sampling_inputs, srt_output, with_player
from .speakers import by_name, even_loudness_input, in_turn, known_names, voice_doubts, voices_input, voices_of
from .voice_folders import listed_pronunciations, voice_called

NAME = "Higgs Dialogue"
SCRIPT = """Anna: Did you hear that?
Tom: Hear what?
Anna: There. Somebody is at the door. [pause 1]
Tom: At this hour?"""


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
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                io.String.Input(
                    "script",
                    multiline=True,
                    default=SCRIPT,
                    tooltip="Lines such as 'Anna: Hello' or '[Anna] Hello' begin a turn. [pause 1.5] is silence, # a "
                    "comment; the node's help (i) tells the rest.",
                ),
                voices_input(
                    "Voices of the speakers, in the order in which they first speak; or by the voice's name or the "
                    "socket's number, where the script uses these. Speakers without one get a voice chosen by the seed."
                ),
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
                    display_name="speakers",
                    tooltip="A clip for each speaker, as info lists them, silent while others speak. Save Audio makes "
                    "a file of each.",
                ),
                io.String.Output(
                    display_name="info", tooltip="Length, speed, whether the text is complete, speakers and warnings."
                ),
                srt_output(),
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
        model: AnyModel,
        script: str,
        voices: Mapping[str, Voice | None] | None = None,
        scene: str = "",
        pronunciations: str = "",
        reuse: bool = True,
        even_loudness: bool = True,
        **settings: float,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            params = sampling(settings)
            dialogue, sockets = _read(script, by_name(voices), model)
            if not dialogue.turns:
                raise HiggsError("the script is empty. Enter lines such as 'Anna: Hello'.")
            given = voices_of(dialogue.speakers, sockets, model, dialogue.head)
            said = said_as(pronunciations)
            turns = [replace(turn, text=said.apply(turn.text, turn.speaker)) for turn in dialogue.turns]
            what = turns, given, params, scene.strip() or None
            speak = functools.partial(load_engine(model).speak_turns, *what, reuse=reuse, even=even_loudness)
            speech = with_player(speak, params.seed, script)
        speakers = dialogue.speakers
        warnings = (*model.model.warnings, *dialogue.warnings, *voice_doubts(sockets, given))
        info = describe(speech, model.model.label, warnings, f"Speakers: {_listed(speakers)}")
        return io.NodeOutput(audio.from_speech(speech), audio.by_speaker(speech, speakers), info, to_srt(speech))


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
        even_loudness_input("Make turns equally loud, as far as 8 dB allow; volumes in the script count after that."),
    ]


def _read(script: str, sockets: Mapping[str, Voice], model: AnyModel) -> tuple[Dialogue, Mapping[str, Voice]]:
    """The script, and the voices that its speakers go by.

    Where the script knows no voice by name, its speakers get the connected ones in turn, as far as they go.
    """
    head, names = script_names(script)
    if known := known_names(names, sockets, head):
        return read_dialogue(script, known, model.engine.knows_tag), sockets
    dialogue = read_dialogue(script, knows_tag=model.engine.knows_tag)
    return dialogue, in_turn(dialogue.speakers, sockets)


def _listed(speakers: list[str]) -> str:
    return ", ".join(f"{number} {name or '(no name)'}" for number, name in enumerate(speakers, 1))
