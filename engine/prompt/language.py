"""Language detection by letters and common words. Reports nothing in doubt.

Languages are BCP 47 codes. Some scripts identify a language at once. Languages in Latin script are identified by words
found in nearly every sentence, and by letters that English lacks.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

# First word of a letter's Unicode name -> (name of such text, languages in that script).
_SCRIPTS = {
    "CJK": ("Chinese", "zh cmn yue ja ko"),
    "BOPOMOFO": ("Chinese", "zh cmn yue"),
    "HIRAGANA": ("Japanese", "ja"),
    "KATAKANA": ("Japanese", "ja"),
    "HANGUL": ("Korean", "ko"),
    "CYRILLIC": ("Cyrillic", "ru uk be bg mk sr bs kk ky mn tg tt ba uz az ce cv os sah"),
    "ARABIC": ("Arabic", "ar fa ur ps sd ug ku ckb pa ks"),
    "DEVANAGARI": ("Devanagari", "hi mr ne sa kok mai bho doi sd ks"),
    "HEBREW": ("Hebrew", "he iw yi"),
    "GREEK": ("Greek", "el"),
    "THAI": ("Thai", "th"),
    "LAO": ("Lao", "lo"),
    "KHMER": ("Khmer", "km"),
    "MYANMAR": ("Burmese", "my shn mnw"),
    "TIBETAN": ("Tibetan", "bo dz"),
    "BENGALI": ("Bengali", "bn as mni"),
    "GURMUKHI": ("Punjabi", "pa"),
    "GUJARATI": ("Gujarati", "gu"),
    "ORIYA": ("Odia", "or"),
    "TAMIL": ("Tamil", "ta"),
    "TELUGU": ("Telugu", "te"),
    "KANNADA": ("Kannada", "kn"),
    "MALAYALAM": ("Malayalam", "ml"),
    "SINHALA": ("Sinhala", "si"),
    "ARMENIAN": ("Armenian", "hy"),
    "GEORGIAN": ("Georgian", "ka"),
    "ETHIOPIC": ("Ethiopic", "am ti"),
}
_SYLLABIC = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
_LEAST_LETTERS = 4  # minimum letters of a second script; fewer are a formula or a quoted letter
_LEAST_SYLLABLES = 2

_TONES = "ăâđêôơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"
# Language -> (name, its and similar languages' codes, common words rare in English, letters besides a-z).
_LATIN = {
    "en": (
        "English",
        "en",
        "the and of to is in that it you for was on are with this have be not at from they we he she his her but what "
        "my i a an as or if will can your all there their one so do me no has had who how when up out would hello",
        "",
    ),
    "de": (
        "German",
        "de gsw lb",
        "der die das und nicht ist ich ein eine einen zu mit den dem des auf es sie wir sich auch wie aber noch nur "
        "oder wenn kann habe haben wird sind bei nach mich mein dass sehr hier heute wo ihr er du im vom zum kein "
        "keine muss weil doch guten danke bitte morgen hallo",
        "äöüß",
    ),
    "fr": (
        "French",
        "fr",
        "le la les est et un une des du que qui dans pour pas sur vous nous je il elle ce cette avec sont mais ou au "
        "aux ne se mon ma son sa c' d' l' j' m' n' s' qu' où très bonjour merci oui tout suis",
        "àâæçéèêëîïôœùûÿ",
    ),
    "es": (
        "Spanish",
        "es gl ast",
        "el la los las es que en un una por con para se del pero su al lo yo mi y muy como está esta este hay hoy qué "
        "hola gracias buenos días soy",
        "áéíñóúü",
    ),
    "it": (
        "Italian",
        "it",
        "il la lo gli le che di un una per non con sono della del nel si ma questo questa anche io mi è e molto dove "
        "oggi ciao grazie buongiorno ho l' tutti",
        "àèéìòù",
    ),
    "pt": (
        "Portuguese",
        "pt gl",
        "os um uma que não de da dos das em para com por se mais é são ao na e você eu mas muito isso está hoje olá "
        "meu minha obrigado",
        "áâãàçéêíóôõú",
    ),
    "nl": (
        "Dutch",
        "nl af",
        "de het een van en dat niet op te zijn voor met die ik maar ook er aan hij wij je naar bij wat heeft deze is "
        "geen kan goed dank",
        "ëï",
    ),
    "sv": (
        "Swedish",
        "sv",
        "och att det är en som på av för med den inte jag ett har till vi kan du så här hej",
        "åäö",
    ),
    "da": (
        "Danish or Norwegian",
        "da no nb nn",
        "og det er en som på af av ikke jeg et har til vi kan du også være med den hej",
        "åæø",
    ),
    "fi": ("Finnish", "fi", "ja ei että se oli hän mutta niin kun ovat myös tämä minä joka olen mitä kiitos", "äö"),
    "pl": ("Polish", "pl", "się nie na jest że co jak tak być dla czy już tylko mnie ja dzień", "ąćęłńóśźż"),
    "cs": ("Czech", "cs sk", "je se na že jako jsem není jsou pro už byl když nebo ale já jak", "áčďéěíňóřšťúůýž"),
    "hu": ("Hungarian", "hu", "az és hogy nem egy van meg ez csak már vagy itt jó", "áéíóöőúüű"),
    "ro": ("Romanian", "ro mo", "și nu este cu pe să mai din sunt în pentru la un de am", "ăâîșțşţ"),
    "tr": ("Turkish", "tr az", "bir ve bu için çok ile gibi ama daha değil var ne da de mi", "çğıöşü"),
    "vi": ("Vietnamese", "vi", "là và của không có được cho một những người này tôi trong", _TONES),
    "id": (
        "Indonesian or Malay",
        "id ms",
        "yang dan di itu dengan untuk tidak ini dari akan pada saya adalah sangat",
        "",
    ),
}
_NAMES = {
    **{languages.split()[0]: name for name, languages in reversed(_SCRIPTS.values())},
    **{codes.split()[0]: name for name, codes, *_ in _LATIN.values()},
    # Names that differ from that of the script or group.
    **{"ru": "Russian", "uk": "Ukrainian", "hi": "Hindi", "am": "Amharic", "fa": "Persian", "yue": "Cantonese"},
    **{"da": "Danish", "no": "Norwegian", "nb": "Norwegian", "id": "Indonesian", "ms": "Malay", "sk": "Slovak"},
}
_COMMON = {language: frozenset(words.split()) for language, (_, _, words, _) in _LATIN.items()}
_LETTERS = {language: frozenset(letters) for language, (*_, letters) in _LATIN.items()}
# French and Italian elide some words; the apostrophe belongs to the first.
_WORD = re.compile(r"\b(?:[cdjlmns]|qu)'(?=\w)|[a-z\u00df-\u024f\u1e00-\u1eff]+")
# Approximate words per window. Finds a paragraph in another language within a long text.
_WINDOW = 40
_SHARE = 0.25  # minimum share of telling words in a window
_SHARE_SPELLED = 0.75  # the same without common words: "cafés served crème brûlée"


def name_of(code: str) -> str:
    """Return a language's English name, or the code if unknown."""
    return _NAMES.get(_primary(code), code)


