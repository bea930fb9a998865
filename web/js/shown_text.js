// Shows the path on Higgs Save Voice, whose new voice Higgs Load Voice lists at once, and the reports on Higgs Lines
// and Higgs Book.
import { app } from "./comfy.js"
import { say } from "./words.js"

const SHOWN = "saved" // the widget's name; it is neither saved nor sent
const SHOWING = ["HiggsTTSSaveVoice", "HiggsTTSLines", "HiggsTTSBook"]

/**
 * Shows a text on a node. Returns true if it has changed.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} text
 */
function show(node, text) {
    let widget = node.widgets?.find((entry) => entry.name === SHOWN)
    if (!widget) {
        widget = app.widgets.STRING(node, SHOWN, ["STRING", { multiline: true }], app).widget
        widget.serialize = false
        widget.label = say("saved")
        widget.options.serialize = false
        const area = widget.element ?? widget.inputEl
        if (area instanceof HTMLTextAreaElement) area.readOnly = true
    }
    const isNew = widget.value !== text
    widget.value = text
    return isNew
}

app.registerExtension({
    name: "HiggsTTS.ShownText",
    beforeRegisterNodeDef(nodeType, nodeData) {
        if (!SHOWING.includes(nodeData.name)) return
        const onExecuted = nodeType.prototype.onExecuted
        nodeType.prototype.onExecuted = function (output) {
            onExecuted?.apply(this, [output])
            const text = output?.text?.join("")
            if (text && show(this, text) && nodeData.name === "HiggsTTSSaveVoice") app.refreshComboInNodes()
        }
    },
})
