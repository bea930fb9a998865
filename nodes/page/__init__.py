"""What the page asks for while it is open: routes, events, live sound."""
