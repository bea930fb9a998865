// Makes Higgs Load LoRA and Higgs Transcribe as wide as their longest choice.
import { app } from "./comfy.js"

/** @type {Record<string, number>} */
const LEAST_WIDTH = { HiggsTTSLoadLoRA: 310, HiggsTTSTranscribe: 360 } // CSS pixels

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
