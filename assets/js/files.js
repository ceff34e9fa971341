/* files.js: saving the shown run, opening a saved one, copying the answer. All in the browser. */
(function (S) {
  "use strict";
  const { h } = S;

  class Files {
    constructor(view) {
      this.view = view;
      this.input = h("input", {
        type: "file",
        accept: ".ndjson,.jsonl,application/x-ndjson",
        hidden: true,
        "aria-hidden": "true",
        onchange: () => this.open(this.input.files[0]),
      });
      const link = (text, action) => h("button.sv-link", { type: "button", onclick: action }, text);
      this.openButton = link("Open trace", () => this.choose());
      this.copyButton = link("Copy answer", () => this.copy());
      this.share = new S.Share(view);
      const save = link("Download trace", () => this.save());
      this.buttons = [save, this.share.buttons, this.openButton, this.copyButton, this.input];
    }

    save() {
      const { trace } = this.view;
      if (!trace.meta) return;
      S.download(trace.text, "application/x-ndjson", `trace-${trace.meta.rule}-seed${trace.meta.seed}.ndjson`);
    }

    choose() {
      if (this.view.isLive) {
        this.view.header.say("A run is going on. Press Stop first, then open a trace.");
        return;
      }
      this.input.value = "";
      this.input.click();
    }

    /* The shown trace stays if the file is none. */
    async open(file) {
      if (!file) return;
      try {
        const trace = S.Trace.read(await file.text());
        this.view.show(trace, { origin: "file" });
        this.view.header.say("");
      } catch (error) {
        if (!(error instanceof S.TraceError)) throw error;
        this.view.header.say(`${file.name}: ${error.message}`);
      }
    }

    async copy() {
      await S.copyText(this.view.trace.answerAt(this.view.playhead), this.copyButton);
    }
  }

  Object.assign(S, { Files });
})(window.SpecView);
