"""HiggsTTSSpeak: text, and a voice if there is one, become AUDIO. Knows no tensor and no file."""

from __future__ import annotations

import comfy.utils
from comfy_api.latest import io

from ..engine import Engine, HiggsError, SamplingParams, Speech
from . import audio, patcher, types

NAME = "Higgs Speak"
BIGGEST_SEED = 2**64 - 1


class HiggsTTSSpeak(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSSpeak",
            display_name=NAME,
            category=types.CATEGORY,
            description="Speaks a text, with a voice of your own if one is connected. Long texts are split at "
            "sentence ends and their parts spoken together, as many as fit into free memory. Show or save the audio "
            "with PreviewAudio or SaveAudio.",
            search_aliases=["tts", "text to speech", "speech", "narration", "voice clone", "higgs audio", "boson"],
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model."),
                io.String.Input("text", multiline=True, tooltip="What to say. The model's own <|tags|> are kept."),
                types.Voice.Input(
                    "voice", optional=True, tooltip="From Higgs Voice or Higgs Load Voice. Without one it is anybody's."
                ),
                *_sampling_inputs(),
                *_advanced_inputs(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="24 kHz, one channel."),
                io.String.Output(
                    display_name="info", tooltip="Length, speed, why it stopped, and what you should know besides."
                ),
            ],
        )

    @classmethod
    def execute(cls, model, text: str, voice=None, scene: str = "", **settings) -> io.NodeOutput:
        with patcher.told_by(NAME):
            params = SamplingParams(**settings)
            if not text.strip():
                raise HiggsError("the text is empty. Write what is to be said.")
            speech = speak(patcher.load(model), text, voice, params, scene.strip() or None)
        return io.NodeOutput(audio.from_speech(speech), describe(speech))


def speak(engine: Engine, text: str, voice, params: SamplingParams, scene: str | None) -> Speech:
    """`engine.speak` with the node's progress bar; stops within a few frames when the user says so."""
    bar = comfy.utils.ProgressBar(1)

    def on_frame(done: int, expected: int) -> None:
        patcher.check_interrupt()  # the bar asks too, but only when it redraws
        bar.update_absolute(done, expected)

    patcher.check_interrupt()
    speech = engine.speak(text, voice, params, scene=scene, on_frame=on_frame)
    bar.update_absolute(speech.frames, speech.frames)  # what was expected is an estimate: end with a full bar
    return speech


def describe(speech: Speech) -> str:
    """The info output: one line of numbers, one on the end, one on what decoded, one for each warning."""
    lines = [
        f"{speech.seconds:.2f} s in {speech.elapsed:.2f} s: {speech.frames_per_second:.1f} frames/s, "
        f"RTF {speech.rtf:.3f}" + (f", {speech.chunks} chunks" if speech.chunks > 1 else ""),
        f"Stopped at: {speech.stopped}",
        f"Decoded by: {speech.how}",
    ]
    return "\n".join([*lines, *(f"Warning: {warning}" for warning in speech.warnings)])


def _sampling_inputs() -> list[io.Input]:
    usual = SamplingParams()
    return [
        io.Int.Input(
            "seed",
            default=usual.seed,
            min=0,
            max=BIGGEST_SEED,
            control_after_generate=True,
            optional=True,
            tooltip="The same seed and inputs give the same speech on the same kind of device.",
        ),
        io.Float.Input(
            "temperature",
            default=usual.temperature,
            min=0.0,
            max=2.0,
            step=0.05,
            optional=True,
            tooltip="How freely it speaks. Lower is steadier and flatter; 0 always takes the likeliest.",
        ),
        io.Float.Input(
            "top_p",
            default=usual.top_p,
            min=0.01,
            max=1.0,
            step=0.01,
            optional=True,
            tooltip="Draws only among the likeliest codes that make up this share. 1 leaves all in.",
        ),
        io.Int.Input(
            "top_k",
            default=usual.top_k,
            min=0,
            max=1026,
            optional=True,
            tooltip="Draws only among this many likeliest codes. 0 leaves all in.",
        ),
    ]


def _advanced_inputs() -> list[io.Input]:
    usual = SamplingParams()
    return [
        io.String.Input(
            "scene",
            multiline=True,
            default="",
            optional=True,
            advanced=True,
            tooltip="v2 only: where it is spoken and how the speaker sounds: 'Audio is recorded from a quiet room.'",
        ),
        io.Int.Input(
            "max_frames",
            default=usual.max_frames,
            min=25,
            max=8192,
            optional=True,
            advanced=True,
            tooltip="Where speech that finds no end is cut, for each chunk of text: 25 frames are a second.",
        ),
        io.Float.Input(
            "chunk_seconds",
            default=usual.chunk_seconds,
            min=0.0,
            max=120.0,
            step=5.0,
            optional=True,
            advanced=True,
            tooltip="Longer texts are split at sentence ends into chunks of about this length. 0 never splits.",
        ),
    ]
