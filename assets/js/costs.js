/* costs.js: the cost model of a cheaper head. Pure functions, the same as explorer/benchmarks/cost_model.py. */
(function () {
  "use strict";
  const S = (window.SpecView = window.SpecView || {});

  /* Speed with the head over that of the same drafter with the full head. */
  const rhoTps = (nu, rhoTau, kappa) => (rhoTau * (1 + kappa)) / (1 + nu * kappa);

  /* The rho_tau below which the head loses. */
  const breakEven = (nu, kappa) => (1 + nu * kappa) / (1 + kappa);

  /* The nu above which the head loses; null where no nu from 0 to 1 is the border. */
  function breakEvenNu(rhoTau, kappa) {
    if (kappa <= 0) return null;
    const nu = (rhoTau * (1 + kappa) - 1) / kappa;
    return nu >= 0 && nu <= 1 ? nu : null;
  }

  S.costs = { breakEven, breakEvenNu, rhoTps };
})();
