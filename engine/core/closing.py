"""Objects that hold device memory and are closed before it is returned."""


class Closable:
    """`close` calls `_release` once, then drops all attributes: an exception's frames may keep the object alive."""

    def close(self) -> None:
        """Release everything on the device. None of it may be running there. Safe to call twice."""
        if held := vars(self):
            self._release()
            held.clear()

    def _release(self) -> None:
        """Release what does not go with its last reference."""
