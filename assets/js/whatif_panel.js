/* whatif_panel.js: the What if panel above the rounds: its controls, its words, and its marks in the answer and lanes. */
(function (S) {
  "use strict";
  const { h, icon, percent, prob, replace, spoken, whatIf, whatIfChance, whatIfSettings, whyNoWhatIf } = S;
  const NAMES = { exact: "Exact", lossy: "Lossy", static: "Static ensemble" };
  const FORMULAS = { exact: "min(1, p/q)", lossy: "min(1, p/(l q))", static: "min(1, 1 − w + w p/q)" };
  const SLIDERS = {
    static: { setting: "target_weight", letter: "w", label: "Static weight w of the what-if", min: 0, ends: "0 keeps every draft, 1 is exact" },
    lossy: { setting: "lenience", letter: "l", label: "Lenience l of the what-if", min: 0.01, ends: "smaller keeps more, 1 is exact" },
  };
  const MARKS = ["sv-wi-flip", "sv-wi-then", "sv-wi-unknown", "sv-wi-undecided"];
  let count = 0;

  class WhatIf {
    constructor(view) {
      this.view = view;
      this.id = `sv-wi-${(count += 1)}`;
      this.settings = null;
      this.marked = [];
      this.rules = Object.fromEntries(
        Object.entries(NAMES).map(([rule, name]) => [rule, h("button", { type: "button", onclick: () => this.set({ rule }) }, name)]),
      );
      const segments = h("div.sv-segments", { role: "group", "aria-label": "Rule of the what-if" }, Object.values(this.rules));
      const moved = () => this.set({ [SLIDERS[this.settings.rule].setting]: Number(this.range.value) });
      this.range = h("input.sv-wi-range", { type: "range", max: 1, step: 0.01, oninput: moved });
      this.amount = h("span.sv-wi-amount");
      this.ends = h("span.sv-muted");
      this.sliderBox = h("label.sv-wi-slider", null, this.amount, this.range, this.ends);
      const reset = () => this.begin();
      this.resetButton = h("button.sv-link", { type: "button", onclick: reset }, "As recorded");
      this.formula = h("p.sv-muted");
      this.words = h("p.sv-wi-words", { role: "status" });
      this.table = h("div.sv-wi-figures");
      this.runButton = h("button.sv-wi-run", { type: "button", onclick: () => this.run() }, "Continue from here");
      this.runNote = h("p.sv-muted", null, "Runs the model with this rule and the recording's prompt, seed and other settings.");
      this.controls = h("div.sv-wi-controls", null, segments, this.sliderBox, this.resetButton);
      this.runRow = h("div.sv-wi-runrow", null, this.runButton, this.runNote);
      this.inside = h("div", null, this.controls, this.formula, this.words, this.table, this.runRow);
      this.reason = h("p.sv-muted", { hidden: true });
      const summary = h("summary", null, h("strong", null, "What if"), h("span.sv-muted", null, "another rule had judged, with the same coins"));
      const notes = Object.entries(DESCRIPTIONS).map(([name, text]) => h("span", { id: `${this.id}-${name}` }, text));
      this.element = h("details.sv-whatif", { ontoggle: () => this.draw() }, summary, this.reason, this.inside, h("div", { hidden: true }, notes));
      new MutationObserver(() => this.mark()).observe(view.lanes.rows, { childList: true });
    }

    /* Back to the recording's own settings. */
    begin() {
      this.settings = whatIfSettings(this.view.trace);
      this.draw();
    }

    set(change) {
      this.settings = { ...this.settings, ...change };
      this.draw();
    }

    draw() {
      const { trace } = this.view;
      if (trace !== this.trace || !this.settings) {
        this.trace = trace;
        this.clear();
        this.settings = trace.meta ? whatIfSettings(trace) : null;
      }
      if (!trace.meta) return;
      const reason = whyNoWhatIf(trace);
      this.reason.textContent = reason;
      this.reason.hidden = reason === "";
      this.inside.hidden = reason !== "";
      this.isOn = this.element.open && reason === "";
      if (!this.isOn) {
        this.clear();
        return;
      }
      const signature = JSON.stringify([this.settings, trace.rounds.length, trace.end !== null]);
      if (signature === this.drawn) return;
      this.drawn = signature;
      this.result = whatIf(trace, this.settings);
      this.drawControls();
      const words = sentences(this.result, trace, this.settings).join(" ");
      if (this.words.textContent !== words) this.words.textContent = words;
      replace(this.table, figures(this.result));
      this.mark();
    }

    drawControls() {
      const { rule } = this.settings;
      for (const [name, button] of Object.entries(this.rules)) button.setAttribute("aria-pressed", String(name === rule));
      const slider = SLIDERS[rule];
      this.sliderBox.hidden = !slider;
      if (slider) {
        const value = this.settings[slider.setting];
        this.range.min = slider.min;
        this.range.value = value;
        this.range.setAttribute("aria-label", slider.label);
        replace(this.amount, h("em", null, slider.letter), ` ${prob(value, 2)}`);
        this.ends.textContent = slider.ends;
      }
      this.resetButton.hidden = this.result.isSame;
      this.runRow.hidden = !WhatIf.bridge;
      this.formula.textContent = this.trace.isGreedy
        ? "Temperature 0: there are no coins. A draft passes if it is the rule's most likely token, which the recorded p and q decide."
        : `Acceptance ${FORMULAS[rule]}. A draft passes if its recorded coin u is below it.`;
    }

    /* Puts the settings into the page's controls and runs: the seam to gradio is `WhatIf.bridge`. */
    run() {
      const { meta } = this.trace;
      const names = ["prompt", "draft_length", "temperature", "top_p", "seed", "max_new_tokens", "rank", "command"];
      const kept = Object.fromEntries(names.filter((name) => meta[name] !== undefined).map((name) => [name, meta[name]]));
      WhatIf.bridge({ ...kept, ...this.settings });
    }

    clear() {
      for (const undo of this.marked) undo();
      this.marked = [];
      this.drawn = null;
    }

    /* Classes, a second glyph, a description and the other chance, on the nodes that answer and lanes drew. */
    mark() {
      if (!this.isOn || !this.result) return;
      for (const undo of this.marked) undo();
      this.marked = [];
      const { trace, view } = this;
      const { at, fates } = this.result;
      for (const token of trace.tokens) {
        const state = stateOf(token, this.result);
        for (const part of [view.answer, view.lanes]) {
          const node = part.nodeOf(token);
          if (node) this.markNode(node, token, state, fates.get(token));
        }
      }
      if (!at) return;
      for (const part of view.answer.parts.slice(at.round.number + 1)) {
        for (const node of [part.more, part.seam]) if (node) this.addClass(node, "sv-wi-unknown");
      }
    }

    addClass(node, name) {
      node.classList.add(name);
      this.marked.push(() => node.classList.remove(name));
    }

    markNode(node, token, state, fate) {
      this.reach(node, token, state);
      if (state === "same") return;
      this.addClass(node, `sv-wi-${state}`);
      node.setAttribute("aria-describedby", `${this.id}-${state === "then" || state === "flip" ? fate || "replaced" : state}`);
      this.marked.push(() => node.removeAttribute("aria-describedby"));
      if (state === "unknown") return;
      const mark = h("span.sv-wi-mark", { "aria-hidden": "true" }, state === "undecided" ? "?" : icon(fate || "residual"));
      if (fate) mark.classList.add(`sv-is-${fate}`);
      (node.querySelector(".sv-boxtop") || node).append(mark);
      this.marked.push(() => mark.remove());
    }

    /* The acceptance scale of a lane's box, up to where the runs part. */
    reach(node, token, state) {
      const bars = node.querySelector(".sv-bars");
      const { p, q, a } = token.data;
      if (!bars || this.trace.isGreedy || this.result.isSame || state === "unknown" || typeof p !== "number" || typeof q !== "number") return;
      bars.style.setProperty("--a", whatIfChance(p, q, this.settings));
      this.marked.push(() => bars.style.setProperty("--a", a || 0));
    }
  }

  const DESCRIPTIONS = {
    accepted: "What if: this draft would be accepted.",
    rejected: "What if: this draft would be rejected.",
    discarded: "What if: this draft would not be tested.",
    replaced: "What if: another token would stand here.",
    undecided: "What if: the recorded digits cannot tell.",
    unknown: "What if: unknown, the text before it would be another one.",
  };

  /* "same", "flip" (where the runs part), "then" (known to follow from it), "undecided" or "unknown". */
  function stateOf(token, { at, why, fates }) {
    if (!at) return "same";
    if (token === at) return why === "undecided" ? "undecided" : "flip";
    const isUntouched = token.fate === "discarded" && fates.get(token) === "discarded";
    if (token.index < at.index || isUntouched) return "same";
    return fates.has(token) && why !== "undecided" ? "then" : "unknown";
  }

  function quoted(text) {
    return `“${spoken(text)}”`;
  }

  function plural(number, noun) {
    return `${number} ${noun}${number === 1 ? "" : "s"}`;
  }

  /* What happens at the token where the runs part. */
  function parting(result, trace, settings) {
    const { at, why, choice } = result;
    const place = `Round ${at.round.number + 1}, draft ${at.isNext ? at.round.numTested : at.place + 1}`;
    const d = at.data;
    if (why === "replaced") return `${place} is rejected as well, but ${quoted(choice.text)} replaces it instead of ${quoted(at.text)}.`;
    if (why === "undecided" && trace.isGreedy) {
      return `${place}: the recording's digits and its list of likely tokens do not decide which token is the most likely.`;
    }
    const tests = trace.isGreedy ? "" : `u ${prob(d.u)}, chance ${prob(whatIfChance(d.p, d.q, settings))}, recorded ${prob(d.a)}`;
    if (why === "undecided") return `${place}, ${quoted(at.text)}: coin and chance agree in all recorded digits (${tests}), so this verdict is undecided.`;
    const now = why === "passes" ? "would be accepted" : "would be rejected";
    return `${place}, ${quoted(at.text)}, ${now}${tests && `: ${tests}`}.`;
  }

  /* What the drafts after it in the same round would become. */
  function following({ at, fates, why }) {
    if (why !== "passes") return "";
    const rest = at.round.tokens.filter((token) => !token.isNext && token.place > at.place);
    if (!rest.length) return "";
    const kept = at.place + 1 + rest.filter((token) => fates.get(token) === "accepted").length;
    const isKnown = rest.every((token) => fates.has(token));
    return `That round would keep ${isKnown ? "" : "at least "}${kept} of ${at.round.record.drafts.length} drafts instead of ${at.place}.`;
  }

  function sentences(result, trace, settings) {
    const { allRounds, allTokens, numRounds, numTokens } = result;
    if (result.isSame) return ["These are the recording's own settings: nothing changes. Choose another rule, or move the slider."];
    if (!result.at) return [`No verdict changes: all ${plural(allRounds, "round")} and ${plural(allTokens, "token")} stay equal.`];
    const equal = `${numRounds} of ${plural(allRounds, "round")} and ${numTokens} of ${plural(allTokens, "token")} stay equal.`;
    const end = result.why === "undecided" ? "What follows is unknown." : "From there on (dashed frame) the text would be another one, so what follows is unknown (faint).";
    return [equal, parting(result, trace, settings), following(result), end].filter(Boolean);
  }

  /* Acceptance of the rounds that can be compared, as recorded and under the settings. */
  function figures({ rounds, allRounds, before, after }) {
    if (!rounds) return h("p.sv-muted", null, "No round can be compared, so there is no acceptance to show.");
    const share = (part, whole) => `${part} of ${whole} (${percent(part, whole)})`;
    const row = (name, n) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, share(n.accepted, n.drafted)), h("td", null, share(n.accepted, n.tested)));
    const heads = ["", "Accepted of drafted", "Accepted of tested"].map((name) => h("th", { scope: "col" }, name));
    const span = rounds === 1 ? "round 1" : `rounds 1 to ${rounds}`;
    return h(
      "table.sv-table",
      null,
      h("caption", null, `Acceptance over the part that can be compared: ${span} of ${allRounds}`),
      h("thead", null, h("tr", null, heads)),
      h("tbody", null, row("Recorded", before), row("What if", after)),
    );
  }

  WhatIf.bridge = null;
  Object.assign(S, { WhatIf });
})(window.SpecView);
