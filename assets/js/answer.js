/* answer.js: the legend and the answer's tokens with their verdicts in place. */
(function (S) {
  "use strict";
  const { h, icon, replace, tokenName, tokenNodes, FATE_WORD } = S;
  // Scripts without spaces: every token may start a line.
  const STARTS_WORD = /^[\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;
  const FATES = ["accepted", "rejected", "discarded", "residual", "bonus", "pending"];

  class Answer {
    constructor(view) {
      this.view = view;
      this.counts = {};
      const items = FATES.map((fate) => {
        this.counts[fate] = h("b", null, "0");
        return h(`li.sv-is-${fate}`, null, icon(fate), h("span.sv-word", null, FATE_WORD[fate]), this.counts[fate]);
      });
      this.pendingItem = items[5];
      this.legend = h("ul.sv-legend", { "aria-label": "Legend with counts" }, items);
      this.flow = h("div.sv-flow", { role: "group", "aria-label": "Answer, token by token. Arrow keys move, Enter pins." });
      this.final = h("div.sv-final", { hidden: true, dir: "auto" });
      this.toggle = h("input", { type: "checkbox", role: "switch", onchange: () => this.switchText() });
      this.strip = h("input", { type: "checkbox", role: "switch", onchange: () => this.switchStrip() });
      this.strip.checked = true;
      this.stripLabel = h("label.sv-switch", null, this.strip, h("span", null, "Weight strip"));
      this.stripKey = h("span.sv-stripkey", null, "Weight ", h("em", null, "w"), ": height 0 (drafter) to 1 (target)");
      const switches = h(
        "div.sv-switches",
        null,
        this.stripKey,
        this.stripLabel,
        h("label.sv-switch", null, this.toggle, h("span", null, "Final text only")),
      );
      this.element = h("section.sv-answer", { "aria-label": "Answer" }, this.legend, this.flow, this.final, switches);
      this.reset();
    }

    reset() {
      replace(this.flow);
      this.parts = [];
      this.drawn = [];
      this.word = null;
      this.lineEnd = null;
    }

    switchText() {
      this.final.hidden = !this.toggle.checked;
      this.flow.hidden = this.toggle.checked;
      this.draw();
    }

    switchStrip() {
      this.flow.classList.toggle("sv-strip", this.hasWeights && this.strip.checked);
    }

    get hasWeights() {
      const meta = this.view.trace.meta;
      return meta !== null && !["ar", "exact", "lossy", "static"].includes(meta.rule);
    }

    draw() {
      const { trace, playhead } = this.view;
      for (let r = this.parts.length; r < trace.rounds.length; r += 1) this.addRound(trace.rounds[r]);
      for (const round of trace.rounds) this.drawRound(round, playhead);
      const counts = trace.countsAt(playhead);
      for (const fate of FATES) this.counts[fate].textContent = counts[fate];
      this.pendingItem.hidden = counts.pending === 0;
      this.stripLabel.hidden = this.stripKey.hidden = !this.hasWeights;
      this.switchStrip();
      if (!this.final.hidden) this.final.textContent = trace.answerAt(playhead);
    }

    /* Tokens of a round in reading order: kept and rejected drafts, the target's token, then what was never tested. */
    addRound(round) {
      const part = { tokens: new Map(), more: null, isOpen: false };
      const tested = round.tokens.filter((token) => token.fate !== "discarded");
      const rest = round.tokens.filter((token) => token.fate === "discarded");
      part.seam = h("span.sv-seam", { "aria-hidden": "true" }, h("span", null, String(round.number + 1)));
      let seam = part.seam;
      for (const token of [...tested, ...rest]) {
        if (token === rest[0]) part.more = this.addMore(part, rest.length);
        const node = this.tokenNode(token);
        part.tokens.set(token, node);
        this.place(node, token, seam);
        seam = null;
      }
      this.parts.push(part);
      this.drawn.push(null);
    }

    addMore(part, count) {
      const text = `+${count} untested`;
      const toggle = () => {
        part.isOpen = !part.isOpen;
        button.setAttribute("aria-expanded", String(part.isOpen));
        this.drawn.fill(null);
        this.draw();
      };
      const props = { type: "button", "aria-expanded": "false", onclick: toggle };
      const button = h("button.sv-more.sv-is-discarded", props, icon("discarded"), h("span.sv-word", null, text));
      this.openWord().append(button);
      return button;
    }

    place(node, token, seam) {
      if (this.lineEnd && token.fate !== "discarded") this.breakLine();
      if (STARTS_WORD.test(token.text)) this.word = null;
      const word = this.openWord();
      if (seam) word.append(seam);
      word.append(node);
      if (token.isKept && token.text.includes("\n")) this.lineEnd = node;
    }

    /* After a kept new line, but also after what was never tested behind it. */
    breakLine() {
      const node = this.lineEnd;
      node.breaks = h("span.sv-break", { "aria-hidden": "true" });
      node.breaks.hidden = node.hidden;
      this.flow.append(node.breaks);
      this.word = this.lineEnd = null;
    }

    /* Tokens of one word stay together: a line never breaks inside it. */
    openWord() {
      if (!this.word) {
        this.word = h("span.sv-wordbox");
        this.flow.append(this.word);
      }
      return this.word;
    }

    tokenNode(token) {
      const text = h("bdi.sv-word", null, tokenNodes(token.text, false));
      const isSpaced = /^ [^ ]/.test(token.text);
      const mark = h("span.sv-glyph");
      const node = h(`span.sv-token${isSpaced ? ".sv-spaced" : ""}`, { role: "button", tabindex: "-1" }, text, mark);
      if (typeof token.data.w === "number" && !token.isNext) {
        node.append(h("span.sv-weight", { style: { "--w": token.data.w }, "aria-hidden": "true" }));
      } else node.append(h("span.sv-weight.sv-none", { "aria-hidden": "true" }));
      node.mark = mark;
      node.token = token;
      return node;
    }

    drawRound(round, playhead) {
      const done = Math.max(0, Math.min(playhead, round.lastStep) - round.firstStep);
      if (this.drawn[round.number] === done) return;
      this.drawn[round.number] = done;
      const part = this.parts[round.number];
      part.seam.hidden = done === 0;
      for (const [token, node] of part.tokens) {
        const state = this.view.trace.stateAt(token, playhead);
        const isFolded = state === "discarded" && !part.isOpen;
        node.hidden = state === "hidden" || isFolded;
        for (const fate of FATES) node.classList.toggle(`sv-is-${fate}`, fate === state);
        if (!node.hidden) replace(node.mark, icon(state));
        node.setAttribute("aria-label", tokenName(token, state));
        if (node.breaks) node.breaks.hidden = node.hidden;
      }
      if (part.more) part.more.hidden = ![...part.tokens.keys()].some(
        (token) => token.fate === "discarded" && this.view.trace.stateAt(token, playhead) === "discarded",
      );
    }

    nodeOf(token) {
      const part = token && this.parts[token.round.number];
      return part ? part.tokens.get(token) : null;
    }
  }

  Object.assign(S, { Answer });
})(window.SpecView);
