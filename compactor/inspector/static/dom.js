// Elements made of text alone: nothing that a session says is ever parsed as HTML.

export const file = document.getElementById("data") ? JSON.parse(document.getElementById("data").textContent) : null;

// C0 and C1 controls, separators, bidirectional controls and lone surrogates, shown by their code points.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

export function escapeControls(text) {
  return String(text).replace(CONTROLS, (sign) => "\\u" + sign.codePointAt(0).toString(16).padStart(4, "0"));
}

export function el(tag, options = {}, ...children) {
  const result = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) result.addEventListener(name.slice(2), value);
    else if (name === "text") result.textContent = escapeControls(value);
    else result.setAttribute(name, value === true ? "" : escapeControls(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    result.append(typeof child === "string" ? escapeControls(child) : child);
  }
  return result;
}

export const formatNumber = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export const formatTime = (stamp) => (stamp ? new Date(stamp).toISOString().replace("T", " ").slice(0, 19) : "–");

export let isSignedOut = false;

export async function get(part, parameters = {}) {
  if (file) {
    const key = [part, ...Object.values(parameters).slice(1)].join("/"); // all but the session's name
    if (!(key in file)) throw new Error("This file does not have that part; the server's page has all.");
    return file[key];
  }
  const answer = await fetch(`inspect/${part}?${new URLSearchParams(parameters)}`, { credentials: "same-origin" });
  isSignedOut = answer.status === 401;
  if (!answer.ok) throw new Error(await readError(answer));
  return answer.json();
}

export async function change(session, what, body, method = "POST") {
  const answer = await fetch(`api/sessions/${encodeURIComponent(session)}/${what}`, {
    method, credentials: "same-origin", headers: { "content-type": "application/json" }, body: body && JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(await readError(answer));
  return answer.status === 204 ? null : answer.json();
}

async function readError(answer) {
  if (answer.status === 401) return "You are signed out: open the page with its token again.";
  try {
    const body = await answer.json();
    return typeof body.detail === "string" ? body.detail : `The server answered ${answer.status}.`;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

export function confirm(question, action) {
  return new Promise((resolve) => {
    const box = el("dialog", { "aria-label": question });
    const end = (agreed) => {
      box.close();
      box.remove();
      resolve(agreed);
    };
    box.append(
      el("p", { text: question }),
      el("div", { class: "actions" },
        el("button", { type: "button", onclick: () => end(false) }, "Cancel"),
        el("button", { type: "button", class: "primary", onclick: () => end(true) }, action)),
    );
    box.addEventListener("cancel", () => end(false));
    document.body.append(box);
    box.showModal();
  });
}
