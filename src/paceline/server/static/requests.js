// The latest requests with their numbers; there is no text in it.

import { byId, h, put } from "./dom.js";
import { clock, figure, milliseconds, t, whole } from "./words.js";

const COLUMNS = [
  ["at", (r) => clock(r.at)],
  ["id", (r) => h("code", { title: r.id }, r.id)],
  ["key", (r) => r.key],
  ["endpoint", (r) => r.endpoint],
  ["prompt", (r) => whole(r.prompt_tokens), "number"],
  ["completion", (r) => whole(r.completion_tokens), "number"],
  ["ttft", (r) => milliseconds(r.ttft_ms), "number"],
  ["rate", (r) => figure(r.tokens_per_s), "number"],
  ["drafts", (r) => [r.drafted, r.verified, r.accepted].map(whole).join(" / "), "number"],
  ["saved", (r) => milliseconds(r.saved_ms), "number"],
  ["wasted", (r) => milliseconds(r.wasted_ms), "number"],
  ["mode", (r) => r.mode],
  ["finish", (r) => r.finish_reason],
  ["reasons", (r) => Object.entries(r.reasons ?? {}).map(([code, count]) => `${code} ${whole(count)}`).join(", "), "reasons"],
];

export function showRequests(requests) {
  const key = JSON.stringify([document.documentElement.lang, requests]);
  put(byId("request-list"), key, () => (requests.length ? table(requests) : h("p", { class: "empty" }, t("requests.empty"))));
}

export function showRequestsFailure(message) {
  put(byId("request-list"), message, () => h("p", { class: "error" }, t("requests.failed", { message })));
}

function table(requests) {
  return h("table", { class: "grid requests" }, h("caption", { class: "sr" }, t("requests.caption")),
    h("thead", {}, h("tr", {}, COLUMNS.map(([name, , style]) => h("th", { scope: "col", class: style }, t(`requests.${name}`))))),
    h("tbody", {}, requests.map((request) => h("tr", {}, COLUMNS.map(([, value, style]) => h("td", { class: style }, value(request)))))));
}
