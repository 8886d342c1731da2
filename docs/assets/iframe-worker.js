/* Search runs in a Worker, which browsers refuse to pages opened from disk. There, an iframe does its work. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      window.addEventListener("message", event => {
        if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
      inner.document.open()
      inner.document.write(`<script>
        postMessage = data => parent.dispatchEvent(new MessageEvent("message", { data, source: window }))
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          document.body.appendChild(script)
        })), Promise.resolve())
      <\/script><body><script src="${url}"><\/script>`)
      inner.document.close()
      this.ready = new Promise(done => this.frame.addEventListener("load", done, { once: true }))
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
