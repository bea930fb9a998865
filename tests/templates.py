"""The names of templates as the template browser shows them, by the names used in tests."""

TITLES = {
    "speak": "Higgs TTS - Text to Speech",
    "clone_voice": "Higgs TTS - Voice Cloning",
    "long_narration": "Higgs TTS - Long Narration",
    "dialogue": "Higgs TTS - Dialogue",
    "lines": "Higgs TTS - Game Lines",
    "subtitles": "Higgs TTS - Subtitles and Dubbing",
    "book": "Higgs TTS - Book",
    "server": "Higgs TTS - Server",
    "lora": "Higgs TTS - LoRA",
    "training": "Higgs TTS - Training",
    "lip_sync": "Higgs TTS - Lip Sync",
}
