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

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 2 });

const formatCount = (value) => Math.round(value).toLocaleString("en-US");

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

const FEWEST_TICKS = 4;

// How many digits behind the point a value's power of ten needs to show a step.
const finer = (size, step) => Math.max(0, Math.floor(Math.log10(size) + 1e-9) - Math.floor(Math.log10(step) + 1e-9));

// A mark's label: as many digits as tell it from its neighbors, and no more.
function formatTick(value, step, isPercent) {
  if (isPercent) [value, step] = [100 * value, 100 * step];
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const size = Math.abs(value);
  const text =
    value !== 0 && (size >= 1e6 || size < 1e-4)
      ? value.toExponential(finer(size, step)).replace("e+", "e").replace(/\.?0+e/, "e")
      : value.toFixed(Math.min(digits, 10));
  return text.replaceAll("-", "−") + (isPercent ? " %" : "");
}

// At most `wanted` steps between the bounds, and at least three where that is possible.
function stepFor(low, high, wanted, whole) {
  const power = 10 ** Math.floor(Math.log10((high - low) / Math.max(1, wanted)));
  const sizes = [0.5, 1, 2, 5, 10].map((factor) => factor * power).filter((size) => !whole || size >= 1);
  if (sizes.length === 0) return 1;
  const count = (size) => Math.floor(high / size + 1e-9) - Math.ceil(low / size - 1e-9) + 1;
  const fits = sizes.findIndex((size) => (high - low) / size <= wanted * 1.001);
  const coarse = fits < 0 ? sizes.length - 1 : fits;
  return coarse > 0 && count(sizes[coarse]) < FEWEST_TICKS ? sizes[coarse - 1] : sizes[coarse];
}

function linearTicks(low, high, wanted, whole) {
  const step = stepFor(low, high, wanted, whole);
  const ticks = [];
  for (let mark = Math.ceil(low / step - 1e-9); mark * step <= high + step * 1e-9; mark += 1) {
    ticks.push({ value: mark * step, step });
  }
  return ticks;
}

// Powers of ten, with others between them where there is room; a linear axis's marks where too few would show.
function logTicks(low, high, wanted) {
  const stride = Math.max(1, Math.ceil(Math.log10(high / low) / wanted));
  const between = stride > 1 ? [[1]] : [[1, 2, 5], [1, 3], [1]];
  const choices = between.map((factors) => decadeTicks(low, high, factors, stride));
  const ticks = choices.find((some) => some.length <= wanted + 2) ?? choices.at(-1);
  if (ticks.length >= FEWEST_TICKS || stride > 1) return ticks;
  const denser = decadeTicks(low, high, [1, 1.5, 2, 3, 4, 5, 7], 1);
  return denser.length >= FEWEST_TICKS ? denser : linearTicks(low, high, wanted, false);
}

function decadeTicks(low, high, factors, stride) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % stride !== 0) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      const step = Number.isInteger(factor) ? 10 ** power : 10 ** (power - 1);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push({ value, step });
    }
  }
  return ticks;
}

// From values to pixels. Bounds of a linear axis are rounded outwards to its marks unless `exact`, but not past `most`.
function makeScale({ low, high, from, to, log, wanted, whole, exact, most = Infinity }) {
  if (!(high > low)) {
    const room = Math.abs(high) * 0.1 || 1;
    [low, high] = log ? [low / 2, high * 2] : [low - room, Math.min(most, high + room)];
  }
  if (!log && !exact) {
    const step = stepFor(low, high, wanted, whole);
    [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }
  const bend = log ? Math.log10 : (value) => value;
  const [first, last] = [bend(low), bend(high)];
  const place = (value) => from + ((bend(value) - first) / (last - first)) * (to - from);
  const unbend = log ? (value) => 10 ** value : (value) => value;
  const invert = (pixel) => unbend(first + ((pixel - from) / (to - from)) * (last - first));
  return { low, high, place, invert, ticks: log ? logTicks(low, high, wanted) : linearTicks(low, high, wanted, whole) };
}
