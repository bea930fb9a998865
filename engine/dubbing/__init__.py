"""Cues of a subtitle file, spoken at their times, with the voices of a film and over its sound."""
