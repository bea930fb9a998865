"""Signal processing of speech: levels, loudness, tempo, resampling, joins."""
