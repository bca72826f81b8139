"use strict";

// Sort the ranking by a click on a column's head. Cells without a number stand last either way.
function compare(one, other, column, sign) {
  const [left, right] = [one, other].map((row) => row.cells[column].dataset.value);
  if (left === undefined || right === undefined) {
    return (left === undefined) - (right === undefined);
  }
  const difference = Number(left) - Number(right);
  return sign * (Number.isNaN(difference) ? left.localeCompare(right, "en") : difference);
}

function sort(table, head) {
  const rises = head.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) {
    other.removeAttribute("aria-sort");
  }
  head.setAttribute("aria-sort", rises ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].sort((one, other) => compare(one, other, head.cellIndex, rises ? 1 : -1));
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.ranking")) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
  }
  table.tHead.rows[0].cells[0].setAttribute("aria-sort", "ascending");
}

// Light up one method in all pictures of a section, while it is pointed at or has the focus, or once it is pressed.
function light(section, series) {
  section.classList.toggle("lit", series !== undefined);
  for (const mark of section.querySelectorAll("[data-series]")) {
    mark.classList.toggle("on", mark.dataset.series === series);
  }
}

function press(section, key) {
  const pressed = section.dataset.pressed === key.dataset.series ? undefined : key.dataset.series;
  if (pressed === undefined) {
    delete section.dataset.pressed;
  } else {
    section.dataset.pressed = pressed;
  }
  for (const other of section.querySelectorAll(".legend [data-series]")) {
    other.setAttribute("aria-pressed", String(other.dataset.series === pressed));
  }
  light(section, pressed);
}

for (const section of document.querySelectorAll("section:has(> .legend)")) {
  const point = (event) => light(section, event.target.closest("[data-series]")?.dataset.series ?? section.dataset.pressed);
  const leave = () => light(section, section.dataset.pressed);
  section.addEventListener("pointerover", point);
  section.addEventListener("pointerleave", leave);
  section.addEventListener("focusin", point);
  section.addEventListener("focusout", leave);
  for (const key of section.querySelectorAll(".legend [data-series]")) {
    key.tabIndex = 0;
    key.setAttribute("role", "button");
    key.setAttribute("aria-pressed", "false");
    key.addEventListener("click", () => press(section, key));
    key.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        press(section, key);
      }
    });
  }
}
