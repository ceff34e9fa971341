/* lesson.js: finds in a trace the moments that the lesson asks about, and what is right there. No page, no drawing.
 *
 * A moment has the round, the token in question (or none), the playheads before and after the answer, the values for the
 * texts, the choices and the key of the right one. Every number comes from the trace; null where it has no such moment. */
(function (S) {
  "use strict";
  const { acceptance } = S.laws;

  const drafts = (round) => round.tokens.filter((token) => !token.isNext);
  const tested = (round) => drafts(round).filter((token) => token.fate !== "discarded");
  const nextOf = (round) => round.tokens.find((token) => token.isNext) || null;
  const isNumber = (value) => typeof value === "number";
  const hasTest = (token) => ["p", "q", "a", "u"].every((name) => isNumber(token.data[name]));
  const exact = (token) => acceptance({ name: "exact" }, token.data.p, token.data.q);

  /* The first of the best by `score`; tokens or rounds that score null do not count. */
  function best(items, score) {
    let found = null;
    for (const item of items) {
      const value = score(item);
      if (value !== null && (!found || value > found.value)) found = { item, value };
    }
    return found && found.item;
  }

  function moment(round, token, before, after, rest) {
    return { round, token, before, after, values: { K: drafts(round).length, round: round.number + 1 }, ...rest };
  }

  /* A round with a kept draft, a rejected one, and behind it one whose own coin would have let it pass. */
  function telling(trace) {
    const behind = (round) => drafts(round).filter((t) => t.fate === "discarded" && hasTest(t) && t.data.u < t.data.a);
    return best(trace.rounds, (round) => {
      const rejected = round.tokens.find((token) => token.fate === "rejected");
      if (!rejected || !drafts(round).every(hasTest) || !isNumber(round.record.draft_ms)) return null;
      return (round.numAccepted ? 2 : 0) + (behind(round).length ? 1 : 0);
    });
  }

  function draft(trace) {
    const round = telling(trace);
    if (!round) return null;
    const { draft_ms, verify_ms } = round.record;
    const choices = [
      { key: "drafts", text: "the drafts" },
      { key: "pass", text: "the one target pass" },
    ];
    const found = moment(round, null, round.firstStep + 1, round.firstStep + 1, { choices, right: draft_ms > verify_ms ? "drafts" : "pass" });
    const ratio = Math.max(draft_ms, verify_ms) / Math.min(draft_ms, verify_ms);
    const longer = draft_ms > verify_ms ? "the drafts took" : "the pass took";
    Object.assign(found.values, { draft_ms: draft_ms.toFixed(1), verify_ms: verify_ms.toFixed(1), ratio: ratio.toFixed(1), longer });
    return found;
  }

  function verify(trace) {
    const round = telling(trace);
    if (!round) return null;
    const all = drafts(round);
    const choices = Array.from({ length: all.length + 1 }, (_, n) => ({ key: String(n), text: String(n) }));
    const found = moment(round, null, round.firstStep + 1, round.lastStep, { choices, right: String(round.numAccepted) });
    const passing = all.filter((token) => token.data.u < token.data.a).length;
    const rejected = all.find((token) => token.fate === "rejected");
    Object.assign(found.values, { kept: round.numAccepted, token: rejected, passing, untested: all.length - round.numTested });
    return found;
  }

  /* A rejected draft that target and drafter both took seriously, and that the exact rule rejects with this coin too. */
  function contested(trace) {
    return best(trace.tokens, (token) => {
      if (token.fate !== "rejected" || !hasTest(token) || !nextOf(token.round)) return null;
      return token.data.u >= exact(token) ? Math.min(token.data.p, token.data.q) : null;
    });
  }

  const VERDICTS = [
    { key: "accepted", text: "it passes" },
    { key: "rejected", text: "it is rejected" },
  ];

  function testValues(token, trace) {
    const { p, q, a, u } = token.data;
    const chance = exact(token);
    return { token, p, q, u, a, exact: chance, sign: u < chance ? "<" : "≥", rule: trace.meta.rule };
  }

  function accept(trace) {
    const token = contested(trace);
    if (!token) return null;
    const found = moment(token.round, token, token.step, token.step + 1, { choices: VERDICTS, right: token.fate });
    Object.assign(found.values, testValues(token, trace));
    return found;
  }

  /* Rows {id, text, p, q, excess} of the likely tokens where a draft was rejected. */
  function candidates(token) {
    const next = nextOf(token.round);
    const rows = new Map();
    for (const [id, text, p, q] of [...(token.data.top || []), ...(next.data.top || [])]) {
      if (isNumber(p)) rows.set(id, { id, text: String(text), p, q: q || 0, excess: Math.max(0, p - (q || 0)) });
    }
    return [...rows.values()].sort((one, two) => two.excess - one.excess);
  }

  function residual(trace) {
    const token = contested(trace);
    if (!token) return null;
    const rows = candidates(token);
    const isOwn = (row) => row.id === token.data.id;
    const other = rows.filter((row) => !isOwn(row) && row !== rows[0]).sort((one, two) => two.q - one.q)[0];
    const own = rows.find(isOwn);
    if (!own || !other || rows[0].excess <= 0) return null;
    const shown = [own, other, rows[0]].sort((one, two) => two.q - one.q);
    const choices = shown.map((row) => ({ key: String(row.id), row }));
    const next = nextOf(token.round);
    const found = moment(token.round, token, token.step + 1, token.round.lastStep, { choices, right: String(rows[0].id) });
    const top = rows[0];
    const share = { excess: top.excess, tv: isNumber(token.data.overlap) ? 1 - token.data.overlap : null, share: next.data.prob };
    Object.assign(found.values, { token, best: top, p: top.p, q: top.q, next, p_own: own.p, q_own: own.q, ...share });
    return found;
  }

  function bonus(trace) {
    const round = best(trace.rounds, (r) => {
      const next = nextOf(r);
      return next && next.fate === "bonus" && drafts(r).length ? drafts(r).length : null;
    });
    if (!round) return null;
    const emitted = round.tokens.filter((token) => token.isKept).length;
    const next = nextOf(round);
    const choices = [...new Set([1, emitted - 1, emitted])].map((n) => ({ key: String(n), text: String(n) }));
    const found = moment(round, next, next.step, round.lastStep, { choices, right: String(emitted) });
    Object.assign(found.values, { next, emitted, prob: next.data.p, worst: 1 });
    return found;
  }

  /* Kept, though the exact rule with the same coin would have thrown it away. */
  const isGift = (token) => token.fate === "accepted" && hasTest(token) && token.data.u >= exact(token);

  function weight(trace) {
    const { meta } = trace;
    const token = best(trace.tokens, (t) => (isGift(t) && isNumber(t.data.w) && t.data.w > 0 ? t.data.q - t.data.p : null));
    if (!token || !meta) return null;
    const { p, q, u, w } = token.data;
    const kept = trace.tokens.filter((t) => t.fate === "accepted");
    const found = moment(token.round, token, token.step, token.step + 1, { choices: VERDICTS, right: token.fate });
    // It passes where 1 - w + w p/q > u.
    const most = Math.min(1, (1 - u) / (1 - p / q));
    Object.assign(found.values, testValues(token, trace), { w, floor: 1 - w, gifts: kept.filter(isGift).length, kept: kept.length, most });
    return found;
  }

  const FINDERS = { draft, verify, accept, residual, bonus, weight };

  function moments(trace) {
    const found = {};
    for (const [name, find] of Object.entries(FINDERS)) found[name] = trace.meta && !trace.isGreedy ? find(trace) : null;
    return found;
  }

  S.lesson = { moments };
})(window.SpecView);
