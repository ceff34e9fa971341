/* toy.js: two or three tokens whose laws the reader moves, a rule, and the law that comes out beside the target's. */
(function (S) {
  "use strict";
  const { h, icon, prob, replace } = S;
  const { coins, distance, moved, outcome, throwCoins } = S.laws;
  const SEED = 1;
  const THROWS = 1000;
  const SAME = 5e-4; // below this the numbers on screen are equal
  const RULES = { exact: "Exact", lossy: "Lossy", static: "Static" };
  const STARTS = { 2: { p: [0.6, 0.4], q: [0.3, 0.7] }, 3: { p: [0.5, 0.3, 0.2], q: [0.2, 0.3, 0.5] } };
  const state = { size: 2, p: STARTS[2].p, q: STARTS[2].q, name: "exact", lenience: 0.5, weight: 0.7 };

  /* Nodes of a text in which *x* is a symbol; *w_t* has its t below the line. */
  function symbols(text) {
    const symbol = ([letter, below]) => h("em", null, letter, below ? h("sub", null, below) : null);
    return text.split(/\*([^*]+)\*/).map((part, i) => (i % 2 ? symbol(part.split("_")) : part));
  }

  class Toy {
    constructor(texts) {
      this.words = texts.words;
      this.rules = segments("Rule", Object.entries(RULES), (name) => this.set({ name }));
      this.sizes = segments("Tokens", [["2", "2 tokens"], ["3", "3 tokens"]], (size) => this.set({ size: Number(size), ...STARTS[size] }));
      this.knobs = { lossy: this.knob("lenience", "Lenience l", 0.05), static: this.knob("weight", "Weight w", 0) };
      this.formula = h("p.sl-formula");
      this.laws = h("div.sl-laws");
      this.out = h("div.sl-out");
      this.verdict = h("p.sv-badge.sl-verdict");
      this.figures = h("dl.sl-figures");
      this.news = h("p.sv-sr", { role: "status" });
      this.thrown = h("p.sv-muted.sl-count", { role: "status" });
      this.throwButton = h("button.sl-button.sl-main", { type: "button", onclick: () => this.throw() }, `Throw ${THROWS.toLocaleString("en")} coins`);
      this.clear = h("button.sl-button", { type: "button", onclick: () => this.reset() }, "Clear");
      this.element = h(
        "section.sl-toy",
        { "aria-label": "Toy" },
        h("h2.sl-title", null, texts.title),
        h("p.sl-text", null, symbols(texts.text)),
        h("div.sl-row", null, this.rules.element, this.sizes.element),
        Object.values(this.knobs).map((knob) => knob.element),
        this.formula,
        this.laws,
        this.verdict,
        this.figures,
        h("h3", null, "What comes out"),
        key(),
        this.out,
        h("div.sl-row", null, this.throwButton, this.clear),
        this.thrown,
        this.news,
      );
      this.build();
    }

    get rule() {
      return { name: state.name, lenience: state.lenience, weight: state.weight };
    }

    knob(name, label, min) {
      const input = h("input", { type: "range", min, max: 1, step: 0.01, "aria-label": label });
      input.addEventListener("input", () => this.set({ [name]: Number(input.value) }));
      input.addEventListener("change", () => this.say());
      const value = h("output.sv-number");
      return { input, value, name, element: h("div.sl-knob", null, h("span", { "aria-hidden": "true" }, label), input, value) };
    }

    /* Another vocabulary needs other sliders; everything else is drawn in place, so that a slider keeps its grip. */
    build() {
      this.sliders = [];
      this.rows = [];
      const words = this.words.slice(0, state.size);
      const heads = ["Token", "p", "q", "passes", "residual"];
      replace(
        this.laws,
        h("div.sl-lawrow.sl-lawhead", { "aria-hidden": "true" }, heads.map((name) => h("span", null, name.length > 1 ? name : h("em", null, name)))),
        words.map((word, i) => this.lawRow(word, i)),
      );
      this.bars = words.map((word) => new Bars(word));
      replace(this.out, this.bars.map((bars) => bars.element));
      this.reset();
      this.say();
    }

    lawRow(word, i) {
      const slider = (law) => {
        const who = law === "p" ? "target" : "drafter";
        const input = h("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": `${law}, ${who}'s probability of ${word}` });
        input.addEventListener("input", () => this.set({ [law]: moved(state[law], i, Number(input.value)) }));
        input.addEventListener("change", () => this.say());
        const value = h("output.sv-number");
        this.sliders.push({ law, i, input, value });
        return h(`label.sl-slider.sl-${law}`, { "data-name": law }, input, value);
      };
      const passes = h("span.sv-number", { "data-name": "passes" });
      const rest = h("span.sv-number", { "data-name": "residual" });
      this.rows.push({ passes, rest });
      return h("div.sl-lawrow", { role: "group", "aria-label": word }, h("b", null, word), slider("p"), slider("q"), passes, rest);
    }

    set(change) {
      const isResized = "size" in change && change.size !== state.size;
      Object.assign(state, change);
      if (isResized) this.build();
      else this.reset();
      if ("name" in change) this.say();
    }

    /* The coins belong to one pair of laws and one rule: any change takes them back. */
    reset() {
      this.coin = coins(SEED);
      this.counts = state.p.map(() => 0);
      this.draw();
    }

    throw() {
      const more = throwCoins(this.rule, state.p, state.q, THROWS, this.coin);
      this.counts = this.counts.map((count, i) => count + more[i]);
      this.draw();
    }

    draw() {
      const found = outcome(this.rule, state.p, state.q);
      this.found = found;
      this.rules.press(state.name);
      this.sizes.press(String(state.size));
      for (const [name, knob] of Object.entries(this.knobs)) {
        knob.element.hidden = name !== state.name;
        knob.input.value = state[knob.name];
        knob.value.textContent = prob(state[knob.name], 2);
      }
      replace(this.formula, formula(state.name));
      for (const { law, i, input, value } of this.sliders) {
        if (Number(input.value) !== state[law][i]) input.value = state[law][i];
        value.textContent = prob(state[law][i], 2);
      }
      const isNeverRejected = found.passes > 1 - 1e-9;
      this.rows.forEach(({ passes, rest }, i) => {
        passes.textContent = state.q[i] > 0 ? prob(found.accept[i]) : "never drafted";
        rest.textContent = isNeverRejected ? "–" : prob(found.residual[i]);
      });
      this.drawVerdict(found);
      const total = this.counts.reduce((sum, count) => sum + count, 0);
      this.bars.forEach((bars, i) => bars.draw(state.p[i], found.kept[i], found.replaced[i], total ? this.counts[i] / total : null));
      this.drawThrown(found, total);
    }

    drawVerdict(found) {
      const isSame = found.distance < SAME;
      this.verdict.classList.toggle("sv-differs", !isSame);
      replace(this.verdict, icon(isSame ? "equal" : "differs"), h("span", null, words(found.distance)));
      const figure = (name, value, note) => h("div", null, h("dt", null, name), h("dd", null, h("strong", null, prob(value)), h("small", null, note)));
      replace(
        this.figures,
        figure("Overlap Σ min(p, q)", found.overlap, "what the exact rule accepts"),
        figure("This rule accepts", found.passes, "Σ q · chance to pass"),
        figure("TV(p, emitted)", found.distance < 1e-9 ? 0 : found.distance, "0: the target's own law"),
      );
    }

    drawThrown(found, total) {
      this.clear.disabled = total === 0;
      if (!total) {
        this.thrown.textContent = `Each throw drafts from q, tosses a coin and replaces what fails. Seed ${SEED}.`;
        return;
      }
      const off = distance(this.counts.map((count) => count / total), found.emitted);
      this.thrown.textContent = `${total.toLocaleString("en")} tokens thrown; the histogram is TV ${prob(off)} away from the emitted law.`;
    }

    /* For a screen reader: after a change, not while a slider moves. */
    say() {
      const list = this.found.emitted.map((value, i) => `${this.words[i]} ${prob(value, 2)}`);
      this.news.textContent = `Emitted: ${list.join(", ")}. ${words(this.found.distance)}`;
    }
  }

  function words(tv) {
    return tv < SAME ? "The emitted law is the target's." : `The emitted law differs from the target's: TV ${prob(tv)}.`;
  }

  function formula(name) {
    const p = h("em", null, "p");
    const q = h("em", null, "q");
    const w = () => h("em", null, "w");
    const chance = {
      exact: ["min(1, ", p, " / ", q, ")"],
      lossy: ["min(1, ", p, " / (", h("em", null, "l"), " ", q, "))"],
      static: ["min(1, 1 − ", w(), " + ", w(), " ", p, " / ", q, ")"],
    }[name];
    return ["passes with ", chance, "; else replaced from max(0, ", h("em", null, "p − q"), "), normalised"];
  }

  function segments(label, entries, choose) {
    const buttons = entries.map(([name, text]) => [name, h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(name) }, text)]);
    const element = h("div.sv-segments", { role: "group", "aria-label": label }, buttons.map(([, button]) => button));
    const press = (chosen) => buttons.forEach(([name, button]) => button.setAttribute("aria-pressed", String(name === chosen)));
    return { element, press };
  }

  function key() {
    const names = [["p", "target p"], ["kept", "kept drafts"], ["replaced", "replacements"], ["thrown", "thrown"]];
    return h("div.sl-key", { "aria-hidden": "true" }, names.map(([name, text]) => h(`span.sl-k-${name}`, null, text)));
  }

  /* Three bars of one token: the target's, the emitted (kept + replaced), and how often it was thrown. */
  class Bars {
    constructor(word) {
      this.cells = ["p", "emitted", "thrown"].map((name) => {
        const parts = name === "emitted" ? [h("i.sl-kept"), h("i.sl-replaced")] : [h(`i.sl-${name}`)];
        return { parts, value: h("span.sv-number"), name };
      });
      const lines = this.cells.map(({ parts, value, name }) => h("div.sl-bar", null, h("span.sl-barname", null, name), h("span.sl-track", { "aria-hidden": "true" }, parts), value));
      this.element = h("div.sl-bars", { role: "group", "aria-label": word }, h("b", null, word), h("div", null, lines));
    }

    draw(p, kept, replaced, thrown) {
      const width = (node, value) => node.style.setProperty("width", `${100 * Math.min(1, value)}%`);
      const [target, emitted, histogram] = this.cells;
      width(target.parts[0], p);
      width(emitted.parts[0], kept);
      width(emitted.parts[1], replaced);
      width(histogram.parts[0], thrown || 0);
      target.value.textContent = prob(p);
      emitted.value.textContent = prob(kept + replaced);
      histogram.value.textContent = thrown === null ? "–" : prob(thrown);
    }
  }

  Object.assign(S, { Toy, symbols });
})(window.SpecView);
