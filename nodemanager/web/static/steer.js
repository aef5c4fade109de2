// Steering with a token, as over HTTP. Without one that may steer there are no buttons.
import { ask, keepToken, keptToken, known, made, the } from "/static/page.js";

let changed = async () => {};

// The answer of a small dialog: what was typed, or null if it was cancelled.
function answer({ title, label, note = "", yes, secret = false }) {
  const [dialog, input] = [the("dialog"), the("dialog-input")];
  the("dialog-title").textContent = title;
  the("dialog-label").textContent = label;
  the("dialog-note").textContent = note;
  the("dialog-yes").textContent = yes;
  Object.assign(input, { type: secret ? "password" : "text", value: "", maxLength: 200 });
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const ended = (value) => { input.value = ""; dialog.onclose = null; dialog.close(); resolve(value); };
    the("dialog-form").onsubmit = (event) => { event.preventDefault(); ended(input.value.trim()); };
    the("dialog-no").onclick = () => ended(null);
    // The event of an earlier close may come only now: then the dialog is open again.
    dialog.onclose = () => { if (!dialog.open) ended(null); };
    // Escape closes the dialog alone, and does not leave the page behind it.
    dialog.onkeydown = (event) => { if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); ended(null); } };
  });
}

function say(text, kind = "") {
  the("said").hidden = !text;
  the("said").textContent = text;
  the("said").className = `said ${kind}`;
}

// POST an order with the reason that the operator gives.
async function order(path, title) {
  const reason = await answer({ title: `${title}?`, label: "Reason (optional)", yes: title });
  if (reason === null) return;
  try {
    const done = await ask(path, { reason });
    say(done.on_record === false ? `${title}: accepted, not yet on record.` : `${title}: done.${done.waits_for ? ` It waits: ${done.waits_for}.` : ""}`);
  } catch (error) {
    say(`${title}: ${error.message}`, "bad");
  }
  await changed();
}

export function button(text, path, title = text) {
  const shown = made("button", "", text);
  shown.type = "button";
  shown.addEventListener("click", () => order(path, title));
  return shown;
}

const maySteer = () => Boolean(known.overview?.you.may_steer) && known.overview.status.mode === "act";

// The buttons of a node's page; none without a token that may steer.
export function nodeButtons(node) {
  if (!maySteer()) return [];
  const path = (verb) => `/${verb}/${encodeURIComponent(node.node)}`;
  const holder = made("p", "buttons");
  const steered = node.held || node.to_retire;
  if (!node.held) holder.append(button("Hold", path("hold"), `Hold ${node.slot}`));
  if (!node.to_retire) holder.append(button("Retire", path("retire"), `Retire ${node.slot}`), button("Replace", path("replace"), `Replace ${node.slot}`));
  if (steered || node.due) holder.append(button("Release", path("release"), `Release ${node.slot}`));
  return [holder];
}

export function typeButtons(name) {
  if (!maySteer()) return [];
  const holder = made("p", "buttons");
  holder.append(button("Replace all", `/replace-all/${encodeURIComponent(name)}`, `Replace all nodes of ${name}`));
  return [holder];
}

export function showSteering({ you, status }) {
  the("token").hidden = !keptToken() && Boolean(you.name);  // a proxy has signed the operator on
  the("token").textContent = keptToken() ? "Forget token" : "Token";
  the("token").title = you.name ? `You are ${you.name}` : keptToken() ? "A token is in this tab" : "Enter a token to see jobs and to steer";
  the("pause").hidden = !maySteer();
  the("pause").textContent = status.paused ? "Resume" : "Pause";
}

export function openSteering(afterwards) {
  changed = afterwards;
  the("pause").addEventListener("click", () => {
    const isPaused = Boolean(known.overview.status.paused);
    order(isPaused ? "/resume" : "/pause", isPaused ? "Resume decisions" : "Pause decisions");
  });
  the("token").addEventListener("click", async () => {
    if (keptToken()) {
      keepToken(null);
      say("");
    } else {
      const token = await answer({ title: "Token", label: "Token", note: "It stays in this tab until you close it or forget it.", yes: "Use", secret: true });
      if (!token) return;
      keepToken(token);
    }
    await changed();
    const you = known.overview?.you;
    if (keptToken() && you && !you.may_steer && !you.name) {
      keepToken(null);
      say("This token is not valid here.", "bad");
      await changed();
    } else if (keptToken()) say("");
  });
}
