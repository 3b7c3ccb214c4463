// Draws the point of POINTS that the sliders, or the address, name. All numbers come from points.js.
"use strict";

const CONTROLS = [
  { key: "noise", label: "noise multiplier", option: "--noise-multiplier" },
  { key: "rate", label: "sampling rate (batch / records)", option: "--sampling-rate" },
  { key: "steps", label: "steps", option: "--steps" },
  { key: "delta", label: "delta", option: "--delta" },
  { key: "every", label: "release every … iterates" },
];

// Three digits; upper bounds round up, lower bounds down.
function shown(x, round = Math.ceil) {
  const unit = 10 ** (Math.max(2, Math.floor(Math.log10(x))) === 2 ? Math.floor(Math.log10(x)) - 2 : 0);
  const safe = round((x / unit) * (round === Math.ceil ? 1 - 1e-12 : 1 + 1e-12)) * unit;
  return x >= 100 ? safe.toFixed(0) : safe.toPrecision(3);
}
const asText = (key, x) =>
  key === "every" ? (x === 0 ? "last only" : String(x)) : key === "delta" ? x.toExponential(0) : x.toLocaleString("en", { maximumSignificantDigits: 6 });

function stops() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(CONTROLS.map(({ key }) => {
    const at = POINTS.axes[key].indexOf(Number(wanted.get(key)));
    return [key, wanted.has(key) && at >= 0 ? at : POINTS.start[key]];
  }));
}

function build() {
  const at = stops();
  document.getElementById("controls").replaceChildren(...CONTROLS.map(({ key, label }) => {
    const row = document.createElement("label");
    row.className = "row";
    const name = document.createElement("span");
    name.textContent = label;
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", id: key, min: 0, max: POINTS.axes[key].length - 1, step: 1, value: at[key] });
    const value = document.createElement("output");
    value.id = `${key}-value`;
    slider.hidden = POINTS.axes[key].length === 1;
    row.append(name, slider, value);
    slider.addEventListener("input", () => draw(true));
    return row;
  }));
}

function point(values) {
  const { axes, columns, numbers } = POINTS;
  const index = ["noise", "rate", "steps", "delta"].reduce(
    (sum, key) => sum * axes[key].length + axes[key].indexOf(values[key]), 0);
  return Object.fromEntries(columns.map((name, i) => [name, numbers[index][i]]));
}

function paragraph(text, number) {
  const p = document.createElement("p");
  const [before, after] = text.split("#");
  const strong = document.createElement("strong");
  strong.textContent = number;
  p.append(before, strong, after);
  return p;
}

function draw(moved) {
  const values = {};
  for (const { key } of CONTROLS) {
    values[key] = POINTS.axes[key][Number(document.getElementById(key).value)];
    const text = asText(key, values[key]);
    document.getElementById(`${key}-value`).value = text;
    document.getElementById(key).setAttribute("aria-valuetext", text);
  }
  if (moved) history.replaceState(null, "", "#" + new URLSearchParams(values));
  const found = point(values);
  const released = values.every === 0 ? "last" : values.every === 1 ? "standard" : `every ${values.every}`;
  const linear = found[released];
  const what = values.every === 0 ? "the last iterate alone" : values.every === 1 ? "all iterates" : `every ${values.every}th iterate`;
  const answer = [paragraph("Publish epsilon #. It holds for every loss, even if all iterates are seen.", shown(found.standard))];
  if (values.every !== 1)
    answer.push(paragraph(`If all losses were linear, ${what} would have epsilon #. Audits of real trainings usually find no more; that is no guarantee.`, shown(linear)));
  answer.push(paragraph("In the worst case hiding gains nothing: an adversary who writes all other records makes the last iterate leak at least #.", shown(found.worst, Math.floor)));
  document.getElementById("answer").replaceChildren(...answer);

  const rows = [
    ["all iterates, any loss (standard epsilon)", found.standard, false],
    ["last iterate, worst case (lower bound)", found.worst, false, Math.floor],
    ...(values.every > 1 ? [[`${what}, if all losses were linear`, linear, true]] : []),
    ["last iterate alone, if all losses were linear", found.last, true],
  ];
  const most = Math.max(...rows.map((row) => row[1]));
  document.getElementById("rows").replaceChildren(...rows.map(([name, epsilon, guess, round]) => {
    const tr = document.createElement("tr");
    tr.className = guess ? "guess" : "";
    const cells = [0, 1, 2].map(() => document.createElement("td"));
    cells[0].textContent = name;
    cells[1].textContent = shown(epsilon, round);
    cells[1].className = "number";
    cells[1].dataset.epsilon = epsilon;
    cells[2].className = "bars";
    const bar = document.createElement("div");
    bar.style.width = `${(100 * epsilon) / most}%`;
    cells[2].append(bar);
    tr.append(...cells);
    return tr;
  }));
  const options = CONTROLS.filter(({ option }) => option).map(({ key, option }) => `${option} ${values[key]}`);
  if (values.every > 1) options.push(`--release-every ${values.every}`);
  document.getElementById("command").textContent = "hiddenstate epsilon " + options.join(" ");
}

build();
draw(false);
addEventListener("hashchange", () => { build(); draw(false); });
