/* laws.js: what a rule does to a drafted token, for any two laws. Pure functions of numbers: no page, no trace.
 *
 * `p` and `q` are arrays that each sum to 1: the target's law and the drafter's. A rule is {name: "exact"},
 * {name: "lossy", lenience} or {name: "static", weight}. The same mathematics as explorer/rules, checked against it. */
(function () {
  "use strict";
  const S = (window.SpecView = window.SpecView || {});

  /* Chance of a drafted token to pass before its coin is thrown. What cannot be drafted is said to pass. */
  function acceptance(rule, p, q) {
    if (q <= 0) return 1;
    if (rule.name === "lossy") return Math.min(1, p / (rule.lenience * q));
    if (rule.name === "static") return Math.min(1, 1 - rule.weight + (rule.weight * p) / q);
    return Math.min(1, p / q);
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  /* Law of the token that replaces a rejected one: the target's excess, normalised; without any, the target's own. */
  function residual(p, q) {
    const excess = p.map((value, i) => Math.max(0, value - q[i]));
    const total = sum(excess);
    return total > 0 ? excess.map((value) => value / total) : [...p];
  }

  const overlap = (p, q) => sum(p.map((value, i) => Math.min(value, q[i])));

  /* Total variation: half the summed differences. */
  const distance = (p, q) => sum(p.map((value, i) => Math.abs(value - q[i]))) / 2;

  /* Everything that follows from a rule and two laws. `emitted` is kept + replaced, token by token. */
  function outcome(rule, p, q) {
    const accept = p.map((value, i) => acceptance(rule, value, q[i]));
    const kept = q.map((value, i) => value * accept[i]);
    const passes = sum(kept);
    const rest = residual(p, q);
    const replaced = rest.map((value) => Math.max(0, 1 - passes) * value);
    const emitted = kept.map((value, i) => value + replaced[i]);
    return { accept, kept, passes, residual: rest, replaced, emitted, overlap: overlap(p, q), distance: distance(p, emitted) };
  }

  /* Uniform numbers in [0, 1) from a seed: mulberry32. */
  function coins(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = state;
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  function draw(law, u) {
    let left = u;
    for (let i = 0; i < law.length; i += 1) {
      left -= law[i];
      if (left < 0) return i;
    }
    return law.reduce((best, value, i) => (value > 0 ? i : best), 0); // rounding only
  }

  /* How often each token comes out of `count` drafts, each drawn from q, judged by a coin and replaced if it fails. */
  function throwCoins(rule, p, q, count, coin) {
    const counts = p.map(() => 0);
    const rest = residual(p, q);
    for (let n = 0; n < count; n += 1) {
      const drafted = draw(q, coin());
      const isKept = coin() < acceptance(rule, p[drafted], q[drafted]);
      counts[isKept ? drafted : draw(rest, coin())] += 1;
    }
    return counts;
  }

  /* A law with one entry moved to `value` and the others scaled so that all still sum to 1. */
  function moved(law, index, value) {
    const others = sum(law) - law[index];
    const share = (i) => (others > 1e-9 ? law[i] / others : 1 / (law.length - 1));
    return law.map((_, i) => (i === index ? value : (1 - value) * share(i)));
  }

  S.laws = { acceptance, coins, distance, moved, outcome, overlap, residual, throwCoins };
})();
