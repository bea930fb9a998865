"""Extract example sentences and common words from WordNet's files, once, into text/.

python -m training.wordnet /usr/share/wordnet      (Debian's package wordnet-base, WordNet 3.0)
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent / "text"
EXAMPLE = re.compile(r'"([^"]*)"(\s*[-\u2013]+\s*\w)?')  # second group: an author, so the words are a quotation
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'?!;:-]+")
PARTS = {"1": "noun", "2": "verb", "3": "adj", "5": "adj", "4": "adv"}
LEAST = {"noun": 3, "verb": 3, "adj": 2, "adv": 2}  # minimum count in WordNet's tagged texts
# Excluded from a demo, despite being in a dictionary.
RUDE = re.compile(
    r"\b(fag\w*|nigg\w*|bitch\w*|fuck\w*|shit\w*|cunt\w*|whor\w*|slut\w*|rap(e|ed|ist|ing)|kike|spic|dyke|queer\w*"
    r"|negro\w*|sex\w*|suicid\w*|genital\w*|penis|vagina\w*|prostitut\w*|nazi\w*|porn\w*|jew\w*|nude\w*|naked|piss\w*"
    r"|breasts?|erotic\w*|lust\w*|masturb\w*|orgasm\w*|anus|anal|retarded|crippl\w*|murder\w*|terroris\w*)\b",
    re.IGNORECASE,
)


def examples(folder: Path) -> list[str]:
    """Return example sentences of 3 to 22 words, without those that name an author."""
    found = {}
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="latin1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            for match in EXAMPLE.finditer(line.split("|", 1)[1]):
                text = " ".join(match[1].split()).strip(" ;,:-")
                words = text.split()
                if match[2] or not 3 <= len(words) <= 22 or not PLAIN.fullmatch(text) or RUDE.search(text):
                    continue
                found[text] = None
    return list(found)


def exceptions(folder: Path, part: str) -> dict[str, list[str]]:
    """Map lemmas to their irregular forms."""
    forms: dict[str, list[str]] = {}
    for line in (folder / f"{part}.exc").read_text(encoding="utf-8").splitlines():
        form, *lemmas = line.split()
        for lemma in lemmas:
            forms.setdefault(lemma, []).append(form)
    return forms


def words(folder: Path) -> list[str]:
    """Return lines of "part form form ...": noun singular plural; verb base third past ing; adj; adv."""
    counts: Counter = Counter()
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, _, times = line.split()
        lemma, sense = key.split("%")
        counts[lemma, PARTS[sense[0]]] += int(times)
    plurals, verbs = exceptions(folder, "noun"), exceptions(folder, "verb")
    lines = []
    for (lemma, part), times in counts.most_common():
        if times < LEAST[part] or not re.fullmatch(r"[a-z]{2,14}", lemma) or RUDE.search(lemma):
            continue
        if part == "noun":
            forms = [lemma, plurals.get(lemma, [_add_s(lemma)])[0]]
        elif part == "verb":
            irregular = [form for form in verbs.get(lemma, ()) if not form.endswith(("ing", "s"))]
            forms = [lemma, _add_s(lemma), (irregular or [_add(lemma, "ed")])[0], _add(lemma, "ing")]
        else:
            forms = [lemma]
        lines.append(" ".join([part, *forms]))
    return lines


def _add_s(word: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", word):
        return word + "es"
    return re.sub(r"(?<=[^aeiou])y$", "ie", word) + "s"


def _add(word: str, ending: str) -> str:
    if re.search(r"[^aeioulrwyx][aeiou][bdgmnpt]$", word) and len(word) < 5:
        return word + word[-1] + ending
    if ending == "ed":
        return re.sub(r"(?<=[^aeiou])y$", "i", word.removesuffix("e")) + "ed"
    return (word if word.endswith(("ee", "oe", "ye")) else word.removesuffix("e")) + ending


if __name__ == "__main__":
    source = Path(sys.argv[1])
    for name, lines in (("examples.txt", examples(source)), ("words.txt", words(source))):
        (HERE / name).write_text("\n".join(lines) + "\n", encoding="ascii")
        print(name, len(lines))
