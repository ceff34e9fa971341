/* dom.js: making elements, icons and numbers. Text enters the page here and only as textContent. */
(function (S) {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  /* h("p.note", {title: "x", onclick: f}, "text", node, ...) */
  function h(tag, props, ...children) {
    const [name, ...classes] = tag.split(".");
    const node = document.createElement(name);
    if (classes.length) node.className = classes.join(" ");
    for (const [key, value] of Object.entries(props || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
      else node.setAttribute(key, value === true ? "" : value);
    }
    append(node, children);
    return node;
  }

  function append(node, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(typeof child === "object" ? child : document.createTextNode(String(child)));
    }
  }

  function replace(node, ...children) {
    node.replaceChildren();
    append(node, children);
  }

  const ICONS = {
    accepted: "M3 8.5l3.5 3.5L13 4.5",
    rejected: "M4 4l8 8M12 4l-8 8",
    discarded: "M8 8h.01",
    residual: "M12.5 6A5 5 0 1 0 13 8.5M13 2.5V6H9.5",
    bonus: "M8 1.8l1.9 4 4.4.6-3.2 3 .8 4.4L8 11.7l-3.9 2.1.8-4.4-3.2-3 4.4-.6z",
    pending: "M3 8h.01M8 8h.01M13 8h.01",
    info: "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M8 7.2v4M8 4.8h.01",
    play: "M4.5 2.5v11l9-5.5z",
    pause: "M5 3v10M11 3v10",
    first: "M8 3L3.5 8 8 13M13 3L8.5 8 13 13",
    back: "M10 3L5.5 8 10 13",
    forward: "M6 3l4.5 5L6 13",
    last: "M3 3l4.5 5L3 13M8 3l4.5 5L8 13",
    pin: "M9.5 2l4.5 4.5-2.2.4-2.6 2.6-.5 2.8L3.7 7.3l2.8-.5 2.6-2.6zM6 10l-3.5 3.5",
    equal: "M3 6h10M3 10.5h10",
    differs: "M3 6h10M3 10.5h10M11 2.5l-6 11.5",
  };
  const FILLED = ["bonus", "play"];

  function icon(name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", `sv-icon sv-icon-${name}`);
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", ICONS[name]);
    if (FILLED.includes(name)) path.setAttribute("fill", "currentColor");
    svg.append(path);
    return svg;
  }

  /* .482, 1.00, <.001 */
  function prob(value, digits = 3) {
    if (typeof value !== "number") return "–";
    const least = 10 ** -digits;
    if (value > 0 && value < least / 2) return `<.${String(1).padStart(digits, "0")}`;
    const text = value.toFixed(digits);
    return text.startsWith("0.") ? text.slice(1) : text;
  }

  function percent(part, whole) {
    return whole ? `${((100 * part) / whole).toFixed(1)}%` : "–";
  }

  const MARKS = { " ": ["sv-space", "\u00a0"], "\n": ["sv-mark", "⏎"], "\r": ["sv-mark", "␍"], "\t": ["sv-mark", "⇥"] };

  /* Nodes that show a token's text with its white space visible; `lead` keeps a leading space visible too. */
  function tokenNodes(text, lead) {
    if (text === "") return [h("span.sv-mark", { title: "part of a character" }, "⋯")];
    let rest = !lead && /^ \S/.test(text) ? text.slice(1) : text;
    if (!lead && /^ +$/.test(text) && text.length > 1) rest = text;
    const nodes = [];
    let plain = "";
    for (const [index, char] of [...rest].entries()) {
      const inside = char === " " && index > 0 && index < rest.length - 1 && rest[index - 1] !== " ";
      if (char in MARKS && !inside) {
        nodes.push(plain);
        plain = "";
        nodes.push(h(`span.${MARKS[char][0]}`, null, MARKS[char][1]));
      } else plain += char;
    }
    nodes.push(plain);
    return nodes.filter((node) => node !== "");
  }

  const NAMES = { " ": "space", "\n": "new line", "\r": "carriage return", "\t": "tab" };

  /* The token for a screen reader. */
  function spoken(text) {
    if (text === "") return "part of a character";
    if (/^\s+$/.test(text)) return [...text].map((char) => NAMES[char] || "white space").join(" ");
    return text.trim();
  }

  const FATE_WORD = {
    accepted: "accepted",
    rejected: "rejected",
    discarded: "untested",
    residual: "residual",
    bonus: "bonus",
    pending: "pending",
  };

  /* "the, accepted, round 3, p .61, q .48, weight .30" */
  function tokenName(token, state) {
    const { p, q, w } = token.data;
    const parts = [spoken(token.text), FATE_WORD[state] || state, `round ${token.round.number + 1}`];
    if (typeof p === "number") parts.push(`p ${prob(p, 2)}`);
    if (typeof q === "number") parts.push(`q ${prob(q, 2)}`);
    if (typeof w === "number" && !token.isNext && w < 1) parts.push(`weight ${prob(w, 2)}`);
    return parts.join(", ");
  }

  Object.assign(S, { h, icon, prob, percent, replace, spoken, tokenName, tokenNodes, FATE_WORD });
})(window.SpecView);
