"""Comparison of voices."""
