"""Subtitle cues spoken on time, with voices from a film and over its sound."""
