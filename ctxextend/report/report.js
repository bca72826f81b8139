"use strict";

// Sort the ranking when a column header is clicked. Cells without a value are always last.
function compare(a, b, column, sign) {
  const [left, right] = [a, b].map((row) => row.cells[column].dataset.value);
  if (left === undefined || right === undefined) {
    return (left === undefined) - (right === undefined);
  }
  const difference = Number(left) - Number(right);
  return sign * (Number.isNaN(difference) ? left.localeCompare(right, "en") : difference);
}

function sort(table, header) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) {
    other.removeAttribute("aria-sort");
  }
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(a, b, header.cellIndex, ascending ? 1 : -1));
  table.tBodies[0].append(...rows);
}

const ranking = document.querySelector("table.ranking");
for (const header of ranking.tHead.rows[0].cells) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  button.addEventListener("click", () => sort(ranking, header));
  header.append(button);
}
ranking.tHead.rows[0].cells[0].setAttribute("aria-sort", "ascending");
