// Browsers start no worker for a page that was opened from the disk. There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><body></body>";
      this.started = new Promise((started) => {
        this.frame.onload = () => started(this.start(new URL(url, location)));
      });
      document.body.append(this.frame);
    }

    start(url) {
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script");
          script.src = new URL(source, url);
          script.onload = resolve;
          script.onerror = reject;
          inner.document.body.append(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      return load(url);
    }

    postMessage(data) {
      this.started.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
