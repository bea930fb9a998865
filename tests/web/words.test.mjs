// How the page translates its own sentences and the server's. Run by tests/unit/test_page_scripts.py.
import assert from "node:assert/strict"
import test from "node:test"
import { englishOf, learn, listed, saidHere, say, translated, translatedLines } from "../../web/js/words.js"

const WORDS = {
    page: { "seed {seed}": "Startwert {seed}", Play: "Los" },
    server: {
        auto: "automatisch",
        English: "Englisch",
        Chinese: "Chinesisch",
        "download: {name}": "laden: {name}",
        "Unknown tag {tag} was left out.": "{tag} ist unbekannt.",
        "It speaks only {listKnown} ({text}).": "({text}) Nur {listKnown}.",
    },
    messages: {
        "Warning: {sentence}": "Warnung: {sentence}",
        "{path} is missing. {sentence}": "{path} fehlt. {sentence}",
        "{path} is missing. Download {file}.": "{path} fehlt. Lade {file}.",
        "Choose {listNames}.": "Wähle {listNames}.",
        "chapter {number} ({title})": "Kapitel {number} ({title})",
    },
}
const TEMPLATES = { "# Book": "# 本", "Press Run.": "実行を押す。" }
let language = "de"
learn(
    { de: { ...WORDS, templates: { "# Book": "# Buch", "Press Run.": "Führe aus." } }, ja: { templates: TEMPLATES } },
    () => language,
)

test("a sentence keeps its values, and stays English where a translation is missing", () => {
    assert.equal(say("seed {seed}", { seed: 7 }), "Startwert 7")
    assert.equal(say("Stop {name}", { name: "$& {seed}" }), "Stop $& {seed}")
    language = "fr"
    assert.deepEqual([say("Play"), translated("auto")], ["Play", "auto"])
    language = "de"
    assert.equal(say("Play"), "Los")
})

test("a sentence of the server is found by its English, whatever its values are", () => {
    assert.equal(translated("auto"), "automatisch")
    assert.equal(translated("download: a (b)"), "laden: a (b)")
    assert.equal(translated("Unknown tag <|x|>\n. was left out."), "<|x|>\n. ist unbekannt.")
    assert.equal(translated("Unknown tag <|x|> was left out. Why?"), "Unknown tag <|x|> was left out. Why?")
    assert.equal(translated("It speaks only English (a and b)."), "(a and b) Nur Englisch.")
    assert.equal(
        translated("It speaks only English, Chinese and Latin (x)."),
        "(x) Nur Englisch, Chinesisch und Latin.",
    )
    assert.equal(listed(["a", "b"]), "a und b")
    assert.equal(translated(""), "")
})

test("an error or a report is translated line by line, with what stands in it", () => {
    assert.equal(translatedLines("Warning: Unknown tag x was left out."), "Warnung: x ist unbekannt.")
    assert.equal(
        translatedLines("Warning: a.txt is missing. Download b."),
        "Warnung: a.txt fehlt. Lade b.",
        "the key that says most",
    )
    assert.equal(translatedLines("a is missing. auto"), "a fehlt. automatisch")
    assert.equal(translatedLines("Model: x\nWarning: Why?\nauto"), "Model: x\nWarnung: Why?\nautomatisch")
    assert.equal(
        translatedLines("Choose chapter 2 (The Cat and the Fox), x and y, English and z."),
        "Wähle Kapitel 2 (The Cat and the Fox), x and y, Englisch und z.",
    )
    language = "fr"
    assert.equal(translatedLines("Warning: auto"), "Warning: auto")
    language = "de"
})

test("a text of a template is translated from any language, unless a line of it is a user's", () => {
    assert.equal(saidHere("# Book\n\nPress Run.\n"), "# Buch\n\nFühre aus.\n")
    assert.equal(saidHere("# 本\n\n実行を押す。\n"), "# Buch\n\nFühre aus.\n")
    for (const text of ["# Book\n\nPress Run.\nMine.", "# My book", "# Book ", "", "\n"])
        assert.equal(saidHere(text), text)
    assert.deepEqual(["# Buch", "# 本", "# Book", "Mine"].map(englishOf), ["# Book", "# Book", "# Book", "Mine"])
    language = "en"
    assert.equal(saidHere("# Buch\n\nPress Run."), "# Book\n\nPress Run.")
    language = "de"
})
