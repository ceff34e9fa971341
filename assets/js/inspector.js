/* inspector.js: why one token lived or died, as numbers, a formula and the likely tokens around it. */
(function (S) {
  "use strict";
  const { h, icon, prob, replace, spoken, tokenNodes, exactChance, lawOf, FATE_WORD } = S;

  class Inspector {
    constructor(view) {
      this.view = view;
      this.body = h("div.sv-inspected");
      this.element = h("aside.sv-inspector", { "aria-label": "Inspector" }, h("div.sv-sticky", null, this.body, keys()));
    }

    draw() {
      const { shownToken: token, pinned } = this.view;
      const isPinned = token !== null && token === pinned;
      if (this.drawn && this.drawn.token === token && this.drawn.isPinned === isPinned) return;
      this.drawn = { token, isPinned };
      if (!token) {
        replace(this.body, h("p.sv-muted", null, "Point at a token, or move to one with the arrow keys, to see its numbers."));
        return;
      }
      replace(this.body, this.headline(token), token.isNext ? this.next(token) : this.draft(token));
    }

    headline(token) {
      const { pinned } = this.view;
      const numDrafts = token.round.record.drafts.length;
      const place = token.isNext ? "the target's token" : `draft ${token.place + 1} of ${numDrafts}`;
      const isPinned = token === pinned;
      const pin = h(
        "button.sv-pin",
        { type: "button", "aria-pressed": String(isPinned), onclick: () => this.view.pin(isPinned ? null : token) },
        icon("pin"),
        isPinned ? "Pinned" : "Pin",
      );
      const word = h(`p.sv-bigword.sv-is-${token.fate}`, null, h("bdi.sv-word", null, tokenNodes(token.text, true)));
      const verdict = h(`p.sv-verdict.sv-is-${token.fate}`, null, icon(token.fate), h("strong", null, FATE_WORD[token.fate]), aftermath(token));
      return [
        h("div.sv-insphead", null, h("span", null, `Round ${token.round.number + 1} · ${place}`), pin),
        word,
        verdict,
        h("p.sv-muted", null, `token ${token.data.id}`),
      ];
    }

    draft(token) {
      const d = token.data;
      const rows = [
        measure("p", `target, rank ${d.rp ?? "–"}`, d.p),
        measure("q", `drafter, rank ${d.rq ?? "–"}`, d.q),
      ];
      if (this.hasVerifier(token)) rows.push(measure("v", "verifier", d.v), measure("w", "target weight", d.w));
      const entropies = `Entropy ${nats(d.hp)} target, ${nats(d.hq)} drafter. Overlap 1 − TV ${prob(d.overlap)}: the chance that a draft passes the exact rule here.`;
      const parts = [h("div.sv-measures", null, rows), h("p.sv-muted", null, entropies), this.test(token), this.topDrafts(token)];
      const next = token.round.tokens.find((other) => other.isNext);
      if (token.fate === "rejected" && next) parts.push(residual(next, d.overlap, this.view.trace.isGreedy));
      return parts;
    }

    /* A law of its own between target and drafter: only the ensembles have one. */
    hasVerifier(token) {
      return typeof token.data.w === "number" && this.view.trace.meta.rule !== "exact";
    }

    test(token) {
      if (token.fate === "discarded") {
        const why = token.round.numAccepted === token.round.numTested ? "the answer had ended" : "an earlier draft was rejected";
        return section("Acceptance test", h("p", null, `Not tested: ${why}.`));
      }
      const { trace } = this.view;
      const d = token.data;
      const exact = exactChance(d, trace.isGreedy);
      const lines = trace.isGreedy ? greedyFormula(token, trace.meta) : formula(d, trace.meta);
      const parts = [h("dl.sv-formula", null, lines)];
      if (!trace.isGreedy) {
        const style = { "--e": Math.min(exact, d.a), "--a": d.a };
        if (typeof d.u === "number") style["--u"] = d.u;
        parts.push(h(`div.sv-scale.sv-is-${token.fate}${typeof d.u === "number" ? ".sv-coin" : ""}`, { style, "aria-hidden": "true" }));
        const gap = d.a - exact;
        if (gap > 0.0005) {
          parts.push(
            h("p.sv-muted", null, "The exact rule would keep it with ", h("em", null, "p/q"), " = ", h("strong", null, prob(exact)), `; this rule adds ${prob(gap)} (hatched).`),
          );
        }
      }
      return section("Acceptance test", parts);
    }

    topDrafts(token) {
      const d = token.data;
      const hasVerifier = this.hasVerifier(token);
      const verifier = (p, q) => d.w * p + (1 - d.w) * (q || 0);
      const rows = (d.top || []).map(([id, text, p, q]) => ({ id, text: String(text), values: [p, q, ...(hasVerifier ? [verifier(p, q)] : [])] }));
      if (!rows.length) return null;
      const own = [d.p, d.q, ...(hasVerifier ? [d.v] : [])];
      if (!rows.some((row) => row.id === d.id)) rows.push({ id: d.id, text: token.text, values: own });
      const names = ["p", "q", ...(hasVerifier ? ["v"] : [])];
      const next = token.round.tokens.find((other) => other.isNext);
      const marks = new Map([[d.id, token.fate]]);
      if (token.fate === "rejected" && next) marks.set(next.data.id, next.fate);
      return section(["Likely tokens by ", h("em", null, hasVerifier ? "v" : "p")], topTable(rows, names, marks));
    }

    next(token) {
      const d = token.data;
      const parts = [h("div.sv-measures", null, measure("p", `target, rank ${d.r ?? "–"}`, d.p)), h("p.sv-muted", null, `Entropy ${nats(d.h)}.`)];
      if (token.fate === "residual") {
        const rejected = token.round.tokens.find((other) => other.fate === "rejected");
        parts.push(residual(token, rejected ? rejected.data.overlap : null, this.view.trace.isGreedy));
        return parts;
      }
      const rows = (d.top || []).map(([id, text, p]) => ({ id, text: String(text), values: [p] }));
      const why = token.round.record.drafts.length
        ? "Every draft was kept, so the same pass also gives the next token, from the target's law alone."
        : "Nothing was drafted: the token comes from the target's law.";
      parts.push(h("p.sv-muted", null, why), section(["Likely tokens by ", h("em", null, "p")], topTable(rows, ["p"], new Map([[d.id, token.fate]]))));
      return parts;
    }
  }

  function nats(value) {
    return typeof value === "number" ? `${value.toFixed(2)} nats` : "–";
  }

  function aftermath(token) {
    const next = token.round.tokens.find((other) => other.isNext);
    if (token.fate === "rejected" && next) return h("span", null, `, replaced by “${spoken(next.text)}”`);
    if (token.fate === "residual") {
      const rejected = token.round.tokens.find((other) => other.fate === "rejected");
      return rejected ? h("span", null, `, replaces “${spoken(rejected.text)}”`) : null;
    }
    return null;
  }

  function measure(letter, name, value) {
    const width = `${100 * Math.max(0, Math.min(1, value || 0))}%`;
    return [h("em", null, letter), h("span", null, name), h(`span.sv-hbar.sv-bar-${letter}`, null, h("i", { style: { width } })), h("span.sv-number", null, prob(value))];
  }

  function section(title, ...content) {
    return h("section", null, h("h3", null, title), content);
  }

  function line(name, ...text) {
    return [h("dt", null, name ? h("em", null, name) : null), h("dd", null, name || text.length ? "= " : "", text)];
  }

  function strong(value, digits = 3) {
    return h("strong", null, prob(value, digits));
  }

  function verifierLines(d) {
    const rest = 1 - d.w;
    return [
      line("v", h("em", null, "w p"), " + (1 − ", h("em", null, "w"), ") ", h("em", null, "q")),
      line("", `${prob(d.w, 2)} × ${prob(d.p)} + ${prob(rest, 2)} × ${prob(d.q)} = `, strong(d.v)),
    ];
  }

  function formula(d, meta) {
    const lines = [];
    if (meta.rule === "lossy") {
      lines.push(line("a", "min(1, ", h("em", null, "p"), " / (", h("em", null, "l q"), "))"));
      lines.push(line("", `min(1, ${prob(d.p)} / (${prob(meta.lenience, 2)} × ${prob(d.q)})) = `, strong(d.a)));
    } else {
      const letter = meta.rule === "exact" ? "p" : "v";
      if (letter === "v") lines.push(...verifierLines(d));
      lines.push(line("a", "min(1, ", h("em", null, `${letter} / q`), ")"));
      lines.push(line("", `min(1, ${prob(letter === "p" ? d.p : d.v)} / ${prob(d.q)}) = `, strong(d.a)));
    }
    if (typeof d.u === "number") {
      const passes = d.u < d.a;
      lines.push(line("u", strong(d.u), ` ${passes ? "<" : "≥"} ${prob(d.a)}, so ${passes ? "keep" : "reject"}`));
    } else lines.push(line("u", "no coin was needed"));
    return lines;
  }

  function greedyFormula(token, meta) {
    const d = token.data;
    const passes = token.fate === "accepted";
    const lines = ["exact", "lossy"].includes(meta.rule) || typeof d.w !== "number" ? [] : verifierLines(d);
    const law = lines.length ? "verifier" : "target";
    const reason = meta.rule === "lossy" ? "the lossy test at temperature 0" : `the ${law}'s most likely token`;
    return [...lines, line("a", h("strong", null, passes ? "1" : "0"), `: ${passes ? "" : "not "}${reason}`), line("u", "no coin at temperature 0")];
  }

  function topTable(rows, names, marks) {
    const shown = rows.slice(0, 8);
    const rest = names.map((_, i) => Math.max(0, 1 - shown.reduce((sum, row) => sum + (row.values[i] || 0), 0)));
    const head = h("tr", null, h("th", { scope: "col" }, "Token"), names.map((name) => h("th", { scope: "col" }, h("em", null, name))));
    const cell = (value, name) => {
      const bar = h(`span.sv-hbar.sv-bar-${name}`, { "aria-hidden": "true" }, h("i", { style: { width: `${100 * Math.min(1, value || 0)}%` } }));
      return h("td", null, prob(value), bar);
    };
    const body = shown.map((row) => {
      const fate = marks.get(row.id);
      const name = h("th", { scope: "row" }, fate ? icon(fate) : h("span.sv-noicon"), h("bdi", null, tokenNodes(row.text, true)));
      return h(`tr${fate ? `.sv-marked.sv-is-${fate}` : ""}`, null, name, row.values.map((value, i) => cell(value, names[i])));
    });
    const last = h("tr.sv-others", null, h("th", { scope: "row" }, h("span.sv-noicon"), "all other"), rest.map((value, i) => cell(value, names[i])));
    return h("table.sv-top", null, h("thead", null, head), h("tbody", null, body, last));
  }

  function residual(token, overlap, isGreedy) {
    const { rows, rest } = lawOf(token);
    const most = Math.max(rest, ...rows.map((row) => row.share), 1e-9);
    const bar = (name, share, cls) => [
      h(`span.sv-name${cls}`, null, name),
      h(`span.sv-hbar${cls}`, { "aria-hidden": "true" }, h("i", { style: { width: `${(100 * share) / most}%` } })),
      h("span.sv-number", null, prob(share)),
    ];
    const bars = rows.map((row) => bar(h("bdi", null, tokenNodes(row.text, true)), row.share, row.id === token.data.id ? ".sv-own" : ""));
    const divisor = typeof overlap === "number" ? prob(1 - overlap) : "TV";
    const title = isGreedy
      ? [h("span", null, "The verifier's law")]
      : [h("span", null, "Residual"), h("small", null, "max(0, ", h("em", null, "p − q"), `) / ${divisor}`)];
    const note = isGreedy
      ? "At temperature 0 nothing is drawn: the replacement is the verifier's most likely token."
      : "The divisor is TV(p, q). The residual is the same for every w > 0.";
    return section(title, h("div.sv-residual", null, bars, bar("all other", rest, ".sv-rest")), h("p.sv-muted", null, note));
  }

  function keys() {
    const key = (...names) => names.map((name) => h("kbd", null, name));
    const rows = [
      [key("←", "→"), "token"],
      [key("↑", "↓"), "round"],
      [key("Home", "End"), "first, last token"],
      [key("Space"), "play or pause"],
      [key("Enter"), "pin the token"],
      [key("Esc"), "unpin"],
      [key("?"), "show or hide this"],
    ];
    const list = h("dl.sv-keys", null, rows.map(([names, what]) => [h("dt", null, names), h("dd", null, what)]));
    return h("details.sv-help", null, h("summary", null, "Keys in the answer and the rounds"), list);
  }

  Object.assign(S, { Inspector });
})(window.SpecView);
