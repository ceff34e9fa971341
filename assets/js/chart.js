/* chart.js: one curve with points and a level line, as SVG that we draw ourselves, and the same numbers as a table. */
(function (S) {
  "use strict";
  const { h, replace } = S;
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 260;
  const EDGE = { left: 44, right: 14, top: 14, bottom: 40 };

  function s(tag, props, ...children) {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  const text = (x, y, words, props = {}) => s("text", { x, y, ...props }, words);

  /* Round steps that cut a range into about `count` parts. */
  function ticks(low, high, count) {
    const raw = (high - low) / count;
    const size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9; n += 1) found.push(n * step);
    return found;
  }

  class Chart {
    /* names: {x, y, label} */
    constructor(names) {
      this.names = names;
      this.picture = h("div.sh-chart");
      this.table = h("table.sv-table");
      this.element = h("div", null, this.picture, h("details.sh-twin", null, h("summary", null, "The chart as a table"), h("div.sv-tablebox", null, this.table)));
      new ResizeObserver(() => this.data && this.paint()).observe(this.picture);
    }

    /* data: {curve: [[x, y]], points: [{x, y, name, kind}], level, label} */
    draw(data) {
      this.data = data;
      this.paint();
      const row = (name, x, y) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, x.toFixed(2)), h("td", null, y.toFixed(3)));
      const step = Math.max(1, Math.round((data.curve.length - 1) / 10));
      const curve = data.curve.filter((_, i) => i % step === 0).map(([x, y]) => row("curve", x, y));
      const head = h("tr", null, ["", this.names.x, this.names.y].map((name) => h("th", { scope: "col" }, name)));
      const points = data.points.map((point) => row(point.name, point.x, point.y));
      replace(this.table, h("caption", null, `${this.names.label}. Break-even is ${this.names.y} = 1.`), h("thead", null, head), h("tbody", null, points, curve));
    }

    paint() {
      const { curve, points, level } = this.data;
      const width = Math.max(260, this.picture.clientWidth || 560);
      const ys = [...curve.map(([, y]) => y), ...points.map((point) => point.y), level];
      const low = Math.min(...ys) - 0.03;
      const high = Math.max(...ys) + 0.03;
      const right = width - EDGE.right;
      const bottom = HEIGHT - EDGE.bottom;
      const X = (x) => EDGE.left + x * (right - EDGE.left);
      const Y = (y) => bottom - ((y - low) / (high - low)) * (bottom - EDGE.top);
      const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": this.data.label });
      for (const y of ticks(low, high, 4)) {
        svg.append(s("line", { x1: EDGE.left, x2: right, y1: Y(y), y2: Y(y), class: "sh-grid" }), text(EDGE.left - 6, Y(y) + 4, y.toFixed(2), { "text-anchor": "end" }));
      }
      for (const x of ticks(0, 1, 5)) svg.append(text(X(x), bottom + 16, x.toFixed(1), { "text-anchor": "middle" }));
      svg.append(text((EDGE.left + right) / 2, HEIGHT - 6, this.names.x, { "text-anchor": "middle" }), text(EDGE.left, EDGE.top - 2, this.names.y, { "text-anchor": "middle" }));
      svg.append(s("line", { x1: EDGE.left, x2: right, y1: Y(level), y2: Y(level), class: "sh-level" }), text(EDGE.left + 4, Y(level) - 5, "break-even"));
      svg.append(s("path", { d: curve.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join(""), class: "sh-curve" }));
      for (const point of points) svg.append(mark(X(point.x), Y(point.y), point));
      replace(this.picture, svg);
    }
  }

  /* Own: a filled disc; reported: a hollow diamond. */
  function mark(x, y, { kind, name }) {
    const shape = kind === "own" ? s("circle", { cx: x, cy: y, r: 6, class: "sh-own" }) : s("path", { d: `M${x} ${y - 6}l6 6-6 6-6-6z`, class: "sh-reported" });
    shape.append(s("title", {}, name));
    return shape;
  }

  Object.assign(S, { Chart, ticks });
})(window.SpecView);
