// Reading values off a chart: with the pointer, with the keyboard, and by dragging a window open.

const shown = (chart) => chart.spec.lines.filter((line) => !line.quiet);

function stops(chart) {
  const xs = shown(chart).flatMap(({ points }) => points.filter((p) => usable(p.y, false)).map((p) => p.x));
  return [...new Set(xs)].filter((x) => usable(x, false) && inWindow(chart, x)).sort((a, b) => a - b);
}

function nearest(values, wanted, of = (value) => value) {
  return values.reduce(
    (best, item) => (best === null || Math.abs(of(item) - wanted) < Math.abs(of(best) - wanted) ? item : best),
    null,
  );
}

// What each line has at x: its value there, or, where lines are measured at different x, its nearest.
function readings(chart, at) {
  return shown(chart)
    .map((line) => {
      const known = line.points.filter((p) => usable(p.y, false) && usable(p.x, false));
      const found = chart.spec.shared ? known.find((p) => p.x === at) : nearest(known, at, (p) => p.x);
      return found ? { line, point: found } : null;
    })
    .filter(Boolean)
    .sort((a, b) => b.point.y - a.point.y);
}

function point(chart, at) {
  chart.at = at;
  chart.tip.hidden = at === null;
  if (!chart.cursor) return;
  chart.cursor.replaceChildren();
  if (at === null) return;
  const { x, y, box } = chart.scale;
  const found = readings(chart, at);
  const left = x.place(at);
  chart.cursor.append(
    svg("line", { class: "crosshair", x1: left, x2: left, y1: box.top, y2: box.height - box.bottom }),
  );
  for (const { line, point: p } of found) {
    if (!usable(p.y, chart.spec.y.log) || !inWindow(chart, p.x)) continue;
    chart.cursor.append(svg("circle", { class: `dot ${line.style}`, cx: x.place(p.x), cy: y.place(p.y), r: 4 }));
  }
  fillTip(chart, at, found);
  placeTip(chart, left);
}

function fillTip(chart, at, found) {
  const title = chart.spec.x.title(at);
  const rows = found.map(({ line, point: p }) =>
    html("tr", {}, html("td", {}, swatch(line.style)), html("th", { scope: "row" }, line.name), html("td", {}, p.text)),
  );
  chart.tip.replaceChildren(html("strong", {}, title), html("table", {}, html("tbody", {}, ...rows)));
}

function placeTip(chart, left) {
  const room = chart.host.clientWidth;
  const width = chart.tip.offsetWidth;
  const beside = left + 14 + width <= room ? left + 14 : left - 14 - width;
  chart.tip.style.left = `${Math.max(0, Math.min(beside, room - width))}px`;
  // Below the plot where it would cover it from side to side.
  chart.tip.style.top = beside < 0 ? `${chart.scale.box.height}px` : "12px";
}

function pointAt(chart, clientX) {
  const wanted = chart.scale.x.invert(clientX - chart.plot.getBoundingClientRect().left);
  return nearest(stops(chart), wanted);
}

function listenToPointer(chart) {
  const { plot } = chart;
  let start = null;
  const local = (event) => event.clientX - plot.getBoundingClientRect().left;
  plot.addEventListener("pointermove", (event) => {
    if (!chart.spec || !chart.scale) return;
    if (start !== null) drawWindow(chart, start, local(event));
    else point(chart, pointAt(chart, event.clientX));
  });
  plot.addEventListener("pointerleave", () => {
    if (start === null) point(chart, null);
  });
  plot.addEventListener("pointerdown", (event) => {
    if (!chart.zoom || event.pointerType === "touch" || event.button !== 0) return;
    start = local(event);
    plot.setPointerCapture(event.pointerId);
  });
  const end = (event) => {
    if (start === null) return;
    const range = [start, local(event)].sort((a, b) => a - b).map(chart.scale.x.invert);
    const wide = Math.abs(local(event) - start) > 8;
    start = null;
    if (wide && event.type === "pointerup") openWindow(chart, range);
    else point(chart, pointAt(chart, event.clientX));
  };
  plot.addEventListener("pointerup", end);
  plot.addEventListener("pointercancel", end);
  plot.addEventListener("dblclick", () => setWindow(chart, null));
}

function drawWindow(chart, start, end) {
  chart.tip.hidden = true;
  const { box } = chart.scale;
  const [low, high] = [Math.max(box.left, Math.min(start, end)), Math.min(box.width - box.right, Math.max(start, end))];
  const size = { x: low, y: box.top, width: Math.max(0, high - low), height: box.height - box.top - box.bottom };
  chart.cursor.replaceChildren(svg("rect", { class: "window", ...size }));
}

// A window with fewer than two measurements would show nothing.
function openWindow(chart, [low, high]) {
  const inside = stops(chart).filter((x) => x >= low && x <= high);
  if (inside.length > 1) setWindow(chart, [inside[0], inside.at(-1)]);
  else draw(chart);
}

function zoomAround(chart, factor) {
  const all = stops(chart);
  if (all.length < 3) return;
  const here = chart.at ?? all[0];
  const half = ((all.at(-1) - all[0]) * factor) / 2;
  const center = Math.max(all[0] + half, Math.min(all.at(-1) - half, here));
  openWindow(chart, [center - half, center + half]);
  point(chart, nearest(stops(chart), here));
}

function onKey(chart, event) {
  const all = stops(chart);
  if (all.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const here = all.indexOf(chart.at);
  const moves = {
    ArrowRight: here < 0 ? 0 : here + 1,
    ArrowLeft: here < 0 ? all.length - 1 : here - 1,
    Home: 0,
    End: all.length - 1,
  };
  if (event.key in moves) {
    point(chart, all[Math.max(0, Math.min(all.length - 1, moves[event.key]))]);
    chart.spoken.textContent = chart.tip.innerText.replace(/\s+/g, " ");
  } else if (event.key === "Escape") {
    if (chart.window) setWindow(chart, null);
    point(chart, null);
  } else if (chart.zoom && event.key === "+") {
    zoomAround(chart, 0.5);
  } else {
    return;
  }
  event.preventDefault();
}
