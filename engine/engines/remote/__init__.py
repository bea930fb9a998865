"""Speech by servers: those that answer /v1/audio/speech say what an engine says here. Loads no weights."""
