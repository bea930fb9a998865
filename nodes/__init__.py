"""The list of nodes, and a check that ComfyUI is new enough for them."""

from __future__ import annotations

import logging

from comfy_api.latest import ComfyExtension, io

log = logging.getLogger("higgs_tts")


def is_new_enough() -> bool:
    """True if this ComfyUI has the API of 0.14. Checks the API itself, because forks use their own version numbers."""
    return hasattr(io, "NodeReplace")


class HiggsExtension(ComfyExtension):
    """Entry point through which ComfyUI gets the pack's nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        if not is_new_enough():
            log.error("Higgs TTS needs ComfyUI 0.14 or newer. It stays disabled until you update ComfyUI.")
            return []
        from .book import HiggsTTSBook
        from .dialogue import HiggsTTSDialogue
        from .lines import HiggsTTSLines
        from .lip_sync import HiggsTTSLipSync
        from .load import HiggsTTSLoadModel
        from .lora import HiggsTTSLoadLoRA
        from .page import routes
        from .remote import HiggsTTSServer
        from .speak import HiggsTTSSpeak
        from .subtitles import HiggsTTSSubtitles
        from .train import HiggsTTSTrainVoice
        from .transcribe import HiggsTTSTranscribe
        from .voice import HiggsTTSVoice
        from .voice_files import HiggsTTSLoadVoice, HiggsTTSSaveVoice

        routes.register()
        voices = [HiggsTTSVoice, HiggsTTSSaveVoice, HiggsTTSLoadVoice]
        speaking = [HiggsTTSSpeak, HiggsTTSDialogue, HiggsTTSLines, HiggsTTSSubtitles, HiggsTTSBook]
        after = [HiggsTTSLipSync, HiggsTTSTranscribe, HiggsTTSTrainVoice, HiggsTTSServer]
        return [HiggsTTSLoadModel, HiggsTTSLoadLoRA, *voices, *speaking, *after]


def make_extension() -> HiggsExtension:
    return HiggsExtension()
