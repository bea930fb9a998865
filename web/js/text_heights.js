// On the classic canvas, makes the main text a node's largest box, and rarely used texts labelled lines that grow.
// Nodes 2.0 has its own elements.
import { app } from "./comfy.js"
import { addStyle, make } from "./elements.js"
import { makeRoom } from "./graph.js"

const LINES = ["scene", "pronunciations", "details"]
const LEAST = 20 // CSS pixels: of a line
const MOST = 100 // maximum of a line, which then scrolls
const MAIN = 120 // of the main text in a new node
const MARGIN = 20 // total of ComfyUI's margins above and below an element

addStyle(`
.higgs-line { display: flex; align-items: stretch; gap: 6px; overflow: hidden; border-radius: 4px;
    background: var(--comfy-input-bg, #222); }
.higgs-line span { flex: none; padding: 2px 0 0 6px; color: var(--descrip-text, #999); font: 11px/16px sans-serif; }
.higgs-line textarea { flex: 1; min-width: 0; min-height: 0; box-sizing: border-box; padding: 2px 4px; }
`)

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {import("../../tests/web/comfy").Widget} widget
 * @param {HTMLTextAreaElement} area
 */
function makeLine(node, widget, area) {
    const line = make("label", "higgs-line")
    const name = make("span", "")
    name.textContent = widget.label ?? widget.name
    if (area.placeholder === widget.name) area.placeholder = ""
    line.append(name, area)
    line.blur = () => area.blur() // ComfyUI calls this to remove the focus
    widget.element = line
    let height = LEAST
    let seen = "" // state that the height was measured for
    const fit = () => {
        const state = `${node.size[0]} ${area.value}`
        if (state !== seen) {
            area.style.height = "0"
            const needed = area.scrollHeight // 0 while it is hidden
            area.style.height = ""
            height = Math.max(LEAST, Math.min(needed, MOST))
            seen = needed ? state : ""
        }
        return height + MARGIN
    }
    Object.assign(widget.options, { getMinHeight: fit, getMaxHeight: fit })
}

app.registerExtension({
    name: "HiggsTTS.TextHeights",
    nodeCreated(node) {
        if (!(node.comfyClass ?? node.type)?.startsWith("HiggsTTS")) return
        const texts = (node.widgets ?? []).filter(({ element }) => element instanceof HTMLTextAreaElement)
        if (!texts.some(({ name }) => LINES.includes(name))) return
        for (const widget of texts) {
            const area = /** @type {HTMLTextAreaElement} */ (widget.element)
            if (LINES.includes(widget.name)) makeLine(node, widget, area)
            else widget.options.getMinHeight = () => MAIN
        }
        makeRoom(node)
    },
})
