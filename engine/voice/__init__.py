"""Voices, their files, and reference clips."""
