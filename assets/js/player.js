/* player.js: plays the recording. The map shows every step of the trace; its height and colour are the token's fate. */
(function (S) {
  "use strict";
  const { h, icon, replace, FATE_WORD } = S;
  const SPEEDS = [
    [0.1, "⅒×", "a tenth of the speed"],
    [0.25, "¼×", "a quarter of the speed"],
    [1, "1×", "real time"],
    [4, "4×", "four times the speed"],
  ];
  const HEIGHTS = { accepted: 0.75, rejected: 0.5, discarded: 0.2, residual: 0.6, bonus: 1 };

  class Player {
    constructor(view) {
      this.view = view;
      this.speed = 0.25;
      this.timer = 0;
      const button = (name, label, action, cls = "") =>
        h(`button.sv-key${cls}`, { type: "button", "aria-label": label, title: label, onclick: action }, icon(name));
      this.playButton = button("play", "Play", () => this.toggle(), ".sv-play");
      const buttons = h(
        "div.sv-buttons",
        null,
        button("first", "One round back", () => view.stepRound(-1)),
        button("back", "One token back", () => view.stepToken(-1)),
        this.playButton,
        button("forward", "One token on", () => view.stepToken(1)),
        button("last", "One round on", () => view.stepRound(1)),
      );
      this.map = h("canvas.sv-map", { "aria-hidden": "true" });
      const scrubbed = () => this.seek(Number(this.scrub.value));
      this.scrub = h("input.sv-scrub", { type: "range", min: 0, max: 1, step: 1, "aria-label": "Playhead", oninput: scrubbed });
      this.where = h("p.sv-where");
      this.element = h(
        "section.sv-player",
        { "aria-label": "Playback" },
        buttons,
        h("div.sv-track", null, this.map, this.scrub),
        this.where,
        this.speedButtons(),
      );
      new ResizeObserver(() => this.measure()).observe(this.map);
    }

    speedButtons() {
      const buttons = SPEEDS.map(([speed, text, label]) =>
        h("button", { type: "button", "aria-label": `Play at ${label}`, onclick: () => this.setSpeed(speed) }, text),
      );
      this.setSpeed = (speed) => {
        this.speed = speed;
        buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(SPEEDS[i][0] === speed)));
        if (this.timer) this.startClock();
      };
      this.setSpeed(this.speed);
      return h("div.sv-segments", { role: "group", "aria-label": "Speed" }, buttons);
    }

    seek(playhead) {
      this.pause();
      this.view.setPlayhead(playhead >= this.view.trace.steps.length ? Infinity : playhead);
    }

    toggle() {
      if (this.timer) this.pause();
      else this.play();
    }

    play() {
      const { trace } = this.view;
      if (!trace.steps.length) return;
      if (this.view.playhead >= trace.steps.length) this.view.setPlayhead(0);
      this.startClock();
      this.draw();
    }

    pause() {
      cancelAnimationFrame(this.timer);
      this.timer = 0;
      this.draw();
    }

    /* The trace's own clock, scaled. */
    startClock() {
      cancelAnimationFrame(this.timer);
      const at = this.view.playhead;
      const { steps } = this.view.trace;
      const from = at > 0 && at <= steps.length ? steps[at - 1].until : 0;
      const begun = performance.now();
      const tick = (now) => {
        const { trace, playhead } = this.view;
        const time = from + (now - begun) * this.speed;
        let next = Math.min(playhead, trace.steps.length);
        while (next < trace.steps.length && trace.steps[next].until <= time) next += 1;
        if (next >= trace.steps.length) {
          this.timer = 0;
          this.view.setPlayhead(Infinity);
          return;
        }
        if (next !== playhead) this.view.setPlayhead(next);
        this.timer = requestAnimationFrame(tick);
      };
      this.timer = requestAnimationFrame(tick);
    }

    draw() {
      const { trace, playhead } = this.view;
      const at = Math.min(playhead, trace.steps.length);
      const isPlaying = this.timer !== 0;
      if (this.playing !== isPlaying) {
        this.playing = isPlaying;
        replace(this.playButton, icon(isPlaying ? "pause" : "play"));
        this.playButton.setAttribute("aria-label", isPlaying ? "Pause" : "Play");
        this.playButton.title = isPlaying ? "Pause" : "Play";
      }
      this.scrub.max = Math.max(1, trace.steps.length);
      this.scrub.value = at;
      const step = at > 0 ? trace.steps[at - 1] : null;
      const round = step ? step.round.number + 1 : 0;
      const n = trace.countsAt(playhead);
      const ms = step ? step.until : 0;
      const time = ms >= 10000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms)} ms`;
      const rounds = h("span", null, h("strong", null, `R${round}`), ` of ${trace.rounds.length}`);
      replace(this.where, rounds, h("span", null, `${n.emitted} tokens · ${time}`));
      const what = step && step.token ? `${S.spoken(step.token.text)}, ${FATE_WORD[step.token.fate]}` : "";
      this.scrub.setAttribute("aria-valuetext", `round ${round} of ${trace.rounds.length} ${what}`);
      this.drawMap();
    }

    /* Size and colours are read when they change, not at every step: reading them makes the browser lay out. */
    measure() {
      const look = getComputedStyle(this.element);
      this.colours = {};
      for (const name of [...Object.keys(HEIGHTS), "faint", "accent"]) this.colours[name] = look.getPropertyValue(`--sv-${name}`);
      this.size = [this.map.clientWidth, this.map.clientHeight];
      this.drawMap();
    }

    /* Once a frame at most. */
    drawMap() {
      if (!this.frame) this.frame = requestAnimationFrame(() => this.paintMap());
    }

    paintMap() {
      this.frame = 0;
      const { trace, playhead } = this.view;
      const [width, height] = this.size || [0, 0];
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      this.map.width = width * ratio;
      this.map.height = height * ratio;
      const pen = this.map.getContext("2d");
      pen.scale(ratio, ratio);
      const colour = (name) => this.colours[name];
      const slots = trace.tokens.length + trace.rounds.length;
      const slot = width / Math.max(1, slots);
      const at = Math.min(playhead, trace.steps.length);
      const floor = height - 6;
      let edge = 0;
      for (const token of trace.tokens) {
        const x = (token.index + token.round.number) * slot;
        const isDone = at > token.step;
        if (isDone) edge = x + slot;
        pen.fillStyle = colour(isDone ? token.fate : "faint");
        const tall = (floor - 2) * (isDone ? HEIGHTS[token.fate] : 0.15);
        pen.fillRect(x, floor - tall, Math.max(0.5, Math.min(slot * 0.75, 8)), tall);
      }
      pen.fillStyle = colour("faint");
      pen.fillRect(0, height - 3, width, 2);
      pen.fillStyle = colour("accent");
      pen.fillRect(0, height - 3, edge, 2);
      pen.fillRect(Math.max(0, Math.min(width - 2, edge - 1)), 0, 2, height);
    }
  }

  Object.assign(S, { Player });
})(window.SpecView);
