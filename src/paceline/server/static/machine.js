// Batch, latency, memory.

import { bar, byId, h, put, say } from "./dom.js";
import { TimeChart } from "./chart.js";
import { bytes, milliseconds, percent, size, t, whole } from "./words.js";

const WINDOW_S = 300;

export class Machine {
  constructor() {
    this.batch = new TimeChart(byId("batch-chart"), {
      title: "batch.title", window: WINDOW_S, height: 90, format: whole,
      lines: [{ value: (p) => p.running, label: "batch.line", style: "speed", area: true }],
    });
  }

  show({ batch, latency, memory, series }) {
    say("running", whole(batch.running));
    say("running-of", t("batch.running", { limit: whole(batch.limit) }));
    say("waiting", whole(batch.waiting));
    for (const [id, name] of [["ttft-50", "ttft_p50_ms"], ["ttft-95", "ttft_p95_ms"], ["tpot-50", "tpot_p50_ms"],
      ["tpot-95", "tpot_p95_ms"]]) say(id, milliseconds(latency[name]));
    this.batch.what.top = batch.limit;
    this.batch.update(series);
    showMemory(memory);
  }
}

function showMemory(memory) {
  const parts = partsOf(memory);
  const total = Math.max(memory.process_bytes ?? 0, parts.reduce((sum, [, amount]) => sum + amount, 0));
  const [amount, unit] = size(memory.process_bytes);
  say("memory-process", amount);
  say("memory-unit", unit);
  put(byId("memory"), JSON.stringify([document.documentElement.lang, memory]), () => [
    bar(...parts.map(([name, amount]) => [amount / total, `m-${name}`])),
    h("table", { class: "grid" }, h("caption", { class: "sr" }, t("memory.title")), h("tbody", {}, parts.map((part) => row(part, total)))),
  ]);
}

/** What the process holds, piece by piece; `other` is what nobody has planned. */
function partsOf(memory) {
  const kv = memory.kv_bytes ?? 0;
  const used = Math.min(memory.kv_used_bytes ?? 0, kv);
  const parts = [["weights", memory.weights_bytes ?? 0], ["kv_used", used], ["kv_free", kv - used], ["draft", memory.draft_bytes ?? 0]];
  const planned = parts.reduce((sum, [, amount]) => sum + amount, 0);
  const other = (memory.process_bytes ?? 0) - planned;
  return other > 0 ? [...parts, ["other", other]] : parts;
}

function row([name, amount], total) {
  return h("tr", {}, h("th", { scope: "row" }, h("span", { class: `key m-${name}`, "aria-hidden": "true" }), t(`memory.${name}`)),
    h("td", {}, bytes(amount)), h("td", { class: "muted" }, percent(total ? amount / total : null)));
}
