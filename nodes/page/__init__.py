"""Server side of the open page: routes, events, live sound."""
