// Higgs Save Voice shows where it saved, and the new voice is in Higgs Load Voice's list at once; Higgs Lines and Higgs
// Book show their reports. A saved Higgs Speak that is older than one of its widgets keeps saying what it said. Higgs
// Transcribe is as wide as its longest choice.
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
    name: "HiggsTTS.ShownText",
    beforeRegisterNodeDef(nodeType, nodeData) {
        const saves = nodeData.name === "HiggsTTSSaveVoice"
        if (!saves && !["HiggsTTSLines", "HiggsTTSBook"].includes(nodeData.name)) return
        const onExecuted = nodeType.prototype.onExecuted
        nodeType.prototype.onExecuted = function (output) {
            onExecuted?.apply(this, arguments)
            const text = output?.text?.join("")
            if (text && show(this, text) && saves) app.refreshComboInNodes()
        }
    },
})

// What a widget is worth in a workflow that was saved before there was such a widget.
const KEPT = { HiggsTTSSpeak: { paragraph_gap: 0 } }

app.registerExtension({
    name: "HiggsTTS.SavedValues",
    beforeRegisterNodeDef(nodeType, nodeData) {
        const kept = KEPT[nodeData.name]
        if (!kept) return
        const onConfigure = nodeType.prototype.onConfigure
        nodeType.prototype.onConfigure = function (saved) {
            onConfigure?.apply(this, arguments)
            const values = saved?.widgets_values
            if (!Array.isArray(values)) return
            const widgets = (this.widgets ?? []).filter((widget) => widget.serialize !== false)
            for (const widget of widgets.slice(values.length)) {
                if (widget.name in kept) widget.value = kept[widget.name]
            }
        }
    },
})

const LEAST_WIDTH = { HiggsTTSTranscribe: 360 }

app.registerExtension({
    name: "HiggsTTS.Widths",
    beforeRegisterNodeDef(nodeType, nodeData) {
        const least = LEAST_WIDTH[nodeData.name]
        if (!least) return
        const computeSize = nodeType.prototype.computeSize
        nodeType.prototype.computeSize = function () {
            const [width, height] = computeSize.apply(this, arguments)
            return [Math.max(width, least), height]
        }
    },
})
