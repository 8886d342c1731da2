// Making elements. Text only ever becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// A piece of a method's line: its color and its dashes.
function swatch(style) {
  return svg(
    "svg",
    { class: "swatch", viewBox: "0 0 34 10", "aria-hidden": "true" },
    svg("line", { class: `line ${style}`, x1: 1, x2: 33, y1: 5, y2: 5 }),
  );
}

function storedTheme() {
  try {
    return localStorage.getItem("adamcb-theme");
  } catch {
    return null; // some browsers give pages from disk no storage
  }
}

function setUpTheme(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
  };
  const stored = storedTheme();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("adamcb-theme", root.dataset.theme);
    } catch {
      // not kept, that is all
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}
