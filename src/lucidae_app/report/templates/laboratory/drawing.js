/* Drawing on canvases: a surface that turns, a map of contours, and small charts. */
const drawing = (() => {
  "use strict";

  const RAMP = [
    [28, 16, 68], [42, 45, 110], [38, 84, 132], [30, 120, 138], [42, 155, 130], [96, 187, 108],
    [170, 212, 92], [240, 233, 130],
  ];
  const COMPRESSED = 0.3; // height that the part of the loss above the ceiling can reach

  /** Colour of a height between 0 and 1, as [red, green, blue]. */
  function colour(t) {
    const place = Math.min(0.9999, Math.max(0, t)) * (RAMP.length - 1), i = Math.floor(place);
    return RAMP[i].map((value, c) => value + (place - i) * (RAMP[i + 1][c] - value));
  }

  /** Colours of the page's theme by name. */
  function palette(element) {
    const style = getComputedStyle(element);
    return name => style.getPropertyValue(`--${name}`).trim();
  }

  /** The canvas's context, scaled to CSS pixels, and its size in CSS pixels; it is cleared. */
  function prepared(canvas) {
    const { width, height } = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const pen = canvas.getContext("2d");
    pen.setTransform(w / width || 1, 0, 0, h / height || 1, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.lineJoin = pen.lineCap = "round";
    return { pen, width, height, ink: palette(canvas) };
  }

  /** Heights of a loss on a grid: 0 at the minimum, 1 at the ceiling, compressed above it. */
  function terrain(loss, [low, high], floor, ceiling, points = 65) {
    const axis = Array.from({ length: points }, (_, i) => low + (high - low) * i / (points - 1));
    const values = axis.map(y => axis.map(x => loss([x, y])));
    const top = ceiling ?? [...values.flat()].sort((a, b) => a - b)[Math.floor(points * points * 0.55)];
    const span = Math.max(top - floor, 1e-12);
    const height = value => {
      const t = (value - floor) / span;
      return t <= 1 ? Math.max(0, t) : 1 + COMPRESSED * (1 - Math.exp((1 - t) / COMPRESSED));
    };
    const heights = values.map(row => row.map(height));
    // Levels of equal spacing in the square root show the bottom of the valleys.
    const levels = Array.from({ length: 13 }, (_, i) => ((i + 1) / 13) ** 2).concat([1.1, 1.2]);
    const segments = contours(heights, levels), drawn = segments.flatMap(lines => lines || []);
    const lines = levels.map(level => ({ level, parts: drawn.filter(part => part[2] === level) }));
    return { low, high, heights, height, segments, lines, image: shadedImage(heights) };
  }

  /** Contour segments of each cell (marching squares), in units of grid cells. */
  function contours(heights, levels) {
    const n = heights.length, cells = Array.from({ length: (n - 1) * (n - 1) }, () => null);
    for (let j = 0; j + 1 < n; j++) for (let i = 0; i + 1 < n; i++) {
      const corners = [heights[j][i], heights[j][i + 1], heights[j + 1][i + 1], heights[j + 1][i]];
      const low = Math.min(...corners), high = Math.max(...corners);
      for (const level of levels) {
        if (level < low || level >= high) continue;
        const places = [[0, 0], [1, 0], [1, 1], [0, 1]], cuts = [];
        for (let k = 0; k < 4; k++) {
          const a = corners[k], b = corners[(k + 1) % 4];
          if ((a <= level) === (b <= level)) continue;
          const t = (level - a) / (b - a), [x, y] = places[k], [u, v] = places[(k + 1) % 4];
          cuts.push([i + x + t * (u - x), j + y + t * (v - y)]);
        }
        const cell = j * (n - 1) + i;
        for (let k = 0; k + 1 < cuts.length; k += 2)
          (cells[cell] ||= []).push([cuts[k], cuts[k + 1], level]);
      }
    }
    return cells;
  }

  /** A marker for a critical point: its shape tells the kind, also without colours. */
  function marker(pen, x, y, kind, size, ink) {
    const shapes = { minimum: 5, saddle: 4, maximum: 3 }, corners = shapes[kind] || 0;
    pen.beginPath();
    if (kind === "minimum") {
      for (let k = 0; k < 10; k++) {
        const a = -Math.PI / 2 + k * Math.PI / 5, r = size * (k % 2 ? 0.5 : 1.25);
        pen.lineTo(x + r * Math.cos(a), y + r * Math.sin(a));
      }
    } else if (corners) {
      for (let k = 0; k < corners; k++) {
        const a = -Math.PI / 2 + 2 * k * Math.PI / corners;
        pen.lineTo(x + size * Math.cos(a), y + size * Math.sin(a));
      }
    } else pen.arc(x, y, size * 0.8, 0, 2 * Math.PI);
    pen.closePath();
    pen.fillStyle = { minimum: "#ffd84a", saddle: "#ffffff", maximum: "#ff8f6b" }[kind] || "#ffffff";
    pen.strokeStyle = ink || "#10141a"; pen.lineWidth = 1.4;
    pen.fill(); pen.stroke();
  }

  /** The loss surface. `view` has the angles turn and tilt; `scene` what is drawn. */
  function surface(canvas, scene, view) {
    const { pen, width, height: tall, ink } = prepared(canvas);
    const { low, high, heights, segments } = scene.terrain, n = heights.length, cells = n - 1;
    const c = Math.cos(view.turn), s = Math.sin(view.turn), up = Math.cos(view.tilt), deep = Math.sin(view.tilt);
    const zoom = Math.min(width / 2.9, tall / 2.95), raise = 0.74;
    const project = (gx, gy, h) => {
      const x = 2 * gx / cells - 1, y = 2 * gy / cells - 1, X = c * x - s * y, Y = s * x + c * y;
      const near = 1 / (1 + 0.12 * Y * deep);
      return [width / 2 + zoom * X * near, tall * 0.475 - zoom * (Y * deep + (h - 0.55) * raise * up) * near];
    };
    const heightAt = point => scene.terrain.height(scene.loss(point)), small = 1e-3 * (high - low);
    const at = point => {
      const [gx, gy] = point.map(v => (v - low) / (high - low) * cells);
      // The surface is seen from behind where it falls away from the viewer more steeply than the view.
      const [x, y] = point, fall = (heightAt([x - small * s, y - small * c]) - heightAt([x + small * s, y + small * c])) / 4e-3;
      return { gx, gy, h: heightAt(point), behind: fall * raise * up > deep };
    };
    drawFloor(pen, project, cells, scene, ink);
    const overlays = layeredOverlays(scene, at, cells, [s, c]);
    const light = [-0.45, 0.35, 0.82], ordered = direction => direction > 0
      ? Array.from({ length: cells }, (_, i) => cells - 1 - i) : Array.from({ length: cells }, (_, i) => i);
    for (const j of ordered(c)) for (const i of ordered(s)) {
      const a = heights[j][i], b = heights[j][i + 1], d = heights[j + 1][i + 1], e = heights[j + 1][i];
      // Normal of the cell in view coordinates, for Lambert's law.
      const slopeX = (b + d - a - e) / 4 * cells * raise, slopeY = (d + e - a - b) / 4 * cells * raise;
      const u = -(c * slopeX - s * slopeY), v = -(s * slopeX + c * slopeY), norm = Math.hypot(u, v, 1);
      const lambert = Math.max(0, (light[0] * u - light[1] * v + light[2]) / norm);
      const shine = 0.58 + 0.5 * lambert, gloss = 60 * Math.max(0, lambert - 0.86);
      const [red, green, blue] = colour((a + b + d + e) / 4 / (1 + COMPRESSED)).map(k =>
        Math.min(255, Math.round(k * shine + gloss * 4)));
      pen.beginPath();
      [[i, j, a], [i + 1, j, b], [i + 1, j + 1, d], [i, j + 1, e]].forEach(p => pen.lineTo(...project(...p)));
      pen.closePath();
      pen.fillStyle = pen.strokeStyle = `rgb(${red},${green},${blue})`; pen.lineWidth = 0.7;
      pen.fill(); pen.stroke();
      const lines = segments[j * cells + i];
      if (lines) {
        pen.beginPath();
        for (const [from, to, level] of lines) {
          pen.moveTo(...project(...from, level)); pen.lineTo(...project(...to, level));
        }
        pen.strokeStyle = "rgba(255,255,255,.33)"; pen.lineWidth = 0.9; pen.stroke();
      }
      (overlays[j * cells + i] || []).forEach(draw => draw(pen, project));
    }
  }

  /** The frame under the surface with the names of the axes. */
  function drawFloor(pen, project, cells, scene, ink) {
    const corners = [[0, 0], [cells, 0], [cells, cells], [0, cells]].map(([x, y]) => project(x, y, -0.12));
    pen.beginPath(); corners.forEach(p => pen.lineTo(...p)); pen.closePath();
    pen.fillStyle = ink("floor"); pen.fill(); pen.strokeStyle = ink("line"); pen.lineWidth = 1; pen.stroke();
    pen.fillStyle = ink("muted"); pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "center"; pen.textBaseline = "middle";
    const out = cells * 0.1, front = (a, b) => a[1] > b[1] ? a : b;
    const first = front(project(cells / 2, -out, -0.12), project(cells / 2, cells + out, -0.12));
    const second = front(project(-out, cells / 2, -0.12), project(cells + out, cells / 2, -0.12));
    pen.fillText(scene.axes[0], ...first); pen.fillText(scene.axes[1], ...second);
  }

  /** Paths, valley and markers, by the cell after which each part is drawn. */
  function layeredOverlays(scene, at, cells, [s, c]) {
    const parts = {}, lift = 0.012;
    const put = ({ gx, gy, behind }, nearer, draw) => {
      // A few cells nearer to the viewer, so that neighbouring cells do not cover half of a line;
      // on the side of the surface that is turned away they shall cover it.
      const shift = behind ? 0 : nearer, i = Math.floor(gx - shift * s), j = Math.floor(gy - shift * c);
      if (gx < 0 || gy < 0 || gx > cells || gy > cells) return;
      const cell = Math.min(cells - 1, Math.max(0, j)) * cells + Math.min(cells - 1, Math.max(0, i));
      (parts[cell] ||= []).push(draw);
    };
    const line = (points, paint, nearer) => {
      const places = points.map(at);
      for (let k = 0; k + 1 < places.length; k++) {
        const a = places[k], b = places[k + 1];
        put(b, nearer, (pen, project) => {
          pen.beginPath();
          pen.moveTo(...project(a.gx, a.gy, a.h + lift)); pen.lineTo(...project(b.gx, b.gy, b.h + lift));
          Object.assign(pen, paint); pen.stroke();
        });
      }
    };
    if (scene.valley) line(scene.valley, { strokeStyle: "#ffd84a", lineWidth: 3 }, 1);
    scene.paths.forEach(path => {
      const points = dense(path.points, (scene.terrain.high - scene.terrain.low) / cells);
      line(points, { strokeStyle: "rgba(16,20,26,.75)", lineWidth: 5.5 }, 0.5);
      line(points, { strokeStyle: path.colour, lineWidth: 3.2 }, 2.2);
    });
    scene.markers.forEach(({ point, kind }) => {
      const place = at(point);
      put(place, 3, (pen, project) => marker(pen, ...project(place.gx, place.gy, place.h + lift), kind, 7));
    });
    if (scene.current) {
      const place = at(scene.current);
      put(place, 3.5, (pen, project) => {
        const [x, y] = project(place.gx, place.gy, place.h + lift);
        pen.beginPath(); pen.arc(x, y, 6, 0, 2 * Math.PI);
        pen.fillStyle = "#ff7a1a"; pen.fill(); pen.strokeStyle = "#ffffff"; pen.lineWidth = 2; pen.stroke();
      });
    }
    return parts;
  }

  /** A path with long steps divided, so that it follows the surface, and tiny steps joined. */
  function dense(points, length) {
    const result = points.slice(0, 1);
    points.slice(1).forEach((point, k) => {
      const last = result[result.length - 1], distance = Math.hypot(point[0] - last[0], point[1] - last[1]);
      if (distance < length / 4 && k + 2 < points.length) return;
      const parts = Math.min(40, Math.ceil(distance / length));
      for (let i = 1; i <= parts; i++) result.push(last.map((v, j) => v + (point[j] - v) * i / parts));
    });
    return result;
  }

  /** Frame of a chart: functions from numbers to pixels, ticks and labels. */
  function frame(canvas, { x: [x0, x1], y: [y0, y1], labels = ["", ""], square = false, ticks = true, margin }) {
    const tools = prepared(canvas), { pen, width, height, ink } = tools;
    const room = { left: 42, right: 12, top: 12, bottom: 34, ...margin };
    let w = width - room.left - room.right, h = height - room.top - room.bottom, left = room.left, top = room.top;
    if (square) { const side = Math.min(w, h); left += (w - side) / 2; top += (h - side) / 2; w = h = side; }
    const px = value => left + (value - x0) / (x1 - x0) * w, py = value => top + h - (value - y0) / (y1 - y0) * h;
    const back = (a, b) => [x0 + (a - left) / w * (x1 - x0), y0 + (top + h - b) / h * (y1 - y0)];
    const axes = () => {
      pen.font = "12px system-ui, sans-serif"; pen.fillStyle = ink("muted");
      pen.textBaseline = "top"; pen.textAlign = "center";
      if (ticks) nice(x0, x1).forEach(v => pen.fillText(tidy(v), px(v), top + h + 5));
      pen.fillText(labels[0], left + w / 2, top + h + (ticks ? 19 : 6));
      pen.textAlign = "right"; pen.textBaseline = "middle";
      if (ticks) nice(y0, y1).forEach(v => pen.fillText(tidy(v), left - 6, py(v)));
      pen.save(); pen.translate(left - 34, top + h / 2); pen.rotate(-Math.PI / 2); pen.textAlign = "center";
      pen.fillText(labels[1], 0, 0); pen.restore();
    };
    const inside = draw => {
      pen.save(); pen.beginPath(); pen.rect(left, top, w, h); pen.clip(); draw(); pen.restore();
    };
    const line = (points, paint) => {
      pen.beginPath();
      points.forEach(([x, y], k) => { // a point that is not a number interrupts the line
        if (Number.isNaN(x)) return;
        if (k && Number.isNaN(points[k - 1][0])) pen.moveTo(px(x), py(y)); else pen.lineTo(px(x), py(y));
      });
      pen.setLineDash(paint.dash || []); pen.strokeStyle = paint.stroke; pen.lineWidth = paint.width || 2;
      pen.stroke(); pen.setLineDash([]);
    };
    const grid = () => {
      pen.strokeStyle = ink("grid"); pen.lineWidth = 1; pen.beginPath();
      nice(x0, x1).forEach(v => { pen.moveTo(px(v), top); pen.lineTo(px(v), top + h); });
      nice(y0, y1).forEach(v => { pen.moveTo(left, py(v)); pen.lineTo(left + w, py(v)); });
      pen.stroke();
    };
    return { ...tools, px, py, back, axes, inside, line, grid, left, top, w, h };
  }

  /** About five round numbers in an interval. */
  function nice(low, high) {
    const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw * 0.999), found = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) found.push(v);
    return found;
  }
  const tidy = value => {
    const small = value !== 0 && Math.abs(value) < 1e-3, text = small ? value.toExponential(2) : String(+value.toPrecision(4));
    return text.replaceAll("-", "−").replace(/\.?0+e/, "e");
  };

  /** The contour map with paths, valley, markers and the start of the descent. */
  function map(canvas, scene) {
    const { low, high, heights, lines, image } = scene.terrain, cells = heights.length - 1;
    const chart = frame(canvas, { x: [low, high], y: [low, high], labels: scene.axes, square: true });
    const { pen, px, py } = chart, scale = (high - low) / cells;
    pen.imageSmoothingEnabled = true; pen.imageSmoothingQuality = "high";
    pen.drawImage(image, chart.left, chart.top, chart.w, chart.h);
    chart.inside(() => {
      lines.forEach(({ level, parts }) => {
        pen.beginPath();
        parts.forEach(([from, to]) => {
          pen.moveTo(px(low + from[0] * scale), py(low + from[1] * scale));
          pen.lineTo(px(low + to[0] * scale), py(low + to[1] * scale));
        });
        pen.strokeStyle = level > 1 ? "rgba(20,24,30,.25)" : "rgba(255,255,255,.38)"; pen.lineWidth = 0.9; pen.stroke();
      });
      if (scene.valley) chart.line(scene.valley, { stroke: "#ffd84a", width: 3 });
      scene.paths.forEach(path => {
        if (path.rest) chart.line(path.rest, { stroke: "rgba(255,255,255,.45)", width: 1.4, dash: [3, 4] });
        chart.line(path.points, { stroke: "rgba(16,20,26,.75)", width: 5 });
        chart.line(path.points, { stroke: path.colour, width: 3 });
      });
    });
    scene.markers.forEach(({ point, kind }) => {
      if (point.every(v => v >= low - 1e-9 && v <= high + 1e-9)) marker(pen, px(point[0]), py(point[1]), kind, 7);
    });
    const dot = ([x, y], radius, fill) => {
      pen.beginPath(); pen.arc(px(x), py(y), radius, 0, 2 * Math.PI);
      pen.fillStyle = fill; pen.fill(); pen.strokeStyle = fill === "#ffffff" ? "#ff7a1a" : "#ffffff"; pen.lineWidth = 2.5; pen.stroke();
    };
    if (scene.current) dot(scene.current, 5.5, "#ff7a1a");
    dot(scene.start, 8, "#ffffff");
    chart.axes();
    return chart;
  }

  /** An image of the heights, one pixel for each grid point. */
  function shadedImage(heights) {
    const n = heights.length, image = document.createElement("canvas");
    image.width = image.height = n;
    const pen = image.getContext("2d"), pixels = pen.createImageData(n, n);
    heights.forEach((row, j) => row.forEach((h, i) => {
      const place = 4 * ((n - 1 - j) * n + i);
      [...colour(h / (1 + COMPRESSED)), 255].forEach((value, k) => { pixels.data[place + k] = value; });
    }));
    pen.putImageData(pixels, 0, 0);
    return image;
  }

  /** An arrow from one point of a chart to another. */
  function arrow({ pen, px, py }, from, to, stroke, width = 3, label = "", dash = []) {
    const [a, b, x, y] = [px(from[0]), py(from[1]), px(to[0]), py(to[1])], way = Math.atan2(y - b, x - a);
    const length = Math.hypot(x - a, y - b), head = Math.min(10, length);
    pen.strokeStyle = pen.fillStyle = stroke; pen.lineWidth = width; pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(a, b); pen.lineTo(x - 0.7 * head * Math.cos(way), y - 0.7 * head * Math.sin(way)); pen.stroke();
    pen.setLineDash([]); pen.beginPath(); pen.moveTo(x, y);
    [2.7, -2.7].forEach(turn => pen.lineTo(x + head * Math.cos(way + turn), y + head * Math.sin(way + turn)));
    pen.closePath(); pen.fill();
    if (label) {
      pen.font = "600 13px system-ui, sans-serif"; pen.textAlign = "center"; pen.textBaseline = "middle";
      pen.fillText(label, x + 14 * Math.cos(way), y + 14 * Math.sin(way));
    }
  }

  /** Points of the ellipse vᵀ C⁻¹ v = 1 of a covariance C. */
  function ellipse([[a, b], [, c]], scale = 1) {
    const first = Math.sqrt(a), low = b / first, second = Math.sqrt(Math.max(0, c - low * low));
    return Array.from({ length: 73 }, (_, k) => {
      const t = k * Math.PI / 36;
      return [scale * first * Math.cos(t), scale * (low * Math.cos(t) + second * Math.sin(t))];
    });
  }

  return { terrain, surface, map, frame, arrow, ellipse, marker, prepared, tidy };
})();
