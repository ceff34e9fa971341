/* head.js: the Head tab: the cost model as a calculator, and what the ranks of the loaded drafter are worth here. */
(function (S) {
  "use strict";
  const { h, icon, prob, replace, symbols } = S;
  const { breakEven, breakEvenNu, rhoTps } = S.costs;
  const POINTS = 50;

  class Calculator {
    constructor(texts) {
      this.texts = texts;
      this.values = Object.fromEntries(texts.sliders.map(({ id, value }) => [id, value]));
      this.preset = null;
      this.knobs = texts.sliders.map((slider) => this.knob(slider));
      this.buttons = texts.presets.map((preset) => h("button.sl-button", { type: "button", "aria-pressed": "false", onclick: () => this.choose(preset) }, preset.name));
      this.here = h("button.sl-button", { type: "button", "aria-pressed": "false", hidden: true, onclick: () => this.choose(this.machine) }, "This machine");
      this.note = h("p.sv-muted.sh-note", { role: "status" });
      this.result = h("strong");
      this.verdict = h("span");
      this.border = h("p.sv-muted");
      this.reported = h("div.sv-tablebox");
      this.chart = new S.Chart({ x: "ν", y: "ρTPS", label: "Predicted speed over the full head" });
      const presets = h("div.sl-row", { role: "group", "aria-label": "Presets" }, this.buttons, this.here);
      this.element = h(
        "section.sh-calculator",
        { "aria-label": "Calculator" },
        h("h2.sl-title", null, texts.title),
        h("p.sl-text", null, symbols(texts.text)),
        h("p.sh-formula", null, symbols(texts.formula)),
        presets,
        this.note,
        this.knobs.map((knob) => knob.element),
        h("p.sh-result", { role: "status" }, this.result, this.verdict),
        this.border,
        this.chart.element,
        this.reported,
        h("h3", null, "Why not fewer tokens?"),
        h("p.sl-text", null, texts.ceiling),
        h("p.sv-muted", null, texts.source),
      );
      this.choose(texts.presets[0]);
    }

    knob({ id, symbol, name, min, max }) {
      const input = h("input", { type: "range", min, max, step: 0.01, "aria-label": `${symbol.replace(/[*_]/g, "")}, ${name}` });
      input.addEventListener("input", () => this.set(id, Number(input.value)));
      const value = h("output.sv-number");
      const label = h("span.sh-symbol", { "aria-hidden": "true" }, symbols(symbol), h("small", null, name));
      return { id, input, value, element: h("div.sl-knob.sh-knob", null, label, input, value) };
    }

    set(id, value) {
      this.values[id] = value;
      this.draw();
    }

    /* The figures there are; a slider without one stays where it is. */
    choose(preset) {
      this.preset = preset;
      if (typeof preset.kappa === "number") this.values.kappa = preset.kappa;
      const first = preset.points[0];
      if (first) {
        this.values.nu = first.nu;
        if (typeof first.rho_tau === "number") this.values.rho_tau = first.rho_tau;
      }
      this.draw();
    }

    offer(machine) {
      this.machine = machine;
      this.here.hidden = !machine;
      if (this.preset && this.preset.id === "here" && machine) this.choose(machine);
    }

    draw() {
      const { nu, kappa, rho_tau } = this.values;
      this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(this.texts.presets[i] === this.preset)));
      this.here.setAttribute("aria-pressed", String(this.preset === this.machine && this.machine !== undefined));
      if (this.note.textContent !== this.preset.note) this.note.textContent = this.preset.note;
      for (const { id, input, value } of this.knobs) {
        input.value = this.values[id];
        value.textContent = this.values[id].toFixed(2);
      }
      const found = rhoTps(nu, rho_tau, kappa);
      this.result.textContent = `${found.toFixed(3)}×`;
      this.verdict.textContent = ` the full head's speed, predicted: ${found > 1.0005 ? "the head pays" : found < 0.9995 ? "the head loses" : "break-even"}.`;
      const border = breakEvenNu(rho_tau, kappa);
      const atNu = border === null ? "" : ` At this ρτ it pays while ν stays below ${border.toFixed(2)}.`;
      this.border.textContent = `Break-even at this ν and κ: ρτ = (1 + ν κ) / (1 + κ) = ${breakEven(nu, kappa).toFixed(3)}.${atNu}`;
      this.drawChart(found);
      this.drawReported();
    }

    drawChart(found) {
      const { nu, kappa, rho_tau } = this.values;
      const curve = Array.from({ length: POINTS + 1 }, (_, i) => [i / POINTS, rhoTps(i / POINTS, rho_tau, kappa)]);
      const reported = this.preset.points.filter((point) => typeof point.reported === "number");
      const points = [
        { x: nu, y: found, name: "your setting, predicted", kind: "own" },
        ...reported.map((point) => ({ x: point.nu, y: point.reported, name: `${point.name}, reported`, kind: "reported" })),
      ];
      const label = `Curve of predicted speed over ν from ${curve[0][1].toFixed(2)} at 0 to ${curve[POINTS][1].toFixed(2)} at 1, at κ ${kappa.toFixed(2)} and ρτ ${rho_tau.toFixed(2)}; your setting is ${found.toFixed(2)}.`;
      this.chart.draw({ curve, points, level: 1, label });
    }

    /* What others report, beside what the model says for the same three numbers. */
    drawReported() {
      const { points, kappa, name } = this.preset;
      const rows = points.filter((point) => typeof point.reported === "number");
      if (!rows.length) {
        replace(this.reported);
        return;
      }
      const heads = ["Head", "ν", "ρτ", "predicted", "reported"];
      const cells = (point) => [point.nu.toFixed(2), point.rho_tau.toFixed(2), rhoTps(point.nu, point.rho_tau, kappa).toFixed(2), point.reported.toFixed(2)];
      const row = (point) => h("tr", null, h("th", { scope: "row" }, point.name), cells(point).map((text) => h("td", null, text)));
      const caption = h("caption", null, `${name}, κ = ${kappa.toFixed(2)}: speed over the full head. Diamonds in the chart are the reported ones.`);
      const head = h("thead", null, h("tr", null, heads.map((text) => h("th", { scope: "col" }, text))));
      replace(this.reported, h("table.sv-table.sh-reportedtable", null, caption, head, h("tbody", null, rows.map(row))));
    }
  }

  class Machine {
    constructor(calculator) {
      this.calculator = calculator;
      this.status = h("p.sl-text", { role: "status" });
      this.load = h("button.sl-button.sl-main", { type: "button", onclick: () => this.start() }, "Load and measure");
      this.bar = h("progress", { max: 1, hidden: true, "aria-label": "Loading the drafter" });
      this.lengths = h("input", { type: "range", min: 1, max: 8, step: 1, value: 2, "aria-label": "Drafts per round K" });
      this.lengths.addEventListener("input", () => this.draw());
      this.length = h("output.sv-number");
      this.warm = false;
      const press = (isWarm) => () => {
        this.warm = isWarm;
        this.draw();
      };
      this.heats = [["Temperature 0", false], ["Temperature 1", true]].map(([name, isWarm]) => ({ isWarm, button: h("button", { type: "button", onclick: press(isWarm) }, name) }));
      const heats = h("div.sv-segments", { role: "group", "aria-label": "Temperature" }, this.heats.map(({ button }) => button));
      const knob = h("div.sl-knob", null, h("span", { "aria-hidden": "true" }, "Drafts per round K"), this.lengths, this.length);
      this.table = h("div.sv-tablebox", { tabindex: "0", role: "region", "aria-label": "Ranks as a table" });
      this.note = h("p.sv-muted");
      this.found = h("div", null, knob, h("div.sl-row", null, heats), this.table, this.note);
      this.element = h("section.sh-machine", { "aria-label": "This machine" }, h("h2.sl-title", null, "On this machine"), this.status, h("div.sl-row", null, this.load), this.bar, this.found);
    }

    /* Gradio's own button sits unseen beside the view: its click is what reaches the server. */
    start() {
      const button = document.querySelector("#head-load");
      if (button && this.data.state !== "loading") button.click();
    }

    show(data) {
      this.data = data;
      if (this.status.textContent !== data.text) this.status.textContent = data.text;
      this.load.hidden = data.state === "ready" || data.state === "none";
      this.load.setAttribute("aria-disabled", String(data.state === "loading"));
      this.bar.hidden = !(data.state === "loading" && data.total > 0);
      if (data.total > 0) this.bar.value = data.position / data.total;
      this.found.hidden = data.state !== "ready";
      if (data.state === "ready") this.draw();
    }

    draw() {
      const length = Number(this.lengths.value);
      const { full, drafts } = this.data;
      const { ranks, kappa, best } = drafts.find((entry) => entry.length === length && entry.warm === this.warm);
      this.length.textContent = length;
      for (const { isWarm, button } of this.heats) button.setAttribute("aria-pressed", String(isWarm === this.warm));
      const heads = ["Rank r", "Parameters", "ν", "Tokens/round", "Speed"];
      const most = Math.max(...ranks.map((row) => row.speed));
      const rows = ranks.map((row) => {
        const isBest = row.rank === best;
        const name = [String(row.rank), isBest ? h("span.sh-best", null, icon("bonus"), "best") : null];
        const share = full ? h("small", null, ` ${((100 * row.parameters) / full).toFixed(0)} %`) : null;
        const bar = h("span.sv-hbar.sh-speed", { "aria-hidden": "true" }, h("i", { style: { width: `${(100 * row.speed) / most}%` } }));
        const cells = [[`${(row.parameters / 1e6).toFixed(1)} M`, share], row.nu === null ? "–" : prob(row.nu), row.tokens.toFixed(2), [`${row.speed.toFixed(2)}×`, bar]];
        return h(`tr${isBest ? ".sv-own" : ""}`, null, h("th", { scope: "row" }, name), cells.map((cell) => h("td", null, cell)));
      });
      const caption = h("caption", null, `${this.data.drafter}, K = ${length}, temperature ${this.warm ? 1 : 0}`);
      replace(this.table, h("table.sv-table", null, caption, h("thead", null, h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", null, rows)));
      this.note.textContent = this.data.note;
      const row = ranks.find(({ rank }) => rank === best);
      if (typeof kappa !== "number" || !row || row.nu === null) {
        this.calculator.offer(null);
        return;
      }
      const note = `Times of this machine at rank ${best}, K = ${length}: ν = ${row.nu.toFixed(2)}, κ = ${kappa.toFixed(2)}. ρτ was not measured: the slider keeps your value. python -m explorer bench heads measures it.`;
      this.calculator.offer({ id: "here", name: "This machine", kappa, points: [{ name: `rank ${best}`, nu: row.nu }], note });
    }
  }

  S.page.costs = (element, props, watch) => {
    const root = element.querySelector(".sv-costs") || element;
    const { texts } = JSON.parse(props.value);
    const calculator = new Calculator(texts);
    const machine = new Machine(calculator);
    replace(root, h("div.sl", null, calculator.element, machine.element));
    const read = () => machine.show(JSON.parse(props.value).machine);
    watch("value", read);
    read();
  };
})(window.SpecView);
