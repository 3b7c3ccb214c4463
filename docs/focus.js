// What scrolls can be reached and scrolled by keyboard.
const reach = () => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .jp-OutputArea-output pre"))
    part.tabIndex = part.scrollWidth > part.clientWidth ? 0 : -1;
};
addEventListener("load", () => setTimeout(reach));
addEventListener("resize", reach);
