"""Errors, codes, configuration and sequences. Every other room may import this one."""
