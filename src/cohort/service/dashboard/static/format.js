// Numbers, times and tables as text. Every number that a person reads has its unit.

export const NONE = "–";

/** A number in a few significant digits; rates as people write them: 2e-4. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(digits)));
}

/** 1.2k, 3.4M: a count of tokens. */
export function count(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Math.round(value));
}

export function percent(share, digits = 0) {
  return share === null || share === undefined || !Number.isFinite(share) ? NONE : `${(100 * share).toFixed(digits)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

/** 1h 05m, 2m 10s, 8.4 s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days}d ${String(hours).padStart(2, "0")}h`;
  if (hours) return `${hours}h ${String(minutes).padStart(2, "0")}m`;
  if (minutes) return `${minutes}m ${String(whole % 60).padStart(2, "0")}s`;
  return `${whole} s`;
}

/** What some seconds of GPUs cost: "US$1.20"; nothing where the server knows no price, or the time is not known. */
export function money(seconds, price, gpus = 1) {
  if (!price || seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  return ((gpus * seconds) / 3600 * price.amount).toLocaleString([], { style: "currency", currency: price.currency });
}

/** Text of the server with its moments (2026-11-29T00:24:03+00:00) in the viewer's own zone. */
export function localised(text) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+(?:[+-]\d\d:\d\d|Z)/g, (found) => moment(Date.parse(found) / 1000));
}

/** A moment (seconds since 1970) in the viewer's own zone and manner. */
export function moment(seconds) {
  if (!seconds) return NONE;
  const date = new Date(1000 * seconds);
  const isToday = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
  return isToday ? time : `${date.toLocaleDateString()} ${time}`;
}

/** The value of a hyperparameter. */
export function setting(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  // a spreadsheet takes what begins so for a formula; a negative number is none
  const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Rows of arrays as CSV. */
export function csv(names, rows) {
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Give the viewer a file. */
export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
