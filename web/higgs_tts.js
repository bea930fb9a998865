// Higgs Save Voice shows where it saved, and the new voice is in Higgs Load Voice's list at once.
import { app } from "../../scripts/app.js"
import { ComfyWidgets } from "../../scripts/widgets.js"

const SHOWN = "saved" // the widget's name; it is neither saved nor sent

function show(node, text) {
    let widget = node.widgets?.find((entry) => entry.name === SHOWN)
    if (!widget) {
        widget = ComfyWidgets.STRING(node, SHOWN, ["STRING", { multiline: true }], app).widget
        widget.serialize = false
        widget.options.serialize = false
        const area = widget.element ?? widget.inputEl
        if (area) area.readOnly = true
    }
    const isNew = widget.value !== text
    widget.value = text
    return isNew
}

app.registerExtension({
    name: "HiggsTTS.SaveVoice",
    beforeRegisterNodeDef(nodeType, nodeData) {
        if (nodeData.name !== "HiggsTTSSaveVoice") return
        const onExecuted = nodeType.prototype.onExecuted
        nodeType.prototype.onExecuted = function (output) {
            onExecuted?.apply(this, arguments)
            const text = output?.text?.join("")
            if (text && show(this, text)) app.refreshComboInNodes()
        }
    },
})
