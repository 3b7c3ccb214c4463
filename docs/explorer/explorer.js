// The page: reads a training from the address and the fields, and shows what accounting.js computes.
"use strict";

const FIELDS = [
  { key: "noise", label: "noise multiplier", option: "--noise-multiplier", start: 1, least: 0.2, most: 20 },
  { key: "records", label: "records", option: "--records", start: 60000, least: 100, most: 1e8, whole: true, of: "records" },
  { key: "batch", label: "batch size, on average", option: "--batch-size", start: 600, least: 1, most: 1e6, of: "records" },
  { key: "rate", label: "sampling rate", option: "--sampling-rate", start: 0.01, least: 1e-5, most: 1, of: "rate" },
  { key: "epochs", label: "epochs", option: "--epochs", start: 10, least: 1, most: 1000, of: "epochs" },
  { key: "steps", label: "steps", option: "--steps", start: 1000, least: 1, most: 1e6, whole: true, of: "steps" },
];
const CHOICES = {
  batches: { records: "records and batch size", rate: "sampling rate" },
  length: { epochs: "epochs", steps: "steps" },
};
const MOST_STEPS = 1e6;
const element = (id) => document.getElementById(id);
function made(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// Three digits at least; upper bounds round up, lower bounds down.
function shown(x, round = Math.ceil) {
  if (!Number.isFinite(x)) return "no bound";
  const unit = 10 ** (Math.floor(Math.log10(Math.min(Math.max(x, 1e-9), 100))) - 2);
  const safe = round((x / unit) * (round === Math.ceil ? 1 - 1e-12 : 1 + 1e-12)) * unit;
  return x >= 100 ? safe.toFixed(0) : x < 1e-9 ? "0" : safe.toPrecision(3);
}
const plain = (x) => x.toLocaleString("en", { maximumSignificantDigits: 6 });

// --- the fields ---
const chosen = (name) => element(name).value;
const used = () => FIELDS.filter(({ of }) => !of || of === chosen("batches") || of === chosen("length"));

function build() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const choose = (name) => {
    const at = Object.keys(CHOICES[name]).find((one) => wanted.has(one));
    const options = Object.entries(CHOICES[name]).map(([value, text]) => made("option", { value, text, selected: value === at }));
    return made("label", { className: "row" }, made("span", { textContent: name === "batches" ? "batches by" : "length by" }), made("select", { id: name, oninput: ask }, ...options));
  };
  const rows = FIELDS.map((field) => {
    const { key, label, start, least, most, whole } = field;
    const value = wanted.get(key) ?? start;
    const number = made("input", { type: "number", id: key, value, min: 0, step: whole ? 1 : "any", ariaLabel: label, required: true });
    const slider = made("input", { type: "range", id: `${key}-slider`, min: 0, max: 400, ariaLabel: `${label}, slider` });
    const place = () => {
      slider.value = (400 * Math.log(number.value / least)) / Math.log(most / least);
      slider.ariaValueText = number.value;
    };
    number.oninput = () => { place(); ask(); };
    slider.oninput = () => {
      const at = least * (most / least) ** (slider.value / 400);
      number.value = whole ? Math.round(Number(at.toPrecision(2))) : Number(at.toPrecision(2));
      slider.ariaValueText = number.value;
      ask();
    };
    place();
    return made("div", { className: "row", id: `${key}-row` }, made("span", { textContent: label }), slider, number);
  });
  const text = (id, label, value, hint) => made("label", { className: "row" }, made("span", { textContent: label }),
    made("span", { className: "soft", textContent: hint }), made("input", { type: "text", id, value, oninput: ask }));
  rows.splice(1, 0, choose("batches"));
  rows.splice(5, 0, choose("length"));
  element("controls").replaceChildren(...rows,
    text("delta", "delta", wanted.get("delta") ?? "1e-5", "one or more, such as 1e-5, 1e-6"),
    text("every", "release every … iterates", wanted.get("every") ?? "0", "0: the last alone, 1: all"));
}

// The training that the fields describe; an error in words for what is out of range.
function read() {
  const number = (key, fine, expected) => {
    const value = Number(element(key).value);
    if (element(key).value.trim() === "" || !fine(value)) throw new Error(`${key}: got “${element(key).value}”; expected ${expected}.`);
    return value;
  };
  const whole = (x) => Number.isInteger(x) && x >= 1;
  const setting = { noise: number("noise", (x) => x >= 0.05 && x < 1e6, "a number from 0.05 to 1,000,000") };
  let each;
  if (chosen("batches") === "records") {
    const records = number("records", whole, "a whole number from 1");
    const batch = number("batch", (x) => x > 0 && x <= records, `a number above 0 and at most ${plain(records)}, the records`);
    [setting.rate, each] = [batch / records, Math.ceil(records / batch - 1e-9)];
  } else {
    setting.rate = number("rate", (x) => x > 0 && x <= 1, "a probability above 0 and at most 1");
    each = Math.ceil(1 / setting.rate - 1e-9);
  }
  setting.steps = chosen("length") === "steps" ? number("steps", whole, "a whole number from 1")
    : Math.ceil(number("epochs", (x) => x > 0 && x < 1e9, "a number above 0") * each - 1e-9);
  const { steps } = setting;
  if (steps > MOST_STEPS) throw new Error(`steps: got ${plain(steps)}; this page computes at most ${plain(MOST_STEPS)}. Use the command below.`);
  const divides = (x) => x === 0 || (whole(x) && steps % x === 0);
  const least = (x) => { while (x > 1 && steps % x) x--; return x; };
  setting.every = number("every", divides, `0 or a divisor of the ${plain(steps)} steps, for example ${least(Math.floor(Math.sqrt(steps)))}`);
  setting.deltas = element("delta").value.split(/[\s,;]+/).filter(Boolean).map(Number);
  if (!setting.deltas.length || setting.deltas.some((x) => !(x >= 1e-30 && x < 1)))
    throw new Error(`delta: got “${element("delta").value}”; expected one or more numbers from 1e-30 to below 1.`);
  return setting;
}

