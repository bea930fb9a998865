"""Sound after it was spoken: levels, loudness, joins."""
