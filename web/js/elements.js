// Elements of a page, in fewer words.

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
