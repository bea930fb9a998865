"""The one exception the pack raises on purpose. Its text is read by users: it names the value and the remedy."""


class HiggsError(Exception):
    """What went wrong, with the file or value that caused it and what to do about it."""


# ComfyUI shows an exception's full name before its text, and this module's name holds the path of the pack.
HiggsError.__module__ = "builtins"
