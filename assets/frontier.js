/* frontier.js: body of the Frontier tab's `js_on_load`. Draws the sentence, the command and the table of a report.
 *
 * `props.value` is JSON; every word of it enters the page as text. Choosing a row and pressing the button triggers
 * `submit` with {report, place, row}. */
const { h, replace } = window.SpecView;
const root = element.querySelector(".sv-frontier") || element;
const chosen = h("span.fr-chosen", { role: "status" });
const button = h("button.fr-decode", { type: "button", disabled: true, onclick: () => send() }, "Decode with this rule");
let data = {};
let row = -1;

function send() {
  if (row >= 0) trigger("submit", { report: data.report, place: data.place, row });
}

function choose(number) {
  if (!data.rows || !data.rows[number]) return;
  row = number;
  const { cells, why } = data.rows[number];
  root.querySelectorAll("tbody tr").forEach((line, index) => {
    line.classList.toggle("fr-on", index === number);
    line.querySelector("input").checked = index === number;
  });
  chosen.textContent = why || `Chosen: ${cells[0]}`;
  button.disabled = Boolean(why);
}

function line(entry, number) {
  const radio = h("input", {
    type: "radio",
    name: "frontier-row",
    "aria-label": entry.cells[0],
    onchange: () => choose(number),
  });
  const first = h("th", { scope: "row" }, h("label", null, radio, h("bdi", null, entry.cells[0])));
  const rest = entry.cells.slice(1).map((cell) => h("td", null, cell));
  return h(entry.is_head ? "tr.fr-head" : "tr", { onclick: () => choose(number) }, first, rest);
}

function problems() {
  if (!data.problems || !data.problems.length) return null;
  return h("ul.fr-problems", { "aria-label": "Reports left out" }, data.problems.map((text) => h("li", null, text)));
}

function none() {
  return [
    h("p.fr-verdict", null, "There is no report yet: reward against acceptance has not been measured on this machine."),
    h("p.fr-basis", null, "This command measures it; the last line of its output is the report. Save that line as"),
    h("p.fr-basis", null, h("code", null, `${data.folder}/NAME.json`)),
    h("pre.fr-command", { tabindex: "0", "aria-label": "Command that makes a report" }, data.command),
  ];
}

function report() {
  const head = h("thead", null, h("tr", null, data.columns.map((name) => h("th", { scope: "col" }, name))));
  const table = h("table", { "aria-label": "The report, rule by rule" }, head, h("tbody", null, data.rows.map(line)));
  return [
    h("p.fr-verdict", null, data.verdict),
    h("p.fr-basis", null, data.basis),
    h("p.fr-basis", null, "Made by"),
    h("pre.fr-command", { tabindex: "0", "aria-label": "Command that made the report" }, data.command),
    h("p.fr-pick", null, button, chosen),
    h("div.fr-scroll", { tabindex: "0", role: "region", "aria-label": "Table of the report" }, table),
  ];
}

function draw() {
  data = JSON.parse(props.value || "{}");
  row = -1;
  button.disabled = true;
  chosen.textContent = "Choose a row of the table or a mark of the chart.";
  replace(root, data.kind === "report" ? report() : data.kind === "none" ? none() : [], problems());
}

/* A mark of the chart chooses its row. Gradio may make the plot anew at any time: look when the pointer comes. */
function hook() {
  const plot = document.querySelector("#frontier-reward .js-plotly-plot");
  if (!plot || !plot.on || plot.frontierHook) return;
  plot.frontierHook = true;
  plot.on("plotly_click", (event) => choose(event.points[0].customdata));
}

const stage = element.closest(".frontier");
if (stage) stage.addEventListener("pointerover", hook);
watch("value", draw);
draw();
