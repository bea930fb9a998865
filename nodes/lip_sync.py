"""HiggsTTSLipSync: turns word times into mouth shapes, for each frame of a video."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import OPENNESS, HiggsError, LipSyncParams, mouth_of, read_words, speaker_key
from .comfy import audio as clips
from .comfy import types, widgets
from .comfy.node_errors import node_errors

NAME = "Higgs Lip Sync"


class HiggsTTSLipSync(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLipSync",
            display_name=NAME,
            category=types.CATEGORY,
            description="Turns word times into mouth shapes for animation: as JSON in Rhubarb Lip Sync's format, and "
            "as one value per video frame.",
            search_aliases=["mouth", "viseme", "rhubarb", "animation", "talking head", "phoneme"],
            inputs=[
                io.String.Input(
                    "words", force_input=True, tooltip="The words output of Higgs Speak, Dialogue, Lines or Subtitles."
                ),
                io.Audio.Input("audio", tooltip="The audio output of the same node. It sets the length."),
                widgets.number(LipSyncParams, "fps", tooltip="Frames per second of the video."),
                io.String.Input(
                    "speaker",
                    default="",
                    optional=True,
                    tooltip="Move the mouth only for this speaker's words. Leave empty to use all words.",
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="mouth_cues",
                    tooltip="When each mouth shape is shown, as JSON in Rhubarb Lip Sync's format.",
                ),
                io.String.Output(
                    display_name="shapes",
                    is_output_list=True,
                    tooltip="The mouth shape of each video frame: a letter from A to H, or X at rest. A list: the "
                    "nodes after it run once per frame.",
                ),
                io.Float.Output(
                    display_name="openness",
                    is_output_list=True,
                    tooltip="How far the mouth is open in each video frame, from 0 to 1. A list like shapes.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls, words: str, audio: dict | None, fps: float = LipSyncParams.fps, speaker: str = ""
    ) -> io.NodeOutput:
        with node_errors(NAME):
            wave, rate = clips.to_clip(audio)
            if rate <= 0 or not wave.shape[1]:
                raise HiggsError("the audio input has no sound. Connect the audio of the node that gives the words.")
            timed, fps = read_words(words), LipSyncParams(fps).fps
            if key := speaker_key(speaker):
                own = [word for word in timed if speaker_key(word.speaker) == key]
                if timed and not own:
                    names = ", ".join(filter(None, dict.fromkeys(word.speaker for word in timed)))
                    remedy = (
                        f"Enter one of: {names[:200]}" if names else "Leave speaker empty, since words have no names"
                    )
                    raise HiggsError(f"{speaker[:80]!r} says none of the words. {remedy}.")
                timed = own
            mouth = mouth_of(timed, wave.shape[1] / rate)
            shapes = mouth.frames(fps)
        return io.NodeOutput(mouth.to_json(), shapes, [OPENNESS[shape] for shape in shapes])
