// One chart: axes, lines, bands, a reference line; values under the pointer or the arrow keys; a window on x.
//
// A chart is told what to show by `update(spec)`:
//   label            what it is, for people who do not see it
//   x, y             { label, title(value), percent, log, whole, bounds }; of y at least `bounds` are shown
//                    `late`: of y, points before training count only where there are no others
//   lines            [{ name, style, points: [{ x, y, low, high, text }], quiet, lost }]; `quiet` lines give no values,
//                    and a run that is `lost` ends with a cross and does not stretch the axis
//   areas            [{ style, points: [{ x, low, high }] }]
//   reference        { y } or null
//   shared           whether lines are measured at the same x

let chartCount = 0;

function createChart(host, { heightFor, zoom = false, moved = () => {} }) {
  chartCount += 1;
  const chart = { host, heightFor, zoom, moved, id: `chart-${chartCount}`, spec: null, window: null, at: null };
  chart.plot = html("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
  chart.tip = html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  chart.spoken = html("div", { class: "unseen", "aria-live": "polite" });
  chart.reset = html("button", { type: "button", class: "small reset", hidden: true }, "Show the whole range");
  host.replaceChildren(chart.plot, chart.tip, chart.reset, chart.spoken);
  chart.reset.addEventListener("click", () => setWindow(chart, null));
  listenToPointer(chart);
  chart.plot.addEventListener("keydown", (event) => onKey(chart, event));
  chart.plot.addEventListener("blur", () => point(chart, null));
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth === width) return;
    width = host.clientWidth;
    draw(chart);
  }).observe(host);
  chart.update = (spec, keepWindow = true) => {
    chart.spec = spec;
    chart.window = keepWindow ? chart.window : null;
    draw(chart);
  };
  return chart;
}

function setWindow(chart, range) {
  chart.window = range;
  draw(chart);
  chart.moved(range);
}

const usable = (value, log) => value !== null && value !== undefined && Number.isFinite(value) && (!log || value > 0);

function inWindow(chart, value) {
  return !chart.window || (value >= chart.window[0] && value <= chart.window[1]);
}

// Smallest and largest of all that is drawn. On a log axis a band's negative end does not count.
function extent(chart) {
  const { spec } = chart;
  const kept = spec.lines.some((line) => !line.lost) ? spec.lines.filter((line) => !line.lost) : spec.lines;
  const points = [...kept, ...(spec.areas ?? [])].flatMap((line) => line.points);
  const inside = points.filter(({ x, ...p }) => usable(x, false) && inWindow(chart, x) && heights(p, spec).length > 0);
  if (inside.length === 0) return null;
  const first = Math.min(...inside.map(({ x }) => x));
  const later = inside.filter(({ x }) => x > first);
  const ys = (spec.y.late && first === 0 && later.length > 0 ? later : inside).flatMap((p) => heights(p, spec));
  if (spec.reference && usable(spec.reference.y, spec.y.log)) ys.push(spec.reference.y);
  return { x: chart.window ?? bounds(inside.map(({ x }) => x)), y: bounds([...ys, ...(spec.y.bounds ?? [])]) };
}

const heights = ({ y, low, high }, spec) => [y, low, high].filter((value) => usable(value, spec.y.log));

const bounds = (list) => list.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

