// Draws what arithmatex has marked. KaTeX (MIT licence, beside this) is shipped: pages need no network.
addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const display = element.tagName === "DIV";
    katex.render(element.textContent.trim().slice(2, -2), element, { displayMode: display });
  }
});
