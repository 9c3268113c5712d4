// Asks the server once a second and shows what it says.

import { showCauses, showFoot } from "./causes.js";
import { byId, say } from "./dom.js";
import { Drafts } from "./drafts.js";
import * as key from "./key.js";
import { Machine } from "./machine.js";
import { Overview } from "./overview.js";
import { Playground } from "./playground.js";
import { showRequests, showRequestsFailure } from "./requests.js";
import * as server from "./server.js";
import { Switch } from "./switch.js";
import { clock, LANGUAGES, speak, t, whole } from "./words.js";

const EVERY_MS = 1000;
const HIDDEN_MS = 5000;
const REQUESTS_EVERY = 3;

class Page {
  constructor() {
    this.overview = new Overview();
    this.drafts = new Drafts();
    this.machine = new Machine();
    this.playground = new Playground((error) => this.failed(error));
    this.switch = new Switch((error) => this.failed(error));
    this.turn = 0;
    this.last = null;
    this.answeredAt = Date.now() / 1000;
  }

  async poll() {
    try {
      this.show(await server.state());
      if (this.turn++ % REQUESTS_EVERY === 0) await this.list();
    } catch (error) {
      this.failed(error);
    }
    if (!byId("key-dialog").open) this.timer = setTimeout(() => this.poll(), document.hidden ? HIDDEN_MS : EVERY_MS);
  }

  resume() {
    clearTimeout(this.timer);
    this.turn = 0;
    this.poll();
  }

  async list() {
    try {
      this.requests = await server.requests();
      showRequests(this.requests);
    } catch (error) {
      if (error.status === 401) throw error;
      showRequestsFailure(error.message);
    }
  }

  show(state) {
    this.last = state;
    this.answeredAt = Date.now() / 1000;
    this.alive(true);
    showModel(state.model);
    for (const part of [this.overview, this.drafts, this.machine, this.switch, this.playground]) part.show(state);
    showCauses(state);
    showFoot(state);
    key.showKey();
  }

  /** Shows the last figures again, in another language. */
  again() {
    if (this.last) this.show(this.last);
    if (this.requests) showRequests(this.requests);
  }

  failed(error) {
    if (error.status === 401) key.missing();
    else if (error.status) this.alive(false, t("refused", { message: error.message }));
    else this.alive(false, t("gone", { time: clock(this.answeredAt) }));
  }

  alive(isAlive, text = "") {
    document.body.classList.toggle("stale", !isAlive);
    byId("banner").hidden = isAlive;
    say("banner", text);
    say("live", t(isAlive ? "live.on" : "live.off"));
  }
}

function showModel({ id, runner, weights, context }) {
  say("model", id);
  say("model-facts", t("foot.runner", { runner, weights, context: whole(context) }));
  document.title = `${id} · paceline`;
}

function recall(name) {
  try {
    return localStorage.getItem(`paceline.${name}`);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`paceline.${name}`, value);
  } catch {
    // Storage is blocked: the choice holds for this visit.
  }
}

function preferences(page) {
  const theme = byId("theme");
  theme.value = recall("theme") ?? "auto";
  theme.addEventListener("change", () => {
    if (theme.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme.value;
    remember("theme", theme.value);
  });
  byId("language").addEventListener("change", async (event) => {
    remember("language", event.target.value);
    await speak(event.target.value);
    page.again();
  });
}

async function begin() {
  const wanted = recall("language") ?? navigator.language.slice(0, 2);
  const language = LANGUAGES.includes(wanted) ? wanted : "en";
  await speak(language);
  byId("language").value = language;
  const page = new Page();
  preferences(page);
  key.askForKeys(() => page.resume());
  say("live", t("live.wait"));
  page.poll();
}

begin();
