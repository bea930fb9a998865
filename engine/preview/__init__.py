"""Previews without loading a talker: text checks, a voice's audio, how alike two voices are."""
