"""The info output of nodes that speak, with the same lines in the same order everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from ...engine import VERSION, Retried

_MOST_RETRIES = 8  # lines about retries


def info(
    outcome: Iterable[str],
    warnings: Iterable[str],
    retries: Iterable[Retried],
    lines: Iterable[str],
    model: str,
    details: str,
) -> str:
    """Join the outcome, warnings, retries, the node's own lines, the model, and a line for engineers."""
    again = [f"Spoken again: {chunk}." for chunk in retries]
    if len(again) > _MOST_RETRIES:
        again = [*again[:_MOST_RETRIES], f"Spoken again: {len(again) - _MOST_RETRIES} more chunks."]
    report = [*outcome, *(f"Warning: {warning}" for warning in warnings), *again, *lines]
    return "\n".join([*report, f"Model: {model}", f"Details: {details} Higgs TTS {VERSION}"])
