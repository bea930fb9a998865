"""HiggsTTSVoice: turns a reference clip and its transcript into a HIGGS_TTS_VOICE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from comfy_api.latest import io

from ..engine import (
    MAX_CLIP_SECONDS,
    MOST_CLIPS,
    SAMPLE_RATE,
    ClipParams,
    HiggsError,
    NamedClip,
    Voice,
    Wave,
    cut_clip,
    file_stamp,
    join_clips,
    misfit,
)
from .comfy import audio as clips
from .comfy import types, widgets
from .comfy.linked import check_linked
from .comfy.memory import free_memory
from .comfy.node_errors import check_interrupt, node_errors, refuse
from .comfy.remote_model import AnyModel
from .library import clip_files

NAME = "Higgs Voice"
TRANSCRIPT_TIP = "The exact words spoken in the clip. Cloning works less well without them."
INFO_TIP = "The voice's length and transcript."
_NO_LINK = object()
SOCKETS = [f"audio_{number}" for number in range(2, MOST_CLIPS + 1)]


class HiggsTTSVoice(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSVoice",
            display_name=NAME,
            category=types.CATEGORY,
            description="Makes a voice from a clip. You can connect it to any number of Higgs Speak nodes.",
            search_aliases=["voice clone", "clone voice", "reference audio", "higgs audio", "tts"],
            inputs=[
                types.Model.Input(
                    "model",
                    tooltip="From Higgs Load Model or Higgs TTS Server. A voice works only with models of the same "
                    "kind.",
                ),
                io.Audio.Input(
                    "audio",
                    optional=True,
                    tooltip="One speaker, 1 to 30 seconds, with little noise. 5 to 15 seconds work best. Any sample "
                    "rate, mono or stereo.",
                ),
                io.String.Input(
                    "transcript",
                    multiline=True,
                    optional=True,
                    default="",
                    placeholder="the exact words spoken in the clip",
                    tooltip=TRANSCRIPT_TIP,
                ),
                *part_inputs(),
                io.Autogrow.Input(
                    "more_clips",
                    template=io.Autogrow.TemplateNames(io.Audio.Input("audio", optional=True), names=SOCKETS, min=1),
                    optional=True,
                    tooltip="More clips of the same speaker. The cleanest parts of all clips are joined to at most 30 "
                    "seconds. Write one line per clip into transcript, or none; then long clips are cut at pauses. "
                    "start and length apply to audio or clip only.",
                ),
                _clip_input(),
            ],
            outputs=[
                types.Voice.Output(display_name="voice", tooltip="For Higgs Speak and Higgs Save Voice."),
                io.String.Output(display_name="info", tooltip=INFO_TIP),
            ],
        )

    @classmethod
    def validate_inputs(
        cls, clip: str | None = clip_files.LINKED, audio: object = _NO_LINK, more_clips: object = None
    ) -> bool:
        """Refuse a missing clip before the run. Linked inputs are None.

        `more_clips` must be named: ComfyUI passes it to every validation.
        """
        return refuse(NAME, lambda: _check_clip(clip, audio is not _NO_LINK))

    @classmethod
    def fingerprint_inputs(cls, clip: str | None = clip_files.LINKED, **others: object) -> list:
        """Run again if the recording has changed."""
        return [] if clip in (None, clip_files.LINKED) else file_stamp(clip_files.find_recording(clip))

    @classmethod
    def execute(
        cls,
        model: AnyModel,
        audio: dict | None = None,
        transcript: str = "",
        start: float = 0.0,
        length: float = 0.0,
        more_clips: Mapping[str, dict | None] | None = None,
        clip: str = clip_files.LINKED,
        **unknown: object,  # ComfyUI passes on everything that is linked
    ) -> io.NodeOutput:
        remedy = "Enter the words of the clip into transcript."
        with node_errors(NAME):
            if unknown:
                raise HiggsError(f"there is no input {min(unknown)[:80]!r}. Remove it. Clips end at {SOCKETS[-1]}.")
            check_linked(model=model)
            wav, rate = _first_clip(clip, audio)
            more = {name: clips.to_clip(one, name) for name, one in (more_clips or {}).items() if one is not None}
            if not more:
                made = encode(model, part_of(wav, rate, start, length), rate, transcript)
                return io.NodeOutput(made, describe(made, remedy))
            first = "audio" if clip == clip_files.LINKED else "clip"
            sounds = {first: (cut_clip(wav, rate, ClipParams(start, length)), rate), **more}
            lines = lines_for(transcript, len(sounds))
            named = zip(sounds.items(), lines, strict=True)
            joined = join_clips((NamedClip(wav, rate, line, name) for (name, (wav, rate)), line in named), misfit)
            made = encode(model, joined.wav[None], SAMPLE_RATE, joined.transcript)
        return io.NodeOutput(made, "\n".join([describe(made, remedy), f"Made of: {joined.taken}.", *joined.doubts]))


def _clip_input() -> io.Input:
    """Widget that chooses a recording. Must come last: workflows store widgets by position."""
    return io.Combo.Input(
        "clip",
        options=clip_files.choices(),
        default=clip_files.LINKED,
        optional=True,
        extra_dict=widgets.upload_button(clip_files.SUFFIXES),
        tooltip="A recording in ComfyUI's input folder, of up to 10 minutes, in place of audio. Upload, drop or record "
        "one below.",
    )


def _check_clip(clip: str | None, has_audio: bool) -> None:
    if clip == clip_files.LINKED and not has_audio:
        raise HiggsError("there is no clip. Choose or record one in the node, or connect Load Audio.")
    if clip not in (None, clip_files.LINKED):
        clip_files.find_recording(clip)


def _first_clip(clip: str, audio: dict | None) -> tuple[Wave, int]:
    """Return (wav [C, S], Hz) of the chosen recording, else of the audio input."""
    if clip == clip_files.LINKED:
        return clips.to_clip(audio)
    wav, rate = clip_files.read_recording(clip)
    return torch.from_numpy(wav), rate


def lines_for(transcript: str, clips: int) -> list[str]:
    """Return the transcript of each clip. Raises HiggsError unless it has no line, or one for each."""
    lines = [line.strip() for line in transcript.splitlines() if line.strip()]
    if lines and len(lines) != clips:
        raise HiggsError(
            f"there are {clips} clips, but the transcript has {len(lines)} line{'s' * (len(lines) != 1)}. Write one "
            "line per clip, in the order of the inputs, or leave it empty."
        )
    return lines or [""] * clips


def part_inputs() -> list[io.Input]:
    """Widgets that select a part of a recording. Only later ones may follow: workflows store them by position."""
    return [
        widgets.number(
            ClipParams,
            "start",
            tooltip="Start of the clip within a longer recording, in seconds. Set "
            "this to skip noise or other speakers.",
        ),
        widgets.number(
            ClipParams,
            "length",
            tooltip="Length of the clip, in seconds. Set this to use part of a longer recording. 0 uses all the rest.",
        ),
    ]


def part_of(wav: Wave, rate: int, start: float, length: float) -> Wave:
    """Cut `length` seconds from `start` out of a recording [C, S]. Raises HiggsError if the part is too long."""
    part = cut_clip(wav, rate, ClipParams(start, length))
    if (seconds := part.shape[-1] / rate) > MAX_CLIP_SECONDS:
        raise HiggsError(
            f"the clip is {math.ceil(seconds * 10) / 10:.1f} s long, but at most {MAX_CLIP_SECONDS:.0f} s can be "
            "used. Set start to where clear speech begins, and length to between 5 and 30 seconds."
        )
    return part


def encode(model: AnyModel, wav: Wave, rate: int, transcript: str, name: str = "") -> Voice:
    """Encode a clip [C, S] as a voice. The encoder is on the device for this call only; the talker may be elsewhere."""
    engine = model.engine
    free_memory(engine.encoder_bytes, engine.device)
    check_interrupt()
    return engine.encode_voice(wav, rate, transcript=transcript.strip() or None, name=name)


def describe(voice: Voice, remedy: str) -> str:
    """Return the info output. remedy: what to do about a missing transcript."""
    told = f"{voice.seconds:.1f} s" + (f", {voice.transcript!r}" if voice.transcript else "")
    warning = f"{transcript_warning(voice)} {'' if voice.transcript else remedy}".strip()
    return "\n".join([told, *(f"Warning: {one}" for one in (*voice.warnings, warning) if one)])


def transcript_warning(voice: Voice) -> str:
    """Return what is wrong with a voice's transcript, or nothing."""
    if voice.transcript:
        return misfit(voice.transcript, voice.seconds)
    return "Cloning works less well without a transcript."


def transcript_warnings(voices: Iterable[Voice]) -> list[str]:
    """Return what is wrong with the transcripts of voices that speak, once each, for the speaking node's info."""
    told = {id(voice): (voice.name, transcript_warning(voice)) for voice in voices}
    return [f"Voice {name or '(no name)'}: {warning}" for name, warning in told.values() if warning]
