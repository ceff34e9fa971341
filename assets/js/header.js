/* header.js: the prompt, the badge that says whether the output law is the target's, the facts and the five figures. */
(function (S) {
  "use strict";
  const { h, icon, percent, replace } = S;

  /* [is it the target's law, words] */
  function law(meta) {
    const fixed = (value) => Number(value).toFixed(2);
    if (meta.rule === "ar") return [true, "autoregressive: the target's own law, nothing drafted"];
    if (meta.rule === "exact") return [true, "exact: output law equals the target's"];
    const differs = "output law differs from the target's";
    if (meta.rule === "lossy") {
      return meta.lenience >= 1
        ? [true, "lossy with l = 1: output law equals the target's"]
        : [false, `lossy, l = ${fixed(meta.lenience)}: ${differs}`];
    }
    if (meta.rule === "static") {
      return meta.target_weight >= 1
        ? [true, "static ensemble with w = 1: output law equals the target's"]
        : [false, `static ensemble, w = ${fixed(meta.target_weight)}: ${differs}`];
    }
    if (meta.rule === "dynamic") return [false, `dynamic ensemble, learned w: ${differs}`];
    return [false, `${meta.rule}: ${differs}`];
  }

  function shortName(name) {
    return String(name || "").split("/").pop().replace(/\.gguf$/i, "").replace(/-GGUF$/i, "");
  }

  function drafterFact(drafter) {
    const kind = drafter.kind === "ngram" ? "prompt lookup" : shortName(drafter.name) || drafter.kind;
    const label = kind.includes("drafter") ? kind : `drafter ${kind}`;
    const head = drafter.head && drafter.head !== "own" ? `, ${drafter.head} head` : "";
    return (drafter.rank ? `${label}, r = ${drafter.rank}` : label) + head;
  }

  const FINISH = {
    end_token: "ended with the end token",
    stop_text: "ended at a stop text",
    length: "ended at the token limit",
    context: "ended at the context's edge",
    stopped: "stopped",
  };

  function facts(trace, isLive) {
    const meta = trace.meta;
    const list = [];
    if (meta.target && meta.target.name) list.push(shortName(meta.target.name));
    if (meta.drafter) list.push(drafterFact(meta.drafter));
    if (meta.rule !== "ar") list.push(`K = ${meta.draft_length}`);
    list.push(`T = ${Number(meta.temperature).toFixed(2)}`);
    if (meta.top_p < 1) list.push(`top-p ${meta.top_p}`);
    if (meta.top_k > 0) list.push(`top-k ${meta.top_k}`);
    list.push(`seed ${meta.seed}`);
    if (meta.device) list.push([String(meta.device).toUpperCase(), meta.precision].filter(Boolean).join(" "));
    if (trace.end) list.push(FINISH[trace.end.finish] || trace.end.finish);
    else if (!isLive) list.push("cut off: this run has no end");
    return list.join(", ");
  }

  const FORMULAS = {
    rate: "accepted / drafted. Drafts that were never tested count as drafted. Compare at equal K only.",
    tested: "accepted / tested. Drafts after the first rejection are not tested and do not count.",
    tau: "τ = emitted tokens / target passes, residual and bonus tokens included. K + 1 is the most a pass can give.",
    speed:
      "Emitted tokens / seconds, measured in this run. A speed-up is shown only if this page has also measured an " +
      "autoregressive run of the same prompt on the same machine.",
    passes: "Forward passes of the target after the prompt: one per round. Autoregressive decoding needs one per token.",
  };

  class Header {
    constructor(view) {
      this.view = view;
      this.baselines = new Map();
      this.prompt = h("h2.sv-prompt", { dir: "auto" });
      this.badge = h("span.sv-badge");
      this.facts = h("p.sv-facts");
      this.alert = h("p.sv-alert", { role: "alert" });
      const actions = h("div.sv-actions", null, view.files.buttons);
      const line = h("div.sv-law", null, this.badge, this.facts);
      this.element = h("header.sv-head", null, h("div.sv-headline", null, this.prompt, actions), line, this.alert, view.files.share.panel);
      this.figures = {
        rate: figure("Acceptance rate", FORMULAS.rate),
        tested: figure("Of tested", FORMULAS.tested),
        tau: figure("Tokens per target pass τ", FORMULAS.tau),
        speed: figure("Tokens per second", FORMULAS.speed),
        passes: figure("Target passes", FORMULAS.passes),
      };
      const cells = Object.values(this.figures).map((one) => one.element);
      this.summary = h("section.sv-figures", { "aria-label": "Summary of the run" }, cells);
    }

    say(message) {
      this.alert.textContent = message;
    }

    draw() {
      const { trace, isLive } = this.view;
      if (!trace.meta) return;
      this.prompt.textContent = trace.meta.prompt || "";
      const [isTargets, words] = law(trace.meta);
      replace(this.badge, icon(isTargets ? "equal" : "differs"), h("span", null, words));
      this.badge.classList.toggle("sv-differs", !isTargets);
      this.facts.textContent = facts(trace, isLive);
      this.drawFigures();
    }

    drawFigures() {
      const { trace, playhead } = this.view;
      const n = trace.countsAt(playhead);
      const { rate, tested, tau, speed, passes } = this.figures;
      const most = trace.meta.rule === "ar" ? 1 : trace.meta.draft_length + 1;
      rate.set(percent(n.accepted, n.drafted), "", `${n.accepted} of ${n.drafted} drafted`, [
        ["accepted", n.accepted / n.drafted],
        ["rejected", n.rejected / n.drafted],
        ["discarded", n.discarded / n.drafted],
      ]);
      tested.set(percent(n.accepted, n.tested), "", `${n.accepted} of ${n.tested} tested`, [
        ["accepted", n.accepted / n.tested],
        ["rejected", n.rejected / n.tested],
      ]);
      const each = n.passes ? n.emitted / n.passes : 0;
      tau.set(n.passes ? each.toFixed(2) : "–", `of ${most} at most`, `${n.emitted} tokens in ${n.passes} passes`, [
        ["plain", each / most],
      ]);
      this.drawSpeed(speed, n);
      const saved = n.emitted - n.passes;
      passes.set(String(n.passes), `instead of ${n.emitted}`, `${saved} ${saved === 1 ? "pass" : "passes"} saved`, [
        ["plain", n.passes / n.emitted],
      ]);
    }

    drawSpeed(cell, n) {
      const { trace, playhead } = this.view;
      const whole = trace.end && playhead >= trace.steps.length && typeof trace.end.tokens_per_s === "number";
      const value = whole ? trace.end.tokens_per_s : n.ms ? (1000 * n.emitted) / n.ms : 0;
      const key = baselineKey(trace.meta);
      if (trace.meta.rule === "ar" && whole && trace.end.finish !== "stopped") this.baselines.set(key, value);
      const baseline = trace.meta.rule === "ar" ? undefined : this.baselines.get(key);
      const text = value ? (value >= 100 ? value.toFixed(0) : value.toFixed(1)) : "–";
      if (baseline) {
        const most = Math.max(value, baseline);
        const note = `${baseline.toFixed(1)} autoregressive, measured`;
        cell.set(text, `${(value / baseline).toFixed(2)}×`, note, [["plain", value / most]], baseline / most);
      } else cell.set(text, "", trace.meta.rule === "ar" ? "the baseline" : "no baseline run yet", []);
    }
  }

  /* Runs that differ only in how they draft and verify. */
  function baselineKey(meta) {
    const target = meta.target ? meta.target.name : "";
    return JSON.stringify([meta.prompt, target, meta.precision, meta.device, meta.temperature, meta.max_new_tokens]);
  }

  function figure(label, formula) {
    const value = h("strong");
    const aside = h("span.sv-aside");
    const bar = h("div.sv-figbar", { "aria-hidden": "true" });
    const note = h("p.sv-note");
    const tip = h("p.sv-tip", { hidden: true }, formula);
    const button = h(
      "button.sv-i",
      {
        type: "button",
        "aria-label": `How ${label} is computed`,
        "aria-expanded": "false",
        onclick: () => {
          tip.hidden = !tip.hidden;
          button.setAttribute("aria-expanded", String(!tip.hidden));
        },
      },
      icon("info"),
    );
    const head = h("div.sv-figlabel", null, h("span", null, label), button);
    const element = h("div.sv-figure", null, head, h("p.sv-value", null, value, aside), bar, note, tip);
    const set = (main, side, below, parts, tick) => {
      value.textContent = main;
      aside.textContent = side;
      note.textContent = below;
      const fine = parts.filter(([, share]) => Number.isFinite(share) && share > 0);
      const bars = fine.map(([kind, share]) => h(`i.sv-part-${kind}`, { style: { width: `${100 * Math.min(1, share)}%` } }));
      replace(bar, bars, tick ? h("b", { style: { left: `${100 * tick}%` } }) : null);
    };
    return { element, set };
  }

  Object.assign(S, { Header });
})(window.SpecView);
