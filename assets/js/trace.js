/* trace.js: reads an NDJSON trace, whole or while it grows. No page, no drawing.
 *
 * A Trace has meta, rounds, tokens and steps. A token is a draft or the target's token of a round. A step is one thing
 * that happens when the run is played: drafts appear, a draft is judged, the target adds its token. The playhead counts
 * steps done; everything drawn is a function of the trace and the playhead. */
(function () {
  "use strict";
  const S = (window.SpecView = window.SpecView || {});
  const VERSION = 1;
  const MAX_CHARS = 20000000;
  const FATES = ["accepted", "rejected", "discarded", "residual", "bonus"];
  const KEPT = ["accepted", "residual", "bonus"];

  class TraceError extends Error {}

  class Trace {
    constructor() {
      this.text = "";
      this.tail = "";
      this.lineNumber = 0;
      this.meta = null;
      this.end = null;
      this.rounds = [];
      this.tokens = [];
      this.steps = [];
    }

    /* A finished file: also the last line counts, and there must be something. */
    static read(text) {
      if (text.length > MAX_CHARS) {
        throw new TraceError(
          `The trace holds ${text.length.toLocaleString("en")} characters; at most ` +
            `${MAX_CHARS.toLocaleString("en")} are read. Export a shorter run.`,
        );
      }
      const trace = new Trace();
      trace.append(text.endsWith("\n") ? text : text + "\n");
      trace.text = text;
      if (!trace.meta) {
        throw new TraceError("The trace is empty. Choose a file that this page saved (.ndjson).");
      }
      return trace;
    }

    /* More text; an incomplete last line waits for its rest. */
    append(text) {
      this.text += text;
      const lines = (this.tail + text).split("\n");
      this.tail = lines.pop();
      for (const line of lines) this.readLine(line);
    }

    readLine(line) {
      this.lineNumber += 1;
      if (!line.trim()) return;
      const record = parsed(line, this.lineNumber);
      this.checkOrder(record);
      if (record.kind === "meta") this.meta = record;
      else if (record.kind === "end") this.end = record;
      else this.addRound(record);
    }

    checkOrder(record) {
      const where = `Line ${this.lineNumber} of the trace`;
      const wanted = this.end ? [] : this.meta ? ["round", "end"] : ["meta"];
      if (!wanted.includes(record.kind)) {
        throw new TraceError(`${where} is '${record.kind}'; ${wanted.join(" or ") || "nothing"} must come here.`);
      }
      if (record.kind === "meta" && record.version !== VERSION) {
        throw new TraceError(`The trace has version ${record.version}; this page reads version ${VERSION}.`);
      }
      if (record.kind === "round") checkRound(record, where);
    }

    addRound(record) {
      const number = this.rounds.length;
      const round = { number, record, tokens: [], firstStep: this.steps.length };
      const numTested = record.drafts.filter((draft) => draft.fate !== "discarded").length;
      const numJudged = numTested + (record.next ? 1 : 0);
      const share = (record.verify_ms || 0) / Math.max(1, numJudged);
      const drafts = record.drafts.map((draft, j) => this.addToken(round, draft, j, false));
      if (drafts.length) this.addStep(round, "draft", record.draft_ms || 0);
      for (const token of drafts) {
        if (token.fate !== "discarded") token.step = this.addStep(round, "judge", share, token);
      }
      for (const token of drafts) if (token.fate === "discarded") token.step = this.steps.length - 1;
      if (record.next) {
        const token = this.addToken(round, record.next, drafts.length, true);
        token.step = this.addStep(round, "next", share, token);
      }
      round.numTested = numTested;
      round.numAccepted = drafts.filter((token) => token.fate === "accepted").length;
      round.lastStep = this.steps.length;
      this.rounds.push(round);
    }

    addToken(round, data, place, isNext) {
      const token = { index: this.tokens.length, round, place, isNext, data, text: data.text, fate: data.fate, step: 0 };
      token.isKept = KEPT.includes(token.fate);
      round.tokens.push(token);
      this.tokens.push(token);
      return token;
    }

    addStep(round, kind, ms, token = null) {
      const before = this.steps.length ? this.steps[this.steps.length - 1].until : 0;
      this.steps.push({ round, kind, token, ms, until: before + ms });
      return this.steps.length - 1;
    }

    /* "hidden", "pending" or the token's fate. */
    stateAt(token, playhead) {
      if (playhead > token.step) return token.fate;
      return !token.isNext && playhead > token.round.firstStep ? "pending" : "hidden";
    }

    /* What has happened up to the playhead. */
    countsAt(playhead) {
      const counts = { accepted: 0, rejected: 0, discarded: 0, residual: 0, bonus: 0, pending: 0, hidden: 0 };
      let passes = 0;
      let ms = 0;
      for (const round of this.rounds) {
        if (playhead <= round.firstStep) break;
        for (const token of round.tokens) counts[this.stateAt(token, playhead)] += 1;
        const judgedFrom = round.firstStep + (round.record.drafts.length ? 1 : 0);
        if (playhead > judgedFrom) passes += 1;
        ms += (round.record.draft_ms || 0) + (round.record.verify_ms || 0);
      }
      counts.tested = counts.accepted + counts.rejected;
      counts.drafted = counts.tested + counts.discarded;
      counts.emitted = counts.accepted + counts.residual + counts.bonus;
      return { ...counts, passes, ms };
    }

    /* The answer up to the playhead; the whole one as the run gave it, without end token and stop text. */
    answerAt(playhead) {
      if (this.end && playhead >= this.steps.length && typeof this.end.text === "string") return this.end.text;
      let text = "";
      for (const token of this.tokens) if (token.isKept && playhead > token.step) text += token.text;
      return text;
    }

    /* Drafts kept / judged at each place of a round. */
    placesAt(playhead) {
      const places = [];
      for (const token of this.tokens) {
        if (token.isNext || playhead <= token.step || token.fate === "discarded") continue;
        const place = (places[token.place] = places[token.place] || { kept: 0, tested: 0 });
        place.tested += 1;
        if (token.fate === "accepted") place.kept += 1;
      }
      return places;
    }

    get numPlaces() {
      return this.rounds.reduce((most, round) => Math.max(most, round.record.drafts.length), 0);
    }

    get isGreedy() {
      return this.meta !== null && this.meta.temperature === 0;
    }
  }

  function parsed(line, number) {
    try {
      const record = JSON.parse(line);
      if (record !== null && typeof record === "object" && typeof record.kind === "string") return record;
    } catch {
      /* said below */
    }
    throw new TraceError(
      `Line ${number} of the trace is not a JSON object with a "kind". Choose a file that this page saved.`,
    );
  }

  function checkRound(record, where) {
    if (!Array.isArray(record.drafts)) throw new TraceError(`${where} is a round without its list of drafts.`);
    for (const token of [...record.drafts, ...(record.next ? [record.next] : [])]) {
      const isToken = token !== null && typeof token === "object" && typeof token.text === "string";
      if (!isToken || !FATES.includes(token.fate)) {
        throw new TraceError(`${where} has a token without text or with an unknown fate.`);
      }
      if (token.top !== undefined && !(Array.isArray(token.top) && token.top.every(Array.isArray))) {
        throw new TraceError(`${where} has a token whose list of likely tokens cannot be read.`);
      }
    }
  }

  Object.assign(S, { Trace, TraceError });
})();
