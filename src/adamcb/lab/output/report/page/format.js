// Numbers as people read them, and the round values at which an axis has its marks.

const percent = new Intl.NumberFormat("en-US", {
  style: "percent",
  minimumFractionDigits: 2,
  maximumFractionDigits: 2,
});

function formatNumber(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  const digits = Math.max(0, 3 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(digits, 7)).replace("-", "−");
}

function formatPercent(value) {
  return value === null || !Number.isFinite(value) ? "–" : percent.format(value).replace("-", "−").replace("%", " %");
}

function formatSeconds(value) {
  return `${value < 100 ? value.toPrecision(3) : value.toFixed(0)} s`;
}

// "0.0146 ± 0.0002": two digits of the deviation, if there is one, and at most four of the mean.
function formatPair(mean, deviation, isPercent) {
  if (deviation === null || !Number.isFinite(deviation)) return isPercent ? formatPercent(mean) : formatNumber(mean);
  if (isPercent) return `${formatPercent(mean).replace(" %", "")} ± ${formatPercent(deviation)}`;
  if (Math.abs(mean) < 1e-6 || Math.abs(mean) >= 1e6) return `${formatNumber(mean)} ± ${formatNumber(deviation)}`;
  const most = 3 - Math.floor(Math.log10(Math.abs(mean)));
  const wanted = deviation > 0 ? 1 - Math.floor(Math.log10(deviation)) : most;
  const digits = Math.max(0, Math.min(most, wanted));
  return `${mean.toFixed(digits)} ± ${deviation.toFixed(digits)}`.replace("-", "−");
}

// A mark's label: as many digits as tell it from its neighbors, and no more.
function formatTick(value, step, isPercent) {
  if (isPercent) [value, step] = [100 * value, 100 * step];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const size = Math.abs(value);
  const text =
    value !== 0 && (size >= 1e6 || size < 1e-4)
      ? value.toExponential(0).replace("e+", "e")
      : value.toFixed(Math.min(digits, 10));
  return text.replaceAll("-", "−") + (isPercent ? " %" : "");
}

function linearTicks(low, high, wanted, whole) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const ticks = [];
  for (let mark = Math.ceil(low / step - 1e-9); mark * step <= high + step * 1e-9; mark += 1) {
    ticks.push({ value: mark * step, step });
  }
  return ticks;
}

// Powers of ten, with 2 and 5 or 3 between them where there is room; a linear axis's marks where not two would show.
function logTicks(low, high, wanted) {
  const stride = Math.max(1, Math.ceil(Math.log10(high / low) / wanted));
  const between = stride > 1 ? [[1]] : [[1, 2, 5], [1, 3], [1]];
  const choices = between.map((factors) => decadeTicks(low, high, factors, stride));
  const ticks = choices.find((some) => some.length <= wanted + 2) ?? choices.at(-1);
  return ticks.length > 1 ? ticks : linearTicks(low, high, wanted, false);
}

function decadeTicks(low, high, factors, stride) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % stride !== 0) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push({ value, step: 10 ** power });
    }
  }
  return ticks;
}

// From values to pixels. Bounds of a linear axis are rounded outwards to its marks unless `exact`.
function makeScale({ low, high, from, to, log, wanted, whole, exact }) {
  if (!(high > low)) {
    const room = Math.abs(high) * 0.1 || 1;
    [low, high] = log ? [low / 2, high * 2] : [low - room, high + room];
  }
  if (!log && !exact) {
    const { step } = linearTicks(low, high, wanted, whole)[0] ?? { step: high - low };
    [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }
  const bend = log ? Math.log10 : (value) => value;
  const [first, last] = [bend(low), bend(high)];
  const place = (value) => from + ((bend(value) - first) / (last - first)) * (to - from);
  const unbend = log ? (value) => 10 ** value : (value) => value;
  const invert = (pixel) => unbend(first + ((pixel - from) / (to - from)) * (last - first));
  return { low, high, place, invert, ticks: log ? logTicks(low, high, wanted) : linearTicks(low, high, wanted, whole) };
}
