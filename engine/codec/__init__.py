"""The codec: codes to a waveform, and a clip to codes."""
