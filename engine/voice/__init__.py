"""A voice, its file, and the clip it is made from."""
