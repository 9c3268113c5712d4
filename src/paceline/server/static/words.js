// The strings of the chosen language, and numbers as it writes them.

export const LANGUAGES = ["en", "tr"];
export const NONE = "–";

let strings = {};
let language = "en";

export async function speak(wanted) {
  const response = await fetch(`/static/strings/${wanted}.json`);
  if (!response.ok) throw new Error(`no strings for ${wanted}`);
  strings = await response.json();
  language = wanted;
  document.documentElement.lang = wanted;
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of document.querySelectorAll("[data-t-label]")) {
    element.setAttribute("aria-label", t(element.dataset.tLabel));
  }
}

export function t(key, values = {}) {
  return (strings[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** The string of a key that the server names, or nothing. */
export const known = (key) => (Object.hasOwn(strings, key) ? strings[key] : null);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function formatted(value, options) {
  return isNumber(value) ? new Intl.NumberFormat(language, options).format(value).replace("-", "−") : NONE;
}

export const whole = (value) => formatted(value, { maximumFractionDigits: 0 });

export const fixed = (value, digits = 1) =>
  formatted(value, { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** With as many decimals as there are, at most two. */
export const tidy = (value) => formatted(value, { maximumFractionDigits: 2 });

/** Three figures that count, so that 0.42, 7.31, 52.4 and 318 take about the same room. */
export function figure(value) {
  const size = Math.abs(value);
  return fixed(value, size === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

export function percent(value, digits = 0) {
  return formatted(value, { style: "percent", maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export function milliseconds(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  const second = language === "tr" ? "sn" : "s";
  if (size >= 100_000) return `${whole(value / 1000)} ${second}`;
  if (size >= 1000) return `${fixed(value / 1000, size < 10_000 ? 2 : 1)} ${second}`;
  return `${size >= 100 || value === 0 ? whole(value) : fixed(value)} ms`;
}

/** A size as number and unit, in powers of 1024. */
export function size(bytes) {
  if (!isNumber(bytes)) return [NONE, ""];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, bytes > 0 ? Math.floor(Math.log2(bytes) / 10) : 0);
  return [power ? figure(bytes / 2 ** (10 * power)) : whole(bytes), units[power]];
}

export const bytes = (value) => size(value).join(" ").trim();

/** A stretch of time in its two largest units: "2 h 5 min", or "2 sa 5 dk". */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  const units = language === "tr" ? ["g", "sa", "dk", "sn"] : ["d", "h", "min", "s"];
  const rest = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(rest / 86400), Math.floor(rest / 3600) % 24, Math.floor(rest / 60) % 60, rest % 60];
  const first = parts.findIndex((part) => part > 0);
  if (first < 0) return `0 ${units[3]}`;
  return [first, first + 1].filter((i) => parts[i]).map((i) => `${parts[i]} ${units[i]}`).join(" ");
}

/** Time of day of seconds since 1970. */
export function clock(at) {
  if (!isNumber(at)) return NONE;
  return new Intl.DateTimeFormat(language, { timeStyle: "medium", hourCycle: "h23" }).format(new Date(at * 1000));
}
