"""Workers of a Ray cluster that speak as one engine. Alone in importing ray."""
