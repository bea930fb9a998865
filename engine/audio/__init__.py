"""Sound after it was spoken: levels, loudness, joins. Knows no model."""
