"""The pack's own socket types."""

from __future__ import annotations

from comfy_api.latest import io

Model = io.Custom("HIGGS_TTS_MODEL")  # a HiggsPatcher or a ServerModel
Voice = io.Custom("HIGGS_TTS_VOICE")  # an engine Voice
CATEGORY = "audio/tts/Higgs"
