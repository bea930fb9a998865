"""Engine on HTTP servers that offer /v1/audio/speech."""
