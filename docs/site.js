// What scrolls can be reached and scrolled by keyboard.
const reach = () => {
  for (const part of document.querySelectorAll(
    ".md-typeset__scrollwrap, .jp-OutputArea-output pre, .highlight-ipynb"))
    part.tabIndex = part.scrollWidth > part.clientWidth ? 0 : -1;
};
addEventListener("load", () => setTimeout(reach));
addEventListener("resize", reach);

// A phone shows a row of a wide table as lines, each with its column's name (site.css).
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const names = [...table.querySelectorAll("thead th")].map((name) => name.textContent);
    if (names.length < 3) continue;
    table.dataset.wide = "";
    for (const row of table.tBodies[0].rows)
      [...row.cells].forEach((cell, at) => (cell.dataset.name = names[at]));
  }
});
