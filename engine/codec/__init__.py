"""The codec: codes to waveform, and clip to codes."""
