// The main figure: which measure, on which data, against what, for which methods.

const AXES = {
  epoch: { label: "Epochs", heading: "Epoch", title: (value) => (value === 0 ? "Before training" : `Epoch ${value}`), whole: true },
  samples: {
    label: "Samples trained on",
    heading: "Epoch",
    title: (value) => `Around ${formatCount(value)} samples`,
    whole: true,
    tick: (value) => compact.format(value + 0), // never "-0"
  },
  seconds: { label: "Seconds of training", heading: "Epoch", title: (value) => `Around ${formatSeconds(value)}` },
  step: {
    label: "Steps",
    heading: "Step",
    title: (value) => (value === 0 ? "Before training" : `Step ${value.toLocaleString("en-US")}`),
    whole: true,
  },
};
// Axes on which every method has places of its own, and how a place is told.
const PLACES = { samples: (value) => `${formatCount(value)} samples`, seconds: formatSeconds };
const SPLITS = { train: "Training", test: "Test" };
const SPREADS = {
  band: "Lines are means over seeds, bands reach one standard deviation to either side.",
  seeds: "Thin lines are single seeds, thick lines their means.",
  none: "Lines are means over seeds.",
};
const CONTROLS = ["measure", "split", "axis", "spread", "log"];

// Mean and deviation, with a word on seeds whose value is missing or not finite.
function describe(curve, name, i, expected, isPercent) {
  const count = curve.count[name][i];
  const missing = count < expected ? ` (${count} of ${expected} seeds)` : "";
  return formatPair(curve.mean[name][i], curve.deviation[name][i], isPercent) + missing;
}

function curvePoints(curve, name, axis, isPercent, spread) {
  const expected = curve.seeds.length;
  return curve.epoch.map((epoch, i) => {
    const x = axis === "epoch" ? epoch : curve.mean[axis][i];
    const [y, deviation] = [curve.mean[name][i], curve.deviation[name][i]];
    const text = describe(curve, name, i, expected, isPercent);
    const band = spread === "band" && y !== null && deviation !== null;
    return {
      x,
      y,
      epoch,
      low: band ? y - deviation : null,
      high: band ? y + deviation : null,
      text: axis in PLACES ? `${text} at ${PLACES[axis](x)}` : text,
    };
  });
}

const isPercent = (page, measure) => page.percent.includes(measure);

function seedPoints(seed, name, axis) {
  return seed.epoch.map((epoch, j) => ({ x: axis === "epoch" ? epoch : seed.values[axis][j], y: seed.values[name][j] }));
}

// A mean for each method that is switched on. Single runs are drawn if they are asked for, or if they diverged.
function curveLines(page, { measure, split, axis, spread }) {
  const name = `${split}_${measure}`;
  return page.methods.flatMap(({ name: method, style }, i) => {
    const curve = page.curves[i];
    if (!page.on[i]) return [];
    const each = curve.seeds
      .filter((seed) => spread === "seeds" || seed.diverged)
      .map((seed) => ({
        name: `${method}, seed ${seed.seed}`,
        style,
        quiet: true,
        lost: seed.diverged,
        points: seedPoints(seed, name, axis),
      }));
    const points = curvePoints(curve, name, axis, isPercent(page, measure), spread);
    return points.length > 0 ? [...each, { name: method, style, points }] : each;
  });
}

// What the lines are, in words.
function curveNote(page, { spread, measure, log }) {
  const single = page.curves.every(({ seeds }) => seeds.length < 2);
  const lost = page.methods.flatMap(({ name }, i) =>
    page.curves[i].seeds.filter((s) => page.on[i] && s.diverged).map((s) => `${name} with seed ${s.seed}`),
  );
  return [
    single ? "Lines are of one seed." : SPREADS[spread],
    lost.length > 0 ? `× marks where a run diverged: ${lost.join(", ")}. No mean counts it.` : "",
    isLate(measure, log) ? "The vertical axis leaves out the value before training." : "",
  ]
    .filter(Boolean)
    .join(" ");
}

// The leap from guessing would press all that follows into a line.
const isLate = (measure, log) => measure !== "loss" && !log;

// A loss is read best on a log scale and a metric on a linear one; each keeps what the reader chose for it.
function setUpLog(page, form) {
  const usual = (measure) => measure === "loss";
  const measure = () => new FormData(form).get("measure");
  const chosen = {};
  const kept = page.view.get("log");
  if (kept === null) form.elements.log.checked = usual(measure());
  else chosen[measure()] = kept === "yes";
  form.addEventListener("change", (event) => {
    if (event.target.name === "log") chosen[measure()] = event.target.checked;
    else form.elements.log.checked = chosen[measure()] ?? usual(measure());
  });
}

