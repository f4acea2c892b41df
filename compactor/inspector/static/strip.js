// The strip: all rounds on one canvas, as wide as their tokens. Any number of rounds is drawn in one pass.

import { el, formatNumber } from "./dom.js";

export const toClassName = (state) => state.replace(" ", "-");
const HEIGHT = 72;

export function makeStrip(names, onOpen) {
  let strip = { original: [], shown: [], states: "", pinned: [] }, count = 0;
  let starts = new Float64Array(1); // in tokens
  let pinned = new Set(), selected = -1, isChosen = false, from = 0, to = 1;

  const canvas = el("canvas", { class: "strip", tabindex: "0", role: "slider", "aria-label": "Round", "aria-valuemin": "1", "aria-describedby": "strip-help" });
  const tip = el("div", { class: "tip" });
  const zoom = (factor) => () => zoomTo((starts[selected] + starts[selected + 1]) / 2, (to - from) * factor);
  const roundInput = el("input", { type: "number", min: "1", "aria-label": "Go to round", placeholder: "round",
    onchange: (event) => { if (event.target.value) choose(Number(event.target.value) - 1, true); } });
  const tools = el("div", { class: "strip-tools" },
    roundInput,
    el("button", { type: "button", onclick: zoom(0.4), "aria-label": "Zoom in" }, "+"),
    el("button", { type: "button", onclick: zoom(2.5), "aria-label": "Zoom out" }, "−"),
    el("button", { type: "button", onclick: () => zoomTo(0, Infinity) }, "All"));
  const box = el("div", { class: "strip-box" }, canvas, el("div", { class: "strip-foot" }, tip, tools),
    el("p", { id: "strip-help", class: "quiet", text: "Arrow keys choose a round, Enter opens it, + and − zoom." }));

  // Focus, choice and zoom stay; a strip that showed all rounds shows the new ones, too.
  function update(next) {
    const wasAll = from === 0 && to >= starts[count];
    strip = next;
    count = strip.states.length;
    starts = new Float64Array(count + 1);
    for (let at = 0; at < count; at++) starts[at + 1] = starts[at] + Math.max(strip.original[at], 1);
    pinned = new Set(strip.pinned);
    canvas.setAttribute("aria-valuemax", String(count));
    roundInput.max = String(count);
    const all = starts[count] || 1, span = wasAll ? all : Math.min(to - from, all);
    from = wasAll ? 0 : Math.min(from, all - span);
    to = from + span;
    selected = isChosen ? Math.min(selected, count - 1) : count - 1;
    describeChoice();
    draw();
  }

  function describeChoice() {
    tip.textContent = describe(selected);
    canvas.setAttribute("aria-valuenow", String(selected + 1));
    canvas.setAttribute("aria-valuetext", describe(selected));
  }

  function zoomTo(middle, span) {
    const all = starts[count] || 1;
    span = Math.min(Math.max(span, 20), all);
    from = Math.min(Math.max(middle - span / 2, 0), all - span);
    to = from + span;
    draw();
  }

  function findRound(tokens) {
    let low = 0, high = count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= tokens) low = middle; else high = middle - 1;
    }
    return low;
  }

  function describe(at) {
    const place = strip.states[at] === "c" ? "now in the summary" : `${formatNumber(strip.shown[at])} in the prompt`;
    const share = strip.original[at] ? `${formatNumber(strip.original[at])} tokens as said, ${place}` : "no words";
    return `Round ${at + 1}: ${names[strip.states[at]]}, ${share}${pinned.has(at + 1) ? ", pinned posts verbatim" : ""}`;
  }

  function choose(at, opens) {
    if (!count) return;
    isChosen = true;
    selected = Math.min(Math.max(at, 0), count - 1);
    const middle = (starts[selected] + starts[selected + 1]) / 2;
    if (middle < from || middle > to) zoomTo(middle, to - from); else draw();
    describeChoice();
    if (opens) onOpen(selected + 1);
  }

  function draw() {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    const pen = canvas.getContext("2d"), css = getComputedStyle(document.documentElement);
    pen.scale(ratio, ratio);
    const colours = Object.fromEntries(Object.entries(names).map(([letter, name]) => [letter, css.getPropertyValue(`--${toClassName(name)}`)]));
    const scale = width / (to - from), top = 10, height = HEIGHT - 20;
    const snap = (tokens) => Math.round((tokens - from) * scale * ratio) / ratio; // parts of a pixel would have a colour of their own
    const drawRounds = (isRare) => {
      for (let at = findRound(from); at < count && starts[at] < to; at++) {
        const letter = strip.states[at];
        if (isRare === "cs".includes(letter)) continue;
        const wide = Math.max(snap(starts[at + 1]) - snap(starts[at]), isRare ? 2 : 0), left = Math.min(snap(starts[at]), width - Math.min(wide, 2));
        const gap = wide > 4 ? 1 : 0;
        pen.fillStyle = colours[letter];
        if (letter === "d" || letter === "u") { // hollow: nothing of it is in the prompt
          pen.globalAlpha = 0.35;
          pen.fillRect(left, top, wide - gap, height);
          pen.globalAlpha = 1;
          pen.fillRect(left, top + height - 4, wide - gap, 4);
        } else if (letter === "h") {
          const shown = strip.original[at] ? Math.min(strip.shown[at] / strip.original[at], 1) : 0;
          pen.globalAlpha = 0.3;
          pen.fillRect(left, top, wide - gap, height);
          pen.globalAlpha = 1;
          pen.fillRect(left, top + height * (1 - shown), wide - gap, height * shown);
        } else pen.fillRect(left, top, wide - gap, height);
        if (pinned.has(at + 1)) {
          pen.fillStyle = css.getPropertyValue("--ink");
          pen.fillRect(left, 2, Math.max(wide - gap, 3), 5);
        }
      }
    };
    drawRounds(false);
    drawRounds(true); // last, and never too narrow to be seen: a failed round among 10,000
    if (count) {
      const left = (starts[selected] - from) * scale, wide = Math.max((starts[selected + 1] - starts[selected]) * scale, 2);
      pen.strokeStyle = css.getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(Math.max(left - 1, 1), top - 2, Math.min(wide + 1, width - Math.max(left - 1, 1) - 1), height + 4);
    }
  }

  const findRoundUnder = (event) => {
    const box = canvas.getBoundingClientRect();
    return findRound(from + ((event.clientX - box.left) / box.width) * (to - from));
  };
  canvas.addEventListener("mousemove", (event) => { if (count) tip.textContent = describe(findRoundUnder(event)); });
  canvas.addEventListener("mouseleave", () => { if (count) tip.textContent = describe(selected); });
  canvas.addEventListener("click", (event) => choose(findRoundUnder(event), true));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // else the page scrolls
    event.preventDefault();
    zoomTo(starts[findRoundUnder(event)], (to - from) * (event.deltaY > 0 ? 1.4 : 0.7));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -count, End: count };
    if (event.key in steps) choose(selected + steps[event.key], false);
    else if (event.key === "Enter" || event.key === " ") choose(selected, true);
    else if (event.key === "+") zoom(0.4)();
    else if (event.key === "-") zoom(2.5)();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(canvas);
  return { box, choose, update };
}

export function makeLegend(strip, names) {
  const counts = {};
  for (const letter of strip.states) counts[letter] = (counts[letter] || 0) + 1;
  const item = (name, text) => el("li", {}, el("span", { class: `swatch ${name}` }), text);
  return el("ul", { class: "legend", "aria-label": "Legend" },
    Object.keys(names).filter((letter) => counts[letter]).map((letter) => item(toClassName(names[letter]), `${names[letter]} ${formatNumber(counts[letter])}`)),
    strip.pinned.length ? item("pinned", `pinned ${formatNumber(strip.pinned.length)}`) : null);
}
