// The page: two views, and the key where the server asks for one.

import { rememberKey } from "./api.js";
import { startChat } from "./chat.js";
import { startLive } from "./live.js";

const $ = (id) => document.getElementById(id);

function show(view) {
  document.body.dataset.view = view;
  for (const name of ["chat", "live"]) {
    $(`show-${name}`).setAttribute("aria-pressed", String(name === view));
  }
}

$("show-chat").addEventListener("click", () => show("chat"));
$("show-live").addEventListener("click", () => show("live"));
document.addEventListener("key-wanted", () => {
  $("key-form").hidden = false;
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  rememberKey($("key").value);
  $("key-form").hidden = true;
});
startChat();
startLive();
