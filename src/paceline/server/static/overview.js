// What it is worth now: speed against the plain rate, and being busy against being useful.

import { byId, say } from "./dom.js";
import { TimeChart } from "./chart.js";
import { figure, fixed, NONE, percent, t, whole } from "./words.js";

const WINDOW_S = 300;

export class Overview {
  constructor() {
    this.rate = new TimeChart(byId("rate-chart"), {
      title: "speed.title", window: WINDOW_S, height: 190, format: figure,
      lines: [
        { value: (p) => p.tokens_per_s, label: "speed.line", style: "speed" },
        { value: (p) => p.plain_tokens_per_s, label: "speed.line_plain", style: "plain" },
      ],
    });
    this.busy = new TimeChart(byId("busy-chart"), {
      title: "busy.title", window: WINDOW_S, height: 190, top: 1, format: percent, tick: percent,
      lines: [
        { value: usefulAt, label: "busy.line_useful", style: "useful", area: true },
        { value: (p) => p.wasted, label: "busy.line_wasted", style: "wasted", area: true },
      ],
    });
  }

  show({ rate, busy, series }) {
    const plain = rate.plain_tokens_per_s;
    say("rate", figure(rate.tokens_per_s));
    say("rate-plain", figure(plain));
    say("rate-ratio", plain > 0 && rate.tokens_per_s > 0 ? `${fixed(rate.tokens_per_s / plain, 2)} ×` : NONE);
    say("rate-saved", whole(Math.abs(rate.saved_ms_per_s)));
    const loses = rate.saved_ms_per_s < -0.5;
    say("rate-saved-label", t(loses ? "speed.lost" : "speed.saved"));
    byId("rate-saved").classList.toggle("waste", loses);
    say("busy-share", percent(busy.share));
    say("busy-rate", figure(rate.tokens_per_s));
    say("busy-useful", percent(part(busy.useful_share, busy)));
    say("busy-wasted", percent(part(busy.wasted_share, busy)));
    say("busy-says", verdict(rate, busy));
    byId("busy-says").classList.toggle("error", isWaste(busy));
    this.rate.update(series);
    this.busy.update(series);
  }
}

const usefulAt = (point) => (point.busy == null ? null : Math.max(0, point.busy - (point.wasted ?? 0)));

/** Of the busy time, not of all: the server counts both against the clock. */
const part = (share, busy) => (busy.share > 0 ? share / busy.share : null);

/** Whether more goes into rejected drafts than into text. */
const isWaste = (busy) => busy.share > 0.05 && busy.wasted_share > busy.useful_share;

function verdict(rate, busy) {
  if (!(busy.share > 0.005)) return t("busy.idle");
  const each = figure(rate.tokens_per_s / busy.share);
  const said = t("busy.says", { busy: percent(busy.share), rate: figure(rate.tokens_per_s), each });
  return isWaste(busy) ? `${said} ${t("busy.waste")}` : said;
}
