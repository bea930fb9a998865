"""HiggsTTSSpeak: turns text, and optionally a voice, into AUDIO."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import comfy.utils
from comfy_api.latest import io

from ..engine import (
    CueSpeech,
    HiggsError,
    Listener,
    Pronunciations,
    SamplingParams,
    SpeechAPI,
    SpeechResult,
    Voice,
    Word,
    duration,
    read_dialogue,
    read_pronunciations,
    to_srt,
    words_json,
)
from .comfy import audio, progress_text, types, widgets
from .comfy.exit_guard import is_exiting
from .comfy.info import info
from .comfy.linked import check_linked, is_used
from .comfy.memory import load_engine
from .comfy.node_errors import check_interrupt, node_errors, refusal
from .comfy.remote_model import AnyModel
from .finish import Finish, bed_inputs, bed_of, finish_inputs
from .library.voice_folders import PRONUNCIATIONS, listed_pronunciations
from .page import events
from .retakes import read_retakes, retakes_input
from .voice import transcript_warnings
from .word_times import srt_words_input, words_if_needed, words_output

NAME = "Higgs Speak"
WORDS = "HiggsTTSSpeak", 3  # the output
Speech = TypeVar("Speech", SpeechResult, CueSpeech)
PARAGRAPH_GAP = 0.6  # seconds, for a new node
SENTENCE = "Hello! This is how I sound when I read a sentence to you."


class HiggsTTSSpeak(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSSpeak",
            display_name=NAME,
            category=types.CATEGORY,
            description="Turns text into speech, in a cloned voice if you connect one. Long texts are split between "
            "sentences, and the parts are generated together as far as memory allows. Play the result on the node, and "
            "choose save_as to keep it.",
            search_aliases=["tts", "text to speech", "speech", "narration", "voice clone", "higgs audio", "boson"],
            is_output_node=True,
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                io.String.Input(
                    "text",
                    multiline=True,
                    default=SENTENCE,
                    tooltip="The text to speak. [pause 1.5] adds 1.5 seconds of silence. Control tags such as "
                    "<|emotion:elation|> also work; the node's help (i) lists them.",
                ),
                types.Voice.Input(
                    "voice",
                    optional=True,
                    tooltip="From Higgs Voice or Higgs Load Voice. Without one, the model picks a voice that changes "
                    "with the seed. The embedded model always uses the same voice.",
                ),
                *sampling_inputs(),
                *advanced_inputs(),
                retries_input(),
                srt_words_input(),
                check_input(),
                retakes_input(),
                *finish_inputs(),
                *bed_inputs(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="24 kHz, mono, or the format of the bed."),
                io.String.Output(
                    display_name="info", tooltip="Length, speed, whether all of the text was spoken, and any warnings."
                ),
                srt_output(),
                words_output(),
                io.String.Output(
                    display_name="said",
                    tooltip="The text as the model gets it: with your pronunciations, and with the embedded model "
                    "with figures, units, signs and capitals in words.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, text: str | None) -> bool | str:
        """Refuse an empty text before the run. A linked one (None) is checked when the node runs."""
        return refusal(NAME, lambda: text is None or _check_text(text))

    @classmethod
    def fingerprint_inputs(cls, **inputs: object) -> list:
        """Speak again if the pronunciations in models/voices have changed, or if `words` was connected."""
        return [listed_pronunciations(), is_used(*WORDS)]

    @classmethod
    def execute(
        cls,
        model: AnyModel,
        text: str,
        voice: Voice | None = None,
        scene: str = "",
        pronunciations: str = "",
        srt_words: int = 0,
        retakes: str = "",
        **settings: Any,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model, **({} if voice is None else {"voice": voice}))
            finish = Finish.take(settings, cls.hidden)
            finish.spoken_by([voice])
            finish.bed, finish.lower_bed = bed_of(settings)
            params = sampling(settings, SamplingParams())
            _check_text(text)
            spoken, again = pronunciations_of(pronunciations).apply(text), read_retakes(retakes)
            engine = load_engine(model)
            speak = functools.partial(engine.speak, spoken, voice, params, scene=scene.strip() or None, retakes=again)
            doubts = transcript_warnings([] if voice is None else [voice])
            speech, words = with_player(engine, speak, params.seed, text, retakes, doubts, finish)
            words = words_if_needed(engine, speech, WORDS, srt_words, words)
        about = describe(speech, model.model.label, (*model.model.warnings, *doubts, *_hints(text)), *finish.lines)
        texts = to_srt(speech, words, srt_words), words_json(words), engine.planner.read_as(spoken)
        return io.NodeOutput(audio.of_wave(*finish.result), about, *texts)


def _check_text(text: str) -> None:
    if not text.strip():
        raise HiggsError("the text is empty. Enter the text to speak.")


FRESH = SamplingParams(paragraph_gap=PARAGRAPH_GAP)  # defaults of nodes that no old workflow contains


def sampling(settings: Mapping[str, float], fresh: SamplingParams = FRESH) -> SamplingParams:
    """Apply a node's settings to the defaults of a new node. Raises HiggsError for an unknown input."""
    known = {field.name for field in fields(SamplingParams)}
    if unknown := sorted(settings.keys() - known):
        raise HiggsError(f"there is no input {unknown[0][:80]!r}. Remove it. Voice sockets end at voice_16.")
    return replace(fresh, **settings)


