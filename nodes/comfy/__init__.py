"""ComfyUI's side: memory, devices, folders, types, errors."""
