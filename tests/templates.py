"""The templates by the names that tests call them: what the template browser shows and searches."""

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
}
