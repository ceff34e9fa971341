/* view.js: one run on the page. `SpecView.mount(element)` gives {show, setTrace, append, ...}; nothing here knows gradio.
 *
 * State: the trace, the playhead (Infinity: the end, also of a run that still grows), the token that has the focus,
 * the one under the pointer and the pinned one. Everything drawn follows from these. */
(function (S) {
  "use strict";
  const { h, Trace } = S;
  const ANNOUNCE_MS = 4000;

  class View {
    constructor(root) {
      this.trace = new Trace();
      this.playhead = Infinity;
      this.isLive = false;
      this.origin = "none";
      this.current = null;
      this.hovered = null;
      this.pinned = null;
      this.onchange = () => {};
      this.files = new S.Files(this);
      this.header = new S.Header(this);
      this.answer = new S.Answer(this);
      this.player = new S.Player(this);
      this.lanes = new S.Lanes(this);
      this.inspector = new S.Inspector(this);
      this.whatif = new S.WhatIf(this);
      this.lanes.element.prepend(this.whatif.element);
      this.news = h("p.sv-sr", { role: "status", "aria-live": "polite" });
      this.saidAt = 0;
      this.saidRound = -1;
      this.empty = h("p.sv-empty", null, "No run yet. Type a prompt and press Run, or open a trace.");
      this.parts = [this.header, this.answer, this.player, this.inspector, this.lanes, this.whatif];
      this.body = h(
        "div.sv",
        null,
        this.header.element,
        this.header.summary,
        this.answer.element,
        this.player.element,
        this.inspector.element,
        this.lanes.element,
      );
      this.element = root;
      root.replaceChildren(this.empty, this.body, this.news);
      this.listen();
      this.draw();
    }

    /* Another trace; the playhead goes to its end. */
    show(trace, { origin = "run" } = {}) {
      this.player.pause();
      this.trace = trace;
      this.origin = origin;
      this.playhead = Infinity;
      this.current = this.hovered = this.pinned = null;
      this.saidRound = -1;
      this.answer.reset();
      this.lanes.reset();
      this.draw();
    }

    /* The whole text so far. If it continues the shown one only the new lines are read. */
    setTrace(text, options = {}) {
      if (text.length >= this.trace.text.length && this.trace.meta && text.startsWith(this.trace.text)) {
        this.append(text.slice(this.trace.text.length));
        return;
      }
      const trace = new Trace();
      trace.append(text);
      this.show(trace, options);
    }

    append(text) {
      if (!text) return;
      this.trace.append(text);
      this.draw();
    }

    setLive(isLive) {
      if (isLive === this.isLive) return;
      this.isLive = isLive;
      this.element.classList.toggle("sv-live", isLive);
      this.draw();
    }

    setPlayhead(playhead) {
      this.playhead = playhead;
      this.draw();
    }

    stepToken(direction) {
      const { steps } = this.trace;
      const at = Math.min(this.playhead, steps.length);
      this.player.seek(Math.max(0, Math.min(steps.length, at + direction)));
    }

    stepRound(direction) {
      const { rounds, steps } = this.trace;
      const at = Math.min(this.playhead, steps.length);
      const ends = [0, ...rounds.map((round) => round.lastStep)];
      const target = direction > 0 ? ends.find((end) => end > at) : ends.findLast((end) => end < at);
      this.player.seek(target === undefined ? at : target);
    }

    draw() {
      const hasRun = this.trace.meta !== null;
      this.empty.hidden = hasRun;
      this.body.hidden = !hasRun;
      if (hasRun) {
        if (!this.current || !this.isSeen(this.current)) this.current = this.firstOfInterest();
        for (const part of this.parts) part.draw();
        this.mark();
        this.announce();
      }
      this.onchange();
    }

    isSeen(token) {
      return this.trace.stateAt(token, this.playhead) !== "hidden";
    }

    /* A rejected draft explains most; else the first token. */
    firstOfInterest() {
      const seen = this.trace.tokens.filter((token) => this.isSeen(token));
      return seen.find((token) => token.fate === "rejected") || seen[0] || null;
    }

    get shownToken() {
      return this.pinned || this.hovered || this.current;
    }

    /* Which nodes can be tabbed to, and which are marked. */
    mark() {
      const shown = this.shownToken;
      const wanted = [this.current, shown, this.pinned];
      const before = this.marked || new Set();
      this.marked = new Set();
      for (const token of wanted) {
        for (const part of [this.answer, this.lanes]) {
          const node = part.nodeOf(token);
          if (node) this.marked.add(node);
        }
      }
      for (const node of new Set([...before, ...this.marked])) {
        node.tabIndex = node.token === this.current ? 0 : -1;
        node.classList.toggle("sv-shown", node.token === shown);
        node.classList.toggle("sv-pinned", node.token === this.pinned);
        node.setAttribute("aria-pressed", String(node.token === this.pinned));
      }
      this.lanes.open(shown);
      this.inspector.draw();
    }

    pin(token) {
      this.pinned = token;
      if (token) this.current = token;
      this.mark();
    }

    /* The last whole round in words, now and then. */
    announce() {
      const { trace } = this;
      const last = trace.rounds.length - 1;
      const isEnd = trace.end !== null && this.saidRound !== "end";
      if (this.origin !== "run" || last < 0 || this.saidRound === "end") return;
      const now = performance.now();
      if (isEnd) {
        const n = trace.countsAt(Infinity);
        this.news.textContent = `Finished: ${n.emitted} tokens in ${n.passes} target passes, ${n.accepted} of ${n.drafted} drafts accepted.`;
        this.saidRound = "end";
      } else if (last !== this.saidRound && now - this.saidAt > ANNOUNCE_MS) {
        const round = trace.rounds[last];
        const next = round.record.next;
        const ending = next ? `, then ${S.spoken(next.text)}, ${next.fate}` : "";
        this.news.textContent = `Round ${last + 1}: ${round.numAccepted} of ${round.record.drafts.length} drafts accepted${ending}.`;
        this.saidRound = last;
        this.saidAt = now;
      }
    }

    listen() {
      const tokenOf = (event) => {
        const node = event.target.closest(".sv-token, .sv-box, .sv-table tbody tr");
        return node && node.token ? node.token : null;
      };
      for (const area of [this.answer.flow, this.lanes.element]) {
        area.addEventListener("click", (event) => {
          const token = tokenOf(event);
          if (token) this.pin(token === this.pinned ? null : token);
        });
        area.addEventListener("pointerover", (event) => {
          if (event.pointerType !== "touch") this.hover(tokenOf(event));
        });
        area.addEventListener("pointerleave", () => this.hover(null));
        area.addEventListener("focusin", (event) => {
          const token = tokenOf(event);
          if (token && token !== this.current) {
            this.current = token;
            this.mark();
          }
        });
        area.addEventListener("keydown", (event) => this.onKey(event, tokenOf(event), area));
      }
    }

    hover(token) {
      if (token === this.hovered) return;
      this.hovered = token;
      this.mark();
    }

    onKey(event, token, area) {
      if (event.key === "Escape") this.pin(null);
      if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
      const part = area === this.answer.flow ? this.answer : this.lanes;
      const go = (other) => {
        if (!other) return;
        this.current = other;
        this.mark();
        const node = part.nodeOf(other);
        if (node) node.focus();
      };
      const actions = {
        ArrowLeft: () => go(this.neighbour(token, -1, part)),
        ArrowRight: () => go(this.neighbour(token, 1, part)),
        ArrowUp: () => go(this.inRound(token, -1, part)),
        ArrowDown: () => go(this.inRound(token, 1, part)),
        PageUp: () => go(this.inRound(token, -1, part)),
        PageDown: () => go(this.inRound(token, 1, part)),
        Home: () => go(this.reachable(part)[0]),
        End: () => go(this.reachable(part).at(-1)),
        Enter: () => this.pin(token === this.pinned ? null : token),
        " ": () => this.player.toggle(),
        "?": () => this.inspector.element.querySelector("details").toggleAttribute("open"),
      };
      const action = actions[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }

    reachable(part) {
      return this.trace.tokens.filter((token) => {
        const node = part.nodeOf(token);
        return node && !node.hidden && node.isConnected && this.isSeen(token);
      });
    }

    neighbour(token, direction, part) {
      const list = this.reachable(part);
      return list[list.indexOf(token) + direction];
    }

    /* The same place in the next or previous round, or the nearest there is. */
    inRound(token, direction, part) {
      const number = token.round.number + direction;
      const list = this.reachable(part).filter((other) => other.round.number === number);
      return list.find((other) => other.place >= token.place) || list.at(-1);
    }
  }

  S.mount = (element) => new View(element);
})(window.SpecView);
