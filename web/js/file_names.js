// Replaces %date:yyyy-MM-dd% and %Node.widget% in our nodes' file names, as ComfyUI's page does for its own Save nodes.
import { app } from "./comfy.js"

app.registerExtension({
    name: "HiggsTTS.FileNames",
    nodeCreated(node) {
        if (!(node.comfyClass ?? node.type)?.startsWith("HiggsTTS")) return
        const widget = node.widgets?.find(({ name }) => name === "filename_prefix")
        const replaced = window.comfyAPI?.utils?.applyTextReplacements
        if (widget && replaced) widget.serializeValue = () => replaced(app, String(widget.value))
    },
})
