/* lanes.js: one row per round, a box per draft, and the target's token; and the same as a plain table. */
(function (S) {
  "use strict";
  const { h, icon, prob, replace, tokenName, tokenNodes, FATE_WORD } = S;
  const FATES = ["accepted", "rejected", "discarded", "residual", "bonus", "pending"];
  const MANY_ROWS = 80; // from here the browser need not lay out rows that are out of sight
  const MOST_ROWS = 300; // from here the earlier rows are not even there until asked for

  /* Chance to pass under the exact rule: the part of the scale that costs nothing. */
  function exactChance(draft, isGreedy) {
    if (isGreedy) return draft.rp === 1 ? 1 : 0;
    if (typeof draft.p !== "number" || typeof draft.q !== "number") return 0;
    return draft.q > 0 ? Math.min(1, draft.p / draft.q) : 1;
  }

  class Lanes {
    constructor(view) {
      this.view = view;
      this.key = h(
        "div.sv-key-row",
        { "aria-hidden": "true" },
        h("span.sv-k-p", null, h("em", null, "p"), " target"),
        h("span.sv-k-q", null, h("em", null, "q"), " drafter"),
        h("span.sv-k-e", null, "exact rule keeps"),
        (this.addsKey = h("span.sv-k-a", null, "the rule adds")),
        h("span.sv-k-u", null, "coin ", h("em", null, "u")),
      );
      const tab = (name, mode) =>
        h("button", { type: "button", onclick: () => this.setMode(mode), "aria-pressed": "false" }, name);
      this.tabs = { lanes: tab("Lanes", "lanes"), table: tab("Table", "table") };
      const segments = h("div.sv-segments", { role: "group", "aria-label": "Rounds as" }, Object.values(this.tabs));
      this.heads = h("div.sv-row.sv-heads", { "aria-hidden": "true" });
      this.earlier = h("button.sv-earlier", { type: "button", hidden: true, onclick: () => this.showAll() });
      this.rows = h("div.sv-rows", { role: "list", "aria-label": "Rounds" });
      this.lanes = h("div.sv-lanes", null, this.heads, this.earlier, this.rows);
      this.table = h("div.sv-tablebox", { hidden: true, tabindex: "0", role: "region", "aria-label": "Rounds as a table" });
      const title = h("div.sv-lanes-title", null, h("h3", null, "Rounds"), this.key, segments);
      this.element = h("section.sv-rounds", { "aria-label": "Rounds" }, title, this.lanes, this.table);
      this.reset();
      this.setMode("lanes");
    }

    reset() {
      replace(this.rows);
      this.parts = [];
      this.drawn = [];
      this.limit = MOST_ROWS;
      this.openRound = -1;
    }

    setMode(mode) {
      this.mode = mode;
      for (const [name, button] of Object.entries(this.tabs)) button.setAttribute("aria-pressed", String(name === mode));
      this.lanes.hidden = mode !== "lanes";
      this.table.hidden = mode !== "table";
      this.key.classList.toggle("sv-off", mode !== "lanes");
      if (this.view.trace.meta) this.draw();
    }

    showAll() {
      this.limit = Infinity;
      replace(this.rows);
      this.parts = [];
      this.drawn = [];
      this.draw();
    }

    draw() {
      if (this.mode === "table") this.drawTable();
      else this.drawLanes();
    }

    drawLanes() {
      const { trace, playhead } = this.view;
      const places = Math.max(1, trace.numPlaces);
      this.element.style.setProperty("--places", places);
      this.element.style.setProperty("--places-narrow", Math.min(places, 4));
      this.element.classList.toggle("sv-many", trace.rounds.length > MANY_ROWS);
      this.element.classList.toggle("sv-no-drafts", trace.numPlaces === 0);
      this.drawHeads(places);
      for (let r = this.parts.length; r < trace.rounds.length; r += 1) this.addRound(trace.rounds[r]);
      const first = Math.max(0, trace.rounds.length - this.limit);
      for (let r = 0; r < first; r += 1) if (this.parts[r].element.isConnected) this.parts[r].element.remove();
      this.earlier.hidden = first === 0;
      this.earlier.textContent = `Show the ${first} earlier rounds`;
      for (let r = first; r < trace.rounds.length; r += 1) this.drawRound(trace.rounds[r], playhead);
    }

    drawHeads(places) {
      const { trace, playhead } = this.view;
      const counts = trace.placesAt(playhead);
      const head = (_, j) => {
        const count = counts[j];
        return h("span", null, `Draft ${j + 1}`, h("small", null, count ? `${count.kept} of ${count.tested} kept` : ""));
      };
      const drafts = trace.numPlaces ? Array.from({ length: places }, head) : [];
      replace(this.heads, h("span", null, "Round"), h("div.sv-boxes", null, drafts), h("span", null, "Target adds"));
      const kept = trace.tokens.filter((token) => this.isAddedByRule(token) && playhead > token.step).length;
      const isRelaxed = trace.meta && !["ar", "exact"].includes(trace.meta.rule);
      this.addsKey.hidden = !isRelaxed;
      this.addsKey.textContent = `the rule adds (${kept} kept by it)`;
    }

    /* Kept, though the exact rule with the same coin would have thrown it away. */
    isAddedByRule(token) {
      if (token.isNext || token.fate !== "accepted") return false;
      const chance = exactChance(token.data, this.view.trace.isGreedy);
      return typeof token.data.u === "number" ? token.data.u >= chance : chance === 0;
    }

    addRound(round) {
      const drafts = round.tokens.filter((token) => !token.isNext);
      const next = round.tokens.find((token) => token.isNext);
      const part = { tokens: new Map(), count: h("small"), details: [] };
      const boxes = drafts.map((token) => this.box(token, part));
      const adds = h("div.sv-adds", null, next ? this.addition(next, part) : h("span.sv-muted", null, "–"));
      const label = h("div.sv-roundname", null, h("strong", null, `R${round.number + 1}`), part.count);
      part.element = h("div.sv-row", { role: "listitem" }, label, h("div.sv-boxes", null, boxes), adds);
      this.rows.append(part.element);
      this.parts.push(part);
      this.drawn.push(null);
    }

    box(token, part) {
      const { isGreedy } = this.view.trace;
      const { p, q, a, u } = token.data;
      const exact = exactChance(token.data, isGreedy);
      const style = { "--p": p || 0, "--q": q || 0, "--e": Math.min(exact, a === null || a === undefined ? exact : a), "--a": a || 0 };
      if (typeof u === "number") style["--u"] = u;
      const bars = h(`div.sv-bars${typeof u === "number" ? ".sv-coin" : ""}`, { style, "aria-hidden": "true" });
      const mark = h("span.sv-glyph");
      const top = h("div.sv-boxtop", null, h("bdi.sv-word", null, tokenNodes(token.text, false)), mark);
      const numbers = h("div.sv-numbers", { hidden: true });
      const node = h("div.sv-box", { role: "button", tabindex: "-1" }, top, bars, numbers);
      Object.assign(node, { token, mark, numbers });
      part.tokens.set(token, node);
      return node;
    }

    addition(token, part) {
      const mark = h("span.sv-glyph");
      const share = token.data.prob;
      const text = h("div.sv-boxtop", null, mark, h("bdi.sv-word", null, tokenNodes(token.text, false)));
      const note = h("small", null, `${FATE_WORD[token.fate]}, ${prob(share, 2)}`);
      const numbers = h("div.sv-numbers", { hidden: true });
      const node = h("div.sv-box.sv-addbox", { role: "button", tabindex: "-1" }, h("div", null, text, note), miniBars(token), numbers);
      Object.assign(node, { token, mark, numbers });
      part.tokens.set(token, node);
      return node;
    }

    drawRound(round, playhead) {
      const part = this.parts[round.number];
      const done = Math.max(0, Math.min(playhead, round.lastStep) - round.firstStep);
      const isOpen = this.openRound === round.number;
      const signature = `${done} ${isOpen}`;
      if (this.drawn[round.number] === signature) return;
      this.drawn[round.number] = signature;
      part.element.hidden = done === 0;
      part.element.classList.toggle("sv-open", isOpen);
      const numDrafts = round.record.drafts.length;
      const states = new Map([...part.tokens.keys()].map((token) => [token, this.view.trace.stateAt(token, playhead)]));
      const kept = [...states].filter(([, state]) => state === "accepted").length;
      const isWhole = done >= round.lastStep - round.firstStep;
      part.count.textContent = isWhole ? `${numDrafts ? `${kept}/${numDrafts} ` : ""}${round.record.next ? "+1" : ""}` : "…";
      for (const [token, node] of part.tokens) {
        const state = states.get(token);
        for (const fate of FATES) node.classList.toggle(`sv-is-${fate}`, fate === state);
        node.classList.toggle("sv-unseen", state === "hidden");
        replace(node.mark, state === "hidden" ? null : icon(state));
        node.setAttribute("aria-label", tokenName(token, state));
        this.drawNumbers(token, node, isOpen && state !== "hidden" && state !== "pending");
      }
    }

    drawNumbers(token, node, isShown) {
      node.numbers.hidden = !isShown;
      if (!isShown || node.numbers.childNodes.length) return;
      replace(node.numbers, token.isNext ? nextNumbers(token) : draftNumbers(token, this.view.trace.isGreedy));
    }

    open(token) {
      const round = token ? token.round.number : -1;
      if (round === this.openRound) return;
      const before = this.openRound;
      this.openRound = round;
      const { trace, playhead } = this.view;
      if (this.mode !== "lanes") return;
      for (const r of [before, round]) if (r >= 0 && this.parts[r]) this.drawRound(trace.rounds[r], playhead);
    }

    nodeOf(token) {
      const part = token && this.parts[token.round.number];
      return part ? part.tokens.get(token) : null;
    }

    drawTable() {
      const { trace, playhead } = this.view;
      const names = ["Round", "Pos", "Token", "Id", "Verdict", "p", "q", "v", "w", "a", "u"];
      const head = h("tr", null, names.map((name) => h("th", { scope: "col" }, name)));
      const rows = trace.tokens
        .filter((token) => playhead > token.step)
        .map((token) => tableRow(token));
      const caption = h("caption", null, `${rows.length} tokens of ${trace.rounds.length} rounds`);
      replace(this.table, h("table.sv-table", null, caption, h("thead", null, head), h("tbody", null, rows)));
    }
  }

  function tableRow(token) {
    const d = token.data;
    const v = token.isNext ? d.prob : d.v;
    const cells = [token.round.number + 1, token.isNext ? "next" : token.place + 1];
    const numbers = [d.p, d.q, v, d.w, d.a, d.u].map((value) => h("td", null, typeof value === "number" ? prob(value) : "–"));
    const word = h("td", null, h("bdi.sv-word", null, tokenNodes(token.text, true)));
    const fate = h("td.sv-fatecell", null, icon(token.fate), FATE_WORD[token.fate]);
    const row = h(`tr.sv-is-${token.fate}`, null, cells.map((text) => h("td", null, text)), word, h("td", null, d.id), fate, numbers);
    row.token = token;
    return row;
  }

  function pair(name, value) {
    return h("span", null, h("em", null, name), ` ${value}`);
  }

  function draftNumbers(token, isGreedy) {
    const d = token.data;
    const lines = [pair("p", prob(d.p, 2)), pair("q", prob(d.q, 2))];
    if (typeof d.w === "number" && d.w !== 1) lines.push(pair("w", prob(d.w, 2)), pair("v", prob(d.v, 2)));
    if (token.fate === "discarded") return [...lines, h("span", null, "not tested")];
    const passes = token.fate === "accepted";
    if (typeof d.u === "number") lines.push(h("span", null, h("em", null, "u"), ` ${prob(d.u, 2)} ${passes ? "<" : "≥"} ${prob(d.a, 2)}`));
    else lines.push(h("span", null, `rank ${isGreedy ? d.rp : "–"}`));
    lines.push(h("span", null, passes ? "keep" : "reject"));
    return lines;
  }

  function lawOf(token) {
    const rows = (token.data.top || []).map((entry) => ({ id: entry[0], text: String(entry[1]), share: entry[4] || 0 }));
    const rest = Math.max(0, 1 - rows.reduce((sum, row) => sum + row.share, 0));
    return { rows, rest };
  }

  function miniBars(token) {
    const { rows, rest } = lawOf(token);
    const most = Math.max(rest, ...rows.map((row) => row.share), 1e-9);
    const bar = (share, cls) => h(`i${cls}`, { style: { height: `${Math.max(3, (100 * share) / most)}%` } });
    const bars = rows.slice(0, 5).map((row) => bar(row.share, row.id === token.data.id ? ".sv-own" : ""));
    return h("div.sv-mini", { "aria-hidden": "true" }, bars, bar(rest, ".sv-rest"));
  }

  function nextNumbers(token) {
    const { rows, rest } = lawOf(token);
    const line = (name, share, cls) => [
      h(`span.sv-name${cls}`, null, name),
      h(`span.sv-hbar${cls}`, null, h("i", { style: { width: `${100 * Math.min(1, share)}%` } })),
      h("span", null, prob(share, 2)),
    ];
    const shown = rows.slice(0, 3).map((row) => line(tokenNodes(row.text, false), row.share, row.id === token.data.id ? ".sv-own" : ""));
    const others = rows.slice(3).reduce((sum, row) => sum + row.share, rest);
    return h("div.sv-lawgrid", null, shown, line("all other", others, ".sv-rest"));
  }

  Object.assign(S, { Lanes, exactChance, lawOf });
})(window.SpecView);
