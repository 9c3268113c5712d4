// How deep guesses hold, whose they are, and how many are made.

import { bar, byId, h, put, say } from "./dom.js";
import { TimeChart } from "./chart.js";
import { mark } from "./drafters.js";
import { fixed, figure, milliseconds, percent, t, whole } from "./words.js";

const WINDOW_S = 120;

export class Drafts {
  constructor() {
    this.lengths = new TimeChart(byId("lengths-chart"), {
      title: "lengths.title", window: WINDOW_S, height: 230, format: figure,
      lines: [
        { value: (p) => p.drafted_per_step, label: "lengths.drafted", style: "plain" },
        { value: (p) => p.accepted_per_step, label: "lengths.accepted", style: "speed" },
      ],
    });
  }

  show({ acceptance, lengths }) {
    say("length", acceptance.length ? fixed(acceptance.length, 2) : fixed(null));
    say("accepted", percent(acceptance.by_depth.length || acceptance.rate ? acceptance.rate : null));
    put(byId("depths"), JSON.stringify([document.documentElement.lang, acceptance.by_depth]), () => depths(acceptance));
    const drafters = Object.entries(acceptance.by_drafter);
    put(byId("by-drafter"), JSON.stringify([document.documentElement.lang, drafters]), () => byDrafter(drafters));
    this.lengths.update(lengths);
  }
}

function depths({ by_depth: counts }) {
  if (!counts.length) return h("p", { class: "empty" }, t("depth.empty"));
  const rows = counts.map((count, i) =>
    h("tr", {}, h("th", { scope: "row" }, whole(i + 1)), h("td", { class: "bars" }, bar([count / counts[0], "speed"])),
      h("td", {}, whole(count)), h("td", { class: "muted" }, percent(count / counts[0], count < counts[0] / 100 ? 1 : 0))));
  return h("table", { class: "grid tight" }, h("caption", { class: "sr" }, t("depth.caption")),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("depth.depth")),
      h("th", { scope: "col", colspan: 2 }, t("depth.accepted")), h("th", { scope: "col" }, t("depth.of_first")))),
    h("tbody", {}, rows));
}

function byDrafter(drafters) {
  if (!drafters.length) return h("p", { class: "empty" }, t("drafters.empty"));
  const heads = ["drafted", "verified", "accepted", "time"].map((name) =>
    h("th", { scope: "col" }, t(`drafters.${name}`)));
  return h("div", { class: "scroll" }, h("table", { class: "grid" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("drafters.name")), heads)),
    drafters.map(([name, counts]) => drafter(name, counts))));
}

function drafter(name, { drafted, verified, accepted, draft_ms: time }) {
  const share = verified ? accepted / verified : null;
  return h("tbody", {},
    h("tr", {}, h("th", { scope: "row" }, h("span", { class: `mark ${mark(name)}` }, name)),
      [drafted, verified, accepted].map((count) => h("td", {}, whole(count))), h("td", {}, milliseconds(time))),
    h("tr", { class: "under" }, h("td", { class: "bars", colspan: 4 }, bar([share, "speed"])),
      h("td", {}, percent(share), h("span", { class: "sr" }, ` ${t("drafters.rate")}`))));
}
