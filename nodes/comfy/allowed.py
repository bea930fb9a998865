"""Allowlists for paths and servers outside ComfyUI's folders, in its user folder where no workflow can write."""

from __future__ import annotations

import os
from pathlib import Path

from ...engine import KEY_VARIABLE, Address, HiggsError, read_addresses, read_plain_text
from . import folders

PLACE = "higgs_tts"  # below ComfyUI's user folder
FOLDERS, SERVERS = "folders.txt", "servers.txt"


def readable(name: str) -> Path:
    """Return the file that a workflow names, in ComfyUI's input folder or by its full path.

    Raises HiggsError for a path outside ComfyUI's folders that the user has not listed.
    """
    path = Path(os.path.normpath(folders.input_folder() / name))
    roots = [*folders.known(), *map(Path, _lines(FOLDERS))]
    if not any(path.is_relative_to(os.path.normpath(root)) for root in roots):
        raise HiggsError(
            f"{str(path)[:200]} is outside the folders a workflow may read: ComfyUI's input, output, temp and model "
            "folders. Move the file to the input folder. If you trust this workflow, add the line "
            f"{str(path.parent)[:200]} to {_list(FOLDERS)} instead."
        )
    return path


def check_keys(addresses: str, variable: str) -> None:
    """Check where a key is sent. Raises HiggsError for a server that the user has not listed."""
    confirmed = _servers()
    for address in read_addresses(addresses, variable):
        if os.environ.get(address.variable) and address not in confirmed:
            raise HiggsError(
                f"the key in {address.variable} was not sent to {address.label}, because you have not confirmed that "
                f"server. If you trust it, add the line {address.line} to {_list(SERVERS)} and run again."
            )


def _servers() -> list[Address]:
    try:
        return [address for line in _lines(SERVERS) for address in read_addresses(line, KEY_VARIABLE)]
    except HiggsError as error:
        raise HiggsError(f"{_list(SERVERS)} cannot be read: {error}") from error


def _lines(name: str) -> list[str]:
    try:
        lines = map(str.strip, read_plain_text(_list(name))[0].splitlines())
    except OSError:  # no such list
        return []
    return [line for line in lines if line and not line.startswith("#")]


def _list(name: str) -> Path:
    return folders.user() / PLACE / name
