"""Errors, codes, configuration and sequences: what every other room may import."""
