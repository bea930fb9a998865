"""HiggsTTSSubtitles: turns a subtitle file into AUDIO with each cue on time, optionally as a dub of a film."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from comfy_api.latest import io

from ..engine import (
    Cast,
    CueParams,
    CueSheet,
    CueSpeech,
    Listener,
    Voice,
    check_rate,
    cue_lines,
    cue_names,
    cue_summary,
    cut_references,
    duration,
    mix_speech,
    read_cues,
    speak_cues,
    words_json,
)
from . import voice
from .comfy import audio, types, widgets
from .comfy.info import info
from .comfy.linked import check_linked, is_used
from .comfy.memory import load_engine
from .comfy.node_errors import node_errors, refusal
from .comfy.progress_text import NodeText
from .comfy.remote_model import AnyModel
from .finish import Finish, finish_inputs
from .library.subtitle_files import SUFFIXES, fingerprint, subtitle_text
from .library.voice_folders import listed_pronunciations, voice_called
from .page import events
from .speak import advanced_inputs, check_input, pronunciations_of, retries_input, sampling, sampling_inputs, with_bar
from .speakers import by_name, even_loudness_input, voice_doubts, voice_stamps, voices_input, voices_of
from .word_times import srt_words_input, words_output

NAME = "Higgs Subtitles"
WORDS = "HiggsTTSSubtitles", 4  # the output
SRT = """1
00:00:00,500 --> 00:00:02,500
Anna: Did you hear that?

2
00:00:02,600 --> 00:00:05,000
Tom: I did. There is somebody at the door.

3
00:00:06,000 --> 00:00:08,000
Anna: Then open it, and let us see who it is.

