// The view in the address, after the section, so that it can be sent: #curves&measure=accuracy&off=adam. What is as it
// comes is left out. The fragment is used because a page from disk may change nothing else.

function readAddress() {
  const [place, ...rest] = location.hash.slice(1).split("&");
  return { place, view: new URLSearchParams(rest.join("&")) };
}

function writeAddress(page) {
  const text = page.view.toString();
  const hash = page.place + (text ? `&${text}` : "");
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
  } catch {
    // the address stays as it is, that is all
  }
}

// Put values under a name into the address; none of them takes the name out.
function keepInView(page, name, ...values) {
  page.view.delete(name);
  values.forEach((value) => page.view.append(name, value));
  writeAddress(page);
}

// Switch the inputs of a form to what the address says. It may say anything, so only values that exist count.
function restoreForm(page, form, names) {
  for (const name of names) {
    const wanted = page.view.get(name);
    const found = [...form.elements].filter((each) => each.name === name);
    for (const each of found) {
      if (each.type === "radio" && each.value === wanted) each.checked = true;
      if (each.type === "checkbox" && wanted !== null) each.checked = wanted === "yes";
      if (each.tagName === "SELECT" && [...each.options].some(({ value }) => value === wanted)) each.value = wanted;
    }
  }
}

function setUpAddress(page) {
  window.addEventListener("hashchange", () => {
    const now = readAddress();
    if (now.view.size > 0 && now.view.toString() !== page.view.toString()) {
      location.reload();
      return;
    }
    page.place = now.place;
    writeAddress(page);
  });
  // A section with a view behind it is no target that the browser knows.
  if (page.view.size > 0) document.getElementById(page.place)?.scrollIntoView({ behavior: "instant" });
}
