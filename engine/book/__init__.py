"""Books as sound files: read, speak chapter by chapter, go on where it was stopped."""