4
00:00:08,500 --> 00:00:10,000
Tom: You first."""
FIT = ("faster", "stretch", "shift", "run_on", "lower_bed")


class HiggsTTSSubtitles(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSSubtitles",
            display_name=NAME,
            category=types.CATEGORY,
            description="Speaks subtitles at the times of their cues, and fits speech that is too long. Connect a "
            "film's sound to dub it in the voices of its own speakers.",
            search_aliases=["srt", "vtt", "subtitles to speech", "dub", "dubbing", "voice over", "tts", "higgs audio"],
            is_output_node=True,
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                io.String.Input(
                    "srt",
                    multiline=True,
                    default=SRT,
                    extra_dict=widgets.upload_button(SUFFIXES),
                    tooltip="The text of an SRT or VTT file, or the name of such a file in ComfyUI's input folder. "
                    "Start a cue with 'Anna: ' to name its speaker.",
                ),
                voices_input(
                    "Speakers get the connected voices in order of first appearance, unless the cues use the voices' "
                    "names or socket numbers. A speaker without a connected voice gets a voice from the film or, "
                    "without a film, from the seed."
                ),
                *_film_inputs(),
                *sampling_inputs(),
                *_fit_inputs(),
                *advanced_inputs(paragraphs=False),
                even_loudness_input(
                    "Even out the loudness of cues, by up to 8 dB. Turn off to keep natural differences."
                ),
                retries_input(),
                srt_words_input(),
                check_input(),
                *finish_inputs(),
            ],
            outputs=_outputs(),
        )

    @classmethod
    def validate_inputs(cls, srt: str | None, voices: object = None) -> bool | str:
        """Refuse subtitles without a cue before the run. A linked text (None) is checked when the node runs."""
        return refusal(NAME, lambda: srt is None or cue_names(subtitle_text(srt)[0]))

    @classmethod
    def fingerprint_inputs(cls, srt: str | None, **others: object) -> list:
        """Speak again if the file, or a voice file it names, has changed, or if `words` was connected.

        A linked srt is None.
        """
        if srt is None:
            return [listed_pronunciations(), is_used(*WORDS)]
        stamps = voice_stamps(*cue_names(subtitle_text(srt)[0]))
        return [listed_pronunciations(), is_used(*WORDS), fingerprint(srt), *stamps]

    @classmethod
    def execute(
        cls,
        model: AnyModel,
        srt: str,
        voices: Mapping[str, Voice | None] | None = None,
        scene: str = "",
        pronunciations: str = "",
        translated: bool = False,
        even_loudness: bool = True,
        srt_words: int = 0,
        **settings: Any,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            finish = Finish.take(settings, cls.hidden)
            # Passed by name: unconnected inputs are absent, and an empty clip is an error.
            clips = {name: audio.to_clip(settings.pop(name), name) for name in ("film", "bed") if name in settings}
            fit = CueParams(**{name: settings.pop(name) for name in FIT if name in settings})
            params = sampling(settings)
            text, doubts = subtitle_text(srt)
            NodeText().show("\n".join(doubts))
            sockets = by_name(voices)
            head, names = cue_names(text)
            cast = Cast(names, sockets, head, voice_called)
            sheet = read_cues(text, cast.known, "film" in clips and bool(cast.known), model.engine.planner.knows_tag)
            sheet = replace(sheet, warnings=(*sheet.warnings, *doubts))
            lent = _Film(model, sheet, clips.get("film"), translated)
            given = voices_of(sheet.speakers, cast, model, lent.voices)
            finish.spoken_by(given.values())
            own = [voice for speaker, voice in given.items() if speaker not in lent.speakers]
            unsure = [*voice_doubts(sockets, given), *voice.transcript_warnings(own)]
            sheet = replace(sheet, warnings=(*sheet.warnings, *unsure))
            cues = sheet.said_as(pronunciations_of(pronunciations)).cues
            engine = load_engine(model)
            bed, rate = _bed(clips)
            # Cues are batched and placed in time afterwards, so there is nothing to play before the end.
            with events.heard(params.seed, " ".join(cue.text for cue in cues[:4]), doubts=unsure) as sound:
                needs_words = bool(srt_words) or is_used(*WORDS)
                speak = functools.partial(speak_cues, engine, cues, given, params, fit, even=even_loudness)
                how = {"scene": scene.strip() or None, "words": needs_words or sound is not None}
                speech = with_bar(functools.partial(speak, **how), Listener(sound and sound.step))
                wav = mix_speech(speech.sounds, max(speech.seconds, lent.seconds), bed, rate, fit.lower_bed)
                wav = finish.complete(wav, rate)
                if sound is not None:
                    sound.finish(audio.for_player(wav, rate), speech.words, finish.path or (wav, rate))
                    sheet = replace(sheet, warnings=(*sheet.warnings, *sound.problems()))
            mixed = audio.of_wave(wav, rate)
        info = _describe(speech, model, sheet, [*lent.told, *finish.lines])
        report, words = "\n".join(cue_lines(speech)), words_json(speech.words if needs_words else None)
        return io.NodeOutput(mixed, info, speech.to_srt(srt_words), report, words)


def _bed(clips: Mapping[str, tuple[torch.Tensor, int]]) -> tuple[torch.Tensor | None, int]:
    """Return the background [C, n], at most stereo, or None, and the rate of the mix in Hz."""
    bed, rate = clips.get("bed", (None, audio.SAMPLE_RATE))
    check_rate(rate, "The bed")
    return None if bed is None else audio.at_most_stereo(bed), rate


class _Film:
    """A film's sound, from which voices are cloned. told: where each voice came from; seconds: film length."""

    def __init__(self, model: AnyModel, sheet: CueSheet, clip: tuple[torch.Tensor, int] | None, translated: bool):
        self._model, self._sheet, self._clip, self._translated = model, sheet, clip, translated
        self.seconds = clip[0].shape[1] / clip[1] if clip else 0.0
        self.told: list[str] = []
        self.speakers: set[str] = set()  # to whom it lends voices

    def voices(self, speakers: Sequence[str]) -> dict[str, Voice]:
        """Return voices for those speakers who can be heard clearly."""
        if self._clip is None:
            return {}
        voices = {}
        clips = cut_references(self._sheet.cues, *self._clip, speakers)
        for speaker in speakers:
            name = speaker or "(no name)"
            if speaker not in clips:
                self.told.append(f"Warning: the film has no clear second of {name} speaking alone. Connect a voice.")
                continue
            clip = clips[speaker]
            transcript = "" if self._translated else clip.transcript
            voices[speaker] = voice.encode(self._model, clip.wav[None], audio.SAMPLE_RATE, transcript, name)
            cues = ", ".join(map(str, clip.cues))
            self.told.append(f"Voice of {name}: {clip.seconds:.1f} s from the film, cue {cues}.")
        self.speakers.update(voices)
        return voices


