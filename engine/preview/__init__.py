"""Previews without loading a talker: text checks, a voice's audio, a clip's transcript."""
