"""Files and texts with a few random faults, reproducible from the random generator."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile

LARGEST = 3 << 20  # bytes of an input
# JSON that untrusted files may hold, and json.dumps would not write.
RAW = (
    "[" * 2000 + "]" * 2000, '{"a":' * 2000 + "1" + "}" * 2000, "9" * 5000, "-" + "9" * 4000, "9" * 400, "1e400",
    "1e308", "-1e308", "NaN", "-Infinity", "0.5", "-0.0", "-1", "0", "1", "2", "8", "255", "65536", "2147483647",
    "4294967295", "9223372036854775807", "9223372036854775808", "18446744073709551615", "-9223372036854775809", "true",
    "false", "null", '""', '"\\ud800"', '"\\u0000"', '"\\n\\r"', '"' + "x" * 100_000 + '"', '"' + "." * 5000 + '"',
    '"' + "a." * 3000 + '"', '"../../../../etc/passwd"', '"F4"', "[]", "{}", "[[]]", "[" + "0," * 5000 + "0]", '["a"]',
    '{"a": {}}', "[0, 1e300]", "[-1, 0]", "[1.5]", "[true]", "[9223372036854775807, 9223372036854775807, 2]",
)  # fmt: skip
KEYS = ("", "a" * 100_000, "." * 3000, "\x00", "\n", "é", "__metadata__", "0", "(a+)+$", "x.weight", "x.comfy_quant")
LETTERS = (
    "\x00",
    "\r",
    "\x0b",
    "\u2028",
    "\ufeff",
    "\ud7ff",
    "\U0001f600",
    "é",
    "\x85",
    "\t",
    "\u202e",
    "İ",
    "ß",
    "²",
    "١",
)


def bytes_of(rng: random.Random, data: bytes, first: int | None = None, in_place: bool = False) -> bytes:
    """Flip, cut, double and replace bytes. first: only that many at the beginning; in_place: nothing moves."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        size = max(1, min(len(data), first or len(data)))
        at, length = rng.randrange(size), rng.choice((1, 2, 4, 8, 64, 1024))
        kind = rng.choice((0, 1, 4, 4, 5, 5, 6) if in_place else range(8))
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * rng.choice((1, 2, 100))
        elif kind == 4:
            number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**40, rng.randrange(2**20)))
            data[at : at + 8] = struct.pack("<Q", number)
        elif kind == 5:
            data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2, 7, 9, 255, 2**31, 2**32 - 1, rng.randrange(64))))
        elif kind == 6:
            data[at : at + length] = bytes([rng.choice((0, 255))]) * length
        else:
            del data[rng.randrange(len(data) + 1) :]
    return bytes(data[:LARGEST])


