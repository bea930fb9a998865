// Invisible copy of a text area, laid over it: underlines marked parts, and locates the caret.
import { addStyle, make } from "./elements.js"

addStyle(`
.higgs-mirror { position: fixed; z-index: 900; overflow: hidden; pointer-events: none; transform-origin: 0 0;
    color: transparent; }
.higgs-mirror > div { position: absolute; left: 0; top: 0; width: 100%; margin: 0; border: 0; box-sizing: border-box;
    white-space: pre-wrap; overflow-wrap: break-word; }
.higgs-mirror mark { background: none; color: transparent; text-decoration: underline wavy var(--error-text, #ff7070);
    text-decoration-skip-ink: none; text-underline-offset: 2px; }
.higgs-mirror mark.higgs-said { text-decoration: underline dotted var(--descrip-text, #999); }
`)

// Properties that decide where letters are.
const SAME = /** @type {const} */ ([
    "direction",
    "fontFamily",
    "fontSize",
    "fontStyle",
    "fontVariant",
    "fontWeight",
    "fontStretch",
    "letterSpacing",
    "lineHeight",
    "paddingBottom",
    "paddingLeft",
    "paddingRight",
    "paddingTop",
    "tabSize",
    "textAlign",
    "textIndent",
    "textTransform",
    "wordSpacing",
])

export class Mirror {
    #seen = "" // where the text area was

    /** @param {HTMLTextAreaElement} area */
    constructor(area) {
        this.area = area
        this.element = make("div", "higgs-mirror")
        this.element.setAttribute("aria-hidden", "true")
        this.text = document.createElement("div")
        this.caret = document.createElement("span")
        this.element.append(this.text)
        document.body.append(this.element)
    }

    /**
     * @param {({start: number, stop: number, said?: string})[]} marks in order; with said: no problem
     */
    draw(marks) {
        const style = getComputedStyle(this.area)
        for (const name of SAME) this.text.style[name] = style[name]
        const { value, selectionEnd } = this.area
        /** @type {Node[]} */
        const parts = []
        let at = 0
        const add = (/** @type {number} */ stop, /** @type {HTMLElement | null} */ inside) => {
            const caret = selectionEnd
            const piece = inside ?? document.createDocumentFragment()
            if (caret >= at && caret < stop) {
                piece.append(value.slice(at, caret), this.caret, value.slice(caret, stop))
            } else piece.append(value.slice(at, stop))
            parts.push(piece)
            at = stop
        }
        for (const { start, stop, said } of marks) {
            if (start < at) continue
            if (start > at) add(start, null)
            add(stop, make("mark", said === undefined ? "" : "higgs-said"))
        }
        this.caret.remove()
        add(value.length, null)
        if (selectionEnd === value.length) parts.push(this.caret)
        this.text.replaceChildren(...parts, "\n")
    }

    /** Covers the text area, wherever it has moved. @returns {number | null} its scale on the page; null if it has not */
    follow() {
        const { area, element } = this
        const box = area.getBoundingClientRect()
        const place = [box.left, box.top, box.width, box.height, area.scrollLeft, area.scrollTop]
        const seen = [...place, area.clientWidth, area.clientHeight, innerHeight].join(" ")
        if (seen === this.#seen) return null
        this.#seen = seen
        const scale = box.width / area.offsetWidth || 1
        Object.assign(element.style, {
            left: `${box.left + area.clientLeft * scale}px`,
            top: `${box.top + area.clientTop * scale}px`,
            width: `${area.clientWidth}px`,
            height: `${area.clientHeight}px`,
            transform: `scale(${scale})`,
        })
        this.text.style.transform = `translate(${-area.scrollLeft}px, ${-area.scrollTop}px)`
        return scale
    }

    /** Position of the caret on the page. */
    caretBox() {
        return this.caret.getBoundingClientRect()
    }

    remove() {
        this.element.remove()
    }
}
