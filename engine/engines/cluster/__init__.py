"""Ray workers that speak as one engine. The only package that imports ray."""