def text_of(rng: random.Random, text: str, tokens: tuple[str, ...]) -> str:
    """Repeat tokens of the grammar, move lines, insert odd letters and numbers and long blanks."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, kind = rng.choice((rng.randrange(len(text) + 1), len(text))), rng.randrange(9)
        token = rng.choice(tokens)
        if kind in (0, 1, 2):
            repeated = token + rng.choice(("", "", " ", "a", "\n", rng.choice(tokens)))
            times = rng.choice((1, 3, 100, 10_000, 30_000, 100_000))
            text = text[:at] + repeated * min(times, LARGEST // 4 // len(repeated)) + text[at:]
        elif kind == 3:
            text = text[:at] + rng.choice((" ", "\n", "\t", "\u3000")) * rng.choice((10, 10_000, 200_000)) + text[at:]
        elif kind == 4:
            text = text[:at] + rng.choice(LETTERS) * rng.choice((1, 1, 1000)) + text[at:]
        elif kind == 5:
            numbers = [*re.finditer(r"\d+", text[:100_000])]
            if numbers:
                number, odd = rng.choice(numbers), rng.choice(("9" * 5000, "0", "-1", "1e9", "٣", "", "99999999", "²"))
                text = text[: number.start()] + odd + text[number.end() :]
        elif kind == 6:
            lines = text.split("\n")
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
            rng.shuffle(lines) if rng.random() < 0.2 else None
            text = "\n".join(lines)
        elif kind == 7:
            text = text[:at] + text[at + rng.choice((1, 5, 50)) :]
        else:
            text = text * rng.choice((2, 50, 500)) if len(text) < 4000 else text[: rng.randrange(len(text))]
        text = text[:LARGEST]
    return text


def json_of(rng: random.Random, data: bytes) -> bytes:
    """Change values, ranges and depths; drop, add or change names. Input that is not JSON loses bytes."""
    try:
        held = json.loads(data)
    except (ValueError, RecursionError):
        return bytes_of(rng, data)
    if rng.random() < 0.1:
        return bytes_of(rng, data)
    odd: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        held = _changed(rng, held, odd)
    text = json.dumps(held)
    for at, raw in enumerate(odd):
        text = text.replace(f'"@{at}@"', raw, 1)
    return text.encode("utf-8", "surrogatepass")[:LARGEST]


def _changed(rng: random.Random, held: object, odd: list[str]) -> object:
    """Change one value or name, at a random depth."""
    if isinstance(held, (dict, list)) and held and rng.random() < 0.85:
        keys = list(held) if isinstance(held, dict) else range(len(held))
        # Prefer the first few names over the thousandth tensor.
        key = rng.choice(keys) if rng.random() < 0.7 else keys[rng.randrange(min(len(keys), 4))]
        kind = rng.random()
        if isinstance(held, list) and kind < 0.15:
            held[key:key] = [held[key]] * rng.choice((1, 2, 5000))
        elif kind < 0.25:
            del held[key]
        elif isinstance(held, dict) and kind < 0.4:
            held[rng.choice(KEYS)] = held[key] if rng.random() < 0.5 else held.pop(key)
        else:
            held[key] = _changed(rng, held[key], odd)
        return held
    odd.append(rng.choice(RAW))
    return f"@{len(odd) - 1}@"


def gguf_of(rng: random.Random, data: bytes) -> bytes:
    """Change a setting's type or length, put odd numbers and bytes in the header, or damage bytes anywhere."""
    if rng.random() < 0.5:
        return bytes_of(rng, data, rng.choice((400, 4000, 24_000, None)), in_place=rng.random() < 0.7)
    held, names = bytearray(data), [*re.finditer(rb"(?:audiocpp|general)\.[a-z_.]+", data[:100_000])]
    for _ in range(rng.choice((1, 1, 3))):
        after = rng.choice(names).end()
        kind = rng.choice((0, 1, 2))
        if kind == 0:  # the items of an array
            held[after + 4 : after + 8] = struct.pack("<I", rng.choice((4, 5, 6, 7, 8, 10, 11, 12)))
        elif kind == 1:  # their number
            held[after + 8 : after + 16] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**61, 2**64 - 1, 10**6)))
        else:  # one of them
            at = after + 16 + 8 * rng.randrange(100)
            held[at : at + 8] = rng.choice((struct.pack("<q", -1), struct.pack("<d", float("nan")), rng.randbytes(8)))
    return bytes(held)


def safetensors_of(rng: random.Random, data: bytes) -> bytes:
    """Change the header as in `json_of`, or damage bytes near the beginning."""
    if rng.random() < 0.25:
        return bytes_of(rng, data, 4096)
    length = int.from_bytes(data[:8], "little")
    header = json_of(rng, data[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def zip_of(rng: random.Random, data: bytes, tokens: tuple[str, ...]) -> bytes:
    """Change one file inside as a text, compress it otherwise, or damage the archive itself."""
    kind = rng.random()
    packed = (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2) if kind < 0.1 else (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    method = rng.choice(packed)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(out, "w", method) as made:
        names = given.namelist()
        chosen = rng.choice(names) if kind < 0.85 else None
        for name in names:
            held = given.read(name)
            if name == chosen:
                changed = text_of(rng, held.decode(), tokens)
                held = changed.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "cp1252")), "replace")
            made.writestr(name, held)
    return bytes_of(rng, out.getvalue()) if kind > 0.8 or kind < 0.1 else out.getvalue()
