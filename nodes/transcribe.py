"""HiggsTTSTranscribe: transcribes a clip for Higgs Voice."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..engine import WHISPERS, HiggsError, download_whisper, find_whispers, transcribe, whisper_size
from .comfy import audio as clips
from .comfy import folders, types
from .comfy.devices import resolve_devices
from .comfy.memory import free_memory
from .comfy.node_errors import check_interrupt, node_errors
from .library.checkpoint_folders import DOWNLOAD
from .load import show_download
from .voice import part_inputs, part_of

NAME = "Higgs Transcribe"
folders.register(folders.WHISPER)


class HiggsTTSTranscribe(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSTranscribe",
            display_name=NAME,
            category=types.CATEGORY,
            description="Writes down what is said in a clip, using Whisper, for the transcript input of Higgs Voice. "
            "Check it for misheard words. Whisper is unloaded afterwards.",
            search_aliases=["whisper", "speech to text", "stt", "transcription", "transcript", "subtitles"],
            inputs=[
                io.Audio.Input(
                    "audio", tooltip="1 to 30 seconds of speech, or a longer recording with start and length set."
                ),
                io.Combo.Input(
                    "whisper",
                    options=choices(),
                    tooltip="A Whisper model in models/whisper, in transformers' format. A 'download' entry is "
                    "downloaded to that folder when you run the workflow: 1.0 GB, or 1.6 GB for large-v3-turbo, which "
                    "makes fewer mistakes.",
                ),
                *part_inputs(),
            ],
            outputs=[io.String.Output(display_name="transcript", tooltip="For Higgs Voice.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, whisper: str | None) -> bool | str:
        """Accept a model downloaded since ComfyUI started. A linked name (None) is checked when the node runs."""
        if whisper is None or whisper in choices() or str(whisper).removeprefix(DOWNLOAD) in WHISPERS:
            return True
        return f"{NAME}: {_missing(whisper)}"

    @classmethod
    def execute(cls, audio: dict | None, whisper: str, start: float = 0.0, length: float = 0.0) -> io.NodeOutput:
        with node_errors(NAME):
            wav, rate = clips.to_clip(audio)
            part = part_of(wav, rate, start, length)
            name, roots = str(whisper).removeprefix(DOWNLOAD), folders.registered(folders.WHISPER)
            folder = find_whispers(roots).get(name)
            if folder is None and name not in WHISPERS:
                raise HiggsError(_missing(name))
            if folder is None:
                folder = show_download(
                    lambda on_progress: download_whisper(name, roots[0], on_progress), cls.hidden.unique_id
                )
            device = torch.device(resolve_devices("auto")[0][0])
            free_memory(whisper_size(folder), device)
            check_interrupt()
            return io.NodeOutput(transcribe(folder, part, rate, device))


def _missing(whisper: str) -> str:
    place = f"models/{folders.WHISPER}"
    return f"there is no {str(whisper)[:80]!r} in {place}. Put it there and press R, or choose a download."


def choices() -> list[str]:
    """Return the local models, then those that can be downloaded."""
    here = find_whispers(folders.registered(folders.WHISPER))
    return [*here, *(DOWNLOAD + name for name in WHISPERS if name not in here)]
