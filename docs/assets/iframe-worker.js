// Lets the search run where the pages are opened as files: browsers start no worker from a file, so its script is run
// in a frame instead. Where there is a server, nothing is changed.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe")
    #ready

    constructor(url) {
      super()
      this.#frame.hidden = true
      document.documentElement.append(this.#frame)
      const inside = this.#frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve())
      this.#ready = load(inside, url)
    }

    postMessage(data) {
      this.#ready.then(() => {
        this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      })
    }

    terminate() {
      this.#frame.remove()
    }
  }

  function load(inside, url) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script")
      script.src = new URL(url, location).href
      script.onload = done
      script.onerror = failed
      inside.document.body.append(script)
    })
  }
}
