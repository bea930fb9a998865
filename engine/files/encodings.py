"""The encoding of a text that is not UTF-8: of those that its bytes allow, the one that makes words of it."""

from __future__ import annotations

import codecs
import re
import unicodedata

# Codec, name for users, scripts of its texts. The first of equals wins.
_CANDIDATES = (
    ("cp1252", "Windows-1252", "LATIN"),
    ("mac_roman", "Mac Roman", "LATIN"),
    ("cp1250", "Windows-1250 (Central European)", "LATIN"),
    ("cp1251", "Windows-1251 (Cyrillic)", "CYRILLIC"),
    ("koi8_r", "KOI8-R (Cyrillic)", "CYRILLIC"),
    ("cp1253", "Windows-1253 (Greek)", "GREEK"),
    ("cp932", "Shift-JIS (Japanese)", "KANA"),
    ("euc_jp", "EUC-JP (Japanese)", "KANA"),
    ("gb18030", "GB18030 (Chinese)", "HAN"),
    ("cp950", "Big5 (Chinese)", "HAN"),
    ("cp949", "EUC-KR (Korean)", "HANGUL"),
    ("utf-16-le", "UTF-16", "HAN KANA HANGUL CYRILLIC GREEK"),
    ("utf-16-be", "UTF-16", "HAN KANA HANGUL CYRILLIC GREEK"),
)
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LOOK = 6_000  # characters that are judged, from the first beyond ASCII on
# The commonest letters of texts; others count half.
_COMMON = frozenset(
    "的一是不了在人有我他这中大来上个国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于"
    "起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长把呢吗吧什怎样知回很打给让今问她回被话点真几此但"
    "這來個國說們為時會著過學對裡後麼沒於還發當無開見經頭從動兩長問給讓樣話點幾車門書東風買聽氣"
    "此请关保存该器使入现种进部分力全明它将正名间位高表示世界最新代体制性应内水化理物路电气口工信情特品重次海战原利数由其条件实结解意建月"
    "系军直接受产提常风运流立题取社量统设反向区议更请打读音声请爱山花夜请谁走坐站望笑哭啊吃喝早晚"
    "請關間與實體現選擇聲節檔種應產題運統設區議愛誰結號讀寫"
    "оеаинтсрвлкмдпуыяьзбг"
    "αοιετνσηρπκμλυςάίόήέ"
    "이다는에의고을가지로하기사리도한서어자나은대를시인아그해수있것전들게만여보정일스라무"
)
_WORDS = frozenset("àéèêòóôâÀÉÈ")  # words of one letter
_WESTERN = frozenset("àâäáãåæçèéêëìíîïñòóôöõøùúûüßœ")
_PUNCTUATION = frozenset("“”‘’„‚«»‹›–—…¿¡•·、。「」『』（）！？，：；《》〈〉【】〔〕～〜・\u3000")
_JOINING = {"’": 1.0, "—": 1.0, "–": 0.6, "·": 0.6, "\u00ad": 1.0}  # may stand inside words
_INVISIBLE = frozenset("\u00ad\u200b\u200c\u200d\u2060\ufeff")


def guessed(data: bytes) -> tuple[str, str]:
    """Return (text, name of its encoding for users)."""
    readings = []
    for codec, name, scripts in _CANDIDATES:
        try:
            text = data.decode(codec)
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4 or codec.startswith("utf"):
                continue
            text = data[: error.start].decode(codec) + "\ufffd"  # cut in its last letter
        readings.append((_score(text, scripts), text, name))
    _, text, name = max(readings, key=lambda one: one[0])  # the first of equals
    return text, name


