"""How English reads figures, units, signs and capitals."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from .english_capitals import CAPITALS, SHORT_WORDS, UP, dotted, numeral, shouted, spelled
from .english_numbers import amount, cardinal, digits, ordinal, pair, plural, year
from .script import PAUSE_MARKER
from .tags import TAG_LIKE

Spelling = tuple[int, int, str]  # start, stop, and what is said there
Table = Callable[[str], Iterator[Spelling]]
WORD = re.compile(r"\S+")

# A blank parts thousands, too, if one of them is 000: a 12 345 may be two numbers.
_N = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}(?![0-9])|(?<![0-9] )[1-9][0-9]{0,2}(?: [0-9]{3}){0,3} 000(?: [0-9]{3}){0,3}"
    r"(?![0-9])|[0-9]{1,40})(?:\.[0-9]{1,20})?|\.[0-9]{1,20})"
)


def _table(written: str) -> dict[str, str]:
    return dict(one.strip().split("=") for one in written.split(","))


_UNITS = _table(
    "mph=mile per hour, km/h=kilometer per hour, kph=kilometer per hour, m/s=meter per second, km=kilometer, "
    "m=meter, cm=centimeter, mm=millimeter, mi=mile, ft=foot, yd=yard, kg=kilogram, g=gram, mg=milligram, lb=pound, "
    "lbs=pound, oz=ounce, l=liter, L=liter, ml=milliliter, mL=milliliter, KB=kilobyte, MB=megabyte, GB=gigabyte, "
    "TB=terabyte, Hz=hertz, kHz=kilohertz, MHz=megahertz, GHz=gigahertz, W=watt, kW=kilowatt, MW=megawatt, "
    "kWh=kilowatt hour, V=volt, \u00b0C=degree Celsius, \u00b0F=degree Fahrenheit, \u00b0=degree, %=percent, "
    "ms=millisecond, sec=second, min=minute, hr=hour, hrs=hour, h=hour, kcal=kilocalorie, \u2033=inch"
)
_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_PLURALS = {"foot": "feet", "inch": "inches", "hertz": "hertz", "percent": "percent"}
_PLURALS |= {"kilohertz": "kilohertz", "megahertz": "megahertz", "gigahertz": "gigahertz"}
_MONEY = {"$": "dollar cent", "\u00a3": "pound penny", "\u20ac": "euro cent", "\u00a5": "yen", "\u20b9": "rupee"}
_SCALES = _table("k=thousand, m=million, mn=million, bn=billion, b=billion, tn=trillion, t=trillion")
_SCALE = r"(?i:k|mn|m|bn|b|tn|thousand|million|billion|trillion)"
_COINS = "".join(_MONEY)
_MONTHS = "January February March April May June July August September October November December".split()
# A stop behind a whole name ends a sentence.
_MONTH = rf"(?:{'|'.join(_MONTHS)}|(?:{'|'.join(month[:3] for month in _MONTHS if month != 'May')}|Sept)\.?)"
_TITLES = _table(
    "Prof=Professor, Rev=Reverend, Gen=General, Capt=Captain, Lt=Lieutenant, Sgt=Sergeant, Col=Colonel, "
    "Gov=Governor, Sen=Senator, Rep=Representative, Hon=Honorable, Pres=President, Mt=Mount, Ft=Fort, Dr=Doctor"
)
_BEFORE_NUMBERS = _table(
    "p=page, pp=pages, fig=figure, figs=figures, vol=volume, ch=chapter, sec=section, eq=equation, no=number, "
    "nos=numbers, ca=circa, approx=approximately, art=article, apt=apartment, ste=suite, rm=room, ext=extension"
)
_SHORT = _table(
    "etc=et cetera, e.g=for example, i.e=that is, vs=versus, approx=approximately, dept=department, cf=compare, "
    "a.k.a=also known as, et al=and others, jr=junior, sr=senior, inc=incorporated, ltd=limited, corp=corporation, "
    "ave=avenue, blvd=boulevard, rd=road, hwy=highway, apt=apartment"
)
_GO_ON = {"e.g", "i.e", "vs", "cf", "approx", "a.k.a"}  # a capital after them begins no sentence
_BEFORE_SAINTS = set("the in at from to and of on by near mount fort port old new lake is was did when then".split())
_SIGNS = _table(
    "&=and, +=plus, @=at, \u00d7=times, \u00f7=divided by, %=percent, \u00b1=plus or minus, \u2192=to, \u00a7=section, "
    "<=less than, >=more than, #=number, \u2264=at most, \u2265=at least, \u2260=is not, \u2248=about, \u00b0=degrees"
) | {"=": "equals"}
_OPERATORS = {">=": "at least", "<=": "at most", "!=": "is not", "==": "equals", "->": "to", "-->": "to", "=>": "to"}
_SENTENCE = re.compile(r"[\"'\u201d\u2019)]?(?:\s+[\"\u201c(]?[A-Z]|\s*$|\n)")  # ends here
_COMPASS = {"N": "North", "S": "South", "E": "East", "W": "West"}
_IN_ADDRESSES = _SIGNS | {".": "dot", "/": "slash", "-": "dash", "_": "underscore", ":": "colon", "#": "hash", "?": ""}
_PICTURE = "[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\ufe0f\u200d\u20e3\U000e0020-\U000e007f\u2122\u00ae\u00a9]"


def spellings(text: str) -> Iterator[Spelling]:
    """Yield (start, stop, what is said) for each part of a text that is not said as written."""
    at = 0
    while match := _NEXT.search(text, at):
        (pattern, say), at = _RULES[(match.lastindex or 1) - 1], match.end()
        again = pattern.match(text, match.start())  # with the groups of its own
        if again and (spelling := say(again)) is not None and spelling != match[0]:
            yield match.start(), at, spelling


def _units(count: str, unit: str) -> str:
    head, _, rest = _UNITS[unit].partition(" ")
    if count not in ("1", "-1"):
        head = _PLURALS.get(head, f"{head}s")
    return f"{head} {rest}".strip()


def _number(match: re.Match) -> str:
    written, sign, unit = match["n"], (match["sign"] or "").strip(), match["unit"]
    is_year = len(written) == 4 and written.isdigit() and not sign and not unit and written[0] != "0"
    words = year(int(written)) if is_year else amount(written)
    if match["th"]:
        words = ordinal(int(re.sub("[, ]", "", written))) if len(written) < 16 and "." not in written else f"{words}th"
    if match["s"]:
        words = plural(words)
    if unit:
        power = {"\u00b2": "square ", "\u00b3": "cubic "}.get(match["power"], "")
        words += f" {power}{_units(written, unit)}"
    signs = {"-": "minus ", "\u2212": "minus ", "+": "plus ", "\u00b1": "plus or minus ", "~": "about "}
    return signs.get(sign, "") + words


def _money(match: re.Match) -> str:
    held = match.groupdict()
    name, _, small = _MONEY[match["sign"]].partition(" ")
    whole, last = match["n"], held.get("last")
    scale, scale2 = (_SCALES.get(part, part) for part in ((held.get(key) or "").lower() for key in ("scale", "scale2")))
    names = name if name == "yen" else f"{name}s"
    dollars, _, cents = whole.partition(".")
    if last or scale or len(cents) != 2 or not small:
        words = f"{amount(whole)} {scale}".strip() + (f" to {amount(last)} {scale2}".rstrip() if last else "")
        return f"{words} {name if whole == '1' and not last and not scale else names}"
    coins = small if cents == "01" else "pence" if small == "penny" else f"{small}s"
    parts = [f"{amount(dollars)} {name if dollars == '1' else names}"] if dollars.strip("0,") else []
    parts += [f"{cardinal(int(cents))} {coins}"] if cents != "00" else []
    return " and ".join(parts) or f"zero {names}"


def _coins(match: re.Match) -> str:
    return f"{amount(match['n'])} {'pence' if match['coin'] == 'p' else 'cent' if match['n'] == '1' else 'cents'}"


def _time(match: re.Match) -> str:
    held, words = match.groupdict(), cardinal(int(match["hour"]))
    minute, second, half = held.get("minute"), held.get("second"), held.get("half")
    if minute == "00" and not second:
        words += "" if half else " o'clock"
    elif minute:
        words += f" {pair(minute)}" + (f" {pair(second)}" if second else "")
    return f"{words} {half.lower()}.m." if half else words


def _date(match: re.Match) -> str:
    parts = [int(part) for part in re.split("[-/.]", match[0])]
    if len(str(parts[0])) > 2 or match[0][4:5] == "-":
        of, month, day = parts
    else:
        (month, day, of) = parts if "/" in match[0] else (parts[1], parts[0], parts[2])
        month, day = (day, month) if month > 12 else (month, day)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " ".join(map(cardinal, parts))
    return f"{_MONTHS[month - 1]} {ordinal(day)}, {year(of if of > 99 else of + 2000)}"


def _month(match: re.Match) -> str:
    held = match.groupdict()
    name, day = next(month for month in _MONTHS if month.startswith(match["month"][:3])), held.get("day")
    number = int(day or held.get("first") or 1)
    if not held.get("first"):
        return f"{name} {ordinal(number)}" if day else name
    is_end = match[0][-1] == "." and _SENTENCE.match(match.string, match.end()) is not None
    return f"the {ordinal(number)} of {name}{'.' * is_end}"


def _fraction(match: re.Match) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    if below == 10 and not whole:
        return f"{cardinal(above)} out of ten"
    if above >= below or not 1 < below <= 100 or below == 11:
        return f"{f'{cardinal(int(whole))} ' if whole else ''}{cardinal(above)} {cardinal(below)}"
    part = {2: "half", 4: "quarter"}.get(below) or ordinal(below)
    one = "a" if whole else "one"
    words = f"{one} {part}" if above == 1 else f"{cardinal(above)} {'halves' if below == 2 else f'{part}s'}"
    return f"{cardinal(int(whole))} and {words}" if whole else words


def _phone(match: re.Match) -> str:
    parts = re.findall(r"[0-9]+", match[0])
    return ("plus " if match[0][0] == "+" else "") + ", ".join(map(digits, parts))


def _address(match: re.Match) -> str:
    written = re.sub(r"^[a-z]+://", "", match[0], flags=re.IGNORECASE).rstrip("/")
    parts = re.findall(r"[^\W\d_]+|[0-9]+|.", written)
    words = (_IN_ADDRESSES[part] if part in _IN_ADDRESSES else _in_code(part) for part in parts)
    return " ".join(filter(None, words))


def _in_code(part: str) -> str:
    """Return letters or digits of a code or an address in words."""
    if part.isupper() and len(part) > 3:
        return shouted(part) or part
    if not part.isdigit():
        is_word = re.search("[aeiouy]", part.lower()) and (len(part) > 2 or part == part.capitalize())
        is_word = is_word or (not part.isupper() and part.lower() in SHORT_WORDS)
        return part if is_word and not part.isupper() else spelled(part)
    if part[0] == "0" or len(part) > 4:
        return digits(part)
    return f"{cardinal(int(part[0]))} {pair(part[1:])}" if len(part) == 3 and part[1:] != "00" else year(int(part))


def _code(match: re.Match) -> str:
    parts = re.findall(rf"[{UP}]+(?![a-z])|[0-9]+|\.|[^\d.]+?(?=[0-9.]|$)", match[0])
    words = ("point" if part == "." else part if part.islower() and len(part) > 1 else _in_code(part) for part in parts)
    return " ".join(words)


def _abbreviation(match: re.Match) -> str | None:
    """Return a short form in full, with its stop where a sentence ends."""
    key, after = match[1].lower(), match.string[match.end() : match.end() + 3]
    full = _SHORT[key]
    full = full.capitalize() if match[1][0].isupper() else full
    goes_on = after.strip("\"'\u201d\u2019) ") and (key in _GO_ON or not re.match(r"\s+[\"\u201c(]?[A-Z]|\n", after))
    return full if goes_on else f"{full}."


def _before_number(match: re.Match) -> str:
    full = _BEFORE_NUMBERS[match[1].lower()]
    return f"{full.capitalize() if match[1][0].isupper() else full} "


def _street(match: re.Match) -> str:
    """Return Saint or Street, Doctor or Drive, by what stands around."""
    before, after = match.string[max(0, match.start() - 40) : match.start()], match.string[match.end() :][:3]
    house = re.search(rf"(?<![\w.])[0-9]+[a-z]{{0,2}}(?: [{UP}]\w*)? $", before)
    place = house or re.search(rf"(?<!\w)([{UP}][\w']*) $", before)
    name = re.match(rf" [{UP}]", after)
    saint, street = ("Saint", "Street") if match[0][0] == "S" else ("Doctor", "Drive")
    if not place or (name and not house and (saint == "Doctor" or place[1].lower() in _BEFORE_SAINTS)):
        return saint
    return street if (after.strip() and not name and after[0] != "\n") or match[0][-1] != "." else f"{street}."


def _bullet(match: re.Match) -> str:
    before = match.string[max(0, match.start() - 1) : match.start()]
    if not before:
        return ""
    return ". " if before.isalnum() or before in (")", "\u201d", '"') else " "


def _power(match: re.Match) -> str:
    _, minus, power = unicodedata.normalize("NFKC", match[0]).rpartition("\u2212")
    return f" to the minus {cardinal(int(power))}" if minus else f" to the {ordinal(int(power))}"


def _slash(match: re.Match) -> str:
    at, text = match.start(), match.string
    around = _LAST_WORD.search(text, max(0, at - 9), at), _FIRST_WORD.match(text, at + 1, at + 10)
    words = [word[0].lower() for word in around if word]
    return " " if {"and", "or"} & {*words} or all(map(str.isdigit, words)) else " or "


def _sign(match: re.Match) -> str | None:
    sign, start = match[0].strip(), match.start()
    if sign == ">" and _OPEN_TAG.search(match.string, max(0, start - 80), start):
        return None
    after = match[0][-1].isspace() or match.string[match.end() : match.end() + 1].isalnum()
    return " " * (start > 0) + (_OPERATORS.get(sign) or _SIGNS[sign]) + " " * after


_LAST_WORD, _FIRST_WORD = re.compile("[A-Za-z0-9]+$"), re.compile("[A-Za-z0-9]+")
_RAISED = "[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]"
_OPEN_TAG = re.compile(r"</?[A-Za-z][^<>]*$")
_HALF = r"\s?(?P<half>[AaPp])\.?[Mm]\b\.?"
_END = r"(?!\w)"
_EITHER = "|".join
_DOMAIN = r"(?:com|org|net|edu|gov|io|co\.uk|uk|de|ai|app|dev)"
_PHONE = (
    r"(?:\+?1[ .-])?(?:\([0-9]{3}\) ?|[0-9]{3}[ .-])[0-9]{3}[ .-][0-9]{4}",
    r"[0-9]{3}-[0-9]{4}",
    r"\+[0-9]{1,3}(?:[ .-]?\(?[0-9]{2,5}\)?){2,5}",
    r"\(?0[0-9]{2,4}\)?(?:[ -][0-9]{3,4}){1,2}",
    r"[0-9]{1,9}(?:-[0-9]{1,9}){2,6}",
)
_DAY = "(?:0?[1-9]|[12][0-9]|3[01])"
_LINES = "(?:144|240|360|480|576|720|1080|1440|2160|4320)"  # of a picture
_LINE = r"[ \t]{0,9}\n\s{0,9}"
_BULLETS = "[\u2022\u25e6\u25aa\u2023\u25cf\u00b7]"
_DASH_TO = r"(?=[$\u00a3\u20ac]?[0-9])"
_WRITTEN: list[tuple[str, Callable[[re.Match], str | None]]] = [  # the first that matches at a place is taken
    (rf"{TAG_LIKE.pattern}|{PAUSE_MARKER}", lambda match: None),
    (r"(?i:https?://|www\.)[^\s<>]{0,2000}[\w/]", _address),
    (r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,5}[A-Za-z]{2,9}", _address),
    (rf"(?<![\w.@-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}{_DOMAIN}(?:/[^\s<>]{{0,500}}[\w/])?{_END}", _address),
    (rf"(?<!\w)[0-9]{{4}}(?:-[0-9]{{2}}-[0-9]{{2}}|/[0-9]{{1,2}}/[0-9]{{1,2}}){_END}", _date),
    (r"(?<![\w.])[0-9]{1,2}(?:/[0-9]{1,2}/(?:[0-9]{2}){1,2}|\.[0-9]{1,2}\.[0-9]{4})(?![\w/])", _date),
    (rf"(?<!\w)(?P<month>{_MONTH})\s(?P<day>{_DAY})(?:st|nd|rd|th)?(?![\w:]|\.[0-9])", _month),
    (rf"(?<!\w)(?P<month>{_MONTH})(?=\s[0-9]{{4}}{_END})", _month),
    (rf"(?:the )?(?<![\w.:/])(?P<first>{_DAY})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH}){_END}", _month),
    (rf"(?<![\w.+-])(?:{_EITHER(_PHONE)}){_END}", _phone),
    (rf"(?<!\w)(?:US|A|C|NZ)?(?P<sign>[{_COINS}])\s?(?P<n>{_N})(?:\s?(?P<scale>{_SCALE}))?{_END}"
     rf"(?:\s?[-\u2013]\s?[{_COINS}]?(?P<last>{_N})(?:\s?(?P<scale2>{_SCALE}))?{_END})?", _money),
    (rf"(?<![\w.])(?P<n>{_N})(?!\s.\.?[0-9])\s?(?P<sign>[$\u20ac\u00a3])", _money),
    (rf"(?<![\w.])(?!{_LINES}p)(?P<n>{_N})\s?(?P<coin>\u00a2|(?<=[0-9])p(?!\w|\.[a-zA-Z]))", _coins),
    (r"(?<![\w.])([0-9]{1,2})\s?['\u2019\u2032]\s?([0-9]{1,2})\s?(?:[\"\u201d\u2033]|['\u2019]{2})",
     lambda match: f"{amount(match[1])} foot {amount(match[2])}"),
    (rf"(?<![\w:.])(?P<hour>[0-9]{{1,2}}):(?P<minute>[0-5][0-9])(?::(?P<second>[0-5][0-9]))?(?![0-9:])(?:{_HALF})?{_END}",
     _time),
    (rf"(?<![\w:.])(?P<hour>[0-9]{{1,2}})(?:\.(?P<minute>[0-5][0-9]))?{_HALF}", _time),
    (r"(?<![\w:.])([0-9]{1,4}):([0-9]{1,4})(?![\w:])", lambda match: f"{amount(match[1])} to {amount(match[2])}"),
    (r"(?<![\w/.])(?:([0-9]{1,3}) {1,2})?([0-9]{1,3})/([0-9]{1,3})(?![\w/])", _fraction),
    (r"(?<![\w.])[0-9]{1,9}(?:\.[0-9]{1,9}){2,5}(?!\w)",
     lambda match: " point ".join(map(amount, match[0].split(".")))),
    (rf"(?<=[A-Z]{{2}} )[0-9]{{5}}{_END}", lambda match: digits(match[0])),
    (rf"(?<![\w.])[0-9]{{0,9}}\.[0-9]{{1,9}}(?=[A-Za-z])(?!(?:{_UNIT}|th){_END})", lambda match: amount(match[0])),
    (rf"(?P<sign>(?<![\w.)%])[-\u2212+\u00b1~]\s?)?(?<!\w)(?P<n>{_N})(?:(?P<th>st|nd|rd|th)|(?P<s>(?<=0)['\u2019]?s)"
     rf"|\s?(?P<unit>{_UNIT})(?<!\s[WV])(?P<power>[\u00b2\u00b3])?)?(?!\w|\.[0-9])", _number),
    (rf"(?<!\w)(?=[A-Za-z]{{0,15}}[0-9])(?=[0-9]{{0,15}}[A-Za-z])[A-Za-z0-9]{{2,31}}(?:\.[0-9]{{1,5}}){{0,3}}{_END}",
     _code),
    (r"[0-9]{1,40}", lambda match: amount(match[0])),
    (r"(?<=[0-9] |[a-z] )[NSEW]\.?(?= [0-9])|(?<=[0-9] )[NSEW]\.?(?= [A-Z])", lambda match: _COMPASS[match[0][0]]),
    (rf"(?<=[0-9%])(?:\s?\u2013\s?|-){_DASH_TO}", lambda match: " to "),
    (r"(?<=[0-9]) ?[-\u2212] (?=[0-9])", lambda match: " minus "),
    (rf"(?<!\w)((?i:{_EITHER(_BEFORE_NUMBERS)}))\.\s{{0,3}}(?=#?[0-9])", _before_number),
    (r"(?<!\w)(?:St|Dr)\b\.?(?=[\s,;!?]|$)", _street),
    (rf"(?<!\w)({_EITHER(_TITLES)})\.(?=\s[{UP}])", lambda match: _TITLES[match[1]]),
    (rf"(?<!\w)((?i:{_EITHER(map(re.escape, _SHORT))}))\.(?!\w)", _abbreviation),
    (r"(?<!\w)w/o?(?: |(?=\w))", lambda match: "without " if "o" in match[0] else "with "),
    (r"(?<=[A-Za-z0-9])/(?=[A-Za-z0-9])", _slash),
    (r"(?<=[0-9)])(?: \* |\*)(?=[0-9(])", lambda match: " times "),
    (rf"(?<![\w.])[IVXLC]{{1,8}}(?!\w|['\u2019][{UP}])", numeral),
    (rf"(?<!\w)(?:[{UP}]\.){{2,8}}", dotted),
    (rf"(?<!\w)(?:{CAPITALS}){_END}", lambda match: shouted(match[0], match)),
    (r"(?<=[a-z0-9])[.!?](?=[A-Z][a-z])|(?<=\w)[,;](?=\w)", lambda match: f"{match[0]} "),
    (rf"(?:^|{_LINE}|(?<=[.!?:;,)]) {{0,9}}){_BULLETS}\s{{0,9}}|(?:^|{_LINE})[*\u2013-]\s{{1,9}}(?=\w)", _bullet),
    (rf"^{_PICTURE}{{1,200}}\s{{0,9}}|[^\S\n]?{_PICTURE}{{1,200}}", lambda match: ""),
    (r"(?<=(?<!\w)[A-G])#(?!\w)", lambda match: " sharp"),
    (r"\s?#(?=[A-Za-z_])", lambda match: " hashtag "[match.start() == 0 :]),
    (r"[^\S\n]?(?:={3,200}|\+{3,200}|#{3,200}|&{3,200}|@{3,200})", lambda match: ""),  # an ornament
    (rf"[^\S\n]?(?:{_EITHER(map(re.escape, _OPERATORS))})[^\S\n]?", _sign),
    (rf"[^\S\n]?(?:[<>](?=[\s0-9])|[{re.escape(''.join(_SIGNS.keys() - set('<>')))}])[^\S\n]?", _sign),
    (r"\*{1,200}", lambda match: ""),
    (rf"(?:(?<=[0-9)])(?<![0-9]{{4}})|(?<=(?<!\w)[A-Za-z]))(?:\u207b{_RAISED}{{1,3}}|{_RAISED}{{2,3}}|(?![\u00b2\u00b3]){_RAISED})",
     _power),
    (r"[\u00b2\u00b3]", lambda match: " squared" if match[0] == "\u00b2" else " cubed"),
]  # fmt: skip
_RULES = [(re.compile(pattern), say) for pattern, say in _WRITTEN]
# All rules in one, each a group without groups of its own.
_GROUP = re.compile(r"(?<!\\)\((?:\?P<\w+>|(?!\?))")
_NEXT = re.compile("|".join(f"({_GROUP.sub('(?:', pattern)})" for pattern, _ in _WRITTEN))
