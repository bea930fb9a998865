"""What a node is given that takes lists whole (`is_input_list`): ComfyUI hands it every input as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine import HiggsError


def single(name: str, values: Sequence[Any] | Mapping[str, Any], several: str) -> Any:
    """The one value of an input, or of each of its sockets.

    Raises HiggsError where a list of more is linked. several: the input that may have such a list.
    """
    if isinstance(values, Mapping):
        return {socket: single(socket, held, several) for socket, held in values.items()}
    if len(values) != 1:
        raise HiggsError(
            f"{name} received {len(values)} values, but only {several} can be a list. Connect a single {name}."
        )
    return values[0]
