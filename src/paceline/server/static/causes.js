// Why less was drafted, what is out of order, and what the audit found.

import { bar, byId, h, put } from "./dom.js";
import { bytes, clock, duration, known, percent, t, whole } from "./words.js";

export function showCauses(state) {
  const reasons = Object.entries(state.reasons).sort(([, a], [, b]) => b - a);
  const language = document.documentElement.lang;
  put(byId("reason-list"), JSON.stringify([language, reasons]), () => reasonTable(reasons));
  put(byId("alarm-list"), JSON.stringify([language, state.alarms]), () => alarmList(state.alarms));
  put(byId("audit"), JSON.stringify([language, state.audit]), () => auditFacts(state.audit));
  const count = byId("alarm-count");
  count.hidden = !state.alarms.length;
  count.textContent = state.alarms.length === 1 ? t("alarms.one") : t("alarms.count", { count: whole(state.alarms.length) });
}

function reasonTable(reasons) {
  if (!reasons.length) return h("p", { class: "empty" }, t("reasons.empty"));
  const most = reasons[0][1];
  return h("table", { class: "grid reasons" }, h("caption", { class: "sr" }, t("reasons.title")),
    h("tbody", {}, reasons.map(([code, count]) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, code), h("span", { class: "muted" }, known(`reason.${code}`) ?? ""), bar([count / most, "plain"])),
      h("td", {}, whole(count))))));
}

function alarmList(alarms) {
  if (!alarms.length) return h("p", { class: "empty good" }, t("alarms.empty"));
  return h("ul", { class: "alarms" }, alarms.map((alarm) =>
    h("li", {}, h("p", {}, h("strong", {}, alarm.name), " ", h("span", { class: "muted" }, t("alarms.since", { time: clock(alarm.since) }))),
      h("p", { lang: "en" }, alarm.text), runbook(alarm.runbook))));
}

/** A link to a runbook of this server; whatever else is named there is no link. */
function runbook(name) {
  const page = /^(?:\/runbooks\/|runbooks\/)?([a-z0-9-]+)(?:\.md)?$/.exec(name ?? "");
  return page && h("p", {}, h("a", { href: `/runbooks/${page[1]}` }, t("alarms.runbook")));
}

function auditFacts(audit) {
  const share = t("audit.share_of", { share: percent(audit.share, 1) });
  const facts = [["share", share], ["done", whole(audit.done)], ["equal", whole(audit.equal)], ["near", whole(audit.near_ties)],
    ["different", whole(audit.different)]];
  return facts.map(([name, value]) => h("div", {}, h("dt", {}, t(`audit.${name}`)),
    h("dd", { class: name === "different" && audit.different ? "error" : null }, value)));
}

export function showFoot({ version, uptime_s: uptime, journal }) {
  byId("version").textContent = t("foot.version", { version });
  byId("uptime").textContent = t("foot.uptime", { time: duration(uptime) });
  const { file, rows, dropped } = journal;
  const said = file && t("foot.journal", { file, rows: whole(rows), bytes: bytes(journal.bytes), dropped: whole(dropped) });
  byId("journal").textContent = said || t("foot.no_journal");
}