def foreign(text: str, known: Iterable[str]) -> list[str]:
    """Return adjectives for text in none of the `known` languages: "Chinese", "Cyrillic"."""
    codes = {_primary(code) for code in known}
    text = unicodedata.normalize("NFC", text).lower().replace("\u2019", "'")
    languages = [*_foreign_scripts(text, codes), *_foreign_latin(text, codes)]
    return list(dict.fromkeys(languages))


def _primary(code: str) -> str:
    return re.split("[-_]", code, maxsplit=1)[0].lower()


def _foreign_scripts(text: str, known: set[str]) -> Iterable[str]:
    letters = {character: count for character, count in Counter(text).items() if character.isalpha()}
    total = sum(letters.values())
    scripts: Counter = Counter()
    for character, count in letters.items():
        scripts[re.split("[ -]", unicodedata.name(character, ""), maxsplit=1)[0]] += count
    if scripts["HIRAGANA"] + scripts["KATAKANA"]:  # then CJK characters are Japanese
        scripts["HIRAGANA"] += scripts.pop("CJK", 0)
    for script, (name, languages) in _SCRIPTS.items():
        least = _LEAST_SYLLABLES if script in _SYLLABIC else _LEAST_LETTERS
        count = scripts[script]
        if count and (count >= least or 2 * count > total) and not known & set(languages.split()):
            yield name


def _foreign_latin(text: str, known: set[str]) -> Iterable[str]:
    ours = [language for language, (_, codes, *_) in _LATIN.items() if known & set(codes.split())]
    words = _WORD.findall(text)
    size = math.ceil(len(words) / max(1, round(len(words) / _WINDOW)))  # equal windows; a short rest is unreliable
    for start in range(0, len(words), max(1, size)):
        window = set(words[start : start + size])  # count each word once: "la la la" is not French
        common = {language: len(window & _COMMON[language]) for language in _LATIN}
        spelled = {
            language: sum(not letters.isdisjoint(word) for word in window - _COMMON[language])
            for language, letters in _LETTERS.items()
        }
        scores = {language: common[language] + spelled[language] for language in _LATIN}
        second, best = sorted(_LATIN, key=lambda language: (scores[language], common[language]))[-2:]
        share = scores[best] / len(window)
        by_words = share >= _SHARE and (common[best] > 1 or (common[best] and scores[best] > 2))
        by_letters = share >= _SHARE_SPELLED and scores[best] > max(2, scores[second])
        if (by_words or by_letters) and scores[best] > max((scores[language] for language in ours), default=0):
            yield _LATIN[best][0]
