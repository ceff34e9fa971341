/* learn.js: the lesson. Six steps over one recorded run; each asks before it tells. The texts come from learn.json. */
(function (S) {
  "use strict";
  const { h, icon, prob, replace, spoken, symbols, tokenNodes, FATE_WORD } = S;
  // What the reader has answered lives as long as the page, also where gradio builds the tab anew.
  const memory = { at: 0, answers: {} };
  const COUNTS = ["K", "round", "kept", "passing", "untested", "emitted", "gifts"];
  const MOST_CONTEXT = 90;

  function shown(name, value) {
    if (value !== null && typeof value === "object") return h("bdi.sl-token", null, tokenNodes(value.text, false));
    if (typeof value !== "number" || COUNTS.includes(name)) return String(value ?? "–");
    return prob(value, name === "w" ? 2 : 3);
  }

  /* Nodes of a text in which {name} stands for a value and *x* for a symbol. */
  function fill(template, values) {
    return template.split(/(\{\w+\}|\*[^*]+\*)/).map((part) => {
      if (/^\*.+\*$/.test(part)) return symbols(part);
      if (!/^\{\w+\}$/.test(part)) return part;
      const name = part.slice(1, -1);
      return h("span.sl-value", null, shown(name, values[name]));
    });
  }

  class Lesson {
    constructor(lesson, trace) {
      this.steps = lesson.steps;
      this.trace = trace;
      this.moments = S.lesson.moments(trace);
      this.tabs = this.steps.map((step, i) => this.tab(step, i));
      this.score = h("p.sv-muted.sl-score");
      this.heading = h("h3");
      this.text = h("p.sl-text");
      this.context = h("p.sl-context");
      this.boxes = h("ol.sl-round");
      this.question = h("legend");
      this.choices = h("div.sl-choices");
      this.ask = h("fieldset.sl-ask", null, this.question, this.choices);
      this.why = h("div.sl-why", { role: "status" });
      this.back = h("button.sl-button", { type: "button", onclick: () => this.go(memory.at - 1) }, "Back");
      this.next = h("button.sl-button.sl-main", { type: "button", onclick: () => this.go(memory.at + 1) }, "Next step");
      this.again = h("button.sv-link", { type: "button", onclick: () => this.forget() }, "Answer again");
      const tabs = h("div.sl-steps", { role: "tablist", "aria-label": "Steps" }, this.tabs);
      const moves = h("div.sl-moves", null, this.back, this.next, this.again);
      this.panel = h("div.sl-panel", { role: "tabpanel", id: "sl-panel", "aria-labelledby": "" });
      replace(this.panel, this.heading, this.text, this.context, this.boxes, this.ask, this.why, moves);
      const head = [h("h2.sl-title", null, lesson.title), h("p.sv-muted", null, lesson.intro), source(trace.meta)];
      this.element = h("section.sl-lesson", { "aria-label": "Lesson" }, head, tabs, this.score, this.panel);
      this.go(memory.at);
    }

    tab(step, i) {
      const mark = h("span.sl-mark");
      const props = { type: "button", role: "tab", id: `sl-tab-${step.id}`, "aria-controls": "sl-panel" };
      const node = h("button.sl-tab", { ...props, onclick: () => this.go(i), onkeydown: (event) => this.onKey(event) });
      replace(node, h("b", null, `${i + 1}`), h("span", null, fill(step.name, {})), mark);
      node.mark = mark;
      return node;
    }

    onKey(event) {
      const last = this.steps.length - 1;
      const to = { ArrowLeft: memory.at - 1, ArrowRight: memory.at + 1, Home: 0, End: last }[event.key];
      if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      this.go(to);
      this.tabs[memory.at].focus();
    }

    get step() {
      return this.steps[memory.at];
    }

    get moment() {
      return this.moments[this.step.id];
    }

    get answer() {
      return memory.answers[this.step.id];
    }

    go(to) {
      const hadFocus = document.activeElement;
      memory.at = Math.max(0, Math.min(this.steps.length - 1, to));
      const { step, moment } = this;
      this.panel.setAttribute("aria-labelledby", `sl-tab-${step.id}`);
      this.heading.textContent = step.title;
      this.back.disabled = memory.at === 0;
      this.next.disabled = memory.at === this.steps.length - 1;
      // A button that has just become useless would drop the focus to the top of the page.
      if (hadFocus && hadFocus.disabled) (hadFocus === this.next ? this.back : this.next).focus();
      for (const part of [this.context, this.boxes, this.ask]) part.hidden = !moment;
      replace(this.why);
      if (!moment) {
        replace(this.text, "The recorded run has no such moment.");
        this.draw();
        return;
      }
      replace(this.text, fill(step.text, moment.values));
      replace(this.question, fill(step.question, moment.values));
      replace(this.choices, moment.choices.map((choice) => this.choice(choice)));
      this.draw();
    }

    choice(choice) {
      const { row, text } = choice;
      const label = row
        ? [h("bdi.sl-token", null, tokenNodes(row.text, false)), h("small", null, h("em", null, "p"), ` ${prob(row.p)} `, h("em", null, "q"), ` ${prob(row.q)}`)]
        : text;
      const mark = h("span.sl-said");
      const node = h("button.sl-choice", { type: "button", "aria-pressed": "false", onclick: () => this.choose(choice.key) }, h("span", null, label), mark);
      return Object.assign(node, { key: choice.key, mark });
    }

    choose(key) {
      if (this.answer !== undefined) return;
      memory.answers[this.step.id] = key;
      this.draw();
    }

    forget() {
      delete memory.answers[this.step.id];
      this.draw();
      this.choices.querySelector("button").focus();
    }

    draw() {
      const { moment, answer } = this;
      const isAnswered = answer !== undefined;
      this.tabs.forEach((tab, i) => this.drawTab(tab, this.steps[i], i));
      const done = this.steps.filter((step) => memory.answers[step.id] !== undefined);
      const right = done.filter((step) => this.isRight(step)).length;
      this.score.textContent = done.length ? `${done.length} of ${this.steps.length} answered, ${right} right.` : "Nothing answered yet.";
      this.again.hidden = !isAnswered;
      if (!moment) return;
      for (const node of this.choices.children) {
        const isOwn = node.key === answer;
        const isTrue = isAnswered && node.key === moment.right;
        node.setAttribute("aria-pressed", String(isOwn));
        node.setAttribute("aria-disabled", String(isAnswered));
        node.classList.toggle("sl-true", isTrue);
        replace(node.mark, isOwn && isTrue ? "your answer, right" : isOwn ? "your answer" : isTrue ? "what happened" : "");
      }
      this.drawBoxes(isAnswered ? moment.after : moment.before, isAnswered);
      if (isAnswered) this.explain();
      else replace(this.why);
    }

    isRight(step) {
      const moment = this.moments[step.id];
      return moment !== null && memory.answers[step.id] === moment.right;
    }

    drawTab(tab, step, i) {
      const isAnswered = memory.answers[step.id] !== undefined;
      tab.setAttribute("aria-selected", String(i === memory.at));
      tab.tabIndex = i === memory.at ? 0 : -1;
      const word = this.isRight(step) ? ", answered right" : ", answered wrong";
      replace(tab.mark, isAnswered ? [icon(this.isRight(step) ? "accepted" : "rejected"), h("span.sv-sr", null, word)] : null);
    }

    explain() {
      const { step, moment, answer } = this;
      const said = moment.choices.find((choice) => choice.key === answer);
      const name = (choice) => (choice.row ? shown("", choice.row) : choice.text);
      const isRight = answer === moment.right;
      const truth = moment.choices.find((choice) => choice.key === moment.right);
      const first = isRight
        ? ["You said “", name(said), "”: right."]
        : ["You said “", name(said), "”. In the run: “", name(truth), "”."];
      const isRelaxed = !["exact", "ar"].includes(this.trace.meta.rule);
      replace(
        this.why,
        h("p", null, h("strong", null, first)),
        h("p", null, fill(step.why, moment.values)),
        step.relaxed && isRelaxed ? h("p.sv-muted", null, fill(step.relaxed, moment.values)) : null,
      );
    }

    drawBoxes(playhead, isAnswered) {
      const { trace, moment, step } = this;
      const { round } = moment;
      const before = trace.answerAt(Math.min(playhead, round.firstStep));
      const start = before.length > MOST_CONTEXT ? `…${before.slice(-MOST_CONTEXT).replace(/^\S*/, "")}` : before;
      replace(this.context, h("span.sl-caption", null, `Round ${round.number + 1} continues`), h("bdi", null, start || "(the start of the answer)"));
      const boxes = round.tokens.map((token) => {
        const state = trace.stateAt(token, playhead);
        const isMain = token === moment.token && step.id !== "bonus";
        return box(token, state, numbers(token, state, { step: step.id, isMain, isAnswered }), isMain);
      });
      this.boxes.style.setProperty("--boxes", round.tokens.length);
      replace(this.boxes, boxes);
    }
  }

  /* Which numbers a box shows: before the answer only what the question gives. */
  function numbers(token, state, { step, isMain, isAnswered }) {
    const d = token.data;
    if (state === "hidden") return [];
    if (token.isNext) return [[token.fate === "bonus" ? "p" : "share", d.prob]];
    const wanted = { draft: ["q"], verify: ["a", "u"], accept: ["p", "q", "u"], weight: ["p", "q", "u"] }[step] || [];
    if (isAnswered && isMain) return ["p", "q", "a", "u"].map((name) => [name, d[name]]);
    if (step === "verify" || step === "draft" || isMain) return wanted.map((name) => [name, d[name]]);
    return [];
  }

  function box(token, state, values, isMain) {
    const isHidden = state === "hidden";
    const word = isHidden ? "?" : tokenNodes(token.text, false);
    const saying = isHidden ? "not known yet" : `${spoken(token.text)}, ${FATE_WORD[state] || state}`;
    const top = h(
      "div.sv-boxtop",
      { "aria-hidden": "true" },
      h("bdi.sv-word", null, word),
      h("span.sv-glyph", null, isHidden ? null : icon(state)),
    );
    const label = h("small.sl-place", null, token.isNext ? "target adds" : `draft ${token.place + 1}`);
    const list = values.map(([name, value]) => h("span", null, name.length > 1 ? name : h("em", null, name), ` ${prob(value)}`));
    const parts = [label, h("span.sv-sr", null, saying), top, isMain ? bars(token, state) : null, h("div.sv-numbers", null, list)];
    return h(`li.sv-box.sl-box.sv-is-${isHidden ? "pending" : state}${isMain ? ".sl-main-box" : ""}`, null, parts);
  }

  /* p over q, and once judged the chance with the coin on it. */
  function bars(token, state) {
    const { p, q, a, u } = token.data;
    const isJudged = state === "accepted" || state === "rejected";
    const style = { "--p": p || 0, "--q": q || 0, "--e": Math.min(S.exactChance(token.data, false), a || 0), "--a": a || 0, "--u": u || 0 };
    return h(`div.sv-bars${isJudged ? ".sv-coin" : ".sl-open"}`, { style, "aria-hidden": "true" });
  }

  function source(meta) {
    if (!meta) return null;
    const weight = meta.rule === "static" ? `, w ${prob(meta.target_weight, 2)}` : "";
    const name = (meta.target && meta.target.name) || "target";
    return h("p.sv-muted", null, `Recorded: ${name}, ${meta.rule} rule${weight}, temperature ${meta.temperature}, seed ${meta.seed}. Prompt: “${meta.prompt}”`);
  }

  S.page.learn = (element, props) => {
    const root = element.querySelector(".sv-learn") || element;
    const { lesson, trace } = JSON.parse(props.value);
    const run = new S.Trace();
    run.append(trace);
    replace(root, h("div.sl", null, new Lesson(lesson, run).element, new S.Toy(lesson.toy).element));
  };
})(window.SpecView);
