"""HiggsTTSSaveVoice and HiggsTTSLoadVoice: save voices to models/voices and load them."""

from __future__ import annotations

import functools
from itertools import count
from pathlib import Path

from comfy_api.latest import io, ui

from ..engine import (
    CLIP_SUFFIXES,
    MAX_CLIP_SECONDS,
    HiggsError,
    Voice,
    clip_seconds,
    file_stamp,
    read_reference,
    transcript_of,
)
from . import voice
from .comfy import types
from .comfy.linked import check_linked
from .comfy.node_errors import node_errors, refusal
from .comfy.remote_model import AnyModel
from .comfy.widgets import upload_button
from .comfy.written import Written
from .library.voice_folders import SAVED, UPLOADED, choices, find_voice, numbered, voice_target

SAVE_NAME, LOAD_NAME = "Higgs Save Voice", "Higgs Load Voice"
_saved = Written()  # by requested path


class HiggsTTSSaveVoice(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSSaveVoice",
            display_name=SAVE_NAME,
            category=types.CATEGORY,
            description="Saves a voice to models/voices, where Higgs Load Voice finds it.",
            search_aliases=["save voice", "voice library", "higgs audio", "tts"],
            is_output_node=True,
            inputs=[
                types.Voice.Input("voice", tooltip="From Higgs Voice."),
                io.String.Input("name", default="my voice", tooltip="The file name. Use / for subfolders."),
                io.Boolean.Input(
                    "overwrite",
                    default=False,
                    optional=True,
                    tooltip="Replace an existing voice of the same name. If off, the new file gets a number.",
                ),
            ],
            outputs=[types.Voice.Output(display_name="voice", tooltip="The same voice, so you can chain nodes.")],
        )

    @classmethod
    def fingerprint_inputs(cls, name: str | None, **others: object) -> list:
        """Save again only if the file has been deleted or changed. A linked name is None."""
        if name is None:
            return []
        return [_saved.number(voice_target(name))]

    @classmethod
    def execute(cls, voice: Voice, name: str, overwrite: bool = False) -> io.NodeOutput:
        with node_errors(SAVE_NAME):
            check_linked(voice=voice)
            wanted = voice_target(name)
            path = wanted if overwrite else _free_name(wanted, voice)
            if not _is_saved_in(path, voice):  # an identical file keeps its time, so Load Voice need not read it again
                voice.save(path)
            _saved.leave(wanted, functools.partial(file_stamp, path))
        return io.NodeOutput(voice, ui=ui.PreviewText(_where(path, wanted)))


def _free_name(path: Path, voice: Voice) -> Path:
    """Return `path`, or the first numbered name beside it that is free or holds this voice. Never overwrites."""
    names = (numbered(path, number) for number in count(1))
    return next(name for name in names if not name.exists() or _is_saved_in(name, voice))


def _where(path: Path, wanted: Path) -> str:
    saved = f"Saved as {path.name} in {path.parent}"
    return saved if path == wanted else f"{saved} ({wanted.name} already contains a different voice)"


class HiggsTTSLoadVoice(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLoadVoice",
            display_name=LOAD_NAME,
            category=types.CATEGORY,
            description="Loads a saved voice, or makes one from a clip in models/voices.",
            search_aliases=["load voice", "voice library", "narrator", "higgs audio", "tts"],
            inputs=[
                io.Combo.Input(
                    "voice",
                    options=list(choices()),
                    extra_dict=upload_button(CLIP_SUFFIXES, f"{UPLOADED}/"),
                    tooltip="Saved voices and clips (.wav, .flac, .mp3, .m4a, .opus, .mp4, ...) in models/voices, "
                    "clips in ComfyUI's input folder, and the built-in voices. Write the words of name.wav into "
                    "name.txt or name.reference.txt next to it; cloning works less well without a transcript.",
                ),
                types.Model.Input(
                    "model", optional=True, tooltip="Turns a clip into a voice. Not needed for saved voices."
                ),
            ],
            outputs=[
                types.Voice.Output(display_name="voice", tooltip="For Higgs Speak."),
                io.String.Output(display_name="info", tooltip=voice.INFO_TIP),
            ],
        )

    @classmethod
    def validate_inputs(cls, voice: str | None) -> bool | str:
        """Check the voice. A name saved on another machine is accepted; a linked one (None) is checked later."""
        if voice is None:
            return True
        return refusal(LOAD_NAME, lambda: find_voice(voice))

    @classmethod
    def fingerprint_inputs(cls, voice: str | None, **others: object) -> list:
        if voice is None:
            return []
        return fingerprint(find_voice(voice))

    @classmethod
    def execute(cls, voice: str, model: AnyModel | None = None) -> io.NodeOutput:
        with node_errors(LOAD_NAME):
            path = find_voice(str(voice))
            loaded = load(path, model)
        return io.NodeOutput(loaded, _describe(path, loaded))


def load(path: Path, model: AnyModel | None) -> Voice:
    """Return the voice in a file. A clip is encoded with the model."""
    if path.suffix.lower() == SAVED:
        return Voice.load(path)
    if model is None:
        raise HiggsError(
            f"{path.name} is an audio clip, which needs a model to become a voice. Connect Higgs Load Model."
        )
    check_linked(model=model)
    if (seconds := clip_seconds(path)) > MAX_CLIP_SECONDS:
        raise HiggsError(
            f"{path.name} is {seconds:.0f} s long, but a voice can use at most {MAX_CLIP_SECONDS:.0f} s. Use Load "
            "Audio and Higgs Voice instead, and choose a part with start and length."
        )
    transcript, _ = transcript_of(path)
    return voice.encode(model, *read_reference(path), transcript=transcript, name=path.stem)


def _describe(path: Path, loaded: Voice) -> str:
    remedy = "" if path.suffix.lower() == SAVED else f"Write its words into {path.stem}.txt next to the clip."
    return f"{path.name}: {voice.describe(loaded, remedy)}"


def fingerprint(path: Path) -> list:
    """Return the stamps of a voice file and its transcript."""
    return [*file_stamp(path), *transcript_of(path)]


def _is_saved_in(path: Path, voice: Voice) -> bool:
    """True if the file holds this voice. An unreadable file does not."""
    try:
        held = Voice.load(path)
    except HiggsError:
        return False
    return held.transcript == voice.transcript and held.codes.equal(voice.codes)
