// The pages: the list of sessions, and one session. The address selects one: #/session/role/tab.

import { change, confirm, el, escapeControls, file, formatNumber, formatTime, get, isSignedOut } from "./dom.js";
import { toClassName, makeLegend, makeStrip } from "./strip.js";

const main = document.querySelector("main"), crumbs = document.getElementById("crumbs"), connection = document.getElementById("connection");
const TABS = { rounds: "Rounds", prompt: "Prompt", charts: "Tokens and cost", summaries: "Summaries", decisions: "Decisions" };
let shown = 0; // counts pages: answers for an earlier page are discarded
let refresh = () => {};

const readPath = () => location.hash.slice(2).split("/").map(decodeURIComponent);
const makeAddress = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
const makeEmpty = (...text) => el("div", { class: "empty" }, ...text);
function setTitle(session) {
  crumbs.replaceChildren(...(session ? [el("span", { class: "quiet", text: session })] : []));
  if (!file) document.title = session ? `${escapeControls(session)} in compactor` : "compactor inspector";
}
const makeProblem = (error) => el("p", { class: "warn", role: "alert", text: error.message });

// ---- the list of sessions

const ORDERS = { activity: "last activity", tokens: "most tokens", cost: "highest cost", failing: "failing first", name: "name" };
const PAGE = 50, PAUSE = 200; // rows, and milliseconds between two requests for figures that are being computed
let order = "activity", wanted = "", cursors = [null]; // of the pages up to the one that is shown

