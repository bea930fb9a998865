"""Books as sound files: read, spoken chapter by chapter, and resumed after a stop."""
