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
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(one, other, head.cellIndex, rises ? 1 : -1));
  table.tBodies[0].append(...rows);
}

const ranking = document.querySelector("table.ranking");
for (const head of ranking.tHead.rows[0].cells) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", () => sort(ranking, head));
  head.append(button);
}
ranking.tHead.rows[0].cells[0].setAttribute("aria-sort", "ascending");
