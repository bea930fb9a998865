"""ComfyUI's door. Importing it does nothing but name the entry point, so that tests and tools may import it too."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Called by ComfyUI once at start."""
    from .nodes import make_extension

    return make_extension()


__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
