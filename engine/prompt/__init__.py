"""Text and voice to token ids."""
