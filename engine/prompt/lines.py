"""Parser of line sheets, one audio file per row: CSV, JSON or plain text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.config import SamplingParams, range_of
from ..core.errors import HiggsError, shown
from .names import speaker_key

FIELDS = ("id", "speaker", "text", "seed")
_KNOWN = f"Columns are {', '.join(FIELDS)}."
_DELIMITERS = (",", ";", "\t")
# Plain text may begin with [pause 1], but not with these.
_JSON = re.compile(r"\s*(\{\s*[\"}]|\[\s*[{\[\]\"'])")


@dataclass(frozen=True)
class LinesRow:
    """A row of the sheet. id: name of its file. speaker: empty if there is none."""

    number: int  # from 1, without the header
    id: str
    speaker: str
    text: str
    seed: int | None = None


def read_lines(*texts: str) -> list[LinesRow]:
    """Parse CSV with a header, JSON (a list of objects, or id -> text), or plain text with one row per line.

    Several texts are one row of plain text each, whatever they look like. A row without an id gets its number as "001".
    Rows without text are kept. A speaker keeps the first spelling. Raises HiggsError, naming the row, if an id
    repeats, a column is unknown, a seed is not a number or the sheet is broken.
    """
    texts = tuple(text.lstrip("\ufeff") for text in texts)
    text = texts[0] if len(texts) == 1 else ""
    if not any(map(str.strip, texts)):
        raise HiggsError(
            "there are no lines. Enter one line per row, or a sheet with the columns id, speaker and text."
        )
    fields: Sequence[Mapping[str, object]]
    if len(texts) > 1:
        fields = [{"text": text} for text in texts]
    elif _JSON.match(text):
        fields = _from_json(text)
    elif delimiter := _delimiter_of(text):
        fields = _from_csv(text, delimiter)
    else:
        fields = [{"text": line} for line in text.splitlines() if line.strip()]
    rows: list[LinesRow] = []
    spelled: dict[str, str] = {}  # speaker's key -> first spelling
    taken: dict[str, int] = {}
    for number, given in enumerate(fields, 1):
        row = _row(number, given, spelled)
        key = row.id.casefold()  # some file systems ignore case
        if key in taken:
            raise HiggsError(
                f"row {number}: the id {shown(row.id)} is already used by row {taken[key]}. Give each row its own id."
            )
        taken[key] = number
        rows.append(row)
    return rows


def with_seed(text: str, row_id: str, seed: int) -> str:
    """Return the sheet with a seed set for one row. Plain text becomes CSV.

    Raises HiggsError if there is no such row, and as `read_lines`.
    """
    rows = read_lines(text)
    if not (number := next((row.number for row in rows if row.id == row_id), 0)):
        raise HiggsError(f"row {shown(row_id)} no longer exists. Run the node again.")
    _seed(number, str(seed))
    text = text.lstrip("\ufeff")
    if _JSON.match(text):
        return _json_with_seed(json.loads(text), number, seed)
    if delimiter := _delimiter_of(text):
        cells = list(filter(None, csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=delimiter)))
    else:
        cells = [["id", "text"], *([row.id, row.text] for row in rows)]
    place = next((at for at, name in enumerate(cells[0]) if name.strip().casefold() == "seed"), len(cells[0]))
    if place == len(cells[0]):
        cells[0].append("seed")
    cells[number] += [""] * (place + 1 - len(cells[number]))
    cells[number][place] = str(seed)
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter or ",", lineterminator="\n").writerows(cells)
    return out.getvalue().rstrip("\n")


def _json_with_seed(held: dict | list, number: int, seed: int) -> str:
    place = list(held)[number - 1] if isinstance(held, dict) else number - 1
    if not isinstance(held[place], dict):
        held[place] = {"text": held[place]}
    name = next((name for name in held[place] if name.strip().casefold() == "seed"), "seed")
    held[place][name] = seed
    return json.dumps(held, ensure_ascii=False, indent=2)


def _row(number: int, given: Mapping[str, object], spelled: dict[str, str]) -> LinesRow:
    held = {name: _plain(number, name, value) for name, value in given.items()}
    name = held.get("id", "").replace("\\", "/")
    if speaker := " ".join(held.get("speaker", "").split()):
        speaker = spelled.setdefault(speaker_key(speaker), speaker)
    name = re.sub(r"\.wav$", "", name, flags=re.IGNORECASE)  # the file gets its suffix later
    return LinesRow(number, name or f"{number:03}", speaker, held.get("text", ""), _seed(number, held.get("seed", "")))


def _plain(number: int, name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value).encode(errors="replace").decode().strip()  # JSON may hold lone surrogates
    try:
        spelled = json.dumps(value)[:80]
    except RecursionError:  # deeply nested lists
        spelled = shown(value)
    raise HiggsError(f"row {number}: {name} is {spelled}. Write it as a string.")


def _seed(number: int, seed: str) -> int | None:
    if not seed:
        return None
    low, high, _ = range_of(SamplingParams, "seed")
    if not (seed.isdecimal() and len(seed) <= len(str(high)) and low <= int(seed) <= high):
        raise HiggsError(
            f"row {number}: seed is {shown(seed)}. Write a whole number from {low} to {high}, or leave it empty."
        )
    return int(seed)


def _named(row: str, names: list[str]) -> list[str]:
    """Normalise column names. Raises HiggsError if one is unknown or repeats."""
    columns = [name.strip().casefold() for name in names]
    for name in columns:
        if name not in FIELDS:
            raise HiggsError(f"{row}: {shown(name)} is not a known column. {_KNOWN} Rename or remove it.")
        if columns.count(name) > 1:
            raise HiggsError(f"{row}: the column {name} appears twice. Remove one.")
    return columns


def _delimiter_of(text: str) -> str:
    """Return the delimiter if the first line is a header, else ""."""
    first = text.strip().splitlines()[0]
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"').casefold() for name in first.split(delimiter)]
        known = len({*names} & {*FIELDS})
        if 2 * known >= len(names) and ("text" in names or known > 1 or (len(names) > 1 and names[0] == "id")):
            return delimiter
    return ""


def _from_csv(text: str, delimiter: str) -> list[dict[str, object]]:
    reader = csv.reader(io.StringIO(text.lstrip(), newline=""), delimiter=delimiter, strict=True)
    rows: list[dict[str, object]] = []
    try:
        columns = _named("the header", next(reader))
        if "text" not in columns:
            raise HiggsError(f"the header has no column named text. {_KNOWN} Rename the column to be spoken.")
        for cells in filter(None, reader):  # skips empty lines
            if len(cells) > len(columns):
                called = {",": "comma", ";": "semicolon"}.get(delimiter, "tab")
                raise HiggsError(
                    f"row {len(rows) + 1} has {len(cells)} cells, but the header has {len(columns)} columns. Put text "
                    f'that contains a {called} in double quotes ("), and write "" for a quote inside it.'
                )
            rows.append(dict(zip(columns, cells, strict=False)))
    except csv.Error as error:
        raise HiggsError(
            f"row {len(rows) + 1} cannot be read as CSV ({error}). Look for an unclosed double quote; inside quotes, "
            'write "" for a quote.'
        ) from error
    return rows


def _from_json(text: str) -> list[dict[str, object]]:
    try:
        # Pairs, since a dict would hide repeated names.
        held = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise HiggsError(f"the lines look like JSON but are invalid ({error}). Fix them, or enter CSV.") from error
    if isinstance(held, _Pairs):
        # id -> text, or id -> the rest of its row
        entries = [_Pairs([("id", name), *(given if isinstance(given, _Pairs) else [("text", given)])])
                   for name, given in held]  # fmt: skip
    else:
        entries = [_Pairs([("text", entry)]) if isinstance(entry, str) else entry for entry in held]
    rows: list[dict[str, object]] = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, _Pairs):
            raise HiggsError(
                f'row {number} is not an object. Write it like this: {{"id": "greeting", "text": "Hello!"}}.'
            )
        names = _named(f"row {number}", [name for name, _ in entry])
        rows.append(dict(zip(names, (value for _, value in entry), strict=True)))
    return rows


class _Pairs(list):
    """A JSON object as (name, value) pairs; a type of its own, unlike a JSON list."""
