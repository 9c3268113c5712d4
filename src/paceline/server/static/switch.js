// What the server allows of speculation, why, and the switch.

import { byId, say } from "./dom.js";
import * as server from "./server.js";
import { clock, NONE, t, whole } from "./words.js";

export class Switch {
  /** @param {(error: Error) => void} failed told of what the server refuses for want of a key */
  constructor(failed) {
    this.pending = false;
    byId("mode").addEventListener("change", (event) => this.choose(event.target.value).catch(failed));
  }

  show({ speculation, draft_model: draft }) {
    this.mode = speculation.ceiling;
    if (!this.pending) this.check();
    say("mode-says", t(`spec.says.${speculation.mode === "off" ? "off" : this.mode}`));
    say("mode-why", speculation.why || NONE);
    say("mode-since", clock(speculation.since));
    say("mode-drafters", speculation.drafters?.join(", ") || t("spec.none"));
    const most = speculation.max_draft;
    say("mode-most", most == null ? t("spec.by_governor") : t("spec.tokens", { count: whole(most) }));
    say("mode-model", draft?.id ?? t("spec.none"));
  }

  check() {
    for (const input of byId("mode").querySelectorAll("input")) input.checked = input.value === this.mode;
  }

  async choose(mode) {
    this.pending = true;
    this.note(t("spec.changing"));
    try {
      await server.allow(mode);
      this.mode = mode;
      this.note(t("spec.changed", { mode: t(mode === "always" ? "spec.as_asked" : `mode.${mode}`) }));
    } catch (error) {
      this.note(error.status === 403 ? t("spec.forbidden") : t("refused", { message: error.message }), true);
      if (error.status === 401) throw error;
    } finally {
      this.pending = false;
      this.check();
    }
  }

  note(text, bad = false) {
    say("mode-note", text);
    byId("mode-note").classList.toggle("error", bad);
  }
}
