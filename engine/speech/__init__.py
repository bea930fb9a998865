"""Requests: chunks, retries, results, subtitles, and the loop that drives them over a decoder."""