def wide(data: bytes) -> tuple[str, str]:
    """Return (text, codec) of UTF-16 or UTF-32 with a byte order mark or many NUL bytes. Otherwise both are empty."""
    if codec := next((codec for mark, codec in _MARKS if data.startswith(mark)), ""):
        return data.decode(codec, "replace"), codec
    nul, even = data.count(0), data[::2].count(0)
    if 10 * nul < len(data) or not nul:
        return "", ""
    narrower = ["utf-16-le" if 2 * even < nul else "utf-16-be"]
    for codec in ["utf-32-le", "utf-32-be"] if 2 * nul > len(data) else narrower:
        text = data.decode(codec, "replace")
        if not any(unicodedata.category(one)[0] == "C" and one not in "\t\n\r\f\x1a\ufeff" for one in text[:_LOOK]):
            return text, codec
    return "", ""


def _score(text: str, scripts: str) -> float:
    """Return the mean of what each character beyond ASCII says for a reading: 1 at best."""
    first = re.search(r"[^\x00-\x7f]", text)
    if first is None:
        return 0.0
    text = f" {text[max(0, first.start() - 1) : first.start() + _LOOK]} "
    beyond = [at for at, character in enumerate(text) if character > "\x7f"]
    # In Japanese, signs of China stand between kana.
    other_han = 0.3 if scripts == "KANA" and any("ぁ" <= text[at] <= "ん" for at in beyond) else -0.2
    return sum(_worth(text, at, scripts, other_han) for at in beyond) / len(beyond)


def _worth(text: str, at: int, scripts: str, other_han: float) -> float:
    before, character, after = text[at - 1 : at + 2]
    kind, script = unicodedata.category(character), _script(character)
    if kind[0] == "C" and character not in _INVISIBLE:  # controls, private use, not assigned
        return -2.0
    if not script:
        return _sign(character, kind, before, after)
    if script not in scripts and not (script == "HAN" and "KANA" in scripts):
        return -1.0
    if script == "KANA":
        return 1.0
    if script in ("HAN", "HANGUL"):
        is_odd = any(one.isascii() and one.isalpha() for one in (before, after))
        others = 0.1 if script == "HANGUL" else other_han
        return 1.0 if character in _COMMON else -1.0 if is_odd else others
    return _letter(text[max(0, at - 2) : at], character, after, script)


def _sign(character: str, kind: str, before: str, after: str) -> float:
    if character in _JOINING and before.isalpha() and after.isalpha():
        return _JOINING[character]
    is_inside = (
        before.isalpha() and after.isalpha() and {_script(before), _script(after)} <= {"LATIN", "CYRILLIC", "GREEK"}
    )
    is_run = all(one > "\x7f" and not one.isalpha() for one in (before, after))
    if is_inside or kind in ("Sk", "Lm"):
        return -2.0
    if character in _PUNCTUATION:
        return 0.0 if is_run else 1.0
    return -1.0 if is_run else 0.3 if kind in ("Sc", "Zs", "Nd", "Lu", "Ll") or character in "°©®™×½¼§" else -0.5


def _letter(before: str, character: str, after: str, script: str) -> float:
    """Judge a letter of an alphabet by those around it: words of one script, no capitals inside them."""
    near = [one for one in (before[-1], after) if one.isalpha()]
    if any(_script(one) != script for one in near):
        return -1.0
    if (before[-1].islower() and character.isupper()) or (character.islower() and after.isupper()):
        return -2.0
    if character.islower() and len(before) > 1 and before.isupper() and before.isalpha():
        return -1.0
    if script != "LATIN":
        return 0.2 if character.isupper() and before[-1].isalpha() else 1.0 if character.lower() in _COMMON else 0.4
    if len(near) == 2 and not any(map(str.isascii, near)):  # another alphabet, read wrongly
        return -1.0
    return 1.0 if character.lower() in _WESTERN and (near or character in _WORDS) else 0.5 if near else 0.4


def _script(character: str) -> str:
    """Return the script of a letter, and nothing for other characters."""
    if not character.isalpha():
        return ""
    if character.isascii():
        return "LATIN"
    name = unicodedata.name(character, "").replace("-", " ").partition(" ")[0]
    return {"HIRAGANA": "KANA", "KATAKANA": "KANA", "CJK": "HAN", "IDEOGRAPHIC": "HAN", "FULLWIDTH": ""}.get(name, name)
