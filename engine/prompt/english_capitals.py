"""How English reads capitals and Roman numerals."""

from __future__ import annotations

import re

from .english_numbers import cardinal, ordinal, roman

UP = "A-Z\u00c0-\u00d6\u00d8-\u00de"
# Two or three capitals are letters, but for these words; longer ones are words, but for these letters.
SHORT_WORDS = set(
    "ah am an as at be by do go he hi if in is it me my no of oh on or so to up we all and any are ask bad big boy "
    "but buy can cut day did die dog eat end far few for fun get god got had has hat her hey him his hot how its job "
    "let lie man may men met mom new nor not now odd off old one our out own put ran red run sad saw say see set she "
    "sir sit six son sun ten the too top try two use war was way who why win won yes yet you dad sea sky mr mrs ms "
    "dr st shh hmm".split()
)
_LETTERS = set(
    "USA UK UN EU TV FBI CIA BBC CEO ATM DIY ID IQ AI API URL USB UFO USSR YMCA ASAP ISBN ADHD IEEE UCLA NAACP IRS "
    "IBM AKA AAA GOP IPA ESL".split()
)
_NAMES = (
    "ay bee see dee ee eff gee aitch eye jay kay el em en oh pee cue ar ess tee you vee double-you ex why zee".split()
)
_KINDS = set(
    "chapter part book volume vol act scene section article appendix phase stage type class figure table war title "
    "episode mark level grade bowl division unit lesson canto psalm".split()
)
_RULERS = set(
    "henry louis george elizabeth charles edward james richard william john paul pius benedict leo catherine philip "
    "ferdinand frederick nicholas alexander ivan napoleon innocent gregory clement urban francis mary robert malcolm "
    "david otto peter wilhelm ramesses ptolemy king queen pope".split()
)
CAPITALS = rf"[{UP}]{{2,40}}(?:['\u2019][{UP}]{{1,3}})?(?:['\u2019]?s)?|[{UP}]['\u2019][{UP}]{{1,9}}|A"
_RUN_BEFORE = re.compile(rf"(?<!\w)[{UP}]['\u2019{UP}]{{1,40}}[^\w.!?]{{1,3}}(?:[AI] )?$")
_RUN_AFTER = re.compile(rf"[^\w.!?]{{1,3}}(?:[AI] )?[{UP}]['\u2019{UP}]{{1,40}}(?!\w)")


def spelled(letters: str) -> str:
    """Return the names of letters. The embedded model says "eff bee eye" right, and "F B I" seldom."""
    return " ".join(_NAMES[ord(one) - 65] if "A" <= one <= "Z" else one for one in letters.upper())


def shouted(word: str, match: re.Match | None = None) -> str | None:
    """Return a word of capitals in small letters, or letter by letter."""
    text, start, stop = (match.string, *match.span()) if match else ("", 0, 0)
    before = text[max(0, start - 60) : start]
    in_run = bool(_RUN_BEFORE.search(before) or _RUN_AFTER.match(text[stop : stop + 60]))
    bare, end = re.fullmatch(r"(.*?)(['\u2019]?s)?", word).groups("")  # pyright: ignore[reportOptionalMemberAccess]
    if word == "A":
        return "a" if in_run and before.strip() and before.rstrip()[-1] not in ".!?:" else None
    may_be = bool(re.search("[AEIOUY'\u2019\u00c0-\u00de]", bare)) and bare not in _LETTERS
    if bare.lower() not in SHORT_WORDS and not (may_be and (in_run or len(bare) > 3 or not bare.isalpha())):
        return "okay" if bare == "OK" else spelled(bare) + end.replace("\u2019", "'")
    small = re.sub(r"^i(?=['\u2019])", "I", bare.lower() + end)
    head = before.rstrip(" \t\"'\u201c\u2018([*\u2022-")
    is_start = not head or head[-1] in ".!?:\n"
    return small[0].upper() + small[1:] if is_start or small in ("mr", "mrs", "ms", "dr", "st") else small


def dotted(match: re.Match) -> str:
    """Return initials without stops, but for that of a sentence."""
    after = match.string[match.end() : match.end() + 2]
    return spelled(match[0].replace(".", "")) + "." * (not after.strip() or after[0] == "\n")


def numeral(match: re.Match) -> str | None:
    """Return a Roman numeral in words, if what stands around it says that it is one."""
    letters, after = match[0], match.string[match.end() :][:9]
    value = roman(letters) if len(letters) > 1 or letters in "IVX" else 0
    before = match.string[max(0, match.start() - 30) : match.start()]
    word = re.search(r"([^\W\d_]+)\.?[ \u00a0]$", before)
    name, is_pronoun = word[1].lower() if word else "", letters == "I" and re.match(" [a-z]", after)
    if value and after.startswith(" century"):
        return ordinal(value)
    if value and name in _RULERS and not is_pronoun:
        return f"the {ordinal(value).capitalize()}"
    if value and name in _KINDS and not is_pronoun:
        return cardinal(value)
    if len(letters) == 1:
        return None
    if value and after.startswith(".") and (not before.strip(" ") or before.rstrip(" ").endswith("\n")):
        return cardinal(value).capitalize()
    return cardinal(value) if value and word and word[1].istitle() else shouted(letters, match)
