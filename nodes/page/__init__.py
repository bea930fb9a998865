"""Services for an open page: routes, events, live sound."""
