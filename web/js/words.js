// The page's words in ComfyUI's language. The English sentences are the keys of "higgsTTS" in locales/*/main.json, and
// stay where a translation is missing. Read them when they are shown: the language may change.

/** @typedef {{page?: Record<string, string>, server?: Record<string, string>}} Words */

/** @type {Record<string, Words | undefined>} by language */
let known = {}
let language = () => "en"

/**
 * @param {Record<string, Words | undefined>} words by language
 * @param {() => string} current returns the page's language
 */
export function learn(words, current) {
    known = words
    language = current
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
 * Translates a sentence of the server, which has its values already. A place {list...} holds a list in words.
 * @param {string} english
 * @returns {string}
 */
export function translated(english) {
    const words = known[language()]?.server ?? {}
    if (english in words) return words[english]
    for (const [key, sentence] of Object.entries(words)) {
        const values = key.includes("{") && english.match(patternOf(key))?.groups
        if (!values) continue
        for (const name of Object.keys(values)) {
            if (name.startsWith("list")) values[name] = listed(values[name].split(/, | and /).map(translated))
        }
        return filled(sentence, values)
    }
    return english
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

/** @param {string} key */
function patternOf(key) {
    const parts = key.split(/\{(\w+)\}/).map((part, at) => (at % 2 ? `(?<${part}>.+?)` : literal(part)))
    return new RegExp(`^${parts.join("")}$`, "s")
}

/** @param {string} text */
function literal(text) {
    return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")
}
