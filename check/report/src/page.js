// A click on a column's heading sorts its table; a second click turns the order around.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th"), body = button.closest("table").tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const turned = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turned ? "descending" : "ascending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (one, other) => {
      const [a, b] = [key(one), key(other)], [x, y] = [Number(a), Number(b)];
      return a !== "" && b !== "" && !isNaN(x) && !isNaN(y) ? x - y : a.localeCompare(b);
    };
    const rows = [...body.rows].sort(order);
    body.append(...(turned ? rows.reverse() : rows));
  });
}
