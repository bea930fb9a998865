"""HiggsTTSDialogue: turns a script and its voices into AUDIO, all turns batched."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..engine import Cast, Dialogue, HiggsError, SamplingParams, Voice, read_dialogue, script_names, to_srt, words_json
from .comfy import audio, types, widgets
from .comfy.linked import check_linked, is_used
from .comfy.memory import load_engine
from .comfy.node_errors import node_errors, refusal
from .comfy.remote_model import AnyModel
from .finish import Finish, finish_inputs
from .library.voice_folders import listed_pronunciations, voice_called
from .retakes import read_retakes, retakes_input
from .speak import (
    advanced_inputs,
    check_input,
    describe,
    pronunciations_of,
    retries_input,
    sampling,
    sampling_inputs,
    srt_output,
    with_player,
)
from .speakers import by_name, even_loudness_input, voice_doubts, voice_stamps, voices_input, voices_of
from .voice import transcript_warnings
from .word_times import srt_words_input, words_if_needed, words_output

NAME = "Higgs Dialogue"
WORDS = "HiggsTTSDialogue", 4  # the output
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
            description="Turns a script with several speakers into speech, with a different voice for each. Lines are "
            "generated together as far as memory allows.",
            search_aliases=["text to dialogue", "multi speaker", "conversation", "podcast", "tts", "higgs audio"],
            is_output_node=True,
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                io.String.Input(
                    "script",
                    multiline=True,
                    default=SCRIPT,
                    tooltip="Start each turn with a name: 'Anna: Hello' or '[Anna] Hello'. [pause 1.5] adds silence "
                    "and # starts a comment. All script forms are in the node's help (i).",
                ),
                voices_input(
                    "Speakers get the connected voices in order of first appearance, unless the script uses the "
                    "voices' names or socket numbers. A speaker without a voice gets one from the seed."
                ),
                *sampling_inputs(),
                widgets.number(
                    SamplingParams,
                    "turn_gap",
                    tooltip="Silence between turns, in seconds, unless the script sets a pause.",
                ),
                *advanced_inputs(),
                *_switches(),
                retries_input(),
                srt_words_input(),
                check_input(),
                retakes_input(),
                *finish_inputs(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="The whole scene: 24 kHz, mono."),
                io.Audio.Output(
                    display_name="speakers",
                    tooltip="One clip per speaker, silent while others speak, in the order that info lists. Save "
                    "Audio writes each to its own file.",
                ),
                io.String.Output(display_name="info", tooltip="Length, speed, speakers and any warnings."),
                srt_output(),
                words_output(),
            ],
        )

    @classmethod
    def validate_inputs(cls, script: str | None, voices: object = None) -> bool | str:
        """Refuse a script without turns before the run. A linked one (None) is checked when the node runs.

        So are the voices: any speaker may have a connected one.
        """
        return refusal(NAME, lambda: script is None or _check_turns(read_dialogue(script, script_names(script)[1])))

    @classmethod
    def fingerprint_inputs(cls, script: str | None, **others: object) -> list:
        """Speak again if a voice file named in the script has changed, or if `words` was connected.

        A linked script is None.
        """
        return [listed_pronunciations(), is_used(*WORDS), *voice_stamps(*script_names(script or ""))]

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
        srt_words: int = 0,
        retakes: str = "",
        **settings: Any,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            finish = Finish.take(settings, cls.hidden)
            params = sampling(settings)
            sockets = by_name(voices)
            head, names = script_names(script)
            cast = Cast(names, sockets, head, voice_called)
            dialogue = read_dialogue(script, cast.known, model.engine.planner.knows_tag)
            _check_turns(dialogue)
            given = voices_of(dialogue.speakers, cast, model)
            finish.spoken_by(given.values())
            turns = pronunciations_of(pronunciations).respelled(dialogue.turns)
            what, again = (turns, given, params, scene.strip() or None), read_retakes(retakes)
            engine = load_engine(model)
            speak = functools.partial(engine.speak_turns, *what, reuse=reuse, even=even_loudness, retakes=again)
            doubts = [*voice_doubts(sockets, given), *transcript_warnings(given.values())]
            speech, words = with_player(engine, speak, params.seed, script, retakes, doubts, finish)
            words = words_if_needed(engine, speech, WORDS, srt_words, words)
            whole = audio.from_speech(speech)
        speakers = dialogue.speakers
        warnings = (*model.model.warnings, *dialogue.warnings, *doubts)
        info = describe(speech, model.model.label, warnings, f"Speakers: {_listed(speakers)}", *finish.lines)
        sounds = whole, audio.by_speaker(speech, speakers)
        return io.NodeOutput(*sounds, info, to_srt(speech, words, srt_words), words_json(words))


def _check_turns(dialogue: Dialogue) -> None:
    if not dialogue.turns:
        raise HiggsError("the script is empty. Enter lines such as 'Anna: Hello'.")


def _switches() -> list[io.Input]:
    return [
        io.Boolean.Input(
            "reuse",
            default=True,
            optional=True,
            advanced=True,
            tooltip="Keep turns that have not changed since the last run with this model, and speak only the rest. "
            "The result is the same. Turn off if you never edit and rerun scripts.",
        ),
        even_loudness_input(
            "Even out the loudness of turns, by up to 8 dB. Volumes set in the script apply "
            "afterwards. Turn off to keep natural differences."
        ),
    ]


def _listed(speakers: list[str]) -> str:
    return ", ".join(f"{number} {name or '(no name)'}" for number, name in enumerate(speakers, 1))
