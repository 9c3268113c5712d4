// Asks for the API key when the server does, and keeps it for this tab only.

import { byId } from "./dom.js";
import * as server from "./server.js";
import { t } from "./words.js";

const dialog = byId("key-dialog");

/** @param {() => void} ready called when a key was given */
export function askForKeys(ready) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    server.useKey(byId("key").value.trim());
    byId("key").value = "";
    dialog.close();
    ready();
  });
  byId("change-key").addEventListener("click", () => open(""));
}

/** Opens the dialog after a 401; says so if the key that was sent is the wrong one. */
export function missing() {
  if (!dialog.open) open(server.key() ? t("key.wrong") : "");
}

function open(error) {
  byId("key-error").textContent = error;
  dialog.showModal();
  byId("key").focus();
}

export function showKey() {
  byId("change-key").hidden = !server.key();
}
