"""Answers without speaking: length of a text, a voice's sound, the words of a clip."""