def pronunciations_of(pronunciations: str) -> Pronunciations:
    """Return the node's pronunciations, followed by those in models/voices."""
    own = read_pronunciations(pronunciations)
    return Pronunciations(own.entries + read_pronunciations(listed_pronunciations(), PRONUNCIATIONS).entries)


def _hints(text: str) -> list[str]:
    """Return a hint that a text which looks like a script needs another node."""
    speakers = [name for name in read_dialogue(text).speakers if name]
    if not speakers:
        return []
    return [f"Names such as {speakers[0]} are read aloud here. Use Higgs Dialogue to give each speaker a voice."]


def with_player(
    engine: SpeechAPI,
    speak: Callable[..., SpeechResult],
    seed: int | None = None,
    said: str = "",
    retakes: str = "",
    doubts: Sequence[str] = (),
    finish: Finish | None = None,
) -> tuple[SpeechResult, tuple[Word, ...] | None]:
    """Like `with_bar`, but also plays on the page that queued the run, if it listens, and returns the page's words.

    seed, said, retakes, doubts: see `events.heard`. finish: brings the result to its loudness, and saves it.
    """
    finish = finish or Finish()
    with events.heard(seed, said, retakes, doubts) as sound:
        if sound is None:
            return finish.finish(with_bar(speak)), None
        speech = with_bar(speak, Listener(sound.step, sound.hear, sound.begin_anew, sound.spell))
        words, heard = engine.words(speech), speech.wav
        speech = finish.finish(speech)
        if finish.bed:
            heard = audio.for_player(*finish.result)
        sound.finish(heard, words, finish.path or finish.result)  # as streamed: the volume must not jump
    return replace(speech, warnings=(*speech.warnings, *sound.problems())), words


def with_bar(speak: Callable[..., Speech], listener: Listener | None = None) -> Speech:
    """Return `speak(listener=...)` with the node's progress bar. Stops within a few frames if the user presses stop.

    Unless `listener` has an on_frame, the time left is shown below the bar.
    """
    bar, left = comfy.utils.ProgressBar(1), progress_text.TimeLeft()
    listener = listener or Listener()
    tell = listener.on_frame or left.step

    def on_frame(done: int, expected: int) -> None:
        if is_exiting():
            raise InterruptedError("ComfyUI exits")  # ends other devices' threads; `node_errors` then holds this one
        check_interrupt()  # the bar checks too, but only when it redraws
        bar.update_absolute(done, expected)
        tell(done, expected)

    check_interrupt()
    with left:
        speech = speak(listener=replace(listener, on_frame=on_frame))
    bar.update_absolute(speech.frames, speech.frames)  # the total was an estimate: end with a full bar
    return speech


def describe(
    speech: SpeechResult,
    model: str,
    warnings: tuple[str, ...] = (),
    *more: str,
    result: tuple[str, Iterable[object]] | None = None,
) -> str:
    """Return the info output of one speech. more: the node's own lines. result: outcome and doubts, if not its own."""
    end, doubts = result or (speech.outcome, speech.doubts)
    chunks = f", {speech.chunks} chunks" if speech.chunks > 1 else ""
    chunks += f" ({speech.reused} reused)" if speech.reused else ""
    peak = f" Peak memory: {speech.peak_bytes / 1e9:.1f} GB." if speech.peak_bytes else ""
    return info(
        [f"{duration(speech.seconds)} of speech in {duration(speech.elapsed)}{_pace(speech)}. {end}"],
        (*warnings, *speech.warnings, *map(str, doubts)),
        speech.spoken_again,
        more,
        model,
        f"{speech.frames} frames{chunks}, {speech.frames_per_second:.0f} frames/s. Backend: {speech.how}.{peak}",
    )


