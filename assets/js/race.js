/* race.js: recorded runs of one prompt side by side, on their own clock or by target passes. Each lane is drawn from its
 * trace alone. `props.value` is the traces one behind the other; each begins with its meta line. */
(function (S) {
  "use strict";
  const { h, icon, replace, Trace } = S;
  const SPEEDS = [[0.25, "¼×"], [0.5, "½×"], [1, "1×"], [2, "2×"], [4, "4×"]];
  const NARROW = 760;
  const PASSES_PER_S = 10; // in real time by passes: about what a small model does
  const NAMES = { ar: "Autoregressive", exact: "Exact", lossy: "Lossy", static: "Static ensemble", dynamic: "Dynamic ensemble" };

  /* The traces in a text of several; the last may still grow. */
  function tracesOf(text) {
    const traces = [];
    for (const line of text.split("\n").filter((part) => part.trim())) {
      if (line.startsWith('{"kind":"meta"')) traces.push(new Trace());
      if (!traces.length) throw new S.TraceError("The race does not begin with a trace. Start the race again.");
      traces.at(-1).append(line + "\n");
    }
    return traces;
  }

  /* Name and figures of a finished or growing run. Its clock starts when the prompt is read. */
  function laneOf(trace) {
    const { meta, end, rounds, steps } = trace;
    const offset = (end && end.prefill_ms) || 0;
    const tokens = trace.tokens.filter((token) => token.isKept);
    const ms = offset + (steps.length ? steps.at(-1).until : 0);
    const amount = meta.rule === "static" ? `, w = ${Number(meta.target_weight).toFixed(2)}` : meta.rule === "lossy" ? `, l = ${Number(meta.lenience).toFixed(2)}` : "";
    const isDone = end !== null && end.finish !== "stopped";
    return { trace, offset, tokens, ms, passes: rounds.length, perSecond: ms ? (1000 * tokens.length) / ms : 0, isDone, name: (NAMES[meta.rule] || meta.rule) + amount };
  }

  /* Steps of the trace that are over at a time (ms) or at a number of passes. */
  function playheadAt(lane, at, axis) {
    const { steps, rounds } = lane.trace;
    if (axis === "passes") return at >= rounds.length ? steps.length : at < 1 ? 0 : rounds[Math.floor(at) - 1].lastStep;
    let count = 0;
    while (count < steps.length && lane.offset + steps[count].until <= at + 1e-6) count += 1;
    return count;
  }

  /* Finished lanes in the order of their ends; equal ends share a place. */
  function places(lanes, axis) {
    const done = lanes.filter((lane) => lane.isDone);
    return new Map(done.map((lane) => [lane, 1 + done.filter((other) => other[axis] < lane[axis]).length]));
  }

  /* What one lane gained over autoregressive decoding, in a sentence; "" where there is nothing to compare. */
  function verdict(lane, baseline) {
    if (!baseline || lane === baseline || !lane.isDone || !baseline.isDone || !baseline.perSecond) return "";
    const ratio = lane.perSecond / baseline.perSecond;
    const per = (lane.tokens.length / lane.passes).toFixed(2);
    const saved = `${per} tokens per target pass, ${lane.passes} passes for ${lane.tokens.length} tokens.`;
    if (ratio >= 1) return `${lane.name}: ${ratio.toFixed(2)} times as fast as autoregressive. ${saved}`;
    return `${lane.name}: slower than autoregressive here, ${ratio.toFixed(2)} times its speed. ${saved} Drafting and the longer passes cost more time than the saved passes gave back.`;
  }

  class Race {
    constructor(root) {
      this.lanes = [];
      this.parts = [];
      this.axis = "ms";
      this.at = Infinity;
      this.speed = 1;
      this.timer = 0;
      this.text = "";
      this.root = root;
      const key = (name, label, action, cls = "") =>
        h(`button.sv-key${cls}`, { type: "button", "aria-label": label, title: label, onclick: action }, icon(name));
      this.playButton = key("play", "Play the race", () => this.toggle(), ".sv-play");
      const buttons = h("div.sv-buttons", null, key("first", "To the start", () => this.seek(0)), this.playButton, key("last", "To the finish", () => this.seek(Infinity)));
      this.scrub = h("input.sv-rc-scrub", { type: "range", min: 0, max: 200, step: 1, "aria-label": "Playhead of the race", oninput: () => this.scrubbed() });
      this.where = h("p.sv-where");
      this.axes = this.segments("Race by", [["ms", "Clock"], ["passes", "Target passes"]], "axis", (label) => `Race by ${label.toLowerCase()}`);
      this.speeds = this.segments("Speed of the race", SPEEDS, "speed", (label) => `Race at ${label}`);
      const player = h("div.sv-rc-player", { role: "group", "aria-label": "Playback of the race" }, buttons, this.scrub, this.where, this.axes, this.speeds);
      this.title = h("h2.sv-prompt", { dir: "auto" });
      this.note = h("p.sv-facts");
      this.track = h("div.sv-rc-lanes", { tabindex: "0", role: "region", "aria-label": "Lanes. Space plays, arrow keys move the playhead." });
      this.order = h("p.sv-rc-order");
      this.verdicts = h("ul.sv-rc-verdicts");
      this.alert = h("p.sv-alert", { role: "alert" });
      this.news = h("p.sv-sr", { role: "status" });
      this.empty = h("p.sv-empty", null, "No race yet. Choose up to three rules and press Start race: each run is measured alone, then all are replayed side by side.");
      this.body = h("div.sv-rc", { hidden: true }, this.title, this.note, player, this.track, this.order, this.verdicts);
      root.replaceChildren(this.alert, this.empty, this.body, this.news);
      this.track.addEventListener("keydown", (event) => this.onKey(event));
      this.draw();
    }

    segments(label, choices, name, spoken) {
      const set = (value) => {
        if (name === "axis") this.setAxis(value);
        else this.setSpeed(value);
      };
      const make = ([value, text]) => h("button", { type: "button", "aria-label": spoken(text), onclick: () => set(value) }, text);
      const buttons = choices.map(make);
      this[`mark_${name}`] = () => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i][0] === this[name])));
      this[`mark_${name}`]();
      return h("div.sv-segments", { role: "group", "aria-label": label }, buttons);
    }

    /* The whole text so far. */
    setText(text) {
      if (text === this.text) return;
      const isNew = !text.startsWith(this.text) || !this.text;
      this.text = text;
      try {
        this.lanes = tracesOf(text).filter((trace) => trace.meta).map(laneOf);
        this.alert.textContent = "";
      } catch (error) {
        if (!(error instanceof S.TraceError)) throw error;
        this.alert.textContent = error.message;
      }
      if (isNew) {
        this.pause();
        this.at = Infinity;
        this.parts = [];
        replace(this.track);
      }
      this.draw();
    }

    /* Everything is measured: replay it, unless the reader wants no motion. */
    finished() {
      if (!this.lanes.length) return;
      this.news.textContent = `The race is measured. ${this.orderText()}`;
      if (window.matchMedia("(prefers-reduced-motion: reduce)").matches) this.seek(Infinity);
      else this.play();
    }

    get total() {
      return Math.max(0, ...this.lanes.map((lane) => lane[this.axis]));
    }

    setAxis(axis) {
      const share = this.total ? Math.min(1, this.at / this.total) : 1;
      this.pause();
      this.axis = axis;
      this.at = share >= 1 ? Infinity : axis === "passes" ? Math.round(share * this.total) : share * this.total;
      this.mark_axis();
      this.draw();
    }

    setSpeed(speed) {
      this.speed = speed;
      this.mark_speed();
      if (this.timer) this.startClock();
    }

    seek(at) {
      this.pause();
      this.at = at >= this.total ? Infinity : Math.max(0, at);
      this.draw();
    }

    scrubbed() {
      const share = Number(this.scrub.value) / Number(this.scrub.max);
      this.seek(share >= 1 ? Infinity : share * this.total);
    }

    toggle() {
      if (this.timer) this.pause();
      else this.play();
    }

    play() {
      if (!this.lanes.length) return;
      if (this.at >= this.total) this.at = 0;
      this.startClock();
      this.draw();
    }

    pause() {
      cancelAnimationFrame(this.timer);
      this.timer = 0;
      if (this.body) this.draw();
    }

    startClock() {
      cancelAnimationFrame(this.timer);
      const from = this.at;
      const begun = performance.now();
      const rate = this.speed * (this.axis === "ms" ? 1 : PASSES_PER_S / 1000);
      const tick = (now) => {
        this.at = from + Math.max(0, now - begun) * rate;
        if (this.at >= this.total) {
          this.at = Infinity;
          this.timer = 0;
        } else this.timer = requestAnimationFrame(tick);
        this.draw();
      };
      this.timer = requestAnimationFrame(tick);
    }

    onKey(event) {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const step = this.axis === "passes" ? 1 : this.total / 50;
      const at = Math.min(this.at, this.total);
      const actions = {
        " ": () => this.toggle(),
        ArrowRight: () => this.seek(at + step),
        ArrowLeft: () => this.seek(at - step),
        Home: () => this.seek(0),
        End: () => this.seek(Infinity),
      };
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    }

    amount(value) {
      return this.axis === "passes" ? `${Math.floor(value)} passes` : `${(value / 1000).toFixed(2)} s`;
    }

    orderText() {
      const found = [...places(this.lanes, this.axis)].sort((a, b) => a[1] - b[1]);
      if (!found.length) return "";
      return `Finish order: ${found.map(([lane, place]) => `${place}. ${lane.name} (${this.amount(lane[this.axis])})`).join(", ")}.`;
    }

    draw() {
      const { lanes } = this;
      this.empty.hidden = lanes.length > 0;
      this.body.hidden = !lanes.length;
      if (!lanes.length) return;
      const { meta } = lanes[0].trace;
      this.title.textContent = meta.prompt || "";
      this.note.textContent = `Seed ${meta.seed}, T = ${Number(meta.temperature).toFixed(2)}, K = ${meta.draft_length}. One run each, measured one after the other; reading the prompt counts. Underlined: drafts that were kept.`;
      while (this.parts.length < lanes.length) this.addLane();
      const at = Math.min(this.at, this.total);
      const ranks = places(lanes, this.axis);
      lanes.forEach((lane, i) => this.drawLane(lane, this.parts[i], at, ranks.get(lane)));
      const isPlaying = this.timer !== 0;
      if (this.isPlaying !== isPlaying) {
        this.isPlaying = isPlaying;
        replace(this.playButton, icon(isPlaying ? "pause" : "play"));
        this.playButton.setAttribute("aria-label", isPlaying ? "Pause the race" : "Play the race");
        this.playButton.title = isPlaying ? "Pause the race" : "Play the race";
      }
      this.scrub.max = this.axis === "passes" ? Math.max(1, this.total) : 200;
      this.scrub.value = this.total ? Math.round((Number(this.scrub.max) * at) / this.total) : 0;
      const where = `${this.amount(at)} of ${this.amount(this.total)}`;
      this.scrub.setAttribute("aria-valuetext", where);
      this.where.textContent = where;
      this.drawEnd(at >= this.total);
    }

    drawEnd(isOver) {
      this.order.hidden = this.verdicts.hidden = !isOver;
      if (!isOver) return;
      const baseline = this.lanes.find((lane) => lane.trace.meta.rule === "ar");
      this.order.textContent = this.orderText();
      const lines = this.lanes.map((lane) => verdict(lane, baseline)).filter(Boolean);
      const missing = baseline && baseline.isDone ? [] : ["No whole autoregressive run: there is nothing to measure a speed-up against."];
      const signature = JSON.stringify([lines, missing]);
      if (signature === this.said) return;
      this.said = signature;
      replace(this.verdicts, [...lines, ...missing].map((line) => h("li", null, line)));
    }

    addLane() {
      const part = { name: h("strong"), place: h("span.sv-rc-place"), figures: h("span.sv-muted"), fill: h("i"), extent: h("b"), words: [], seen: -1 };
      part.text = h("div.sv-rc-text", { dir: "auto" });
      const head = h("div.sv-rc-head", null, part.name, part.place, part.figures);
      part.bar = h("div.sv-rc-bar", { "aria-hidden": "true" }, part.extent, part.fill);
      part.element = h("section.sv-rc-lane", null, head, part.bar, part.text);
      this.parts.push(part);
      this.track.append(part.element);
    }

    drawLane(lane, part, at, place) {
      const { trace, tokens } = lane;
      const playhead = playheadAt(lane, at, this.axis);
      part.element.setAttribute("aria-label", lane.name);
      part.name.textContent = lane.name;
      while (part.words.length < tokens.length) {
        const token = tokens[part.words.length];
        part.words.push(h(`span.sv-rc-word.sv-rc-${token.fate}`, { hidden: true }, token.text));
        part.text.append(part.words.at(-1));
      }
      const seen = tokens.filter((token) => playhead > token.step).length;
      for (let i = Math.min(seen, Math.max(0, part.seen)); i < Math.max(seen, part.seen, 0); i += 1) part.words[i].hidden = i >= seen;
      part.seen = seen;
      const { passes } = trace.countsAt(playhead);
      const each = passes ? ` · ${(seen / passes).toFixed(2)} per pass` : "";
      const now = Math.min(at, lane[this.axis]);
      part.figures.textContent = `${seen} tokens · ${passes} passes${each} · ${this.amount(now)}`;
      const isOver = at >= lane[this.axis];
      part.place.textContent = isOver && place ? ["1st", "2nd", "3rd", "4th"][place - 1] : trace.end === null ? "running" : lane.isDone ? "" : "stopped";
      part.place.hidden = part.place.textContent === "";
      part.element.classList.toggle("sv-rc-first", isOver && place === 1);
      const share = (value) => `${this.total ? (100 * value) / this.total : 0}%`;
      part.extent.style.width = share(lane[this.axis]);
      part.fill.style.width = share(now);
    }
  }

  const race = { tracesOf, laneOf, playheadAt, places, verdict, shown: null };

  race.view = (element, props, watch) => {
    const shown = new Race(element.querySelector(".sv-view") || element);
    race.shown = shown;
    shown.setText(props.value || "");
    watch("value", () => shown.setText(props.value || ""));
  };

  race.status = (element, props, watch) => {
    const text = h("p.sv-statustext", { role: "status" });
    const bar = h("progress", { max: 1, hidden: true, "aria-label": "Loading for the race" });
    replace(element.querySelector(".sv-status") || element, text, bar);
    let before = null;
    const read = () => {
      const status = JSON.parse(props.value || "{}");
      const isRunning = status.state === "running";
      text.textContent = isRunning ? `${status.text}…` : status.text || "";
      bar.hidden = !(isRunning && status.total > 0);
      if (status.total > 0) bar.value = status.position / status.total;
      if (isRunning && before !== "running" && window.innerWidth < NARROW && race.shown) race.shown.root.scrollIntoView({ block: "start" });
      // Both values come in one update, in either order: the replay waits for the other.
      if (before === "running" && status.state === "idle" && !status.text) setTimeout(() => race.shown && race.shown.finished(), 50);
      before = status.state;
    };
    watch("value", read);
    read();
  };

  Object.assign(S, { race });
})(window.SpecView);
