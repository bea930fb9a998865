// The page's words in ComfyUI's language. The English sentences are the keys of "higgsTTS" in locales/*/main.json, and
// stay where a translation is missing. Read them when they are shown: the language may change.

/**
 * page: of the scripts. server: of the server. messages: its errors and reports. templates: of our workflows. all: the
 * server's and messages, sorted.
 * @typedef {{page?: Record<string, string>, server?: Record<string, string>, messages?: Record<string, string>,
 *     templates?: Record<string, string>, all?: Record<string, string>}} Words
 */

const LONGEST = 1500 // characters of a line that is looked up

/** @type {Record<string, Words | undefined>} by language */
let known = {}
let language = () => "en"
/** @type {Map<string, string>} English by a text of our templates in any language */
let english = new Map()

/**
 * @param {Record<string, Words | undefined>} words by language
 * @param {() => string} current returns the page's language
 */
export function learn(words, current) {
    known = words
    language = current
    const templates = Object.values(words).flatMap((one) => Object.entries(one?.templates ?? {}))
    english = new Map(templates.flatMap(([key, text]) => [[key, key], /** @type {const} */ ([text, key])]))
}

/**
 * Returns one of the page's own sentences, with values in its {places}. Takes only literals, which a test collects.
 * @param {string} english
 * @param {Record<string, string | number>} [values]
 */
export function say(english, values = {}) {
    return filled(known[language()]?.page?.[english] ?? english, values)
}

/**
 * Translates a sentence of the server, which has its values already.
 * @param {string} english
 * @returns {string}
 */
export function translated(english) {
    return formOf(english, known[language()]?.server ?? {}) ?? english
}

/**
 * Translates an error of the server, or a report, each of whose lines it may know.
 * @param {string} english
 * @returns {string}
 */
export function translatedLines(english) {
    const words = messages()
    return english
        .split("\n")
        .map((line) => (line.length > LONGEST ? line : (formOf(line, words) ?? line)))
        .join("\n")
}

/**
 * Returns the English of a text of our templates in any language, another text as it is.
 * @param {string} text
 */
export function englishOf(text) {
    return english.get(text) ?? text
}

/**
 * Translates a text of our templates from any language, if each of its lines is ours.
 * @param {string} text
 */
export function saidHere(text) {
    const lines = text.split("\n")
    if (!lines.every((line) => !line || english.has(line))) return text
    const here = known[language()]?.templates ?? {}
    return lines.map((line) => here[englishOf(line)] ?? englishOf(line)).join("\n")
}

/** Sentences of errors and reports, and the server's others, which stand in them. Those that say most come first. */
function messages() {
    const words = known[language()]
    if (!words) return {}
    if (!words.all) {
        const all = Object.entries({ ...words.server, ...words.messages })
        words.all = Object.fromEntries(all.sort(([one], [other]) => bare(other) - bare(one)))
    }
    return words.all
}

/** Number of characters beside the places, fewer for a sentence that begins with one. @param {string} key */
function bare(key) {
    return key.replace(/\{\w+\}/g, "").length - (key.startsWith("{") ? 1000 : 0)
}

/**
 * The translation of a sentence, or null. A place {list...} holds a list of sentences, {sentence...} another sentence.
 * @param {string} english
 * @param {Record<string, string>} words
 * @returns {string | null}
 */
function formOf(english, words) {
    if (Object.hasOwn(words, english)) return words[english]
    for (const [key, sentence] of Object.entries(words)) {
        const values = key.includes("{") && english.match(patternOf(key))?.groups
        if (!values) continue
        for (const [name, value] of Object.entries(values)) {
            if (name.startsWith("sentence")) values[name] = formOf(value, words) ?? value
            if (name.startsWith("list")) values[name] = listed(partsOf(value, words))
        }
        return filled(sentence, values)
    }
    return null
}

/**
 * The parts of a list, translated where they are known. Other parts may contain an "and" of their own.
 * @param {string} english
 * @param {Record<string, string>} words
 */
function partsOf(english, words) {
    return english.split(", ").flatMap((part) => {
        const whole = formOf(part, words)
        if (whole !== null) return [whole]
        const forms = part.split(" and ").map((one) => [one, formOf(one, words)])
        return forms.some(([, form]) => form !== null) ? forms.map(([one, form]) => form ?? one ?? "") : [part]
    })
}

/**
 * Joins names as the language does.
 * @param {string[]} names
 */
export function listed(names) {
    return new Intl.ListFormat(language(), { type: "conjunction" }).format(names)
}

/**
 * @param {string} sentence
 * @param {Record<string, string | number>} values
 */
function filled(sentence, values) {
    return sentence.replace(/\{(\w+)\}/g, (place, name) => String(values[name] ?? place))
}

/** @type {Map<string, RegExp>} by key */
const patterns = new Map()

/** @param {string} key */
function patternOf(key) {
    let pattern = patterns.get(key)
    if (!pattern) {
        const parts = key.split(/\{(\w+)\}/).map((part, at) => (at % 2 ? `(?<${part}>.+?)` : literal(part)))
        patterns.set(key, (pattern = new RegExp(`^${parts.join("")}$`, "s")))
    }
    return pattern
}

/** @param {string} text */
function literal(text) {
    return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")
}
