// Run in a page before its own scripts: keeps what goes to the speakers in `heard`, with the time at which its first
// sample was played: a busy page learns of it later.
;(() => {
    const connect = AudioNode.prototype.connect
    const worklet = Object.getOwnPropertyDescriptor(BaseAudioContext.prototype, "audioWorklet") // a test may take it
    const code = `registerProcessor("recorder", class extends AudioWorkletProcessor {
        constructor() {
            super()
            this.began = false
            this.round = 0
            this.port.onmessage = ({ data }) => {
                this.began = false
                this.round = data
            }
        }
        process([[wav]]) {
            if (wav && (this.began ||= wav.some((sample) => sample !== 0))) {
                this.port.postMessage({ round: this.round, wav: wav.slice(), time: currentTime })
            }
            return true
        }
    })`
    let round = 0
    window.heard = { first: 0, time: 0, parts: [], reset() {} }
    AudioNode.prototype.connect = function (target, ...others) {
        if (target instanceof AudioDestinationNode) {
            const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }))
            worklet.get
                .call(this.context)
                .addModule(address)
                .then(() => {
                    const recorder = new AudioWorkletNode(this.context, "recorder", { numberOfOutputs: 0 })
                    heard.context = this.context
                    recorder.port.onmessage = ({ data }) => {
                        if (data.round !== round) return // from before it was reset
                        heard.time ||= data.time
                        heard.first ||= performance.now() - 1000 * (this.context.currentTime - data.time)
                        heard.parts.push(data.wav)
                    }
                    heard.reset = () => {
                        recorder.port.postMessage(++round)
                        heard.parts = []
                        heard.first = heard.time = 0
                    }
                    connect.call(this, recorder)
                })
        }
        return connect.call(this, target, ...others)
    }
    window.heardSamples = () => heard.parts.flatMap((part) => [...part].map((sample) => Math.round(sample * 32767)))
})()
