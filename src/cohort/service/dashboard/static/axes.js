// Axes of a chart: ranges, ticks and the way from a value to a pixel. No drawing.

/** An axis from low to high; `log` only where both are positive. */
export function axis(low, high, log = false) {
  if (!(high > low)) { const middle = Number.isFinite(low) ? low : 0; low = middle - 0.5; high = middle + 0.5; log = false; }
  if (log && low > 0) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    return { low, high, log: true, share: (value) => (Math.log10(value) - a) / (b - a), ticks: logTicks(low, high) };
  }
  return { low, high, log: false, share: (value) => (value - low) / (high - low), ticks: linearTicks(low, high) };
}

function linearTicks(low, high, most = 6) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) {
      const value = Number((factor * 10 ** power).toPrecision(6));
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return ticks.length > 1 ? ticks : linearTicks(low, high);
}

/** The y axis of loss curves: from the lowest to just above where trials began; what diverges leaves at the top. */
export function lossAxis(curves, [from, to]) {
  const values = [], firsts = [];
  for (const { xs, ys } of curves) {
    let first = true;
    for (let index = 0; index < xs.length; index++) {
      const y = ys[index];
      if (y === null || xs[index] < from || xs[index] > to) continue;
      values.push(y);
      if (first) { firsts.push(y); first = false; }
    }
  }
  if (!values.length) return axis(0, 1);
  values.sort((a, b) => a - b);
  firsts.sort((a, b) => a - b);
  const [low, last, middle] = [values[0], values.at(-1), values[values.length >> 1]];
  const begun = firsts[Math.floor(0.9 * (firsts.length - 1))];
  const high = Math.min(last, Math.max(begun > 0 ? begun * 1.05 : begun * 0.95, middle));
  if (low > 0 && high / low > 8) return axis(low * 0.95, high, true);
  return axis(low - 0.04 * (high - low || 1), high + 0.01 * (high - low || 1));
}

/** A y axis over all that is drawn: no end of a reward is the uninteresting one. */
export function wholeAxis(curves) {
  const values = curves.flatMap(({ ys }) => ys.filter((value) => value !== null));
  if (!values.length) return axis(0, 1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = 0.04 * (high - low) || 0.5;
  return axis(low - margin, high + margin);
}

/** A y axis from zero to just above the largest value. */
export function zeroAxis(curves) {
  return axis(0, 1.05 * Math.max(0, ...curves.flatMap(({ ys }) => ys.filter((value) => value !== null))) || 1);
}

/** The running average that exit rules read; points that are every n-th step take the weight of n steps. */
export function average(ys, weight, stride) {
  const own = 1 - (1 - weight) ** stride;
  let before = null;
  return ys.map((y) => (before = y === null ? null : before === null ? y : own * y + (1 - own) * before));
}