def _pace(speech: SpeechResult) -> str:
    if not speech.seconds or not speech.elapsed:
        return ""
    return f", {speech.seconds / speech.elapsed:.1f} times real time"


def sampling_inputs(new_seeds: bool = True) -> list[io.Input]:
    """Return the sampling widgets. new_seeds: the seed can change by itself after each run."""
    steady = f"{SamplingParams.temperature}, {SamplingParams.top_p}, {SamplingParams.top_k}"
    return [
        widgets.number(
            SamplingParams,
            "seed",
            control_after_generate=new_seeds,
            tooltip="The same seed and inputs give the same speech on the same kind of device. Change it for another "
            "take.",
        ),
        widgets.number(
            SamplingParams,
            "temperature",
            tooltip="Randomness. Lower is steadier and flatter; higher is livelier and riskier. For steady speech set "
            f"temperature, top_p and top_k to {steady}; for lively speech to 1.0, 0.95, 50.",
        ),
        widgets.number(
            SamplingParams,
            "top_p",
            tooltip="Limits choices to the most likely ones, up to this total probability. Lower is steadier. 1 "
            "disables the limit.",
        ),
        widgets.number(
            SamplingParams,
            "top_k",
            tooltip="Limits choices to this many of the most likely ones. Lower is steadier. 0 disables the limit.",
        ),
    ]


def advanced_inputs(paragraphs: bool = True) -> list[io.Input]:
    """Return the advanced widgets. paragraphs: the text may have paragraphs."""
    gap = widgets.number(
        SamplingParams,
        "paragraph_gap",
        fresh=PARAGRAPH_GAP,
        advanced=True,
        tooltip="Silence between paragraphs, in seconds. Raise it for a slower reading. Blank lines separate "
        "paragraphs.",
    )
    return [
        io.String.Input(
            "scene",
            multiline=True,
            default="",
            optional=True,
            advanced=True,
            tooltip="Higgs Audio v2 only: describe the place and the speaker to change how the recording sounds, for "
            "example 'Audio is recorded from a quiet room.'",
        ),
        widgets.number(
            SamplingParams,
            "max_frames",
            advanced=True,
            tooltip="Longest speech per chunk, in frames (25 per second). Raise it if info says that speech stopped "
            "at the frame limit.",
        ),
        widgets.number(
            SamplingParams,
            "chunk_seconds",
            advanced=True,
            tooltip="Longer texts are split between sentences into chunks of about this many seconds. Lower it if "
            "long chunks run on or lose words. 0 never splits.",
        ),
        *([gap] if paragraphs else []),
        io.String.Input(
            "pronunciations",
            multiline=True,
            default="",
            optional=True,
            advanced=True,
            placeholder="Nguyen = Win",
            tooltip="Fix words that come out wrong, one per line: Nguyen = Win. Entries in "
            "models/voices/pronunciations.txt apply as well.",
        ),
    ]


def srt_output() -> io.Output:
    """The SRT output. New outputs come after it and `words`: workflows refer to outputs by position."""
    return io.String.Output(
        display_name="srt", tooltip="Subtitles in SRT format, one cue per sentence unless srt_words is set."
    )


def retries_input() -> io.Input:
    """The retries widget. Comes after those of older workflows, which store widgets by position."""
    return widgets.number(
        SamplingParams,
        "retries",
        advanced=True,
        tooltip="Maximum retries, each with a new seed, for a chunk that runs on, breaks off, falls silent or repeats "
        "itself, and for a sentence with words that are said twice or left out. The best attempt is kept. Raise it if "
        "bad ones remain; 0 disables retries.",
    )


def check_input() -> io.Input:
    """The check widget. Comes after those of older workflows, which store widgets by position."""
    return io.Boolean.Input(
        "check",
        default=SamplingParams.check,
        optional=True,
        advanced=True,
        tooltip="Check that each word is said once. Sentences that repeat or lose words are spoken again, and info "
        "names what is still in doubt. Works with models whose attention follows the words, such as the embedded one.",
    )