// --- the answer ---
function paragraph(text, number) {
  const [before, after] = text.split("#");
  return made("p", {}, before, made("strong", { textContent: number }), after);
}

function nearest({ noise, rate, steps, deltas }) {
  const apart = (audit) => Math.hypot(3 * Math.log(audit[0] / noise), Math.log(audit[1] / rate), Math.log(audit[2] / steps));
  return AUDITS.reduce((best, audit) => (apart(audit) < apart(best) ? audit : best));
}

function draw(setting, found) {
  const [{ standard, worst, released }] = found, { every, deltas } = setting;
  const what = every === 0 ? "the last iterate alone" : `one iterate in ${plain(every)}`;
  const at = deltas.length > 1 ? ` at delta ${deltas[0].toExponential()}` : "";
  const answer = [paragraph(`Publish epsilon #${at}. It holds for every loss, even if all iterates are seen.`, shown(standard))];
  if (every !== 1)
    answer.push(paragraph(`If all losses were linear, ${what} would have epsilon #. Audits of real trainings usually find no more; that is no guarantee.`, shown(released)));
  answer.push(paragraph("In the worst case hiding gains nothing: an adversary who writes all other records makes the last iterate leak at least #.", shown(worst, Math.floor)));
  element("answer").replaceChildren(...answer);

  const rows = [
    ["all iterates, any loss (standard epsilon)", "standard", false],
    ["last iterate, all other records written by an adversary (lower bound)", "worst", false, Math.floor],
    ...(every > 1 ? [[`${what}, if all losses were linear`, "released", true]] : []),
    ["last iterate, if all losses were linear", "last", true],
    ["last iterate, with a regulariser that erases every step except the last (exact)", "forgetting", false],
  ];
  const most = Math.max(...rows.map(([, key]) => found[0][key]));
  element("heads").replaceChildren(made("th", { scope: "col", textContent: "what is released" }),
    ...deltas.map((delta) => made("th", { scope: "col", className: "number", textContent: `epsilon at ${delta.toExponential()}` })), made("td", { className: "bars" }));
  element("rows").replaceChildren(...rows.map(([name, key, guess, round]) => {
    const bar = made("div", {});
    bar.style.width = `${(100 * found[0][key]) / most}%`;
    const cells = found.map((one) => {
      const cell = made("td", { className: "number", textContent: shown(one[key], round) });
      cell.dataset.epsilon = one[key];
      return cell;
    });
    return made("tr", { className: guess ? "guess" : "" }, made("td", { textContent: name }), ...cells, made("td", { className: "bars" }, bar));
  }));
  const [noise, rate, steps, epsilon, name] = nearest(setting);
  element("audit").textContent = `The nearest setting that was simulated has noise multiplier ${noise}, sampling rate ${rate}, ${plain(steps)} steps and delta 1e-5. `
    + `Its largest audit (${name}) proves epsilon of at least ${shown(epsilon, Math.floor)} with 95 % confidence, which each audit has of its own. Simulate yours by hiddenstate atlas, with the same options.`;
}

// --- a worker keeps the page at work; it is made from text, as a page from disk may load none ---
const answers = (setting, found) => setting.deltas.map((delta) => found({ ...setting, delta }));
const script = `const { found } = (${accounting})(), answers = ${answers};
  onmessage = ({ data }) => postMessage(answers(data, found));`;
let timer, now, worker = null, busy = false;
function compute() {
  worker ??= new Worker(URL.createObjectURL(new Blob([script])));
  worker.onmessage = ({ data }) => finish(data);
  worker.onerror = () => finish(answers(now, accounting().found));
  worker.postMessage(now);
  busy = true;
}
// A training that nobody waits for any more is given up with its worker.
function giveUp() {
  clearTimeout(timer);
  if (busy) worker.terminate();
  if (busy) worker = null;
  busy = false;
}
function finish(found) {
  busy = false;
  element("answer").ariaBusy = "false";
  draw(now, found);
}

function ask(moved = true) {
  const keys = used();
  FIELDS.forEach(({ key }) => (element(`${key}-row`).hidden = !keys.some((one) => one.key === key)));
  const values = [...keys.map(({ key }) => key), "delta", "every"].map((key) => [key, element(key).value.trim()]);
  if (moved) history.replaceState(null, "", "#" + new URLSearchParams(values));
  const options = keys.map(({ key, option }) => `${option} ${element(key).value}`);
  const deltas = element("delta").value.split(/[\s,;]+/).filter(Boolean);
  if (Number(element("every").value)) options.push(`--release-every ${element("every").value}`);
  element("command").textContent = deltas.map((delta) => `hiddenstate epsilon ${options.join(" ")} --delta ${delta}`).join("\n");
  giveUp();
  try {
    now = read();
  } catch (error) {
    element("answer").replaceChildren(made("p", { className: "error", textContent: error.message }));
    for (const id of ["heads", "rows", "audit"]) element(id).replaceChildren();
    element("answer").ariaBusy = "false";
    return;
  }
  if (!moved) return finish(answers(now, accounting().found));
  element("answer").ariaBusy = "true";
  timer = setTimeout(compute, 150);
}

build();
ask(false);
addEventListener("hashchange", () => { build(); ask(false); });