def _describe(speech: CueSpeech, model: AnyModel, sheet: CueSheet, lines: Sequence[str]) -> str:
    elapsed = sum(part.elapsed for part in speech.parts)
    speakers = ", ".join(f"{number} {name or '(no name)'}" for number, name in enumerate(sheet.speakers, 1))
    chunks, reused = (sum(getattr(part, name) for part in speech.parts) for name in ("chunks", "reused"))
    return info(
        [f"{cue_summary(speech)} {duration(speech.seconds)}, spoken in {duration(elapsed)}. {speech.outcome}"],
        (*model.model.warnings, *sheet.warnings, *speech.warnings, *map(str, speech.doubts)),
        [chunk for part in speech.parts for chunk in part.spoken_again],
        [*lines, f"Speakers: {speakers}"],
        model.model.label,
        f"{speech.frames} frames, {chunks} chunks ({reused} reused). Backend: {speech.parts[0].how}.",
    )


def _film_inputs() -> list[io.Input]:
    return [
        io.Audio.Input(
            "film",
            optional=True,
            tooltip="The film's sound, from Load Audio or Get Video Components. Speakers without a connected voice "
            "are cloned from their longest clear cues.",
        ),
        io.Audio.Input(
            "bed",
            optional=True,
            tooltip="Background under the speech: the film's sound, or better its music and effects without voices.",
        ),
    ]


def _fit_inputs() -> list[io.Input]:
    return [
        io.Boolean.Input(
            "faster",
            default=CueParams.faster,
            optional=True,
            tooltip="If speech is too long for its cue, speak it again with a speed tag. Higgs TTS 3 only.",
        ),
        widgets.number(
            CueParams,
            "stretch",
            tooltip="Maximum speed-up, at the same pitch, of speech that is still too long. 1 disables it.",
        ),
        io.Boolean.Input(
            "shift",
            default=CueParams.shift,
            optional=True,
            tooltip="On: if a cue is still too long, the next ones start late until a pause makes up for it. Off: "
            "every cue starts on time, even if speech overlaps.",
        ),
        widgets.number(
            CueParams, "run_on", tooltip="Seconds that speech may run past the end of its cue if no other cue starts."
        ),
        widgets.number(
            CueParams,
            "lower_bed",
            tooltip="How far the background is lowered while somebody speaks, in dB. 0 leaves it as it is.",
        ),
        io.Boolean.Input(
            "translated",
            default=False,
            optional=True,
            tooltip="Turn on if the subtitles are in a different language from the film, so that their text is not "
            "used as the transcript of its voices.",
        ),
    ]


def _outputs() -> list[io.Output]:
    return [
        io.Audio.Output(
            display_name="audio",
            tooltip="As long as the film or the subtitles, whichever is longer. 24 kHz mono, or the format of the bed.",
        ),
        io.String.Output(display_name="info", tooltip="How many cues fit, the voices used, and any warnings."),
        io.String.Output(display_name="srt", tooltip="The subtitles at the times they are heard."),
        io.String.Output(display_name="report", tooltip="The length of each cue, and the changes made to fit it."),
        words_output(),
    ]
