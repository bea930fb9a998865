"""The engine's door. `nodes/` and the terminal import from here and from nowhere deeper."""
