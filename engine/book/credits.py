"""Spoken credits before and after a book, as chapters of their own, in the book's language."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from ..core.errors import HiggsError
from ..prompt.language import foreign
from ..prompt.script import Turn
from ..prompt.tags import is_spoken
from .book import Book, Chapter


class _SpokenCredits(NamedTuple):
    """Titles of both chapters, and their words."""

    opening: str
    closing: str
    text: str
    end: str


_WORDS = {  # by language, English and Chinese before what may look like them
    "en": ("Opening Credits", "Closing Credits", "{title}. Written by {author}. Narrated by {narrator}.", "The end."),
    "de": ("Vorspann", "Abspann", "{title}. Geschrieben von {author}. Gelesen von {narrator}.", "Ende."),
    "fr": ("Générique de début", "Générique de fin", "{title}. Écrit par {author}. Lu par {narrator}.", "Fin."),
    "es": ("Créditos iniciales", "Créditos finales", "{title}. Escrito por {author}. Narrado por {narrator}.", "Fin."),
    "it": ("Titoli di testa", "Titoli di coda", "{title}. Scritto da {author}. Letto da {narrator}.", "Fine."),
    "pt": ("Créditos iniciais", "Créditos finais", "{title}. Escrito por {author}. Narrado por {narrator}.", "Fim."),
    "ru": ("Вступительные титры", "Заключительные титры", "{title}. Автор: {author}. Читает {narrator}.", "Конец."),
    "zh": ("片头", "片尾", "《{title}》。作者：{author}。朗读：{narrator}。", "全书完。"),
    "zh-tw": ("片頭", "片尾", "《{title}》。作者：{author}。朗讀：{narrator}。", "全書完。"),
    "ja": ("オープニング", "エンディング", "『{title}』。著者、{author}。朗読、{narrator}。", "おわり。"),
    "ko": ("오프닝 크레디트", "클로징 크레디트", "{title}. 지은이 {author}. 낭독 {narrator}.", "끝."),
}  # fmt: skip
_ENDED_TWICE = re.compile(r"([.!?…])\.")
_LOOKED_AT = 2000  # characters of a book by which its language is known


def with_credits(book: Book, made: bool, opening: str | None, closing: str | None) -> Book:
    """Return the book with a chapter of credits at its start and end.

    made: make those that are None from the book's details. A text without words leaves its chapter out. Raises
    HiggsError if the author or narrator is needed and not known.
    """
    if not made and not opening and not closing:
        return book
    words = _SpokenCredits(*_WORDS[_language_of(book)])
    if made and None in (opening, closing):
        facts = {"title": book.title, "author": book.author, "narrator": book.details.narrator}
        if missing := [name for name in ("author", "narrator") if not facts[name]]:
            raise HiggsError(
                f"the credits need the {' and the '.join(missing)}. Add lines such as author = Jane Austen and "
                "narrator = Anna to details, or write the credits yourself, as opening = ... and closing = ..."
            )
        text = _ENDED_TWICE.sub(r"\1", words.text.format(**facts))
        opening = text if opening is None else opening
        closing = f"{words.end} {text}" if closing is None else closing
    speaker = "" if "" in book.speakers else book.speakers[0]
    before, after = (
        [Chapter(title, (Turn(speaker, text),), is_credits=True)] if text and is_spoken(text) else []
        for title, text in ((words.opening, opening), (words.closing, closing))
    )
    return replace(book, chapters=(*before, *book.chapters, *after))


def _language_of(book: Book) -> str:
    """Return the key of _WORDS for the language that the book's details name, or else its text."""
    if named := book.details.language.lower().replace("_", "-"):
        named = "zh-tw" if named in ("zh-hk", "zh-mo") or named.startswith("zh-hant") else named
        return next((one for one in (named, named.partition("-")[0]) if one in _WORDS), "en")
    text = " ".join(turn.text[:_LOOKED_AT] for turn in book.chapters[0].turns[:20])[:_LOOKED_AT]
    return next((language for language in _WORDS if not foreign(text, [language])), "en")