// Only what differs from the page as it comes is put into the address.
function keepCurves(page, form, now) {
  const usual = { measure: "loss", split: "train", axis: "epoch", spread: "band" };
  for (const [name, value] of Object.entries(usual)) {
    keepInView(page, name, ...(now[name] === value ? [] : [now[name]]));
  }
  keepInView(page, "log", ...(now.log === (now.measure === "loss") ? [] : [now.log ? "yes" : "no"]));
}

function keptWindow(page) {
  const kept = (page.view.get("between") ?? "").split(",").map(Number);
  return kept.length === 2 && kept.every(Number.isFinite) && kept[0] < kept[1] ? kept : null;
}

function setUpCurves(page) {
  const form = document.getElementById("curve-controls");
  const heightFor = (width) => Math.round(Math.min(480, Math.max(280, width * 0.46)));
  const moved = (range) => keepInView(page, "between", ...(range ? [range.join(",")] : []));
  const chart = createChart(document.getElementById("curves-chart"), { heightFor, zoom: true, moved });
  const numbers = document.getElementById("curves-numbers");
  const note = document.getElementById("curves-note");
  const choice = () => ({ ...Object.fromEntries(new FormData(form)), log: form.elements.log.checked });
  restoreForm(page, form, CONTROLS);
  chart.window = keptWindow(page);
  let shown = { axis: choice().axis };
  const update = () => {
    const now = choice();
    const label = `${SPLITS[now.split]} ${now.measure.replaceAll("_", " ")}`;
    const y = {
      label: label + (now.log ? ", log scale" : ""),
      log: now.log,
      percent: isPercent(page, now.measure),
      late: isLate(now.measure, now.log),
    };
    const lines = curveLines(page, now);
    const against = `${label} against ${AXES[now.axis].label.toLowerCase()}`;
    const stays = shown.axis === now.axis;
    chart.update({ label: against, x: AXES[now.axis], y, lines, shared: !(now.axis in PLACES) }, stays);
    if (!stays) moved(null);
    shown = { ...now, title: against, lines };
    note.textContent = curveNote(page, now);
    fillNumbers(numbers, against, lines, now.axis);
    keepCurves(page, form, now);
  };
  setUpLog(page, form);
  form.addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  page.listeners.push(update);
  update();
  setUpSaving(page, chart, () => shown);
}

function setUpSaving(page, chart, shown) {
  const name = () => shown().title.toLowerCase().replaceAll(" ", "-");
  for (const format of ["svg", "png"]) {
    document.getElementById(`save-${format}`).addEventListener("click", () => {
      const methods = page.methods.filter((_, i) => page.on[i]);
      savePicture(name(), standalone(chart, `${document.querySelector("h1").textContent}: ${shown().title}`, methods), format);
    });
  }
  document.getElementById("save-numbers").addEventListener("click", () => saveTable(`${name()}.csv`, curveRows(page, shown())));
}

// The numbers of the chart, with all their digits.
function curveRows(page, { measure, split }) {
  const name = `${split}_${measure}`;
  const rows = page.methods.flatMap((method, i) => {
    const { epoch, mean, deviation, count } = page.curves[i];
    if (!page.on[i]) return [];
    return epoch.map((e, j) => [
      method.key,
      e,
      mean.step[j],
      ...(mean.samples ? [mean.samples[j]] : []),
      mean.seconds[j],
      mean[name][j],
      deviation[name][j],
      count[name][j],
    ]);
  });
  const samples = page.curves.some(({ mean }) => mean.samples) ? ["samples"] : [];
  return [["method", "epoch", "step", ...samples, "seconds", name, `${name}_std`, "seeds"], ...rows];
}

// The figure as a table, for those who want the numbers or cannot see the lines.
function fillNumbers(table, caption, lines, axis) {
  const told = lines.filter((line) => !line.quiet);
  const of = (p) => (axis === "step" ? p.x : p.epoch);
  const places = [...new Set(told.flatMap(({ points }) => points.map(of)))].sort((a, b) => a - b);
  const head = html(
    "tr",
    {},
    html("th", { scope: "col" }, AXES[axis].heading),
    ...told.map(({ name }) => html("th", { scope: "col" }, name)),
  );
  const rows = places.map((place) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, place.toLocaleString("en-US")),
      ...told.map(({ points }) => html("td", {}, points.find((p) => of(p) === place)?.text ?? "")),
    ),
  );
  table.replaceChildren(html("caption", {}, caption), html("thead", {}, head), html("tbody", {}, ...rows));
}
