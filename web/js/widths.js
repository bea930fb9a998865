// Higgs Transcribe is as wide as its longest choice.
import { app } from "./comfy.js"

/** @type {Record<string, number>} */
const LEAST_WIDTH = { HiggsTTSTranscribe: 360 } // CSS pixels

app.registerExtension({
    name: "HiggsTTS.Widths",
    beforeRegisterNodeDef(nodeType, nodeData) {
        const least = LEAST_WIDTH[nodeData.name]
        if (!least) return
        const computeSize = nodeType.prototype.computeSize
        nodeType.prototype.computeSize = function (...given) {
            const [width, height] = computeSize.apply(this, given)
            return [Math.max(width, least), height]
        }
    },
})
