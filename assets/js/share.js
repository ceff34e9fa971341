/* share.js: the shown run as one HTML file that plays it, and what that file does when it is opened. All in the browser.
 *
 * The file is made of parts that the page holds already: its own style and script element, and a shell with a comment
 * where these and the trace belong. `explorer/engine/replay.py` makes the same file, byte for byte. */
(function (S) {
  "use strict";
  const { h, replace } = S;
  const COPIED_MS = 1500;
  const PARTS = /<!-{2}(?:style|trace|script)-{2}>/;

  /* A text as a JSON string in plain ASCII that no HTML parser takes for markup. */
  function harmlessJson(text) {
    const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
    return JSON.stringify(text).replace(/[<>&\u007f-\uffff]/g, escaped);
  }

  function replayPage(text) {
    const [before, middle, later, after] = S.shell.split(PARTS);
    const own = (id) => document.getElementById(id).textContent;
    return before + own("sv-style") + middle + harmlessJson(text) + later + own("sv-script") + after;
  }

  function download(text, type, name) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  /* Copy, and say so on the button for a moment. */
  async function copyText(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.label = button.label || button.textContent;
    button.textContent = "Copied";
    clearTimeout(button.timer);
    button.timer = setTimeout(() => (button.textContent = button.label), COPIED_MS);
  }

  class Share {
    constructor(view) {
      this.view = view;
      this.panel = h("div.sv-share", { role: "status", hidden: true });
      const link = (text, action) => h("button.sv-link", { type: "button", onclick: action }, text);
      // A replay has no shell, and is itself what would be saved.
      this.saveButton = link("Save replay", () => this.save());
      this.linkButton = link("Copy link", () => this.copyLink());
      this.buttons = S.shell ? [this.saveButton, this.linkButton] : [];
    }

    save() {
      const { trace } = this.view;
      if (!trace.meta) return;
      // Letters and figures only: the name goes into the snippet, and a trace from a file may hold anything.
      const name = `replay-${trace.meta.rule}-seed${trace.meta.seed}`.replace(/[^\w.-]+/g, "-").slice(0, 80);
      download(replayPage(trace.text), "text/html", `${name}.html`);
      this.offer(`${name}.html`);
    }

    offer(name) {
      const looks = 'width="100%" height="800" style="border:0" loading="lazy"';
      const snippet = `<iframe src="${name}" title="Speculative decoding replay" ${looks}></iframe>`;
      const copy = h("button.sv-link", { type: "button", onclick: () => copyText(snippet, copy) }, "Copy snippet");
      const content = [
        h("p", null, `Saved as ${name}: one file that plays this run anywhere. To embed it, put it beside your page and add`),
        h("code.sv-snippet", { tabindex: "0", "aria-label": "Snippet that embeds the replay" }, snippet),
      ];
      this.say(this.saveButton, content, copy);
    }

    /* The page's address with the run in its hash. Nothing else of the address goes along: it may hold a signature. */
    async copyLink() {
      const { trace } = this.view;
      if (!trace.meta) return;
      const { hash, isWhole, length } = await S.link.hashOf(trace.text);
      if (!hash) {
        const [came, most] = [length, S.link.MOST].map((count) => count.toLocaleString("en"));
        const sizes = `it would take ${came} characters, and ${most} is the most that travels well`;
        this.say(this.linkButton, h("p", null, `This run is too long for a link: ${sizes}. Save a replay, or run with fewer new tokens.`));
        return;
      }
      await copyText(location.origin + location.pathname + hash, this.linkButton);
      if (isWhole) this.panel.hidden = true;
      else this.say(this.linkButton, h("p", null, "Link copied. To make it short enough, the lists of likely tokens were left out."));
    }

    /* Until closed; then the focus goes back to the button that asked. */
    say(asked, content, ...buttons) {
      const hide = () => {
        this.panel.hidden = true;
        asked.focus();
      };
      const close = h("button.sv-link", { type: "button", onclick: hide }, "Close");
      this.panel.hidden = false;
      replace(this.panel, content, h("div.sv-actions", null, buttons, close));
    }
  }

  /* What a saved replay runs: draw its own trace, in the light or dark that the reader's system asks for. */
  S.replay = () => {
    const viewer = S.mount(document.getElementById("replay"));
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const paint = () => {
      document.documentElement.classList.toggle("dark", dark.matches);
      viewer.player.measure();
    };
    dark.addEventListener("change", paint);
    paint();
    try {
      viewer.show(S.Trace.read(JSON.parse(document.getElementById("trace").textContent)), { origin: "replay" });
      document.title = `${viewer.trace.meta.prompt}`.slice(0, 80) || document.title;
    } catch (error) {
      if (!(error instanceof S.TraceError)) throw error;
      viewer.empty.textContent = error.message;
    }
    S.viewer = viewer;
  };

  Object.assign(S, { Share, copyText, download });
})(window.SpecView);
