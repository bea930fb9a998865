"""ComfyUI integration: memory, devices, folders, types, errors."""
