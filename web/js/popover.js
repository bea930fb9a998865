// Box over the page, closed by a click elsewhere or by Escape.

/**
 * Opens an element below another one. Returns a function that closes it.
 * @param {HTMLElement} element
 * @param {HTMLElement} below
 * @param {() => void} onClose
 */
export function openPopover(element, below, onClose) {
    document.body.append(element)
    const box = below.getBoundingClientRect()
    const { width, height } = element.getBoundingClientRect()
    element.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`
    element.style.top = `${Math.max(8, Math.min(box.bottom + 4, innerHeight - height - 8))}px`
    /** @param {Event} event */
    const onAway = (event) => {
        const isKey = event instanceof KeyboardEvent
        if (isKey ? event.key === "Escape" : !element.contains(/** @type {Element} */ (event.target))) close()
    }
    function close() {
        element.remove()
        removeEventListener("pointerdown", onAway, true)
        removeEventListener("keydown", onAway, true)
        onClose()
    }
    addEventListener("pointerdown", onAway, true)
    addEventListener("keydown", onAway, true)
    return close
}