async function showSessions() {
  const page = ++shown;
  let request = 0, next = null, timer;
  const body = el("tbody"), note = el("p", { class: "quiet" }), server = el("section", { "aria-label": "The server" });
  const turn = (to) => {
    cursors = to;
    next = null; // the cursor of another page, or of another order
    table.setAttribute("aria-busy", "true");
    return update();
  };
  const newer = el("button", { type: "button", onclick: () => turn(cursors.slice(0, -1)) }, "Previous");
  const older = el("button", { type: "button", onclick: () => next !== null && turn([...cursors, next]) }, "Next");
  const heads = ["session", "rounds", "next prompt (tokens)", "paid for summaries", "failures", "last activity (UTC)"];
  const list = el("table", { class: "sessions" }, el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col", text })))), body);
  const table = el("div", { class: "scroll" }, list);
  const search = el("input", { type: "search", placeholder: "Search sessions", "aria-label": "Search sessions", value: wanted,
    oninput: (event) => { wanted = event.target.value; clearTimeout(timer); timer = setTimeout(() => turn([null]), 150); } });
  const sort = el("select", { "aria-label": "Sort by", onchange: (event) => { order = event.target.value; turn([null]); } },
    Object.entries(ORDERS).map(([name, text]) => el("option", { value: name, selected: name === order }, text)));
  setTitle("");
  main.replaceChildren(el("h1", { text: "Sessions" }), server, el("div", { class: "row" }, search, el("label", { class: "row quiet" }, "sort by", sort)), note, table, el("div", { class: "row" }, newer, older));

  const draw = (sessions, pending) => {
    const first = (cursors.length - 1) * PAGE, focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    body.replaceChildren(...sessions.map(makeSessionRow));
    if (focused) [...body.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
    const isAll = next === null && cursors.length === 1;
    note.replaceChildren(!sessions.length ? wanted ? "0 sessions" : "No more sessions"
      : isAll ? `${formatNumber(sessions.length)} ${sessions.length === 1 ? "session" : "sessions"}`
        : `Sessions ${formatNumber(first + 1)} to ${formatNumber(first + sessions.length)}`,
      pending ? `; the figures of ${formatNumber(pending)} are being computed` : "",
      ...(sessions.length || !wanted ? [] : [". ", el("a", { href: makeAddress(wanted) }, `Open “${wanted}”`)]));
    newer.hidden = cursors.length === 1;
    older.hidden = next === null;
    table.setAttribute("aria-busy", "false");
    if (!sessions.length && !wanted && cursors.length === 1) table.replaceChildren(makeEmpty(el("p", { text: "No session yet." }), el("p", {}, "Send a first message through the proxy or ", el("code", { text: "POST /api/sessions" }), "; it appears here by itself.")));
    else if (!list.isConnected) table.replaceChildren(list); // else it would lose the focus
  };
  async function update() { // a later call replaces this one
    const mine = ++request, isStale = () => page !== shown || mine !== request;
    try {
      const figures = await get("server");
      if (isStale()) return;
      server.replaceChildren(...(figures ? [makeServerFigures(figures)] : []));
      let pending;
      do {
        const sessions = [];
        let after = cursors.at(-1);
        do { // a search answers with what it has found so far
          const found = await get("sessions", { order, search: wanted, limit: PAGE - sessions.length, ...(after === null ? {} : { after }) });
          if (isStale()) return;
          sessions.push(...found.sessions);
          ({ after, pending } = found);
          if (after !== null && sessions.length < PAGE) note.textContent = `Searching; ${formatNumber(sessions.length)} found`;
        } while (after !== null && sessions.length < PAGE);
        next = after;
        draw(sessions, pending);
        if (pending) await new Promise((done) => setTimeout(done, PAUSE));
      } while (pending && !isStale());
    } catch (error) {
      if (!isStale()) table.replaceChildren(makeProblem(error));
    }
  }
  refresh = update;
  await update();
}

const makeFigure = (name, value, small) => el("div", {}, el("dt", { text: name }), el("dd", {}, value, small ? el("small", { text: small }) : null));

function makeServerFigures(one) {
  const formatMoney = (value) => (one.unit === "dollars" ? `$${value.toFixed(2)}` : formatNumber(value));
  return el("dl", { class: "figures" },
    makeFigure("sessions open", formatNumber(one.open)),
    makeFigure("compactions running", formatNumber(one.running)),
    makeFigure("model calls", formatNumber(one.calls), one.max_calls === null ? "no limit" : `of ${formatNumber(one.max_calls)} at once`),
    makeFigure("waiting for a call", formatNumber(one.queued), "compactors"),
    makeFigure("spent in the last hour", formatMoney(one.spent), `${one.unit}, ${one.max_spent === null ? "no limit" : "of " + formatMoney(one.max_spent)}`));
}

function makeSessionRow(one) {
  const makeCell = (name, text, options = {}) => el("td", { "data-name": name, ...options }, text);
  return el("tr", {},
    el("td", {}, el("a", { href: makeAddress(one.session) }, one.session)),
    makeCell("rounds", formatNumber(one.rounds)), makeCell("next prompt (tokens)", formatNumber(one.tokens)),
    makeCell("paid for summaries", one.dollars ? `$${one.dollars.toFixed(4)}` : `${formatNumber(one.spent)} tokens`), makeCell("failures", formatNumber(one.failures), { class: one.failures ? "warn" : null }), makeCell("last activity (UTC)", formatTime(one.last_activity).slice(0, 16)));
}

// ---- one session

async function showSession(session, askedRole, tab) {
  const page = ++shown;
  setTitle(session);
  let about;
  try {
    about = await get("session", { session });
  } catch (error) {
    if (page !== shown) return;
    main.replaceChildren(makeProblem(error));
    refresh = () => showSession(session, askedRole, tab); // it may come yet
    return;
  }
  if (page !== shown) return;
  const role = about.roles.includes(askedRole) ? askedRole : about.roles.includes("assistant") ? "assistant" : about.roles[0];
  if (role === undefined) {
    main.replaceChildren(el("h1", { text: session }), makeEmpty(el("p", { text: "Nothing was said in this session yet." })));
    refresh = () => showSession(session, askedRole, tab);
    return;
  }
  const inner = { session, role, about, page, tab: tab in TABS ? tab : "rounds", selected: null, after: "", messages: 100, summaryIndex: null, reasons: new Set() };
  const roles = el("select", { "aria-label": "Role", onchange: (event) => { location.hash = makeAddress(session, event.target.value, inner.tab); } },
    about.roles.map((one) => el("option", { value: one, selected: one === role }, one || "(sees everything)")));
  inner.figures = el("dl", { class: "figures" });
  inner.state = el("p", { class: "quiet" });
  inner.message = el("p", { role: "status" });
  inner.strip = el("section", { class: "card", "aria-label": "All rounds" });
  inner.panel = el("section", { role: "tabpanel", tabindex: "-1" });
  inner.tabs = el("div", { class: "tabs", role: "tablist", onkeydown: (event) => moveTab(inner, event) },
    Object.entries(TABS).map(([name, text]) => el("button", { type: "button", role: "tab", "data-tab": name, onclick: () => openTab(inner, name) }, text)));
  const actions = file ? null : el("div", { class: "row" },
    el("button", { type: "button", onclick: () => compactNow(inner) }, "Compact now"),
    el("button", { type: "button", onclick: () => revert(inner) }, "Revert"));
  main.replaceChildren(
    el("div", { class: "row" }, el("h1", { text: session }), el("label", { class: "row quiet" }, "role", roles), actions),
    inner.message, inner.figures, inner.state, inner.strip, inner.tabs, inner.panel);
  await load(inner, file ? {} : { estimate: true }); // counting the tokens of a long session takes a second
  if (page !== shown) return;
  openTab(inner, inner.tab);
  refresh = async () => {
    await load(inner);
    const isTyping = inner.panel.contains(document.activeElement) && document.activeElement.tagName === "INPUT";
    const isPast = inner.tab === "prompt" && inner.after;
    if (page === shown && !isTyping && !isPast) await openTab(inner, inner.tab, true);
  };
  if (!file) await load(inner);
}

async function load(inner, options = {}) {
  const { session, role } = inner;
  let figures;
  try {
    figures = await get("role", { session, role, ...options });
  } catch (error) {
    inner.strip.replaceChildren(makeProblem(error));
    inner.drawn = null;
    return;
  }
  if (inner.page !== shown) return;
  const saved = figures.original_tokens ? Math.round(100 * (1 - figures.prompt_tokens / figures.original_tokens)) : 0;
  const about = figures.estimated ? "≈ " : "";
  inner.figures.replaceChildren(
    makeFigure("next prompt", formatNumber(figures.prompt_tokens), `tokens, ${figures.budget ? "of " + formatNumber(figures.budget) : "no budget known"}`),
    makeFigure("as it was said", `${about}${formatNumber(figures.original_tokens)}`, "tokens"),
    makeFigure("saved", `${about}${saved} %`, "of the next prompt"),
    makeFigure("rounds", formatNumber(figures.rounds), `${formatNumber(figures.covered)} in the summary`),
    makeFigure("summary", formatNumber(figures.summary_tokens), figures.covered ? `tokens, generation ${figures.generation}` : "tokens, none is shown"),
    ...(file ? [] : [makeFigure("compactor", figures.state || "none here", figures.circuit_open ? "circuit open" : figures.skip_reason || (figures.state ? "" : "this process runs none"))]));
  inner.state.textContent = figures.last_error ? `Last failure: ${figures.last_error}` : figures.prepared ? `${figures.prepared} prepared, not shown yet` : "";
  const strip = figures.strip;
  inner.states = strip;
  inner.description = figures.description;
  inner.summary = figures.summary;
  inner.generation = figures.generation;
  inner.covered = figures.covered;
  if (!strip.states.length) {
    inner.strip.replaceChildren(makeEmpty("No round yet."));
    return;
  }
  const before = JSON.stringify(strip);
  if (before === inner.drawn) return;
  inner.drawn = before;
  inner.chart ??= makeStrip(inner.about.states, (round) => openRound(inner, round));
  if (inner.chart.box.isConnected) inner.strip.lastChild.remove();
  else inner.strip.replaceChildren(inner.chart.box);
  inner.strip.append(makeLegend(strip, inner.about.states));
  inner.chart.update(strip);
}

function moveTab(inner, event) {
  const names = Object.keys(TABS), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const next = names[(names.indexOf(inner.tab) + step + names.length) % names.length];
  openTab(inner, next);
  inner.tabs.querySelector(`[data-tab=${next}]`).focus();
}

async function openTab(inner, name, again = false) {
  inner.tab = name;
  for (const button of inner.tabs.children) {
    const chosen = button.dataset.tab === name;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  inner.panel.setAttribute("aria-label", TABS[name]);
  inner.panel.setAttribute("aria-busy", "true");
  if (!again) {
    history.replaceState(null, "", makeAddress(inner.session, inner.role, name));
    inner.panel.replaceChildren(el("p", { class: "quiet", text: "Loading …" }));
  }
  try {
    const result = await { rounds: makeRoundsTab, prompt: makePromptTab, charts: makeChartsTab, summaries: makeSummariesTab, decisions: makeDecisionsTab }[name](inner);
    if (inner.page === shown && inner.tab === name) {
      const content = result.map((one) => one.outerHTML).join("");
      if (!again || content !== inner.content) {
        replaceContent(inner.panel, result);
        for (const one of result) if (one.onshown) one.onshown();
      }
      inner.content = content;
      inner.panel.setAttribute("aria-busy", "false");
    }
  } catch (error) {
    inner.content = null;
    if (inner.page === shown && inner.tab === name) inner.panel.replaceChildren(makeProblem(error));
  }
}

// The control that had the focus has it afterwards, whatever it is called then.
function replaceContent(panel, nodes) {
  const list = () => [...panel.querySelectorAll("button, input, [tabindex]")];
  const readName = (one) => one.dataset.control || one.getAttribute("aria-label") || one.textContent;
  const controls = list(), at = controls.indexOf(document.activeElement);
  panel.replaceChildren(...nodes);
  if (at < 0) return;
  const name = readName(controls[at]), nth = controls.slice(0, at).filter((one) => readName(one) === name).length;
  (list().filter((one) => readName(one) === name)[nth] || panel).focus({ preventScroll: true });
}

async function act(inner, question, action, run, describe) {
  const asking = document.activeElement, agreed = await confirm(question, action), name = asking.dataset.control;
  // An update may have replaced the control meanwhile; then the dialog had nothing to give the focus back to.
  if (!asking.isConnected && name) inner.panel.querySelector(`[data-control="${CSS.escape(name)}"]`)?.focus({ preventScroll: true });
  if (!agreed) return;
  inner.message.textContent = "Working …";
  try {
    inner.message.textContent = describe(await run());
  } catch (error) {
    inner.message.textContent = error.message;
  }
  await load(inner);
  openTab(inner, inner.tab, true);
}

const describeCovered = (answer) => `The summary covers rounds 1 to ${answer.compaction.last_covered_round}.`;

function compactNow(inner) {
  const { session, role } = inner;
  return act(inner, `Compact what is due in “${role}” now? This may ask a model.`, "Compact now",
    () => change(session, "compact", { role }), (answer) => (answer.compaction ? describeCovered(answer) : "There was nothing to compact."));
}

function revert(inner) {
  const { session, role, generation } = inner;
  if (!inner.covered) {
    inner.message.textContent = "There is no summary to revert.";
    return;
  }
  return act(inner, `Show the previous summary of “${role}” again? Nothing is lost.`, "Revert",
    () => change(session, "revert", { role, generation }), (answer) => (answer.compaction ? `Reverted: ${describeCovered(answer)}` : "Reverted: all rounds are as they were said."));
}

function togglePin(inner, { ref, pinned }) {
  if (pinned) return act(inner, `Unpin ${ref}?`, "Unpin", () => change(inner.session, `pins/${ref}`, null, "DELETE"), () => `${ref} is no longer pinned.`);
  return act(inner, `Pin ${ref}? Every prompt keeps it verbatim.`, "Pin", () => change(inner.session, "pins", { reference: ref }), () => `${ref} is pinned.`);
}

// ---- rounds: the original beside its replacement in the prompt

const makeReference = (inner, ref, text = ref) => {
  const [, round, at] = /^r(\d+)(?:-r?\d+)?(?:\.p(\d+))?/.exec(ref) || [];
  return el("button", { type: "button", class: "ref", onclick: () => openRound(inner, Number(round), at) }, text);
};
const makeText = (text, label) => el("pre", { class: "original", dir: "auto", tabindex: "0", "aria-label": label }, text || " ");
const makeBadge = (status) => el("span", { class: "badge" }, el("span", { class: `swatch ${toClassName(status)}` }), status);

async function openRound(inner, round, at) {
  if (round !== inner.selected) inner.reasons.clear();
  inner.selected = round;
  inner.at = at;
  inner.chart.choose(round - 1, false);
  await openTab(inner, "rounds", inner.tab === "rounds");
  const target = at === undefined ? inner.panel : document.getElementById(`p${at}`) || inner.panel;
  target.scrollIntoView({ block: "nearest" });
}

async function makeRoundsTab(inner) {
  if (!inner.states || !inner.states.states.length) return [makeEmpty("No round yet.")];
  if (!inner.selected) return [makeEmpty("Choose a round above: the original appears beside what the model reads instead.")];
  const round = await get("round", { session: inner.session, role: inner.role, number: inner.selected });
  return [el("div", { class: "card" }, el("h2", { text: `Round ${round.number} (${round.state === "created" ? "open" : round.state})` }),
    round.posts.map((one) => makePost(inner, one, one === round.posts.find((other) => other.status === "covered"))))];
}

function makePost(inner, one, hasSummary) {
  const pinnable = !file && !["failed", "undone", "erased"].includes(one.status);
  const isVerbatim = one.replacement === null && ["shown", "pinned"].includes(one.status), isOpen = inner.reasons.has(one.ref);
  const reason = el("p", { class: "reason", hidden: !isOpen, text: one.reason });
  const asks = isVerbatim ? "Why is this in the prompt?" : "Why is this not in the prompt as it was said?";
  const toggle = (event) => {
    reason.hidden = !reason.hidden;
    event.currentTarget.setAttribute("aria-expanded", String(!reason.hidden));
    if (reason.hidden) inner.reasons.delete(one.ref); else inner.reasons.add(one.ref);
  };
  return el("div", { class: "post", id: `p${one.ref.split(".p")[1]}` },
    el("div", { class: "row" }, el("strong", { text: one.receiver ? `${one.sender} → ${one.receiver}` : one.sender }), makeBadge(one.status),
      one.pinned && one.status !== "pinned" ? makeBadge("pinned") : null,
      el("span", { class: "quiet", text: `${one.ref} · ${formatNumber(one.tokens)} tokens · ${formatTime(one.at)}` }),
      el("button", { type: "button", "data-control": `why ${one.ref}`, "aria-expanded": String(isOpen), onclick: toggle }, asks),
      pinnable ? el("button", { type: "button", "data-control": `pin ${one.ref}`, onclick: () => togglePin(inner, one) }, one.pinned ? "Unpin" : "Pin") : null),
    reason,
    el("div", { class: "beside" },
      el("div", {}, el("p", { class: "label", text: "as it was said" }), makeText(one.text, `${one.ref} as it was said`)),
      el("div", {}, el("p", { class: "label", text: one.status === "covered" ? "what the model reads: the summary" : "what the model reads" }),
        one.replacement !== null ? makeText(one.replacement, `${one.ref} as the model reads it`)
          : one.status === "covered" ? hasSummary ? makeText(inner.summary, "The summary") : el("p", { class: "quiet", text: "The same summary as above." })
            : el("p", { class: "quiet", text: isVerbatim ? "The same words." : "Nothing: " + one.reason }))));
}

// ---- the exact prompt

async function makePromptTab(inner) {
  const at = el("input", { type: "number", min: "1", max: String(inner.about.rounds), placeholder: "now", value: inner.after, "aria-label": "After round" });
  const body = el("div");
  const show = async (round) => {
    const parameters = { session: inner.session, role: inner.role };
    const prompt = await get("prompt", round ? { ...parameters, round } : parameters);
    const cut = prompt.omitted_rounds.length ? `${formatNumber(prompt.omitted_rounds.length)} rounds are left out, ${prompt.omitted_rounds[0]} to ${prompt.omitted_rounds.at(-1)}. ` : "";
    const host = prompt.tool_tokens ? `The tools' schemas have ${formatNumber(prompt.tool_tokens)} of these tokens and are not shown. ` : "";
    const facts = `${formatNumber(prompt.messages.length)} messages, ${formatNumber(prompt.tokens)} tokens` + (prompt.budget ? ` of ${formatNumber(prompt.budget)}` : "") +
      `; ${formatNumber(prompt.tokens_before)} before cuts, ${formatNumber(prompt.tokens_original)} as it was said. ${host}${cut}` + (prompt.provider_tokens ? `The provider counted ${formatNumber(prompt.provider_tokens)} in the last one.` : "");
    const list = el("div");
    const more = el("button", { type: "button", onclick: () => { inner.messages += 100; add(); } }, "Show more messages");
    const add = () => {
      list.append(...prompt.messages.slice(list.childElementCount, inner.messages).map((one) => makeMessage(inner, one)));
      more.hidden = inner.messages >= prompt.messages.length;
    };
    add();
    body.replaceChildren(el("p", { class: "quiet", text: facts }), list, more);
  };
  const attempt = () => show(inner.after).catch((error) => body.replaceChildren(makeProblem(error)));
  at.addEventListener("change", () => { inner.after = at.value; attempt(); });
  await attempt();
  return [file ? el("span") : el("label", { class: "row quiet" }, "as it was after round", at), body];
}

function makeMessage(inner, one) {
  const origin = { original: "as it was said", shortened: "stands for the original", ours: "made by the compactor" }[one.kind];
  return el("div", { class: `message ${one.kind}` },
    el("div", {}, el("strong", { text: one.role }), el("span", { class: "quiet", text: `${formatNumber(one.tokens)} tokens, ${one.ref || one.kind !== "original" ? origin : "the host's"}` }),
      one.ref ? makeReference(inner, one.ref) : null),
    makeText(one.text, `${one.role} message ${one.ref || ""}`));
}

// ---- tokens and cost

async function makeChartsTab(inner) {
  const series = await get("series", { session: inner.session, role: inner.role });
  if (!series.rounds.length) return [makeEmpty("No round yet.")];
  const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(`--${name}`);
  const marks = new Map(series.marks);
  const draw = (title, label, kinds, format, rounds = series.rounds) => {
    const box = el("div", { class: "chart", role: "img", "aria-label": `${title}: ${kinds.map(([name, values]) => `${name} ${format(values.at(-1))}`).join(", ")} at round ${rounds.at(-1)}` });
    const card = el("div", { class: "card" }, el("h2", { text: title }), box);
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    card.onshown = () => {
      const chart = new uPlot({
        width: box.clientWidth, height: 240, scales: { x: { time: false } },
        axes: [axis, { ...axis, size: (_, values) => 24 + 8 * Math.max(...(values || [""]).map((one) => one.length)), values: (_, values) => values.map(format) }],
        series: [{ label: "round", value: (_, value) => formatNumber(value) }, ...kinds.map(([name, , stroke, dash]) => ({ label: name, stroke: colour(stroke), width: 2, dash, points: { show: rounds.length === 1 }, value: (_, value) => (value === null || value === undefined ? "–" : format(value)) }))],
        hooks: { draw: [(self) => drawMarks(self, marks, colour("open"))] },
      }, [rounds, ...kinds.map((one) => one[1])], box);
      new ResizeObserver(() => { if (Math.abs(chart.width - box.clientWidth) > 1) chart.setSize({ width: box.clientWidth, height: 240 }); }).observe(box);
    };
    return card;
  };
  const formatMoney = (value) => (series.unit === "dollars" ? `$${value.toFixed(4)}` : formatNumber(value));
  const waiting = series.timed_rounds.length
    ? draw("Waiting time of turns, in seconds", "seconds", [["compaction in the background", series.wait_with, "shown"], ["had the turn stopped for it", series.wait_without, "left-out", [6, 4]]], (value) => value.toFixed(3), series.timed_rounds)
    : el("p", { class: "quiet", text: "Waiting time of turns: the process that composes prompts knows it, and this one has composed none." });
  return [
    draw("Tokens of the prompt", "tokens", [["with compaction", series.tokens_with, "shown"], ["without", series.tokens_without, "left-out", [6, 4]]], formatNumber),
    draw(`Cost up to the round, in ${series.unit}`, "cost", [["with compaction", series.cost_with, "shown"], ["without", series.cost_without, "left-out", [6, 4]]], formatMoney),
    waiting,
    el("p", { class: "quiet", text: `Vertical lines: ${formatNumber(series.marks.length)} ${series.marks.length === 1 ? "publication" : "publications"}. Tokens are within the present budget. Cost is an estimate: one prompt per round, with the shared prefix read from the provider's cache, summaries included.` })];
}

function drawMarks(chart, marks, colour) {
  const pen = chart.ctx, { top, height } = chart.bbox;
  pen.save();
  pen.setLineDash([]);
  pen.strokeStyle = colour;
  pen.globalAlpha = marks.size > 200 ? 0.15 : 0.6;
  pen.beginPath();
  for (const round of marks.keys()) {
    const left = Math.round(chart.valToPos(round, "x", true));
    pen.moveTo(left, top);
    pen.lineTo(left, top + height);
  }
  pen.stroke();
  pen.restore();
}

// ---- summaries

async function makeSummariesTab(inner) {
  const [generations, rejected] = await Promise.all(["generations", "rejected"].map((part) => get(part, { session: inner.session, role: inner.role })));
  const detail = el("div");
  const open = async (index) => {
    const one = await get("summary", { session: inner.session, role: inner.role, index });
    detail.replaceChildren(makeSummary(inner, one));
  };
  const attempt = (index) => open(index).catch((error) => detail.replaceChildren(makeProblem(error)));
  const choose = (index) => { inner.summaryIndex = index; return attempt(index); };
  const rows = generations.slice().reverse().slice(0, 200).map((one) => el("tr", { class: one.current ? "current" : null },
    el("td", {}, el("button", { type: "button", class: "ref", onclick: () => choose(one.index) }, `generation ${one.generation}`), one.current ? " now" : ""),
    [one.happened, one.rounds ? `${one.rounds[0]}–${one.rounds[1]}` : "–", `${formatNumber(one.tokens_before)} → ${formatNumber(one.tokens_after)}`, one.model || "offline", formatTime(one.at)].map((text) => el("td", { text }))));
  const heads = ["summary", "event", "rounds", "tokens", "by", "at (UTC)"];
  const table = generations.length ? el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Generations" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, rows)))
    : makeEmpty("No summary yet: all rounds are as they were said.");
  const newest = generations.findLast((one) => one.current) || generations.findLast((one) => one.happened === "published");
  if (newest) await attempt(inner.summaryIndex ?? newest.index);
  const faults = el("div", { class: "card" }, el("h2", { text: "Rejected" }), rejected.length ? makeLog(rejected) : el("p", { class: "quiet", text: "No summary was rejected." }));
  return [detail, table, faults];
}

function makeSummary(inner, one) {
  const marks = { "came in": ["+", "in"], dropped: ["−", "out"], stayed: [" ", ""] };
  const lines = one.sentences.map((line) => el("li", { class: marks[line.change][1] }, el("span", { class: "mark", text: marks[line.change][0] }),
    el("span", { dir: "auto" }, line.text), line.ref ? [" ", makeReference(inner, line.ref), line.exact ? null : el("span", { class: "quiet", text: " closest match" })] : null));
  const checks = one.checks.length ? ` It passed ${one.checks.length} checks.` : "";
  return el("div", { class: "card" }, el("h2", { text: `Generation ${one.generation}, ${one.current ? "shown now" : one.happened === "published" ? "no longer shown" : one.happened}` }),
    el("p", { class: "quiet", text: `Green is new since the previous summary, red was dropped. A reference names the post that contains the sentence, or the closest one.${checks}` }),
    el("ul", { class: "sentences" }, lines),
    one.missing.length ? el("p", { class: "warn", text: `No longer named: ${one.missing.join(", ")}` }) : null);
}

// ---- decisions

const makeLog = (entries) => el("ul", { class: "log" }, entries.slice(-500).reverse().map((one) =>
  el("li", {}, el("span", { class: "quiet", text: formatTime(one.at) }), el("code", { text: one.name }), el("span", { class: one.level === "warning" || one.level === "error" ? "warn" : null, text: one.text }))));

async function makeDecisionsTab(inner) {
  const [decisions, server] = await Promise.all([get("decisions", { session: inner.session, role: inner.role }), file ? null : get("server")]);
  const about = inner.description ? el("div", { class: "card" }, el("h2", { text: "The compactor" }), el("p", { text: inner.description })) : null;
  return [about, server ? el("div", { class: "card" }, el("h2", { text: "The server" }), makeServerFigures(server)) : null, decisions.length ? el("div", { class: "card" }, el("h2", { text: "Why it fired, and why not" }), makeLog(decisions))
    : makeEmpty("No decision is known. They are kept by the process that runs the compactor, failures also in the session.")].filter(Boolean);
}

// ---- around

const themes = ["auto", "light", "dark"];
const theme = document.getElementById("theme"), prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosen = "auto";
try { chosen = localStorage.getItem("theme") || "auto"; } catch { /* not allowed in files */ }
function paint() {
  document.documentElement.dataset.theme = chosen === "auto" ? (prefersDark.matches ? "dark" : "light") : chosen;
  theme.textContent = `Theme: ${chosen}`;
}
theme.addEventListener("click", () => {
  chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
  try { localStorage.setItem("theme", chosen); } catch { /* not allowed in files */ }
  paint();
  route();
});
prefersDark.addEventListener("change", () => { paint(); route(); });
paint();

function route() {
  const [session, role, tab] = readPath();
  if (file) return showSession(file.name, session === undefined ? "" : role || "", tab || "rounds");
  return session ? showSession(session, role || "", tab || "rounds") : showSessions();
}
window.addEventListener("hashchange", async () => {
  await route();
  if (document.activeElement === document.body) main.focus({ preventScroll: true });
});

if (file) connection.textContent = `Saved ${formatTime(file.saved)} UTC`;
else {
  let isChanged = false, isFollowing = false;
  const follow = async () => { // many events at once are one refresh
    isChanged = true;
    if (isFollowing) return;
    isFollowing = true;
    while (isChanged && !isSignedOut) {
      await new Promise((done) => setTimeout(done, 400));
      isChanged = false;
      try { await refresh(); } catch { /* the next event tries again */ }
    }
    isFollowing = false;
  };
  const state = (text, on) => connection.replaceChildren(el("span", { class: on ? "dot on" : "dot" }), text);
  let source;
  const listen = () => {
    source = new EventSource("inspect/events");
    source.onopen = () => state("live", true);
    source.onerror = () => state("not connected", false);
    source.onmessage = follow;
  };
  listen();
  setInterval(() => {
    if (document.hidden || isSignedOut) return; // each question without a valid token counts as a wrong one
    if (source.readyState === EventSource.CLOSED) listen(); // browsers give up after an error such as 502
    follow(); // other processes that use the store
  }, 10_000);
}
route();
