"""Writing and reading files: whole or not at all, in any encoding, under a lock."""
