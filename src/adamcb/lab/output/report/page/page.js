// The page: legends that switch methods on and off, the sortable table, the gallery, and the start of it all.

function setUpLegends(page) {
  for (const legend of document.querySelectorAll(".legend")) {
    const buttons = page.methods.map(({ name, style, fate }, i) => {
      const button = html(
        "button",
        { type: "button", class: "chip", "aria-pressed": "true" },
        swatch(style),
        html("span", {}, name, ...(fate ? [html("small", { class: "lost" }, fate)] : [])),
      );
      button.addEventListener("click", () => {
        page.on[i] = !page.on[i];
        page.changed();
      });
      // Pointing at a name brings its lines to the front.
      for (const [event, on] of [
        ["pointerenter", true],
        ["pointerleave", false],
        ["focus", true],
        ["blur", false],
      ]) {
        button.addEventListener(event, () => emphasize(on && page.on[i] ? name : null));
      }
      return button;
    });
    const all = html("button", { type: "button", class: "small" }, "All");
    all.addEventListener("click", () => {
      page.on.fill(true);
      page.changed();
    });
    legend.append(...buttons, all);
    const show = () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(page.on[i])));
      all.disabled = page.on.every(Boolean);
    };
    page.listeners.push(show);
    show();
  }
  page.listeners.push(() => keepInView(page, "off", ...page.methods.filter((_, i) => !page.on[i]).map(({ key }) => key)));
}

function emphasize(name) {
  for (const line of document.querySelectorAll("path[data-line]")) {
    line.classList.toggle(
      "faded",
      name !== null && line.dataset.line !== name && line.closest("#curves-chart") !== null,
    );
  }
}

function setUpSorting(page, table) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const { textContent, dataset } = row.cells[column];
    return dataset.value === undefined ? textContent.trim() : Number(dataset.value);
  };
  headers.forEach((header, column) => {
    const button = header.querySelector("button");
    const sort = (down) => {
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column), down));
      body.append(...rows);
      keepInView(page, "sort", `${column}${down ? "down" : "up"}`);
    };
    button.addEventListener("click", () => sort(header.getAttribute("aria-sort") === "ascending"));
    const kept = page.view.get("sort");
    if (kept === `${column}up` || kept === `${column}down`) sort(kept.endsWith("down"));
  });
}

// A table that is wider than its place says so: its edges fade, and a hint tells where there is more.
function setUpScrolling(frame) {
  const scroller = frame.querySelector(".scroll");
  const hint = html("p", { class: "hint", "aria-hidden": "true", hidden: true }, "Scroll sideways for more columns →");
  frame.prepend(hint);
  const show = () => {
    const left = scroller.scrollLeft > 1;
    const right = scroller.scrollLeft + scroller.clientWidth < scroller.scrollWidth - 1;
    frame.classList.toggle("more-left", left);
    frame.classList.toggle("more-right", right);
    hint.hidden = !left && !right;
    hint.textContent = right ? "Scroll sideways for more columns →" : "← Scroll back for the first columns";
  };
  scroller.addEventListener("scroll", show, { passive: true });
  new ResizeObserver(show).observe(scroller);
  const content = scroller.querySelector("table");
  new ResizeObserver(show).observe(content);
  show();
}

// What is not a number stays last, whichever way the rest is sorted.
function compare(a, b, down) {
  const [lostA, lostB] = [Number.isNaN(a), Number.isNaN(b)];
  if (lostA || lostB) return lostA - lostB;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return down ? -order : order;
}

const FEW_PICTURES = 24;

function setUpGallery(page) {
  const form = document.getElementById("gallery-controls");
  if (!form) return;
  const galleries = [...document.querySelectorAll(".gallery")];
  const more = document.getElementById("gallery-more");
  let all = false;
  const show = () => {
    const data = new FormData(form);
    const wrongOnly = data.get("wrong") === "on";
    more.hidden = true;
    for (const gallery of galleries) {
      gallery.hidden = gallery.dataset.method !== data.get("method") || gallery.dataset.seed !== data.get("seed");
      const wanted = [...gallery.querySelectorAll(".picture")].filter((picture) => {
        picture.hidden = wrongOnly && !picture.classList.contains("wrong");
        return !picture.hidden;
      });
      if (!all) wanted.slice(FEW_PICTURES).forEach((picture) => (picture.hidden = true));
      gallery.querySelector(".empty").hidden = wanted.length > 0;
      if (!gallery.hidden && !all && wanted.length > FEW_PICTURES) more.hidden = false;
    }
    document.getElementById("gallery-missing").hidden = galleries.some((gallery) => !gallery.hidden);
  };
  more.addEventListener("click", () => {
    all = true;
    show();
  });
  form.hidden = false;
  const first = form.elements.method.value;
  restoreForm(page, form, ["method", "seed", "wrong"]);
  form.addEventListener("change", () => {
    const { method, seed, wrong } = form.elements;
    keepInView(page, "method", ...(method.value === first ? [] : [method.value]));
    keepInView(page, "seed", ...(seed.selectedIndex === 0 ? [] : [seed.value]));
    keepInView(page, "wrong", ...(wrong.checked ? ["yes"] : []));
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}

function start() {
  const page = JSON.parse(document.getElementById("data").textContent);
  Object.assign(page, readAddress());
  const off = page.view.getAll("off");
  page.on = page.methods.map(({ key }) => !off.includes(key));
  page.listeners = [];
  page.changed = () => page.listeners.forEach((listener) => listener());
  setUpTheme(document.getElementById("theme"));
  setUpLegends(page);
  setUpCurves(page);
  setUpSelection(page);
  document.querySelectorAll("table.sortable").forEach((table) => setUpSorting(page, table));
  document.querySelectorAll(".frame").forEach(setUpScrolling);
  setUpGallery(page);
  document.getElementById("save-summary").addEventListener("click", () => saveTable("summary.csv", page.summary));
  setUpAddress(page);
}

start();
