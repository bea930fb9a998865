"""Scheduling of sequences over the members of a pool."""
