/* The views of the laboratory: for each its landscape, controls, examples, words and side charts. */
const families = (() => {
  "use strict";
  const { linear, dropout, sparsity } = formulas, { tidy } = drawing;
  const short = (value, digits = 3) => tidy(+value.toPrecision(digits));
  const radians = degrees => degrees * Math.PI / 180;
  const list = words => words.join("");
  const p = text => `<p>${text}</p>`;
  const LONGEST = 1.7; // length of the response

  /* ---- Side charts ------------------------------------------------------------------------- */

  /** The distance of the loss to its minimum along the descent, on logarithmic axes. */
  function gapChart(canvas, { trace, index, floor }) {
    const exponents = trace.map(value => Math.log10(Math.max(value - floor, 1e-16)));
    const last = trace.length - 1, high = Math.ceil(Math.max(...exponents) + 0.01);
    const low = Math.max(-16, Math.min(Math.floor(Math.min(...exponents)), high - 4));
    const chart = drawing.frame(canvas, { x: [0, Math.log10(last + 1) || 1], y: [low, high], labels: ["log₁₀(step + 1)", "log₁₀(loss − minimum)"] });
    chart.grid();
    const points = exponents.map((e, k) => [Math.log10(k + 1), e]);
    chart.inside(() => {
      chart.line(points, { stroke: chart.ink("grid"), width: 2 });
      chart.line(points.slice(0, index + 1), { stroke: chart.ink("orange"), width: 3 });
    });
    chart.axes();
    disc(chart, points[index], chart.ink("orange"));
  }

  function disc({ pen, px, py }, [x, y], fill, radius = 5) {
    pen.beginPath(); pen.arc(px(x), py(y), radius, 0, 2 * Math.PI); pen.fillStyle = fill; pen.fill();
  }

  /** Data as an ellipse with its principal axes, and latents as arrows. */
  function dataPlane(canvas, values, latents, lengths) {
    const reach = Math.max(1.25, Math.sqrt(values[0])) * 1.12;
    const chart = drawing.frame(canvas, { x: [-reach, reach], y: [-reach, reach], square: true, ticks: false, margin: { left: 10, bottom: 10 } });
    const { pen, px, py, ink } = chart, edge = drawing.ellipse([[values[0], 0], [0, values[1]]]);
    pen.beginPath(); edge.forEach(([x, y]) => pen.lineTo(px(x), py(y))); pen.closePath();
    pen.globalAlpha = 0.16; pen.fillStyle = ink("blue"); pen.fill(); pen.globalAlpha = 1;
    chart.line(edge, { stroke: ink("blue"), width: 1.2 });
    chart.line([[-reach, 0], [reach, 0]], { stroke: ink("muted"), width: 1, dash: [4, 4] });
    chart.line([[0, -reach], [0, reach]], { stroke: ink("muted"), width: 1, dash: [4, 4] });
    lengths.forEach((length, i) => [1, -1].forEach(sign => {
      const place = i ? [0, sign * length] : [sign * length, 0];
      pen.beginPath(); pen.arc(px(place[0]), py(place[1]), 4.5, 0, 2 * Math.PI); pen.strokeStyle = ink("yellow"); pen.lineWidth = 2; pen.stroke();
    }));
    latents.forEach((latent, i) => drawing.arrow(chart, [0, 0], latent, ink(i ? "green" : "orange"), 3.5, latents.length > 1 ? "w" + "₁₂"[i] : "w"));
  }

  /** Encoder and decoder weight along the descent. */
  function layerChart(canvas, { path, index }) {
    const last = path.length - 1, all = path.flat(), high = Math.max(1, ...all) * 1.1, low = Math.min(0, ...all) * 1.1;
    const chart = drawing.frame(canvas, { x: [0, Math.log10(last + 1) || 1], y: [low, high], labels: ["log₁₀(step + 1)", "weight"] });
    chart.grid();
    [["blue", [], "encoder"], ["orange", [6, 5], "decoder"]].forEach(([name, dash, label], i) => {
      const points = path.map((point, k) => [Math.log10(k + 1), point[i]]);
      chart.inside(() => chart.line(points, { stroke: chart.ink(name), width: 2.5, dash }));
      disc(chart, points[index], chart.ink(name));
      chart.pen.fillStyle = chart.ink(name); chart.pen.font = "600 13px system-ui, sans-serif"; chart.pen.textAlign = "right";
      chart.pen.fillText(label, chart.left + chart.w - 6, chart.top + chart.h - 28 + 17 * i);
    });
    chart.axes();
  }

  const spectrum = state => Array.from({ length: 6 }, (_, i) => 2 * Math.exp(-state.decay * i));

  /** Singular values of the least-squares map, and what dropout leaves of them. */
  function spectrumChart(canvas, { state }) {
    const singular = spectrum(state), strength = dropout.strengthOf(state.dropout);
    const { threshold, values, rank } = dropout.shrink(singular, strength, state.width);
    const chart = drawing.frame(canvas, { x: [0.4, 6.6], y: [0, 2.1], labels: ["component", "singular value"] });
    chart.grid();
    const { pen, px, py, ink } = chart;
    singular.forEach((value, i) => {
      const left = px(i + 0.66), wide = px(i + 1.34) - left;
      pen.fillStyle = ink("grid"); pen.fillRect(left, py(value), wide, py(0) - py(value));
      pen.fillStyle = ink("blue"); pen.fillRect(left, py(values[i]), wide, py(0) - py(values[i]));
      if (i >= rank) { pen.fillStyle = ink("muted"); pen.font = "600 13px system-ui, sans-serif"; pen.textAlign = "center"; pen.fillText("×", px(i + 1), py(value) - 10); }
    });
    chart.line([[0.4, threshold], [6.6, threshold]], { stroke: ink("orange"), width: 2.5, dash: [7, 4] });
    pen.fillStyle = ink("orange"); pen.font = "600 13px system-ui, sans-serif"; pen.textAlign = "right"; pen.textBaseline = "top";
    pen.fillText(`┅ threshold ${short(threshold)}`, chart.left + chart.w - 4, chart.top + 4);
    chart.axes();
  }

  /** Singular values of the optimum as functions of the dropout rate. */
  function shrinkagePaths(canvas, { state }) {
    const singular = spectrum(state), rates = Array.from({ length: 120 }, (_, k) => 0.98 * k / 119);
    const chart = drawing.frame(canvas, { x: [0, 0.98], y: [0, 2.1], labels: ["dropout", "singular value of the optimum"] });
    chart.grid();
    const solved = rates.map(rate => dropout.shrink(singular, dropout.strengthOf(rate), state.width).values);
    const here = dropout.shrink(singular, dropout.strengthOf(state.dropout), state.width).values;
    chart.line([[state.dropout, 0], [state.dropout, 2.1]], { stroke: chart.ink("orange"), width: 2, dash: [7, 4] });
    singular.forEach((_, i) => {
      chart.line(rates.map((rate, k) => [rate, solved[k][i]]), { stroke: chart.ink("blue"), width: 2 });
      disc(chart, [state.dropout, here[i]], chart.ink("orange"), 4);
    });
    chart.axes();
  }

  /** The response, the columns of the dictionary and the ellipse of the model covariance. */
  function dictionaryPlane(canvas, { parameters, current }) {
    const reach = 1.9; // the same for all lengths of the response, so that its arrow can be dragged
    const chart = drawing.frame(canvas, { x: [-reach, reach], y: [-reach, reach], square: true, ticks: false, margin: { left: 10, bottom: 10 } });
    const { pen, px, py, ink } = chart, relevance = sparsity.relevances.all(parameters, current);
    const edge = drawing.ellipse(sparsity.stateAt(parameters, relevance).covariance);
    pen.beginPath(); edge.forEach(([x, y]) => pen.lineTo(px(x), py(y))); pen.closePath();
    pen.globalAlpha = 0.16; pen.fillStyle = ink("blue"); pen.fill(); pen.globalAlpha = 1;
    chart.line(edge, { stroke: ink("blue"), width: 1.2 });
    parameters.angles.forEach((angle, j) => {
      const used = relevance[j] > 1e-4;
      drawing.arrow(chart, [0, 0], [Math.cos(angle), Math.sin(angle)], ink(used ? "green" : "muted"), used ? 3.5 : 2, "φ" + "₁₂₃"[j], used ? [] : [4, 4]);
    });
    drawing.arrow(chart, [0, 0], parameters.response, ink("orange"), 3.5, "x");
    return chart;
  }

  /** Moves what is nearest to a point of the dictionary's plane: the response or a column. */
  function dragDictionary(state, parameters, [x, y], held) {
    const heads = [parameters.response, ...parameters.angles.map(a => [Math.cos(a), Math.sin(a)])];
    const distances = heads.map(head => Math.hypot(head[0] - x, head[1] - y));
    const chosen = held ?? distances.indexOf(Math.min(...distances)), turn = Math.atan2(y, x) * 180 / Math.PI;
    if (chosen === 0) {
      state.length = Math.min(LONGEST, Math.max(0.2, Math.round(Math.hypot(x, y) * 100) / 100));
      state.direction = Math.round(turn);
    } else state["angle" + chosen] = Math.round(turn);
    return chosen;
  }

  /** The energy over the relevance of column 1 with the others fixed, for two posteriors. */
  function sliceChart(canvas, { parameters, current }) {
    const relevance = sparsity.relevances.all(parameters, current);
    const slice = sparsity.sliceParameters(parameters, relevance, 0), reach = Math.max(1, slice.power) * 1.5;
    const grid = Array.from({ length: 241 }, (_, k) => reach * (k / 240) ** 2);
    const names = [["full", "blue", []], ["diagonal", "orange", [6, 4]]];
    const curves = names.map(([name]) => grid.map(w => sparsity.slices[name](slice, w)));
    const bottom = Math.min(...curves.flat()), far = Math.max(...curves.map(c => c[c.length - 1]));
    const top = Math.max(far, Math.min(Math.max(...curves.map(c => c[0])), bottom + 3 * (far - bottom) + 1));
    const pad = 0.08 * (top - bottom), root = Math.sqrt(reach);
    const chart = drawing.frame(canvas, { x: [0, root], y: [bottom - pad, top + pad], labels: ["√w₁", "energy over w₁ alone"] });
    chart.grid();
    names.forEach(([name, colour, dash], i) => {
      chart.inside(() => chart.line(grid.map((w, k) => [Math.sqrt(w), curves[i][k]]), { stroke: chart.ink(colour), width: 2.5, dash }));
      sparsity.sliceMinima[name](slice).forEach(w => drawing.marker(chart.pen, chart.px(Math.sqrt(w)), chart.py(sparsity.slices[name](slice, w)), "minimum", 6));
      chart.pen.fillStyle = chart.ink(colour); chart.pen.font = "600 13px system-ui, sans-serif"; chart.pen.textAlign = "right"; chart.pen.textBaseline = "middle";
      chart.pen.fillText(name, chart.left + chart.w - 6, chart.top + 12 + 17 * i);
    });
    chart.axes();
  }

  /* ---- Controls ---------------------------------------------------------------------------- */

  const plain = { format: value => short(value) };
  const degrees = { format: value => `${tidy(value)}°` };
  const slider = (label, min, max, step, value, more = plain) => ({ label, min, max, step, value, ...more });
  const logarithmic = { log: true, format: value => short(value, 2) };
  const rate = slider("Learning rate", 0.002, 0.2, 0.01, 0.05, logarithmic);

  /* ---- Linear autoencoders ----------------------------------------------------------------- */

  const penalised = state => state.rule === "augmented" ? [0, 0] : [state.lambda, state.lambda + state.delta];
  const angleStory = (state, { parameters }) => {
    const { a, b, p: along, q } = linear.angle.coefficients(parameters), radial = 8 * b;
    if (state.rule === "augmented") return list([
      p("<strong>Rotation augmented gradient.</strong> The loss has no penalty, so every point of the yellow circle is optimal. The rule adds a rotation of the latents that does not change the loss to first order. If the variances differ, it stops only where the two codes are uncorrelated: on the principal axes."),
      p("On the map the path goes straight to the valley and then, at constant loss, along it to the angle 0° or 180°."),
    ]);
    if (state.delta === 0) return list([
      p(state.lambda === 0
        ? "<strong>No penalty.</strong> The loss depends on the scale of the two latents only. Every rotation of the optimum is an optimum: the latents span the principal subspace, but they are not the principal axes."
        : `<strong>The same penalty on both latents.</strong> It shortens them to √(1 − λ/σ²), which is ${parameters.values.map((s, i) => short(Math.sqrt(linear.angle.squaredLengths(parameters)[i]))).join(" and ")} here, but every rotation is still optimal.`),
      p("A descent stops at the point of the circle that is nearest to its start. Add a difference of the penalties, or choose the rotation augmented gradient."),
    ]);
    if (b === 0) return p("<strong>Both penalties exceed the variances.</strong> All weights are zero at the optimum, and the loss is the total variance everywhere in this plane.");
    const slow = 4 * (q - along), dead = parameters.penalties.some((penalty, i) => penalty >= parameters.values[i]);
    return list([
      p("<strong>Different penalties.</strong> Now only the angles 0° and 180° are optimal (stars): each latent lies on its own principal axis, ordered by variance. The quarter turns between them are saddles."),
      p(`But the valley is almost flat: across it the curvature is ${short(radial * (a - along) / b)}, along it ${short(slow)}, a ratio of ${short(radial * (a - along) / b / slow)}. A descent reaches the valley quickly and then moves slowly along it.`),
      dead ? p("Penalty 2 is not below the variance of axis 2, so latent 2 is zero at the optimum.") : "",
    ]);
  };

  const linearFamily = {
    title: "Linear autoencoder", turn: 0.6,
    controls: {
      rule: { label: "Rule", value: "gradient", options: { gradient: "gradient descent", augmented: "rotation augmented gradient" } },
      lambda: slider("Penalty λ", 0, 1.2, 0.01, 0.1),
      delta: slider("Difference λ₂ − λ₁ of the penalties", 0, 0.6, 0.01, 0.1),
      first: slider("Variance σ₁² of axis 1", 1, 2.5, 0.05, 1.5),
      second: slider("Variance σ₂² of axis 2", 0.3, 1, 0.05, 1),
      rate,
    },
    views: {
      angle: {
        label: "Scale and angle", title: "Scale and angle of two latents (Bao et al. 2020, Figure 1)",
        landscape: linear.angle, controls: ["rule", "lambda", "delta", "first", "second", "rate"],
        start: [0.05, 0.1], range: () => [-1.4, 1.4], axes: ["x = α cos θ", "y = α sin θ"], raised: 1.25,
        disabled: state => state.rule === "augmented" ? ["lambda", "delta"] : [],
        parameters: state => ({ values: [state.first, state.second], penalties: penalised(state) }),
        path(parameters, state, start) {
          if (state.rule !== "augmented") return formulas.descend(linear.angle, parameters, start, state.rate, 4000);
          return formulas.iterate(point => {
            const way = linear.angle.augmented(parameters, point);
            return point.map((value, i) => value - state.rate * way[i]);
          }, start, 4000);
        },
        presets: {
          "No penalty": { lambda: 0, delta: 0, rule: "gradient" }, "Uniform penalty": { lambda: 0.3, delta: 0, rule: "gradient" },
          "Non-uniform penalty": { lambda: 0.1, delta: 0.1, rule: "gradient" }, "Rotation augmented": { rule: "augmented" },
        },
        formula: ["L = tr((I - W^⊤W) Σ (I - W^⊤W)^⊤) + 2 tr(Λ W W^⊤)", "W = α R_θ D", "D_{i i} = √{1 - \\frac{λ_i}{σ_i^2}}"],
        story: angleStory,
        first: { draw: (canvas, scene) => dataPlane(canvas, scene.parameters.values, linear.angle.weights(scene.parameters, scene.current), linear.angle.squaredLengths(scene.parameters).map(Math.sqrt)),
          caption: "The data (ellipse of one standard deviation), their principal axes, and the two latents at this step. Circles: the optimal lengths." },
        second: { draw: gapChart, caption: "How far the loss is from its minimum along the descent." },
      },
      latent: {
        label: "One latent", title: "One latent for two features: why gradient descent finds the first axis",
        landscape: linear.latent, controls: ["lambda", "first", "second", "rate"],
        start: [0.12, 1.05], range: () => [-1.4, 1.4], axes: ["w along axis 1", "w along axis 2"], raised: 1.25,
        parameters: state => ({ values: [state.first, state.second], penalties: [state.lambda] }),
        path: (parameters, state, start) => formulas.descend(linear.latent, parameters, start, state.rate, 4000),
        presets: { "Distinct variances": { first: 1.5, second: 0.6, lambda: 0.1 }, "Close variances": { first: 1.05, second: 1, lambda: 0.1 }, "Equal variances": { first: 1, second: 1, lambda: 0.1 } },
        formula: ["L(w) = tr((I - w w^⊤) Σ (I - w w^⊤)^⊤) + 2 λ ‖w‖^2", "w^⋆ = ± √{1 - \\frac{λ}{σ_1^2}} u_1"],
        story: (state, { critical }) => list([
          p("<strong>Encoder and decoder share one weight vector w.</strong> The critical points are the principal axes u, shortened to √(1 − λ/σ²). On the first axis they are minima, on the second one saddles, and the origin is a maximum while λ is below both variances."),
          p(state.first === state.second ? "The variances are equal: every direction is as good as any other, and the minima form a circle."
            : "A descent that starts near the second axis is first attracted by the saddle, and stays there for long before it turns. The closer the two variances, the longer it takes."),
          critical.length < 3 && state.first !== state.second ? p("The penalty exceeds both variances: the optimum is w = 0.") : "",
        ]),
        first: { draw: (canvas, scene) => dataPlane(canvas, scene.parameters.values, [scene.current], scene.parameters.values.map(s => Math.sqrt(Math.max(0, 1 - scene.parameters.penalties[0] / s)))),
          caption: "The data (ellipse of one standard deviation) and the latent w at this step. Circles: critical points on the principal axes." },
        second: { draw: gapChart, caption: "How far the loss is from its minimum along the descent. A plateau is a saddle that the descent passes." },
      },
      layers: {
        label: "Encoder and decoder", title: "Encoder and decoder weight: why the optimum is balanced",
        landscape: linear.layers, controls: ["lambda", "first", "rate"],
        start: [1.9, 0.25], range: () => [-2.2, 2.2], axes: ["encoder weight e", "decoder weight d"], raised: 1.6,
        parameters: state => ({ values: [state.first], penalties: [state.lambda] }),
        path: (parameters, state, start) => formulas.descend(linear.layers, parameters, start, state.rate, 4000),
        presets: { "No penalty": { lambda: 0 }, "Small penalty": { lambda: 0.05 }, "Large penalty": { lambda: 1.2, first: 1 } },
        formula: ["L(e,d) = σ^2 (1 - e d)^2 + λ (e^2 + d^2)", "e^⋆ = d^⋆ = ± √{1 - \\frac{λ}{σ^2}}"],
        story: state => list([
          p(state.lambda === 0
            ? "<strong>No penalty.</strong> Only the product of encoder and decoder matters. All points of the hyperbola e·d = 1 are optimal, and a descent keeps the difference e² − d² of its start (up to the size of its steps)."
            : state.lambda >= state.first ? "<strong>The penalty exceeds the variance.</strong> Any weights cost more than the reconstruction of the feature saves: the only critical point is the origin, and the latent is zero."
            : "<strong>With a penalty</strong> only two points remain, and both are balanced: the decoder is the transpose of the encoder (Bao et al. 2020, Theorem 1). The origin is a saddle."),
          p("A descent first reaches the hyperbola, then slides along it until both weights are equal."),
        ]),
        first: { draw: layerChart, caption: "Both weights along the descent." },
        second: { draw: gapChart, caption: "How far the loss is from its minimum along the descent." },
      },
    },
  };

  /* ---- Dropout ----------------------------------------------------------------------------- */

  const dropoutParameters = state => ({ target: state.target, dropout: state.dropout, strength: dropout.strengthOf(state.dropout) });
  const spectrumPanels = {
    first: { draw: spectrumChart, caption: "A network with six inputs and outputs: singular values of least squares (grey), and what the dropout optimum keeps of them (blue). One threshold is subtracted from all; crossed components are removed." },
    second: { draw: shrinkagePaths, caption: "The same network for every dropout rate: components disappear one after the other." },
  };
  const dropoutFamily = {
    title: "Dropout", turn: 0.6,
    controls: {
      rule: { label: "Rule", value: "gradient", options: { gradient: "gradient of the expected loss", sgd: "stochastic gradient, random masks" } },
      dropout: slider("Dropout", 0, 0.9, 0.01, 0.33),
      target: slider("Target m", 0.5, 3, 0.05, 2),
      rate: slider("Learning rate", 0.0005, 0.05, 0.01, 0.01, logarithmic),
      width: slider("Hidden units r of the large network", 1, 8, 1, 4),
      decay: slider("Decay of its spectrum", 0, 1.2, 0.02, 0.4),
    },
    views: {
      units: {
        label: "Two hidden units", title: "Two hidden units with tied weights (Mianjy et al. 2018, Figure 1)",
        landscape: dropout.units, controls: ["rule", "dropout", "target", "rate", "width", "decay"],
        start: [1.6, 0.1], range: state => [-1.25 * Math.sqrt(state.target), 1.25 * Math.sqrt(state.target)], axes: ["weight u₁", "weight u₂"], raised: 1.1,
        parameters: dropoutParameters,
        path: (parameters, state, start) => state.rule === "sgd"
          ? dropout.sgd(parameters, start, state.rate, 3000) : formulas.descend(dropout.units, parameters, start, state.rate, 3000),
        presets: { "No dropout": { dropout: 0, rule: "gradient" }, "Dropout one third": { dropout: 0.33, rule: "gradient" }, "Dropout 0.8": { dropout: 0.8, rule: "gradient" }, "Random masks": { dropout: 0.33, rule: "sgd", rate: 0.005 } },
        formula: ["f(u) = (m - u_1^2 - u_2^2)^2 + λ (u_1^4 + u_2^4)", "λ = \\frac{p}{1 - p}", "u_1^2 = u_2^2 = \\frac{m}{2 + λ}"],
        story: (state, { parameters }) => list([
          p(state.dropout === 0
            ? "<strong>Without dropout</strong> only the sum of the squares matters: the optima form a circle, and a descent stops at the nearest one, however unequal the two units are."
            : `<strong>Dropping each unit with probability p = ${tidy(state.dropout)}</strong> adds the penalty λ(u₁⁴ + u₂⁴) to the expected loss, with λ = ${short(parameters.strength)}. The four optima have equal weights: dropout makes both units contribute the same. Using one unit alone is a saddle, and the origin a maximum.`),
          p("Every local minimum is global, for every dropout rate. Move the slider: the optima come closer to the origin as dropout grows."),
          state.rule === "sgd" ? p("The path of random masks is noisy: its mean is the gradient of the expected loss, and with a small learning rate it stays near the optimum.") : "",
        ]),
        ...spectrumPanels,
      },
      products: {
        label: "What each unit contributes", title: "The contributions of two hidden units: a convex problem",
        landscape: dropout.products, controls: ["dropout", "target", "rate", "width", "decay"],
        start: [2.4, -0.6], range: state => [-0.5 * state.target - 0.3, 1.3 * state.target + 0.1], axes: ["u₁v₁", "u₂v₂"], raised: 1.25,
        parameters: dropoutParameters,
        path: (parameters, state, start) => formulas.descend(dropout.products, parameters, start, state.rate, 3000),
        presets: { "No dropout": { dropout: 0 }, "Dropout one third": { dropout: 0.33 }, "Dropout 0.8": { dropout: 0.8 } },
        formula: ["f = (m - a_1 - a_2)^2 + λ (a_1^2 + a_2^2)", "a_i = u_i v_i", "a_1 = a_2 = \\frac{m}{2 + λ}"],
        story: state => list([
          p("<strong>The same loss for untied weights</strong> u (outgoing) and v (incoming), over the product that each unit contributes. It is convex, which is why the surface over the weights has no local minimum that is not global."),
          p(state.dropout === 0 ? "Without dropout all points of the yellow line are optimal: any two contributions that add up to m."
            : "With dropout there is one optimum, at which both units contribute the same amount. Together they contribute 2m/(2 + λ), less than m: dropout shrinks."),
        ]),
        ...spectrumPanels,
      },
    },
  };

  /* ---- Sparsity ---------------------------------------------------------------------------- */

  const sparseParameters = state => ({
    angles: [radians(state.angle1), radians(state.angle2), radians(state.angle3)], noise: state.noise, third: state.third,
    response: [state.length * Math.cos(radians(state.direction)), state.length * Math.sin(radians(state.direction))],
    posterior: state.view, rule: state.rule,
  });
  const sparseView = (label, title, formula, story, more = {}) => ({
    label, title, formula, landscape: sparsity.relevances, start: [0.9, 1.25], axes: ["√w₁", "√w₂"],
    controls: ["rule", "noise", "direction", "length", "angle1", "angle2", "angle3", "third"],
    disabled: state => state.view === "full" ? [] : ["rule"],
    range: state => [0, 1.25 * Math.max(1, state.length)],
    parameters: sparseParameters, nonnegative: true,
    path: (parameters, state, start) => formulas.iterate(point => sparsity.relevances.step(parameters, point), start.map(v => Math.max(v, 1e-3)), 1500),
    presets: {
      "Near column 1": { angle1: 15, angle2: 40, angle3: 120, direction: 20, length: 1.5, noise: 0.2, third: 0 },
      "Between columns": { angle1: 15, angle2: 40, angle3: 120, direction: 26, length: 1.5, noise: 0.2, third: 0 },
      "Almost no noise": { angle1: 15, angle2: 40, angle3: 120, direction: 20, length: 1.5, noise: 0.02, third: 0 },
      "Nearly equal columns": { angle1: 20, angle2: 28, angle3: 120, direction: 20, length: 1.5, noise: 0.2, third: 0 },
    },
    story,
    first: { draw: dictionaryPlane, drag: dragDictionary, caption: "The response x, the three columns φ of the dictionary (green: in use), and the ellipse of the model's covariance at this step. Drag the arrow heads." },
    second: { draw: sliceChart, caption: "The energy over the relevance of column 1 with the others fixed. For the full posterior it always has one minimum; for the diagonal one it can have two." },
    ...more,
  });
  const minimaCount = ({ critical }) => {
    const count = critical.filter(item => item.kind === "minimum").length;
    return count === 1 ? "one local minimum, which is global" : `${count} local minima`;
  };
  const sparsityFamily = {
    title: "Sparsity", turn: -0.65,
    controls: {
      rule: { label: "Update of the full posterior", value: "mm", options: { mm: "majorize–minimize (MM)", em: "expectation–maximization (EM)", mackay: "MacKay's fixed point", coordinate: "best exact coordinate move" } },
      noise: slider("Noise variance γ", 0.01, 1, 0.01, 0.2, logarithmic),
      direction: slider("Direction of the response x", -180, 180, 1, 20, degrees),
      length: slider("Length of the response x", 0.2, LONGEST, 0.01, 1.5),
      angle1: slider("Direction of column 1", -180, 180, 1, 15, degrees),
      angle2: slider("Direction of column 2", -180, 180, 1, 40, degrees),
      angle3: slider("Direction of column 3", -180, 180, 1, 120, degrees),
      third: slider("Relevance w₃ (fixed in the map)", 0, 2, 0.02, 0),
    },
    views: {
      full: sparseView("Full covariance", "Energy of the VAE with a full posterior covariance (Wipf 2023, eq. 18)",
        ["E(w) = x^⊤ Σ^{-1} x + log|Σ|", "Σ = Φ diag(w) Φ^⊤ + γ I"], (state, scene) => list([
          p("<strong>Which columns explain the response?</strong> The relevance w of a column is the prior variance of its coefficient; a column with w = 0 is not used. The map shows the energy over the relevances of columns 1 and 2 (their square roots)."),
          p(`Here the full covariance has ${minimaCount(scene)}. With all other relevances fixed the energy of one relevance has exactly one minimum, max(0, a − γ′), so that coordinate moves are exact (Theorem 4.4; see the chart).`),
        ])),
      diagonal: sparseView("Diagonal covariance", "Energy of the VAE with a diagonal posterior covariance (Wipf 2023, eq. 50)",
        ["E(w) = x^⊤ Σ^{-1} x + ∑_j log(γ + w_j) - log γ", "Σ = Φ diag(w) Φ^⊤ + γ I"], (state, scene) => list([
          p("<strong>A posterior without correlations</strong> counts every column on its own. Where at most one column is in use, its energy is that of the full covariance; elsewhere it is higher, unless the columns are orthogonal. A ridge can therefore separate the axes."),
          p(`Here it has ${minimaCount(scene)}.${minimaCount(scene).startsWith("one") ? "" : " Start the descent on both sides of the ridge: it ends at different columns."}`),
        ])),
      lasso: sparseView("Lasso", "The lasso as an energy over relevances",
        ["E(w) = x^⊤ Σ^{-1} x + ∑_j w_j = \\min_u \\frac{1}{γ} ‖x - Φ u‖^2 + 2 ∑_j |u_j|", "w_j = |u_j|"], (state, scene) => list([
          p("<strong>The lasso</strong> is a convex problem, so it has no local minima that are not global. In these variables its penalty is the sum of the relevances w = |u|."),
          p(`But it shrinks large coefficients, and often keeps several columns where one suffices. Compare the table below. It has ${minimaCount(scene)} here.`),
        ])),
    },
    table(state) {
      const rows = ["full", "diagonal", "lasso"].map(posterior => {
        const parameters = { ...sparseParameters(state), posterior }, relevance = sparsity.solve(parameters);
        const kept = relevance.map((w, j) => w > 1e-6 ? "φ" + "₁₂₃"[j] : "").filter(Boolean).join(", ") || "none";
        return [posterior, ...relevance.map(w => short(w)), kept, short(sparsity.energy(parameters, relevance), 4)];
      });
      return { title: "Which columns stay, with all three relevances free", header: ["posterior", "w₁", "w₂", "w₃", "columns in use", "energy"], rows };
    },
  };

  return { linear: linearFamily, dropout: dropoutFamily, sparsity: sparsityFamily };
})();
