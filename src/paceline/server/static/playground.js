// Streams an answer, each token marked by who guessed it, and holds runs of the same request against each other.

import { byId, h, say } from "./dom.js";
import { mark } from "./drafters.js";
import * as server from "./server.js";
import { figure, fixed, milliseconds, percent, t, whole } from "./words.js";

export class Playground {
  /** @param {(error: Error) => void} failed told of a missing key */
  constructor(failed) {
    this.failed = failed;
    this.runs = new Map();
    this.drafters = [];
    byId("play-prompt").value = t("play.first");
    byId("play").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("play-prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("play").requestSubmit();
    });
    byId("play-stop").addEventListener("click", () => this.abort?.abort());
    byId("play-rejected").addEventListener("change", () => this.toggle());
    this.toggle();
  }

  show({ model, speculation }) {
    this.model = model.id;
    this.drafters = speculation.drafters ?? [];
    if (!byId("play-text").hasChildNodes()) byId("play-text").append(h("p", { class: "empty" }, t("play.empty")));
    this.legend();
  }

  toggle() {
    byId("play-text").classList.toggle("with-rejected", byId("play-rejected").checked);
    this.legend();
  }

  legend() {
    const names = [...new Set([...this.drafters, ...Object.keys(this.counts?.guessed ?? {})])];
    const entries = names.map((name) => h("li", {}, h("span", { class: `token ${mark(name)}` }, name)));
    const rejected = byId("play-rejected").checked && h("li", {}, h("s", { class: "rejected" }, t("play.is_rejected")));
    byId("play-legend").replaceChildren(...[h("li", {}, h("span", { class: "token" }, t("play.target"))), ...entries, rejected].filter(Boolean));
  }

  async run() {
    if (this.abort) return;
    const { path, body, mode } = asked(this.model);
    this.abort = new AbortController();
    this.begin();
    try {
      for await (const chunk of server.stream(path, body, this.abort.signal)) this.take(chunk);
      this.finish(JSON.stringify([path, body.messages ?? body.prompt, body.temperature, body.seed, body.max_tokens]), mode);
    } catch (error) {
      this.broke(error);
    } finally {
      this.abort = null;
      this.busy(false);
    }
  }

  begin() {
    this.counts = { tokens: 0, guessed: {}, text: "", first: null, last: null, reason: null, speculation: null };
    byId("play-text").replaceChildren();
    byId("play-facts").replaceChildren();
    say("play-status", t("play.running"));
    byId("play-status").classList.remove("error");
    this.busy(true);
  }

  busy(isBusy) {
    byId("play-text").setAttribute("aria-busy", isBusy);
    byId("play-send").disabled = isBusy;
    byId("play-stop").disabled = !isBusy;
  }

  take({ choices = [], paceline, usage }) {
    const [choice] = choices;
    const content = choice?.delta?.content ?? choice?.text ?? "";
    this.counts.text += content;
    this.counts.reason = choice?.finish_reason ?? this.counts.reason;
    this.counts.speculation = usage?.speculation ?? this.counts.speculation;
    if (paceline) this.attribute(paceline);
    else if (content) byId("play-text").append(content);
  }

  /** Appends tokens, and what was rejected before the token that took its place. */
  attribute({ tokens = [], rejected = [] }) {
    const now = performance.now();
    this.counts.first ??= now;
    this.counts.last = now;
    const nodes = tokens.map(({ text, source }) => {
      this.counts.tokens += 1;
      if (source) this.counts.guessed[source] = (this.counts.guessed[source] ?? 0) + 1;
      return source ? h("span", { class: `token ${mark(source)}`, title: t("play.guessed_by", { name: source }) }, text)
        : h("span", { class: "token" }, text);
    });
    const failed = rejected.map(({ text, source, depth }) =>
      [depth, h("s", { class: `rejected ${mark(source)}`, title: t("play.rejected_by", { name: source }) }, text.replaceAll("\n", "↵"))]);
    byId("play-text").append(...woven(nodes, failed));
  }

  finish(request, mode) {
    const { reason, text, speculation } = this.counts;
    const rate = this.rate();
    const before = [...(this.runs.get(request) ?? new Map())].find(([earlier]) => earlier !== mode);
    this.runs.set(request, new Map([...(this.runs.get(request) ?? []), [mode, { text, rate }]]));
    const why = known[reason] ? t(known[reason]) : t("play.why.other", { reason });
    say("play-status", [t("play.done", { why }), before && compared(before, text)].filter(Boolean).join(" "));
    byId("play-status").classList.toggle("error", Boolean(before) && before[1].text !== text);
    byId("play-facts").replaceChildren(...facts(this.counts, rate, speculation));
    this.legend();
  }

  broke(error) {
    if (error.name === "AbortError") {
      say("play-status", t("play.stopped", { tokens: whole(this.counts.tokens) }));
      byId("play-facts").replaceChildren(...facts(this.counts, this.rate(), null));
      return;
    }
    say("play-status", t("play.failed", { message: error.message }));
    byId("play-status").classList.add("error");
    if (error.status === 401) this.failed(error);
  }

  /** Tokens a second as they came here, after the first chunk. */
  rate() {
    const { tokens, first, last } = this.counts;
    return last > first ? ((tokens - 1) / (last - first)) * 1000 : null;
  }
}

const known = { stop: "play.why.stop", length: "play.why.length" };

function asked(model) {
  const kind = byId("play-kind").value;
  const mode = byId("play-mode").value;
  const prompt = byId("play-prompt").value;
  const prediction = byId("play-prediction").value;
  const body = {
    model,
    ...(kind === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    temperature: byId("play-temperature").valueAsNumber,
    seed: byId("play-seed").valueAsNumber,
    max_tokens: byId("play-max").valueAsNumber,
    stream: true,
    stream_options: { include_usage: true },
    speculation: { mode, show_draft: true },
    ...(prediction && { prediction: { type: "content", content: prediction } }),
  };
  return { path: kind === "chat" ? "/v1/chat/completions" : "/v1/completions", body, mode };
}

/** Puts each rejected guess, by its depth, before the token that stands in its place. */
function woven(nodes, rejected) {
  const found = [];
  nodes.forEach((node, i) => {
    const isLast = i === nodes.length - 1;
    found.push(...rejected.filter(([depth]) => depth === i + 1 || (isLast && depth > i)).map(([, guess]) => guess), node);
  });
  return found;
}

function compared([mode, { text, rate }], now) {
  if (text !== now) return t("play.differs", { mode: t(`mode.${mode}`) });
  return t("play.same", { mode: t(`mode.${mode}`), rate: figure(rate) });
}

function facts({ tokens, guessed }, rate, speculation) {
  const all = Object.values(guessed).reduce((sum, count) => sum + count, 0);
  const reasons = Object.entries(speculation?.reasons ?? {}).map(([code, count]) => `${code} ${whole(count)}`).join(", ");
  const found = [["tokens", whole(tokens)], ["rate", `${figure(rate)} ${t("unit.tokens_s")}`], ["guessed", percent(tokens ? all / tokens : null)]];
  if (speculation) {
    found.push(["tau", fixed(speculation.acceptance_length, 2)], ["saved", milliseconds(speculation.saved_ms)],
      ["wasted", milliseconds(speculation.wasted_ms)], ["reasons", reasons || t("spec.none")]);
  }
  return found.map(([name, value]) => h("div", {}, h("dt", {}, t(`play.${name}`)), h("dd", {}, value)));
}
