// Run in a page before its own scripts: keeps what goes to the speakers in `heard`, with the time of its first sample.
;(() => {
    const connect = AudioNode.prototype.connect
    const Worklet = window.AudioWorkletNode // which a test may take from the page
    const code = `registerProcessor("recorder", class extends AudioWorkletProcessor {
        process([[wav]]) {
            this.port.onmessage = () => (this.began = false)
            if (wav && (this.began ||= wav.some((sample) => sample !== 0))) this.port.postMessage(wav.slice())
            return true
        }
    })`
    window.heard = { first: 0, parts: [], ready: null, reset() {} }
    AudioNode.prototype.connect = function (target, ...others) {
        if (target instanceof AudioDestinationNode) {
            const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }))
            heard.ready = this.context.audioWorklet.addModule(address).then(() => {
                const recorder = new Worklet(this.context, "recorder", { numberOfOutputs: 0 })
                recorder.port.onmessage = ({ data }) => {
                    heard.first ||= performance.now()
                    heard.parts.push(data)
                }
                connect.call(this, recorder)
                heard.reset = () => {
                    recorder.port.postMessage("from the next sound on")
                    heard.parts = []
                    heard.first = 0
                }
            })
        }
        return connect.call(this, target, ...others)
    }
    window.heardSamples = () => heard.parts.flatMap((part) => [...part].map((sample) => Math.round(sample * 32767)))
})()
