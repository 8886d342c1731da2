// Taking things home: tables as CSV, charts as SVG and PNG.

const KEPT_STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];
const LEGEND_ROW = 22;

function save(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveTable(name, rows) {
  const quote = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const text = rows.map((row) => row.map((cell) => quote(String(cell ?? ""))).join(",")).join("\n");
  save(name, new Blob([`${text}\n`], { type: "text/csv" }));
}

// The chart as a picture of its own: with a title and a legend, and with all styles written out.
function standalone(chart, title, methods) {
  const drawn = chart.plot.querySelector("svg");
  const { width } = drawn.viewBox.baseVal;
  const legend = legendFor(methods, width);
  const [top, height] = [34, drawn.viewBox.baseVal.height];
  const total = top + height + legend.rows * LEGEND_ROW + 8;
  const picture = svg("svg", { xmlns: SVG, width, height: total, viewBox: `0 0 ${width} ${total}` });
  const ground = svg("rect", { width, height: total, class: "ground" });
  const moved = svg("g", { transform: `translate(0 ${top})` }, ...drawn.cloneNode(true).childNodes);
  moved.querySelector(".cursor").replaceChildren();
  legend.node.setAttribute("transform", `translate(0 ${top + height})`);
  picture.append(ground, svg("text", { class: "picture-title", x: width / 2, y: 22 }, title), moved, legend.node);
  // Styles are in force in the page only, so it has to stand there for a moment.
  const frame = html("div", { class: "plot unseen" }, picture);
  document.body.append(frame);
  for (const node of picture.querySelectorAll("*")) {
    const style = getComputedStyle(node);
    KEPT_STYLES.forEach((name) => node.setAttribute(name, style.getPropertyValue(name)));
    node.removeAttribute("class");
  }
  frame.remove();
  return { text: new XMLSerializer().serializeToString(picture), width, height: total };
}

function legendFor(methods, width) {
  const node = svg("g");
  let [x, rows] = [12, 0];
  for (const { name, style } of methods) {
    const room = 54 + 7.5 * name.length;
    if (rows === 0 || x + room > width) [x, rows] = [12, rows + 1];
    const y = LEGEND_ROW * (rows - 0.5);
    node.append(
      svg("line", { class: `line ${style}`, x1: x, x2: x + 34, y1: y, y2: y }),
      svg("text", { x: x + 40, y: y + 4 }, name),
    );
    x += room;
  }
  return { node, rows };
}

function savePicture(name, { text, width, height }, format) {
  if (format === "svg") {
    save(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    return;
  }
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = html("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, blob));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}
