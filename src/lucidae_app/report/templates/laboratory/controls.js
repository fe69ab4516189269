/* The state of the page, its controls, and what is drawn when they change. */
const laboratory = (() => {
  "use strict";
  const $ = id => document.getElementById(id);
  const { tidy } = drawing, short = (value, digits = 4) => tidy(+value.toPrecision(digits));
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const ANIMATION = 5200; // milliseconds of one run of the descent

  const state = { tab: "linear", families: {}, turn: 0, tilt: 0, time: 1 };
  let scene = null, running = 0, pending = 0, stale = true;

  const family = () => families[state.tab];
  const settings = () => state.families[state.tab];
  const view = () => family().views[settings().view];

  /** The state of a family in which it is first shown. */
  function initial(name) {
    const values = {}, [first] = Object.keys(families[name].views);
    Object.entries(families[name].controls).forEach(([key, control]) => { values[key] = control.value; });
    const [x, y] = families[name].views[first].start;
    return { ...values, view: first, x, y };
  }

  /* ---- The address ------------------------------------------------------------------------- */

  /** The state as the fragment of an address: what differs from the initial state. */
  function fragment() {
    const base = initial(state.tab), own = settings(), pairs = [];
    if (own.view !== base.view) [base.x, base.y] = family().views[own.view].start;
    Object.keys(base).forEach(key => {
      if (own[key] !== base[key]) pairs.push(`${key}=${typeof own[key] === "number" ? +own[key].toPrecision(4) : own[key]}`);
    });
    return "#" + [state.tab, ...pairs].join("&");
  }

  /** Read the state from the fragment of the address; what is unknown or out of range is left out. */
  function readFragment() {
    const [tab, ...pairs] = location.hash.slice(1).split("&");
    if (!families[tab]) return;
    state.tab = tab;
    const own = state.families[tab] = initial(tab), given = new URLSearchParams(pairs.join("&"));
    if (families[tab].views[given.get("view")]) {
      own.view = given.get("view");
      [own.x, own.y] = families[tab].views[own.view].start;
    }
    Object.entries(families[tab].controls).forEach(([key, control]) => {
      const text = given.get(key);
      if (text === null) return;
      if (control.options) { if (control.options[text]) own[key] = text; }
      else if (Number.isFinite(+text)) own[key] = Math.min(control.max, Math.max(control.min, +text));
    });
    ["x", "y"].forEach(key => { if (given.has(key) && Number.isFinite(+given.get(key))) own[key] = +given.get(key); });
  }

  function writeFragment() {
    const text = fragment();
    if (text === location.hash) return;
    try { history.replaceState(null, "", text); } catch { /* a frame without an address of its own */ }
  }

  /* ---- The scene --------------------------------------------------------------------------- */

  /** The points of a valley of minima. */
  function valleyPoints(valley, [low, high]) {
    const grid = Array.from({ length: 241 }, (_, k) => k / 240);
    if (!valley) return null;
    if (valley.shape === "circle") return grid.map(t => [valley.radius * Math.cos(2 * Math.PI * t), valley.radius * Math.sin(2 * Math.PI * t)]);
    if (valley.shape === "line") return grid.map(t => low + (high - low) * t).map(x => [x, valley.total - x]).filter(([, y]) => y >= low && y <= high);
    const branch = grid.map(t => valley.product / high * (high * high / valley.product) ** t).map(x => [x, valley.product / x]);
    return [...branch, [NaN, NaN], ...branch.map(([x, y]) => [-x, -y])];
  }

  function buildScene() {
    const own = settings(), current = view(), landscape = current.landscape, parameters = current.parameters(own);
    const range = current.range(own), loss = point => landscape.loss(parameters, point);
    const critical = formulas.classified(landscape, parameters);
    const floor = current.nonnegative ? Math.min(...critical.map(item => item.loss)) : landscape.minimum(parameters);
    const start = [own.x, own.y].map(v => Math.min(range[1], Math.max(range[0], v)));
    const path = current.path(parameters, own, start), trace = path.map(loss);
    const ceiling = current.raised ? floor + current.raised * (loss([0, 0]) - floor) : null;
    const usable = ceiling !== null && ceiling > floor + 1e-9 ? ceiling : null;
    return {
      parameters, landscape, loss, critical, floor, start, path, trace, range, state: own, axes: current.axes,
      terrain: drawing.terrain(loss, range, floor, usable), valley: valleyPoints(landscape.valley(parameters), range),
      markers: critical.filter(({ point }) => point.every(v => v <= range[1] && v >= range[0])),
    };
  }

  /** Step of the descent for a time between 0 and 1: equal times are equal factors of the step. */
  const indexAt = (time, last) => Math.min(last, Math.max(0, Math.round((last + 1) ** time) - 1));

  function updateFrame() {
    const last = scene.path.length - 1;
    scene.index = indexAt(state.time, last);
    scene.current = scene.path[scene.index];
    scene.paths = [{ points: scene.path.slice(0, scene.index + 1), rest: thinned(scene.path.slice(scene.index)), colour: "#ff7a1a" }];
  }

  const thinned = points => points.filter((_, k) => k % Math.ceil(points.length / 400) === 0);

  /* ---- Words and numbers ------------------------------------------------------------------- */

  function showNumbers() {
    const { landscape, parameters, current, floor, trace, index } = scene;
    const slope = landscape.gradient(parameters, current), curvatures = formulas.eigenvalues(landscape.hessian(parameters, current));
    const closed = view().nonnegative ? "lowest minimum in the map" : "minimum, in closed form";
    const rows = [
      ["point", current.map(v => short(Math.abs(v) < 1e-9 ? 0 : v, 3)).join(", ")], ["loss", short(trace[index], 6)], [closed, short(floor, 6)],
      ["loss − minimum", short(Math.max(0, trace[index] - floor), 3)], ["norm of the gradient", short(Math.hypot(...slope), 3)],
      ["Hessian eigenvalues", curvatures.map(v => short(v, 3)).join(", ")], ["steps in all", String(trace.length - 1)],
    ];
    $("numbers").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
    $("step").textContent = String(index);
  }

  function showTable() {
    const { title, header, rows } = family().table ? family().table(settings()) : {
      title: "Critical points", header: ["kind", "point", "loss", "Hessian eigenvalues"],
      rows: scene.critical.map(item => [item.kind, item.point.map(v => short(v)).join(", "), short(item.loss, 5), item.curvatures.map(v => short(v)).join(", ")]),
    };
    const head = element("tr"), shown = rows.length ? rows : [["none is isolated", "", "", ""]];
    header.forEach(text => { const cell = element("th", text); cell.scope = "col"; head.append(cell); });
    const body = shown.map(row => { const line = element("tr"); row.forEach(text => line.append(element("td", text))); return line; });
    $("table-title").textContent = title;
    $("table").replaceChildren(head, ...body);
  }

  function element(tag, text = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  }

  /** A formula in a small part of TeX's notation as MathML: _ ^ { } √{…} \frac{…}{…} \name. */
  function mathml(text) {
    const tokens = text.match(/\\[a-z]+|[A-Za-z]{2,}|\d+|\S/gu), atom = tag => value => `<${tag}>${value}</${tag}>`;
    let place = 0;
    function group() {
      if (tokens[place] !== "{") return scripted();
      place += 1;
      const inner = row("}");
      place += 1;
      return inner;
    }
    function base() {
      const token = tokens[place];
      place += 1;
      if (token === "√") return `<msqrt>${group()}</msqrt>`;
      if (token === "\\frac") { const top = group(); return `<mfrac>${top}${group()}</mfrac>`; }
      if (token.startsWith("\\")) return atom("mi")(token.slice(1));
      if (/^\d/.test(token)) return atom("mn")(token);
      if (token === "-") return atom("mo")("−");
      return atom(/^[\p{L}]/u.test(token) ? "mi" : "mo")(token);
    }
    function scripted() {
      const inner = base(), parts = {};
      while (tokens[place] === "_" || tokens[place] === "^") {
        const kind = tokens[place];
        place += 1;
        parts[kind] = tokens[place] === "{" ? group() : base();
      }
      if (parts._ && parts["^"]) return `<msubsup>${inner}${parts._}${parts["^"]}</msubsup>`;
      if (parts._) return `<msub>${inner}${parts._}</msub>`;
      return parts["^"] ? `<msup>${inner}${parts["^"]}</msup>` : inner;
    }
    function row(end) {
      const items = [];
      while (place < tokens.length && tokens[place] !== end) items.push(tokens[place] === "{" ? group() : scripted());
      return `<mrow>${items.join("")}</mrow>`;
    }
    return `<math display="inline">${row(null)}</math>`;
  }

  /* ---- Drawing ----------------------------------------------------------------------------- */

  /** Draw in the next frame; `rebuild` if more changed than the step of the descent or the angle. */
  function refresh(rebuild = true) {
    stale ||= rebuild;
    if (!pending) pending = requestAnimationFrame(draw);
  }

  /** Draw all canvases. */
  function paint() {
    const { first, second } = view();
    drawing.surface($("surface"), scene, state);
    scene.chart = drawing.map($("map"), scene);
    scene.plane = first.draw($("first"), scene);
    second.draw($("second"), scene);
  }

  function draw() {
    pending = 0;
    const whole = stale;
    if (stale) { scene = buildScene(); stale = false; }
    updateFrame();
    paint();
    showNumbers();
    $("time").value = state.time;
    if (!whole) return;
    showTable();
    const words = view().story(settings(), scene);
    if ($("story").innerHTML !== words) $("story").innerHTML = words;
    $("valley-key").hidden = !scene.valley;
    syncControls();
    writeFragment();
  }

  /* ---- Controls ---------------------------------------------------------------------------- */

  const toSlider = (control, value) => control.log ? Math.log(value / control.min) / Math.log(control.max / control.min) : value;
  const fromSlider = (control, value) => control.log ? +(control.min * (control.max / control.min) ** value).toPrecision(3) : value;

  function makeControl(key, control) {
    const label = element("label"), name = element("span", control.label + " ");
    label.className = "slider";
    label.append(name);
    let input;
    if (control.options) {
      input = element("select");
      Object.entries(control.options).forEach(([value, text]) => input.append(new Option(text, value)));
    } else {
      input = element("input");
      const range = control.log ? [0, 1, 0.01] : [control.min, control.max, control.step];
      input.type = "range";
      [input.min, input.max, input.step] = range;
      name.append(element("output"));
    }
    input.id = label.htmlFor = `control-${key}`; // otherwise the label would belong to the output
    input.addEventListener("input", () => {
      settings()[key] = control.options ? input.value : fromSlider(control, +input.value);
      refresh();
    });
    label.append(input);
    return label;
  }

  function syncControls() {
    const disabled = view().disabled ? view().disabled(settings()) : [];
    view().controls.forEach(key => {
      const control = family().controls[key], input = $(`control-${key}`), value = settings()[key];
      input.value = control.options ? value : toSlider(control, value);
      input.disabled = disabled.includes(key);
      if (control.options) return;
      const text = control.format(value);
      input.parentElement.querySelector("output").textContent = text;
      input.setAttribute("aria-valuetext", text);
    });
  }

  /** Build what belongs to the chosen family and view. */
  function layOut() {
    stop();
    const own = settings(), current = view();
    document.querySelectorAll("#tabs button").forEach(button => {
      const chosen = button.id === `tab-${state.tab}`;
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
    });
    $("stage").setAttribute("aria-labelledby", `tab-${state.tab}`);
    const legend = element("legend", "View");
    $("views").replaceChildren(legend, ...Object.entries(family().views).map(([key, { label }]) => {
      const line = element("label"), input = element("input");
      Object.assign(input, { type: "radio", name: "view", value: key, checked: key === own.view, id: `view-${key}` });
      input.addEventListener("change", () => choose(key));
      line.append(input, element("span", label));
      return line;
    }));
    $("presets").replaceChildren(...Object.entries(current.presets).map(([label, values]) => {
      const button = element("button", label);
      button.type = "button";
      button.addEventListener("click", () => { Object.assign(own, values); refresh(); play(); });
      return button;
    }));
    $("controls").replaceChildren(...current.controls.map(key => makeControl(key, family().controls[key])));
    $("view-title").textContent = current.title;
    $("formula").innerHTML = current.formula.map(mathml).join("");
    $("surface").setAttribute("aria-label", `Loss surface: ${current.title}`);
    $("map").setAttribute("aria-label", `Contour map of the loss over ${current.axes.join(" and ")}`);
    ["first", "second"].forEach(name => {
      $(`${name}-caption`).textContent = current[name].caption;
      $(name).setAttribute("role", "img");
      $(name).setAttribute("aria-label", current[name].caption);
      $(name).classList.toggle("drag", Boolean(current[name].drag));
    });
    refresh();
  }

  function choose(key) {
    const own = settings();
    own.view = key;
    [own.x, own.y] = view().start;
    layOut();
    play();
  }

  /** Turn the surface as it is first shown. */
  const lookAgain = () => Object.assign(state, { turn: family().turn, tilt: 0.96 });

  function openTab(name) {
    state.tab = name;
    lookAgain();
    layOut();
    play();
  }

  /* ---- The run of the descent -------------------------------------------------------------- */

  function play() {
    stop();
    if (calm.matches) { state.time = 1; refresh(false); return; }
    const begun = performance.now();
    $("play").textContent = "❚❚ Stop";
    const tick = now => {
      state.time = Math.min(1, Math.max(0, (now - begun) / ANIMATION));
      refresh(false);
      running = state.time < 1 ? requestAnimationFrame(tick) : 0;
      if (!running) $("play").textContent = "▶ Run the descent";
    };
    running = requestAnimationFrame(tick);
  }

  function stop() {
    if (running) cancelAnimationFrame(running);
    running = 0;
    $("play").textContent = "▶ Run the descent";
  }

  /* ---- Pointer and keyboard ---------------------------------------------------------------- */

  /** Call `move(x, y, dx, dy)` in CSS pixels of the canvas while a pointer is held down on it. */
  function onDrag(canvas, move, begin = () => {}) {
    let last = null;
    const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", event => {
      last = place(event);
      canvas.setPointerCapture(event.pointerId);
      begin();
      move(...last, 0, 0);
    });
    canvas.addEventListener("pointermove", event => {
      if (!last) return;
      const now = place(event);
      move(...now, now[0] - last[0], now[1] - last[1]);
      last = now;
    });
    ["pointerup", "pointercancel"].forEach(kind => canvas.addEventListener(kind, () => { last = null; }));
  }

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  function onArrows(canvas, move) {
    canvas.addEventListener("keydown", event => {
      if (!ARROWS[event.key]) return;
      move(...ARROWS[event.key]);
      event.preventDefault();
    });
  }

  function turn(byTurn, byTilt) {
    state.turn += byTurn;
    state.tilt = Math.min(1.5, Math.max(0.12, state.tilt + byTilt));
    refresh(false);
  }

  function moveStart([x, y]) {
    const [low, high] = scene.range, inside = v => +Math.min(high, Math.max(low, v)).toPrecision(4);
    [settings().x, settings().y] = [inside(x), inside(y)];
    state.time = 1;
    refresh();
  }

  function connect() {
    onDrag($("surface"), (x, y, dx, dy) => turn(dx * 0.01, dy * 0.008));
    onArrows($("surface"), (x, y) => turn(0.1 * x, -0.08 * y));
    onDrag($("map"), (x, y) => moveStart(scene.chart.back(x, y)), stop);
    onArrows($("map"), (x, y) => {
      const pace = (scene.range[1] - scene.range[0]) / 50;
      stop();
      moveStart([settings().x + pace * x, settings().y + pace * y]);
    });
    let held;
    onDrag($("first"), (x, y) => {
      const { drag } = view().first;
      if (!drag) return;
      held = drag(settings(), scene.parameters, scene.plane.back(x, y), held);
      refresh();
    }, () => { held = undefined; });
    $("time").addEventListener("input", () => { stop(); state.time = +$("time").value; refresh(false); });
    $("play").addEventListener("click", () => running ? stop() : play());
    $("reset").addEventListener("click", () => {
      const { view: kept } = settings();
      state.families[state.tab] = { ...initial(state.tab), view: kept };
      [settings().x, settings().y] = view().start;
      lookAgain();
      layOut();
      play();
    });
    $("tabs").addEventListener("keydown", event => {
      const names = Object.keys(families), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      openTab(names[(names.indexOf(state.tab) + step + names.length) % names.length]);
      $(`tab-${state.tab}`).focus();
    });
    window.addEventListener("hashchange", () => { if (location.hash !== fragment()) { readFragment(); lookAgain(); layOut(); } });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => refresh(false));
    // At once, since the old drawings would be stretched for a frame.
    new ResizeObserver(() => { if (!stale) paint(); }).observe($("stage"));
  }

  Object.keys(families).forEach(name => {
    state.families[name] = initial(name);
    const button = element("button", families[name].title);
    Object.assign(button, { type: "button", id: `tab-${name}` });
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", "stage");
    button.addEventListener("click", () => openTab(name));
    $("tabs").append(button);
  });
  connect();
  readFragment();
  lookAgain();
  layOut();
  play();

  return { formulas, families, state, fragment, current: () => scene };
})();
window.laboratory = laboratory;