function scales(chart, width) {
  const { spec } = chart;
  const height = chart.heightFor(width);
  const found = extent(chart) ?? { x: [0, 1], y: spec.y.log ? [0.1, 1] : [0, 1], empty: true };
  let [low, high] = found.y;
  if (spec.y.log) [low, high] = [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const box = { top: 12, right: 14, bottom: 46, left: 62, width, height };
  const y = makeScale({
    low,
    high: spec.y.percent && !spec.y.log ? Math.min(high, 1) : high,
    most: spec.y.percent ? 1 : Infinity,
    from: height - box.bottom,
    to: box.top,
    log: spec.y.log,
    wanted: Math.max(4, Math.floor((height - 60) / 46)),
  });
  const [from, to] = [box.left, width - box.right];
  const [first, last] = found.x;
  const wanted = Math.max(3, Math.min(14, Math.floor((to - from) / tickRoom(last, spec.x.whole))));
  const x = makeScale({ low: first, high: last, from, to, wanted, whole: spec.x.whole, exact: true });
  return { x, y, box, empty: found.empty };
}

// How many pixels a label of the horizontal axis takes, with a gap.
const tickRoom = (last, whole) => 18 + 7 * (Math.max(1, Math.ceil(Math.log10(last + 1))) + (whole ? 0 : 2));

function draw(chart) {
  const width = chart.host.clientWidth;
  if (!chart.spec || width === 0) return;
  const { spec } = chart;
  const scale = (chart.scale = scales(chart, width));
  const { box } = scale;
  const inner = {
    x: box.left,
    y: box.top,
    width: width - box.left - box.right,
    height: box.height - box.top - box.bottom,
  };
  const marks = svg("g", { "clip-path": `url(#${chart.id}-clip)` });
  marks.append(...drawMarks(spec, scale));
  chart.cursor = svg("g", { class: "cursor" });
  const picture = svg(
    "svg",
    { width, height: box.height, viewBox: `0 0 ${width} ${box.height}`, "aria-hidden": "true" },
    svg(
      "defs",
      {},
      svg("clipPath", { id: `${chart.id}-clip` }, svg("rect", { ...inner, y: inner.y - 2, height: inner.height + 4 })),
    ),
    drawAxes(spec, scale),
    marks,
    ...drawCrosses(spec, scale),
    chart.cursor,
  );
  if (scale.empty) {
    picture.append(
      svg("text", { class: "nothing", x: width / 2, y: box.height / 2 }, "Nothing to show of the methods switched on"),
    );
  }
  chart.plot.replaceChildren(picture);
  chart.plot.setAttribute("aria-label", `${spec.label}. The left and right arrow keys read the values.`);
  chart.reset.hidden = !chart.window;
  point(chart, null);
}

function drawAxes(spec, { x, y, box }) {
  const group = svg("g", { class: "axes" });
  const [bottom, right] = [box.height - box.bottom, box.width - box.right];
  for (const { value, step } of y.ticks) {
    const at = y.place(value);
    group.append(
      svg("line", { class: "grid", x1: box.left, x2: right, y1: at, y2: at }),
      svg("text", { class: "tick y-tick", x: box.left - 8, y: at + 4 }, formatTick(value, step, spec.y.percent)),
    );
  }
  for (const { value, step } of x.ticks) {
    const at = x.place(value);
    group.append(
      svg("line", { class: "mark", x1: at, x2: at, y1: bottom, y2: bottom + 5 }),
      svg("text", { class: "tick x-tick", x: at, y: bottom + 19 }, (spec.x.tick ?? formatTick)(value, step, false)),
    );
  }
  const middle = (box.top + bottom) / 2;
  group.append(
    svg("line", { class: "mark", x1: box.left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { class: "axis-label x-label", x: (box.left + right) / 2, y: box.height - 8 }, spec.x.label),
    svg("text", { class: "axis-label y-label", transform: `translate(13 ${middle}) rotate(-90)` }, spec.y.label),
  );
  return group;
}

function drawMarks(spec, { x, y, box }) {
  const floor = box.height - box.bottom + 2;
  const place = (value) => (usable(value, spec.y.log) ? y.place(value) : floor);
  const nodes = [];
  for (const { style, points } of [...(spec.areas ?? []), ...spec.lines]) {
    const path = areaPath(points, x, place);
    if (path) nodes.push(svg("path", { class: `area ${style}`, d: path }));
  }
  if (spec.reference && usable(spec.reference.y, spec.y.log)) {
    const at = y.place(spec.reference.y);
    nodes.push(svg("line", { class: "reference", x1: box.left, x2: box.width - box.right, y1: at, y2: at }));
  }
  for (const { name, style, points, quiet } of spec.lines) {
    const good = (p) => usable(p.x, false) && usable(p.y, spec.y.log);
    nodes.push(
      svg("path", {
        class: `line ${style}${quiet ? " quiet" : ""}`,
        d: linePath(points, good, x, y),
        "data-line": name,
      }),
    );
    if (points.filter(good).length === 1) {
      const only = points.find(good);
      nodes.push(svg("circle", { class: `dot ${style}`, cx: x.place(only.x), cy: y.place(only.y), r: 3.5 }));
    }
  }
  return nodes;
}

// Where runs diverged; one that left the picture before has its cross at the edge.
function drawCrosses(spec, { x, y, box }) {
  return spec.lines.flatMap(({ name, style, points, lost }) => {
    const end = lost ? points.findLast((p) => usable(p.x, false) && usable(p.y, spec.y.log)) : null;
    if (!end || !(x.place(end.x) >= box.left - 1 && x.place(end.x) <= box.width - box.right + 1)) return [];
    const height = Math.max(box.top, Math.min(box.height - box.bottom, y.place(end.y)));
    const at = `translate(${pixel(x.place(end.x))} ${pixel(height)})`;
    return [svg("path", { class: `cross ${style}`, d: "M-5 -5L5 5M-5 5L5 -5", transform: at, "data-lost": name })];
  });
}

const pixel = (value) => value.toFixed(2);

function linePath(points, good, x, y) {
  let path = "";
  let pen = false; // a value that is missing leaves a gap
  for (const p of points) {
    if (good(p)) path += `${pen ? "L" : "M"}${pixel(x.place(p.x))} ${pixel(y.place(p.y))}`;
    pen = good(p);
  }
  return path;
}

function areaPath(points, x, place) {
  const known = points.filter((p) => usable(p.x, false) && usable(p.low, false) && usable(p.high, false));
  if (known.length < 2) return "";
  const top = known.map((p) => `${pixel(x.place(p.x))} ${pixel(place(p.high))}`);
  const bottom = known.map((p) => `${pixel(x.place(p.x))} ${pixel(place(p.low))}`).reverse();
  return `M${[...top, ...bottom].join("L")}Z`;
}
