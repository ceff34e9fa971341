/* whatif.js: another rule on a recorded trace, with the same coins u and the same p and q. Pure: no page, no drawing.
 *
 * `whatIf(trace, settings)` goes through the rounds until the first token that would be another one. Up to there the
 * context, and so every recorded law and coin, is what the other run would have met; after it nothing is known. Inside
 * the round where the runs part, the drafts after a newly kept one were recorded as well, with their coins.
 *
 * settings: {rule: "exact" | "lossy" | "static", target_weight: w, lenience: l}. */
(function () {
  "use strict";
  const S = (window.SpecView = window.SpecView || {});
  const RULES = ["exact", "lossy", "static"];
  // A trace holds four significant digits: no recorded value is off by more than this part of itself.
  const DIGITS = 5e-4;

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  /* Weight of p/q in the chance to pass, and what is there without it: chance = min(1, base + slope p/q). */
  function line({ rule, target_weight: w, lenience: l }) {
    if (rule === "lossy") return { base: 0, slope: 1 / l };
    if (rule === "static") return { base: 1 - w, slope: w };
    return { base: 0, slope: 1 };
  }

  /* Chance to pass before the coin: exact min(1, p/q), lossy min(1, p/(l q)), static min(1, 1 - w + w p/q). */
  function chance(p, q, settings) {
    const { base, slope } = line(settings);
    return q > 0 ? Math.min(1, base + (slope * p) / q) : 1;
  }

  /* true: passes, false: fails, null: the recorded digits cannot tell. */
  function coinVerdict(draft, settings) {
    const { p, q, u } = draft;
    if (![p, q, u].every(isNumber) || q <= 0) return null;
    const { base, slope } = line(settings);
    const part = (slope * p) / q;
    const slack = 2 * DIGITS * part + DIGITS * u + 1e-9;
    if (u < base + part - slack) return true;
    if (u >= base + part + slack) return false;
    // The chance is the recorded one up to rounding: so is the verdict.
    const isSame = isNumber(draft.a) && Math.abs(Math.min(1, base + part) - draft.a) <= slack + DIGITS * draft.a;
    return isSame && draft.fate !== "discarded" ? draft.fate === "accepted" : null;
  }

  /* Temperature 0: {id, text} of the verifier's token at a draft's position, or null where the digits cannot tell.
   * The list holds the five likeliest tokens of either law, so no other token has more than the fifth of each. */
  function greedyToken(draft, settings) {
    const top = (draft.top || []).filter((entry) => isNumber(entry[2]));
    if (!top.length) return null;
    const fifth = (place) => top.map((entry) => entry[place] || 0).sort((a, b) => b - a)[4] || 0;
    const weight = settings.rule === "static" ? settings.target_weight : 1;
    const mixed = (p, q) => weight * p + (1 - weight) * q;
    const rows = top.map((entry) => ({ id: entry[0], text: String(entry[1]), p: entry[2], score: mixed(entry[2], entry[3] || 0) }));
    rows.sort((a, b) => b.score - a.score);
    if (settings.rule === "lossy") {
      const own = rows.find((row) => row.id === draft.id);
      const needed = settings.lenience * rows[0].p;
      if (!own) return null;
      if (own === rows[0] || own.p >= needed * (1 + 2 * DIGITS)) return own;
      if (own.p > needed * (1 - 2 * DIGITS)) return null;
    }
    const rival = Math.max(rows.length > 1 ? rows[1].score : 0, mixed(fifth(2), fifth(3)));
    return rows[0].score > rival * (1 + 2 * DIGITS) ? rows[0] : null;
  }

  /* Whether these settings judge as the recording did. */
  function isRecorded(meta, settings) {
    if (meta.rule !== settings.rule) return false;
    if (meta.rule === "lossy") return meta.lenience === settings.lenience;
    return meta.rule === "exact" || meta.target_weight === settings.target_weight;
  }

  /* Why nothing can be asked of this trace; "" if something can. */
  function whyNot(trace) {
    const drafts = trace.tokens.filter((token) => !token.isNext);
    if (trace.meta.rule === "ar" || (trace.end && !drafts.length)) {
      return "This run drafted nothing, so there is no verdict that another rule could change.";
    }
    const tested = drafts.filter((token) => token.fate !== "discarded");
    if (!trace.isGreedy && tested.length && !tested.some((token) => isNumber(token.data.u))) {
      return "This recording holds no coins u. Run the prompt again on this page to get some.";
    }
    return "";
  }

  /* Settings to begin with: the recording's own; for learned weights the fixed one of the same mean. */
  function settingsOf(trace) {
    const { meta } = trace;
    const bounded = (value, low, fallback) => (isNumber(value) ? Math.min(1, Math.max(low, value)) : fallback);
    const settings = {
      rule: RULES.includes(meta.rule) ? meta.rule : "static",
      target_weight: bounded(meta.target_weight, 0, 0.7),
      lenience: bounded(meta.lenience, 0.01, 0.5),
    };
    if (!RULES.includes(meta.rule)) {
      const weights = trace.tokens.filter((token) => !token.isNext && isNumber(token.data.w)).map((token) => token.data.w);
      const mean = weights.reduce((sum, w) => sum + w, 0) / weights.length;
      if (weights.length) settings.target_weight = Math.round(100 * mean) / 100;
    }
    return settings;
  }

  /* How one round goes on under the other rule.
   * {fates: of the drafts that are known, at: the first token that would be another, or null, why, isWhole} */
  function judgeRound(round, trace, settings, isSame) {
    const drafts = round.tokens.filter((token) => !token.isNext);
    const next = round.tokens.find((token) => token.isNext) || null;
    const fates = new Map();
    const verdict = (token) => {
      if (isSame) return token.fate === "accepted";
      if (!trace.isGreedy) return coinVerdict(token.data, settings);
      const choice = greedyToken(token.data, settings);
      return choice && choice.id === token.data.id;
    };
    const result = { fates, at: null, why: "", isWhole: true };
    for (const token of drafts) {
      if (token.fate === "discarded") break;
      const passes = verdict(token);
      if (passes === null) return { ...result, at: token, why: "undecided", isWhole: false };
      fates.set(token, passes ? "accepted" : "rejected");
      if (passes !== (token.fate === "accepted")) {
        result.at = token;
        result.why = passes ? "passes" : "fails";
        result.isWhole = judgeRest(drafts.slice(token.place + 1), passes && token.data.id !== endId(trace), verdict, fates, trace);
        return result;
      }
      if (!passes && trace.isGreedy && !isSame && next) {
        const choice = greedyToken(token.data, settings);
        if (!choice || choice.id !== next.data.id) {
          Object.assign(result, { at: next, why: choice ? "replaced" : "undecided", choice });
          break;
        }
      }
    }
    for (const token of drafts) if (token.fate === "discarded") fates.set(token, "discarded");
    return result;
  }

  /* Drafts after the first changed one; whether all of their verdicts are known. */
  function judgeRest(drafts, isTested, verdict, fates, trace) {
    let isOpen = isTested;
    for (const token of drafts) {
      const passes = isOpen ? verdict(token) : null;
      if (isOpen && passes === null) return false;
      fates.set(token, isOpen ? (passes ? "accepted" : "rejected") : "discarded");
      isOpen = isOpen && passes && token.data.id !== endId(trace);
    }
    return true;
  }

  /* Id of the token that ended the answer, where the recording shows one. */
  function endId(trace) {
    if (!trace.end || trace.end.finish !== "end_token") return null;
    const last = trace.tokens.filter((token) => token.isKept).at(-1);
    return last ? last.data.id : null;
  }

  function add(counts, fates) {
    counts.drafted += fates.length;
    counts.accepted += fates.filter((fate) => fate === "accepted").length;
    counts.tested += fates.filter((fate) => fate !== "discarded").length;
  }

  /* What would become of a recorded run under other settings.
   *
   * why: "" nothing changes; "passes" or "fails": the draft `at` would; "replaced": it would be rejected as well, for
   *   another token (`choice`, temperature 0); "undecided": the recorded digits cannot tell at `at`.
   * fates: Map from every draft whose verdict is known to that verdict. Tokens after `at` that are not in it are unknown.
   * numRounds, numTokens: what stays equal, of allRounds and allTokens.
   * rounds: how many rounds can be compared, the one where the runs part included if all of it is known.
   * before, after: {drafted, tested, accepted} of those rounds, as recorded and under the settings. */
  function whatIf(trace, settings) {
    const isSame = isRecorded(trace.meta, settings);
    const none = () => ({ drafted: 0, tested: 0, accepted: 0 });
    const result = { why: "", at: null, choice: null, fates: new Map(), numRounds: 0, numTokens: 0, rounds: 0, before: none(), after: none(), isSame };
    result.allRounds = trace.rounds.length;
    result.allTokens = trace.tokens.filter((token) => token.isKept).length;
    for (const round of trace.rounds) {
      const judged = judgeRound(round, trace, settings, isSame);
      for (const [token, fate] of judged.fates) result.fates.set(token, fate);
      if (judged.isWhole) {
        result.rounds += 1;
        add(result.before, round.record.drafts.map((draft) => draft.fate));
        add(result.after, [...judged.fates.values()]);
      }
      const isEqual = (token) => token.isKept && (judged.at === null || token.place < judged.at.place);
      result.numTokens += round.tokens.filter(isEqual).length;
      if (judged.at) {
        Object.assign(result, { why: judged.why, at: judged.at, choice: judged.choice || null });
        break;
      }
      result.numRounds += 1;
    }
    return result;
  }

  Object.assign(S, { whatIf, whatIfRules: RULES, whatIfChance: chance, whatIfSettings: settingsOf, whyNoWhatIf: whyNot });
})();
