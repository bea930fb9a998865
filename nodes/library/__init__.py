"""Files that nodes offer by name: checkpoints, LoRAs, voices, transcripts, subtitles."""
