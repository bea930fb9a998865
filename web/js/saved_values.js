// Keeps the speech of saved nodes that are older than one of their widgets.
import { app } from "./comfy.js"

/**
 * Value of a widget in a workflow saved before the widget existed.
 * @type {Record<string, Record<string, any>>}
 */
const KEPT = {
    HiggsTTSSpeak: { paragraph_gap: 0, loudness: "as is" },
    HiggsTTSDialogue: { loudness: "as is" },
    HiggsTTSLines: { loudness: "as is" },
    HiggsTTSBook: { loudness: "as is" },
    HiggsTTSSubtitles: { loudness: "as is" },
}

app.registerExtension({
    name: "HiggsTTS.SavedValues",
    beforeRegisterNodeDef(nodeType, nodeData) {
        const kept = KEPT[nodeData.name]
        if (!kept) return
        const onConfigure = nodeType.prototype.onConfigure
        nodeType.prototype.onConfigure = function (saved) {
            onConfigure?.apply(this, [saved])
            const values = saved?.widgets_values
            if (!Array.isArray(values)) return
            const widgets = (this.widgets ?? []).filter((widget) => widget.serialize !== false)
            for (const widget of widgets.slice(values.length)) {
                if (widget.name in kept) widget.value = kept[widget.name]
            }
        }
    },
})
