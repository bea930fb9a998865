"""File access: atomic writes, bounded reads, encodings, locks and headers."""
