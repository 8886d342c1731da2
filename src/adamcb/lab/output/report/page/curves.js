// The main figure: which measure, on which samples, against what, for which methods.

const AXES = {
  epoch: { label: "Epochs", title: (value) => (value === 0 ? "Before training" : `Epoch ${value}`), whole: true },
  seconds: { label: "Seconds of training", title: (value) => `Around ${formatSeconds(value)}` },
  step: {
    label: "Steps",
    title: (value) => (value === 0 ? "Before training" : `Step ${value.toLocaleString("en-US")}`),
    whole: true,
  },
};
const SPLITS = { train: "Training", test: "Test" };

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
      text: axis === "seconds" ? `${text} at ${formatSeconds(x)}` : text,
    };
  });
}

const isPercent = (page, measure) => page.percent.includes(measure);

function curveLines(page, { measure, split, axis, spread }) {
  const name = `${split}_${measure}`;
  return page.methods.flatMap(({ style }, i) => {
    const curve = page.curves[i];
    if (!page.on[i]) return [];
    const line = {
      name: page.methods[i].name,
      style,
      points: curvePoints(curve, name, axis, isPercent(page, measure), spread),
    };
    if (spread !== "seeds") return [line];
    const each = curve.seeds.map((seed) => ({
      name: `${line.name}, seed ${seed.seed}`,
      style,
      quiet: true,
      points: seed.epoch.map((epoch, j) => ({
        x: axis === "epoch" ? epoch : seed.values[axis][j],
        y: seed.values[name][j],
      })),
    }));
    return [...each, line];
  });
}

// A loss is read best on a log scale and a metric on a linear one; each keeps what the reader chose for it.
function setUpLog(form) {
  const chosen = { loss: true };
  form.addEventListener("change", (event) => {
    const measure = new FormData(form).get("measure");
    if (event.target.name === "log") chosen[measure] = event.target.checked;
    else form.elements.log.checked = chosen[measure] ?? false;
  });
}

function setUpCurves(page) {
  const form = document.getElementById("curve-controls");
  const heightFor = (width) => Math.round(Math.min(480, Math.max(280, width * 0.46)));
  const chart = createChart(document.getElementById("curves-chart"), { heightFor, zoom: true });
  const numbers = document.getElementById("curves-numbers");
  const choice = () => {
    const data = new FormData(form);
    return {
      measure: data.get("measure"),
      split: data.get("split"),
      axis: data.get("axis"),
      spread: data.get("spread"),
      log: data.get("log") === "on",
    };
  };
  let axis = null;
  const update = () => {
    const now = choice();
    const label = `${SPLITS[now.split]} ${now.measure.replaceAll("_", " ")}`;
    const y = { label: label + (now.log ? ", log scale" : ""), log: now.log, percent: isPercent(page, now.measure) };
    const lines = curveLines(page, now);
    const against = `${label} against ${AXES[now.axis].label.toLowerCase()}`;
    chart.update({ label: against, x: AXES[now.axis], y, lines, shared: now.axis !== "seconds" }, axis === now.axis);
    axis = now.axis;
    fillNumbers(numbers, against, lines);
  };
  setUpLog(form);
  form.addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  page.listeners.push(update);
  update();
}

// The figure as a table, for those who want the numbers or cannot see the lines.
function fillNumbers(table, caption, lines) {
  const told = lines.filter((line) => !line.quiet);
  const epochs = [...new Set(told.flatMap(({ points }) => points.map((p) => p.epoch)))].sort((a, b) => a - b);
  const head = html(
    "tr",
    {},
    html("th", { scope: "col" }, "Epoch"),
    ...told.map(({ name }) => html("th", { scope: "col" }, name)),
  );
  const rows = epochs.map((epoch) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, String(epoch)),
      ...told.map(({ points }) => html("td", {}, points.find((p) => p.epoch === epoch)?.text ?? "")),
    ),
  );
  table.replaceChildren(html("caption", {}, caption), html("thead", {}, head), html("tbody", {}, ...rows));
}
