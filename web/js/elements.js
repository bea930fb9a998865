// Short forms for making page elements.

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} name its class
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, name) {
    const element = document.createElement(tag)
    element.className = name
    return element
}

/** @param {string} rules CSS */
export function addStyle(rules) {
    const style = document.createElement("style")
    style.textContent = rules
    document.head.append(style)
}

/**
 * Sets only properties that differ, because every write causes a new layout.
 * @template {object} Target
 * @param {Target} target
 * @param {Partial<Target>} values
 */
export function update(target, values) {
    for (const name of /** @type {(keyof Target)[]} */ (Object.keys(values))) {
        const value = values[name]
        if (value !== undefined && target[name] !== value) target[name] = value
    }
}
