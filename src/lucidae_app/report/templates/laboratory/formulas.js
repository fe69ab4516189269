/* The mathematics of the laboratory as pure functions of plain numbers and arrays.

   A landscape is an object with these functions of its parameters and of a point [x, y]:
     loss, gradient ([∂x, ∂y]), hessian ([[xx, xy], [xy, yy]]),
     critical (the isolated critical points), minimum (the smallest loss, in closed form), and
     valley (the curve of all minima if they are not isolated, otherwise null).
   tests/app/test_laboratory.py compares every function with the Python package. */
const formulas = (() => {
  "use strict";

  const sum = values => values.reduce((total, value) => total + value, 0);
  const signs = [[1, 1], [-1, 1], [-1, -1], [1, -1]];

  /** Eigenvalues of a symmetric 2 × 2 matrix, ascending. */
  function eigenvalues([[a, b], [, c]]) {
    const middle = (a + c) / 2, radius = Math.hypot((a - c) / 2, b);
    return [middle - radius, middle + radius];
  }

  /** Kind of a critical point, from the eigenvalues of its Hessian. */
  function kindOf([low, high]) {
    const tiny = 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-300);
    if (low > tiny) return "minimum";
    if (high < -tiny) return "maximum";
    return low < -tiny && high > tiny ? "saddle" : "degenerate";
  }

  /** Critical points with their loss, Hessian eigenvalues and kind. */
  function classified(landscape, parameters) {
    return landscape.critical(parameters).map(point => {
      const curvatures = eigenvalues(landscape.hessian(parameters, point));
      return { point, loss: landscape.loss(parameters, point), curvatures, kind: kindOf(curvatures) };
    });
  }

  /** Points of repeated steps from a start. It ends at the limit, where the point diverges, or,
      unless the steps are `random`, where they no longer change the point. */
  function iterate(step, start, limit, random = false) {
    const points = [start];
    for (let count = 0; count < limit; count++) {
      const last = points[points.length - 1], next = step(last);
      if (!next.every(Number.isFinite) || Math.max(...next.map(Math.abs)) > 1e3) break;
      points.push(next);
      const still = next.every((value, i) => Math.abs(value - last[i]) <= 1e-15 * (1 + Math.abs(value)));
      if (still && !random) break;
    }
    return points;
  }

  /** Gradient descent on a landscape with a fixed learning rate. */
  function descend(landscape, parameters, start, rate, limit) {
    return iterate(point => {
      const slope = landscape.gradient(parameters, point);
      return point.map((value, i) => value - rate * slope[i]);
    }, start, limit);
  }

  /* ---- Linear autoencoders (Bao et al. 2020) ------------------------------------------------ */

  /** Two tied latents W = x D + y J D: scale and angle relative to the optimum D.
      D = diag √(1 − λᵢ/σᵢ²) and J is a quarter turn (Bao et al. 2020, Figure 1). WᵀW = r² D² does
      not depend on the angle, so that the loss is Σσ² − 2a r² + b r⁴ + 2p x² + 2q y². */
  const angle = {
    squaredLengths: ({ values, penalties }) => values.map((s, i) => Math.max(0, 1 - penalties[i] / s)),
    coefficients({ values, penalties }) {
      const lengths = angle.squaredLengths({ values, penalties });
      return {
        a: sum(values.map((s, i) => s * lengths[i])),
        b: sum(values.map((s, i) => s * lengths[i] ** 2)),
        p: penalties[0] * lengths[0] + penalties[1] * lengths[1],
        q: penalties[0] * lengths[1] + penalties[1] * lengths[0],
      };
    },
    weights(parameters, [x, y]) {
      const [d, e] = angle.squaredLengths(parameters).map(Math.sqrt);
      return [[x * d, -y * e], [y * d, x * e]];
    },
    loss(parameters, [x, y]) {
      const { a, b, p, q } = angle.coefficients(parameters), r = x * x + y * y;
      return sum(parameters.values) - 2 * a * r + b * r * r + 2 * p * x * x + 2 * q * y * y;
    },
    gradient(parameters, [x, y]) {
      const { a, b, p, q } = angle.coefficients(parameters), r = x * x + y * y;
      return [4 * x * (b * r - a + p), 4 * y * (b * r - a + q)];
    },
    hessian(parameters, [x, y]) {
      const { a, b, p, q } = angle.coefficients(parameters), r = x * x + y * y;
      return [
        [4 * (b * r - a + p) + 8 * b * x * x, 8 * b * x * y],
        [8 * b * x * y, 4 * (b * r - a + q) + 8 * b * y * y],
      ];
    },
    critical(parameters) {
      const { a, b, p, q } = angle.coefficients(parameters), found = [[0, 0]];
      if (angle.valley(parameters) || b <= 0) return found;
      if (a > p) found.push(...[1, -1].map(s => [s * Math.sqrt((a - p) / b), 0]));
      if (a > q) found.push(...[1, -1].map(s => [0, s * Math.sqrt((a - q) / b)]));
      return found;
    },
    valley(parameters) {
      const { a, b, p, q } = angle.coefficients(parameters);
      const isotropic = Math.abs(q - p) <= 1e-12 * (a + 1e-300);
      return isotropic && a > p && b > 0 ? { shape: "circle", radius: Math.sqrt((a - p) / b) } : null;
    },
    minimum({ values, penalties }) {
      return sum(values.map((s, i) => penalties[i] < s ? penalties[i] * (2 - penalties[i] / s) : s));
    },
    /** The rotation of Bao et al. 2020, Algorithm 1, along the plane, times 4 like the gradient. */
    rotation({ values }, [x, y]) {
      const turn = -2 * x * y * (values[0] - values[1]);
      return [-turn * y, turn * x];
    },
    /** Direction against which the rotation augmented gradient steps; it has no penalties. */
    augmented(parameters, point) {
      const slope = angle.gradient(parameters, point), turn = angle.rotation(parameters, point);
      return [slope[0] - turn[0], slope[1] - turn[1]];
    },
  };

  /** One feature of variance σ², encoder weight x, decoder weight y. */
  const layers = {
    loss: ({ values: [s], penalties: [l] }, [x, y]) => s * (1 - x * y) ** 2 + l * (x * x + y * y),
    gradient: ({ values: [s], penalties: [l] }, [x, y]) =>
      [2 * s * y * (x * y - 1) + 2 * l * x, 2 * s * x * (x * y - 1) + 2 * l * y],
    hessian({ values: [s], penalties: [l] }, [x, y]) {
      const mixed = 2 * s * (2 * x * y - 1);
      return [[2 * s * y * y + 2 * l, mixed], [mixed, 2 * s * x * x + 2 * l]];
    },
    critical({ values: [s], penalties: [l] }) {
      if (l <= 0 || l >= s) return [[0, 0]];
      const length = Math.sqrt(1 - l / s);
      return [[0, 0], [length, length], [-length, -length]];
    },
    valley: ({ penalties: [l] }) => l > 0 ? null : { shape: "hyperbola", product: 1 },
    minimum: ({ values: [s], penalties: [l] }) => l < s ? l * (2 - l / s) : s,
  };

  /** One tied latent w = [x, y] for two features with variances σ₁² ≥ σ₂². */
  const latent = {
    loss({ values: [s, t], penalties: [l] }, [x, y]) {
      const r = x * x + y * y, power = s * x * x + t * y * y;
      return s + t - 2 * power + r * power + 2 * l * r;
    },
    gradient({ values, penalties: [l] }, point) {
      const r = sum(point.map(v => v * v)), power = sum(point.map((v, i) => values[i] * v * v));
      return point.map((v, i) => v * (values[i] * (2 * r - 4) + 2 * power + 4 * l));
    },
    hessian({ values: [s, t], penalties: [l] }, [x, y]) {
      const r = x * x + y * y, power = s * x * x + t * y * y, mixed = 4 * (s + t) * x * y;
      return [
        [s * (2 * r - 4 + 8 * x * x) + 2 * power + 4 * l, mixed],
        [mixed, t * (2 * r - 4 + 8 * y * y) + 2 * power + 4 * l],
      ];
    },
    critical(parameters) {
      const { values: [s, t], penalties: [l] } = parameters, found = [[0, 0]];
      if (latent.valley(parameters)) return found;
      if (l < s) found.push(...[1, -1].map(sign => [sign * Math.sqrt(1 - l / s), 0]));
      if (l < t) found.push(...[1, -1].map(sign => [0, sign * Math.sqrt(1 - l / t)]));
      return found;
    },
    valley: ({ values: [s, t], penalties: [l] }) =>
      s === t && l < s ? { shape: "circle", radius: Math.sqrt(1 - l / s) } : null,
    minimum: ({ values: [s, t], penalties: [l] }) => (l < s ? l * (2 - l / s) : s) + t,
  };

  /* ---- Dropout (Mianjy et al. 2018) --------------------------------------------------------- */

  const strengthOf = dropout => dropout / (1 - dropout);

  /** Two hidden units with tied weights, one input, one output of target m (Figure 1). */
  const units = {
    loss: ({ target, strength }, [x, y]) =>
      (target - x * x - y * y) ** 2 + strength * (x ** 4 + y ** 4),
    gradient({ target, strength }, point) {
      const rest = target - sum(point.map(u => u * u));
      return point.map(u => 4 * u * (strength * u * u - rest));
    },
    hessian({ target, strength }, [x, y]) {
      const rest = target - x * x - y * y, own = u => -4 * rest + (8 + 12 * strength) * u * u;
      return [[own(x), 8 * x * y], [8 * x * y, own(y)]];
    },
    critical({ target, strength }) {
      if (strength <= 0 || target <= 0) return [[0, 0]];
      const single = Math.sqrt(target / (1 + strength)), both = Math.sqrt(target / (2 + strength));
      return [
        [0, 0], [single, 0], [-single, 0], [0, single], [0, -single],
        ...signs.map(([s, t]) => [s * both, t * both]),
      ];
    },
    valley: ({ target, strength }) =>
      strength > 0 ? null : { shape: "circle", radius: Math.sqrt(target) },
    minimum: ({ target, strength }) => optimalValue([target], strength, 2),
    /** Gradient for one mask of the hidden units; its mean over masks is the gradient. */
    sampled({ target, dropout }, point, mask) {
      const gates = mask.map(kept => kept / (1 - dropout));
      const residual = sum(point.map((u, i) => gates[i] * u * u)) - target;
      return point.map((u, i) => 4 * residual * gates[i] * u);
    },
  };

  /** The same loss over the products x = u₁v₁ and y = u₂v₂ of untied weights: a convex function. */
  const products = {
    loss: ({ target, strength }, [x, y]) => (target - x - y) ** 2 + strength * (x * x + y * y),
    gradient: ({ target, strength }, [x, y]) =>
      [x, y].map(p => 2 * (x + y - target) + 2 * strength * p),
    hessian: ({ strength }) => [[2 + 2 * strength, 2], [2, 2 + 2 * strength]],
    critical({ target, strength }) {
      const level = target / (2 + strength);
      return strength > 0 ? [[level, level]] : [];
    },
    valley: ({ target, strength }) => strength > 0 ? null : { shape: "line", total: target },
    minimum: ({ target, strength }) => optimalValue([target], strength, 2),
  };

  /** Rank, threshold and singular values of the optimal product (Mianjy et al. 2018, Algorithm 3). */
  function shrink(singular, strength, width) {
    let rank = 0, total = 0;
    singular.slice(0, width).forEach((value, i) => {
      total += value;
      if (value > 0 && value * (width + strength * (i + 1)) > strength * total) rank = i + 1;
    });
    const kept = sum(singular.slice(0, rank)), threshold = strength * kept / (width + strength * rank);
    return { rank, threshold, values: singular.map((value, i) => i < rank ? value - threshold : 0) };
  }

  /** Smallest expected dropout loss of a network of that width. */
  function optimalValue(singular, strength, width) {
    const { rank } = shrink(singular, strength, width), kept = sum(singular.slice(0, rank));
    const rest = sum(singular.slice(rank).map(value => value * value));
    return strength * kept * kept / (width + strength * rank) + rest;
  }

  /** Strengths of dropout from which on the optimal rank is below 1, 2, … */
  function breakpoints(singular, width) {
    return singular.slice(0, width).map((value, i) => {
      const excess = sum(singular.slice(0, i + 1).map(other => other - value));
      return excess > 0 ? width * value / excess : Infinity;
    });
  }

  /* ---- Sparsity (Wipf 2023) ----------------------------------------------------------------- */

  const column = radians => [Math.cos(radians), Math.sin(radians)];

  /** Quantities of the model covariance Σ = Φ diag(w) Φᵀ + γI at the relevances w of all columns.
      For a column φ: curvature z = φᵀΣ⁻¹φ, loading φᵀΣ⁻¹x and its square, the alignment Q. */
  function stateAt({ angles, response, noise }, relevance) {
    const columns = angles.map(column);
    let [a, b, c] = [noise, 0, noise];
    columns.forEach(([x, y], j) => {
      a += relevance[j] * x * x; b += relevance[j] * x * y; c += relevance[j] * y * y;
    });
    const determinant = a * c - b * b;
    const through = ([x, y]) => [(c * x - b * y) / determinant, (a * y - b * x) / determinant];
    const dot = (u, v) => u[0] * v[0] + u[1] * v[1];
    const precise = columns.map(through), whole = through(response);
    const metric = precise.map(u => columns.map(v => dot(u, v)));
    const loading = columns.map(v => dot(whole, v));
    return {
      noise, relevance, metric, loading, covariance: [[a, b], [b, c]],
      curvature: metric.map((row, j) => row[j]), alignment: loading.map(value => value * value),
      fit: dot(whole, response), logDeterminant: Math.log(determinant),
    };
  }

  /** The terms of each energy besides the data term xᵀΣ⁻¹x, for columns of unit norm. */
  const posteriors = {
    full: {
      volume: state => state.logDeterminant,
      pressure: state => state.curvature,
      concavity: (state, i, j) => state.metric[i][j] ** 2,
    },
    diagonal: {
      volume: ({ relevance, noise }) =>
        sum(relevance.map(w => Math.log1p(w / noise))) + 2 * Math.log(noise),
      pressure: ({ relevance, noise }) => relevance.map(w => 1 / (noise + w)),
      concavity: ({ relevance, noise }, i, j) => i === j ? 1 / (noise + relevance[i]) ** 2 : 0,
    },
    lasso: {
      volume: ({ relevance }) => sum(relevance),
      pressure: ({ relevance }) => relevance.map(() => 1),
      concavity: () => 0,
    },
  };

  /** Energy of a posterior per response, a function of all relevances. */
  function energy(parameters, relevance) {
    const state = stateAt(parameters, relevance);
    return state.fit + posteriors[parameters.posterior].volume(state);
  }

  /** Derivative of the energy with respect to each relevance. */
  function slopes(parameters, relevance) {
    const state = stateAt(parameters, relevance);
    return posteriors[parameters.posterior].pressure(state).map((z, j) => z - state.alignment[j]);
  }

  /** Second derivatives of the energy with respect to the relevances. */
  function curvatures(parameters, relevance) {
    const state = stateAt(parameters, relevance), terms = posteriors[parameters.posterior];
    return state.metric.map((row, i) => row.map((z, j) =>
      2 * z * state.loading[i] * state.loading[j] - terms.concavity(state, i, j)));
  }

  const updates = {
    em: state => state.relevance.map((w, j) => w + w * w * (state.alignment[j] - state.curvature[j])),
    mm: state => state.relevance.map((w, j) => w * Math.sqrt(state.alignment[j] / state.curvature[j])),
    mackay: state => state.relevance.map((w, j) => w * state.alignment[j] / state.curvature[j]),
    /** The best exact move of one relevance (Wipf 2023, Theorem 4.4); `free` says which may move. */
    coordinate(state, free) {
      const moves = state.relevance.map((w, j) => {
        const z = state.curvature[j], Q = state.alignment[j];
        const change = free[j] ? Math.max(-w, (Q - z) / (z * z)) : 0;
        return { change, gain: Q * change / (1 + change * z) - Math.log1p(change * z) };
      });
      const best = moves.reduce((top, move, j) => move.gain > moves[top].gain ? j : top, 0);
      return state.relevance.map((w, j) => j === best ? w + moves[j].change : w);
    },
    diagonal: state => state.relevance.map((w, j) => {
      const power = w * w * state.alignment[j];
      return (power + Math.sqrt(power * (power + 4 * state.noise))) / 2;
    }),
    lasso: state => state.relevance.map((w, j) => w * Math.sqrt(state.alignment[j])),
  };

  /** Name of the update of a posterior: the chosen rule for the full one, its own for the others. */
  const ruleOf = ({ posterior, rule }) => posterior === "full" ? rule : posterior;

  /** One update of the relevances; those that are not `free` keep their value. */
  function updated(parameters, relevance, free = relevance.map(() => true)) {
    const next = updates[ruleOf(parameters)](stateAt(parameters, relevance), free);
    return next.map((w, j) => free[j] ? w : relevance[j]);
  }

  /** Parameters (power a, inner γ', outer γ'') of the energy as a function of one relevance. */
  function sliceParameters(parameters, relevance, index) {
    const state = stateAt(parameters, relevance);
    const variance = 1 - relevance[index] * state.curvature[index];
    const sparsity = state.curvature[index] / variance, quality = state.alignment[index] / variance ** 2;
    return { power: quality / sparsity ** 2, inner: 1 / sparsity, outer: parameters.noise };
  }
  const slices = {
    full: ({ power, inner }, w) => power / (w + inner) + Math.log(w + inner),
    diagonal: ({ power, inner, outer }, w) => power / (w + inner) + Math.log(w + outer),
  };
  const sliceMinima = {
    full: ({ power, inner }) => [Math.max(0, power - inner)],
    diagonal({ power, inner, outer }) {
      const discriminant = power ** 2 + 4 * power * (outer - inner);
      if (discriminant <= 0) return [0];
      const far = (power - 2 * inner + Math.sqrt(discriminant)) / 2;
      const found = power / inner ** 2 < 1 / outer ? [0] : [];
      if (far > 0) found.push(far);
      return found.length ? found : [0];
    },
    lasso: ({ power, inner }) => [Math.max(0, Math.sqrt(power) - inner)],
  };

  /** Coefficients of the lasso ½‖x − Φu‖² + γ Σ|uⱼ|, by cyclic coordinate descent. */
  function lassoCoefficients({ angles, response, noise }, sweeps = 4000) {
    const columns = angles.map(column), u = columns.map(() => 0), rest = [...response];
    for (let sweep = 0; sweep < sweeps; sweep++) {
      let moved = 0;
      columns.forEach(([x, y], j) => {
        const inner = x * rest[0] + y * rest[1] + u[j];
        const next = Math.sign(inner) * Math.max(0, Math.abs(inner) - noise), change = next - u[j];
        rest[0] -= change * x; rest[1] -= change * y; u[j] = next;
        moved = Math.max(moved, Math.abs(change));
      });
      if (moved < 1e-15) break;
    }
    return u;
  }

  /** Relevances of all columns where the posterior's own descent ends. */
  function solve(parameters) {
    if (parameters.posterior === "lasso") return lassoCoefficients(parameters).map(Math.abs);
    const full = parameters.posterior === "full", own = { ...parameters, rule: "coordinate" };
    let relevance = parameters.angles.map(() => full ? 0 : 1);
    for (let count = 0; count < 20000; count++) {
      const next = updated(own, relevance);
      const moved = Math.max(...next.map((w, j) => Math.abs(w - relevance[j])));
      relevance = next;
      if (moved < 1e-14) break;
    }
    return relevance.map(w => w < 1e-10 ? 0 : w);
  }

  /** The energy over the square roots of the relevances of columns 1 and 2; column 3 is fixed. */
  const relevances = {
    all: ({ third }, [x, y]) => [x * x, y * y, third],
    loss: (parameters, point) => energy(parameters, relevances.all(parameters, point)),
    gradient(parameters, point) {
      const slope = slopes(parameters, relevances.all(parameters, point));
      return point.map((value, j) => 2 * value * slope[j]);
    },
    hessian(parameters, point) {
      const all = relevances.all(parameters, point);
      const slope = slopes(parameters, all), second = curvatures(parameters, all);
      return [0, 1].map(i => [0, 1].map(j =>
        4 * point[i] * point[j] * second[i][j] + (i === j ? 2 * slope[i] : 0)));
    },
    /** Stationary relevances of column `index` if the other one of the two is zero. */
    edge(parameters, index) {
      const slice = sliceParameters(parameters, [0, 0, parameters.third], index);
      const { power, inner, outer } = slice;
      if (parameters.posterior !== "diagonal") return sliceMinima[parameters.posterior](slice);
      const discriminant = power ** 2 + 4 * power * (outer - inner);
      if (discriminant <= 0) return [];
      return [1, -1].map(sign => (power - 2 * inner + sign * Math.sqrt(discriminant)) / 2);
    },
    /** Critical points with x, y ≥ 0: the origin, those on the axes, and interior ones by Newton. */
    critical(parameters) {
      const found = [[0, 0]], reach = Math.hypot(...parameters.response) * 1.5 + 0.1;
      const add = point => {
        const known = found.some(other => Math.hypot(point[0] - other[0], point[1] - other[1]) < 1e-5);
        if (!known && Math.max(...point) < 3 * reach) found.push(point);
      };
      [0, 1].forEach(index => relevances.edge(parameters, index).filter(w => w > 1e-12)
        .forEach(w => add(index ? [0, Math.sqrt(w)] : [Math.sqrt(w), 0])));
      for (let i = 1; i <= 7; i++) for (let j = 1; j <= 7; j++) {
        const point = newton(parameters, [(reach * i / 7) ** 2, (reach * j / 7) ** 2]);
        if (point) add(point);
      }
      return found;
    },
    valley: () => null,
    minimum(parameters) {
      return Math.min(...relevances.critical(parameters).map(point => relevances.loss(parameters, point)));
    },
    /** One update of the two relevances by the rule of the posterior. */
    step(parameters, point) {
      const next = updated(parameters, relevances.all(parameters, point), [true, true, false]);
      return [Math.sqrt(next[0]), Math.sqrt(next[1])];
    },
  };

  /** Interior stationary point near given relevances of columns 1 and 2, or null. */
  function newton(parameters, start) {
    let w = start;
    for (let count = 0; count < 60; count++) {
      const all = [...w, parameters.third], [g, h] = slopes(parameters, all);
      const second = curvatures(parameters, all), [[a, b], [, c]] = second;
      const determinant = a * c - b * b;
      const change = [(b * h - c * g) / determinant, (b * g - a * h) / determinant];
      const room = Math.min(1, ...[0, 1].map(i => change[i] < 0 ? -0.8 * w[i] / change[i] : 1));
      w = w.map((value, i) => value + room * change[i]);
      if (!w.every(Number.isFinite) || Math.max(...w) > 1e3) return null;
      const size = Math.max(...change.map((value, i) => Math.abs(value) / (w[i] + 1e-12)));
      if (size < 1e-12) break;
      if (count === 59) return null;
    }
    return Math.min(...w) > 1e-9 ? w.map(Math.sqrt) : null;
  }

  /** Deterministic random numbers in [0, 1) from a seed (mulberry32). */
  function randomNumbers(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** Stochastic gradient descent with dropout: every step draws one mask of the hidden units. */
  function sgd(parameters, start, rate, limit, seed = 1) {
    const random = randomNumbers(seed);
    return iterate(point => {
      const mask = point.map(() => random() >= parameters.dropout ? 1 : 0);
      const slope = units.sampled(parameters, point, mask);
      return point.map((value, i) => value - rate * slope[i]);
    }, start, limit, true);
  }

  return {
    eigenvalues, kindOf, classified, iterate, descend,
    linear: { angle, layers, latent },
    dropout: { units, products, shrink, optimalValue, breakpoints, strengthOf, sgd },
    sparsity: {
      relevances, stateAt, energy, slopes, curvatures, updated, sliceParameters, slices,
      sliceMinima, lassoCoefficients, solve,
    },
  };
})();
