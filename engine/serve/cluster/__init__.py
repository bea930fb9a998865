"""Servers that Ray places, and that speak as one engine. The only package that imports ray."""
