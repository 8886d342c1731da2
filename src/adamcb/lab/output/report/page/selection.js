// How the selection behaved: four readings of all methods, and each method's probabilities over time.

const READINGS = [
  {
    name: "second_moment",
    title: "Second moment of the gradient against uniform",
    note: "Below 1, gradients vary less than with uniform batches: 0.8 is a variance reduction of 20 %.",
    reference: { y: 1 },
    extra: (value) => `, variance reduction ${formatPercent(1 - value)}`,
  },
  {
    name: "coverage",
    title: "Coverage: share of the training set seen in an epoch",
    note: "A reshuffled epoch sees all of it, but for a last batch that is not full.",
    percent: true,
  },
  {
    name: "largest_weight",
    title: "Largest weight of a loss in an epoch",
    note: "In units of uniform sampling's weight. Large weights make noisy steps.",
    reference: { y: 1 },
  },
  {
    name: "effective_sample_size",
    title: "Effective sample size of a batch",
    note: "(Σw)²/Σw² of its weights: the batch size when all weigh the same.",
  },
];
const QUANTILES = [
  ["prob_max", "largest", "q-end"],
  ["prob_q99", "99 %", "q-99"],
  ["prob_q90", "90 %", "q-90"],
  ["prob_q50", "median", "q-50"],
  ["prob_q10", "10 %", "q-90"],
  ["prob_min", "smallest", "q-end"],
];

// What the dotted line is stands above the chart: inside, it would stand on the lines.
function panel(title, note, hasReference, ...extra) {
  const host = html("div", { class: "chart" });
  const key = html("span", { class: "reference-key" }, swatch("reference"), "uniform");
  const caption = html(
    "figcaption",
    {},
    html("h3", {}, ...extra, title),
    html("p", { class: "note" }, note, ...(hasReference ? [" ", key] : [])),
  );
  return { host, node: html("figure", { class: "card panel" }, caption, host) };
}

function readingSpec(page, { name, title, reference, extra, percent: isPercent }) {
  const lines = page.methods.flatMap((method, i) => {
    const curve = page.selection[i];
    const means = curve.mean[name] ?? [];
    if (!page.on[i] || means.every((value) => value === null)) return [];
    const points = curve.epoch.flatMap((epoch, j) => {
      if (epoch === 0) return []; // nothing was chosen yet
      const [y, deviation] = [means[j], curve.deviation[name][j]];
      const spread = deviation === null ? {} : { low: y - deviation, high: y + deviation };
      const text = describe(curve, name, j, page.curves[i].seeds.length, isPercent);
      return [{ x: epoch, y, ...spread, text: text + (extra && y !== null ? extra(y) : "") }];
    });
    return [{ name: method.name, style: method.style, points }];
  });
  return {
    label: title,
    x: AXES.epoch,
    y: { label: "", log: false, percent: isPercent },
    lines,
    reference,
    shared: true,
  };
}

// All fans have one scale, so that they can be compared.
function fanBounds(page) {
  const values = page.selection.flatMap(({ mean }) => [...(mean.prob_min ?? []), ...(mean.prob_max ?? [])]);
  const known = values.filter((value) => usable(value, true));
  return known.length > 0 ? [Math.min(...known), Math.max(...known)] : [];
}

function probabilitySpec(curve, name, bounds) {
  const quantile = (key) =>
    curve.epoch.map((epoch, j) => ({ x: epoch, y: curve.mean[key][j], text: formatNumber(curve.mean[key][j]) }));
  const between = (low, high, style) => ({
    style,
    points: curve.epoch.map((epoch, j) => ({ x: epoch, low: curve.mean[low][j], high: curve.mean[high][j] })),
  });
  return {
    label: `Probabilities of ${name} over time, 1 is uniform`,
    x: AXES.epoch,
    y: { label: "Times uniform, log scale", log: true, bounds },
    areas: [
      between("prob_min", "prob_max", "fan-1"),
      between("prob_q10", "prob_q99", "fan-2"),
      between("prob_q10", "prob_q90", "fan-3"),
    ],
    lines: QUANTILES.map(([key, label, style]) => ({ name: label, style, points: quantile(key) })),
    reference: { y: 1 },
    shared: true,
  };
}

// A method that draws uniformly has every probability at 1: a sentence says that better than a chart.
function isUniform(curve) {
  return ["prob_min", "prob_max"].every((key) =>
    (curve.mean[key] ?? []).every((value) => value === null || Math.abs(value - 1) < 1e-6),
  );
}

function setUpSelection(page) {
  const readings = document.getElementById("selection-readings");
  if (!readings) return;
  const heightFor = () => 230;
  const charts = READINGS.map((reading) => {
    const { node, host } = panel(reading.title, reading.note, Boolean(reading.reference));
    readings.append(node);
    return { chart: createChart(host, { heightFor }), spec: () => readingSpec(page, reading) };
  });
  const fans = document.getElementById("selection-fans");
  const bounds = fanBounds(page);
  const uniform = [];
  page.methods.forEach(({ name, style }, i) => {
    const curve = page.selection[i];
    if (curve.epoch.length === 0) return;
    if (isUniform(curve)) {
      uniform.push(name);
      return;
    }
    const { node, host } = panel(name, "", true, swatch(style));
    fans.append(node);
    const chart = createChart(host, { heightFor });
    chart.update(probabilitySpec(curve, name, bounds));
    page.listeners.push(() => {
      node.hidden = !page.on[i];
    });
  });
  if (uniform.length > 0) {
    document.getElementById("selection-uniform").textContent =
      `Always uniform, every probability 1: ${uniform.join(", ")}.`;
  }
  const update = () => charts.forEach(({ chart, spec }) => chart.update(spec()));
  page.listeners.push(update);
  update();
}
