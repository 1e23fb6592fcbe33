// The page around the charts: cards, tables that can be searched and sorted, and where the reader is.
(() => {
  const card = document.getElementById("card");

  const show = (row, x, y) => {
    const [first, ...rest] = row.dataset.words.split("\n");
    const name = document.createElement("b");
    name.textContent = first;
    card.replaceChildren(name, rest.join("\n"));
    card.hidden = false;
    const { width, height } = card.getBoundingClientRect();
    const room = document.documentElement;
    const left = x + 16 + width > room.clientWidth ? x - 16 - width : x + 16;
    const top = y + 16 + height > room.clientHeight ? y - 16 - height : y + 16;
    card.style.left = `${Math.max(8, Math.min(left, room.clientWidth - width - 8))}px`;
    card.style.top = `${Math.max(8, top)}px`;
  };
  const hide = () => { card.hidden = true; };
  const showFocused = (row) => {
    const box = row.getBoundingClientRect();
    show(row, box.left + Math.min(box.width / 2, 240), box.bottom - 8);
  };

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const rowOf = (event) => event.target.closest(".row");
    figure.addEventListener("pointermove", (event) => {
      const row = rowOf(event);
      if (row) show(row, event.clientX, event.clientY); else hide();
    });
    figure.addEventListener("pointerleave", hide);
    figure.addEventListener("focusin", (event) => {
      const row = rowOf(event);
      if (row?.matches(":focus-visible")) showFocused(row);
    });
    figure.addEventListener("focusout", hide);
    // One stop for the tabulator per chart; arrows go on from there.
    figure.addEventListener("keydown", (event) => {
      const row = rowOf(event);
      const rows = [...figure.querySelectorAll(".row")];
      const index = rows.indexOf(row);
      if (index < 0) return;
      if (event.key === "Escape") hide();
      const next = {
        ArrowDown: index + 1, ArrowRight: index + 1, ArrowUp: index - 1, ArrowLeft: index - 1,
        Home: 0, End: rows.length - 1,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      if (!rows[next]) return;
      row.setAttribute("tabindex", "-1");
      rows[next].setAttribute("tabindex", "0");
      rows[next].focus();
    });
  }
  addEventListener("scroll", () => {
    const row = document.querySelector("svg.chart .row:focus-visible");
    if (row) showFocused(row); else hide();
  }, { passive: true });

  for (const box of document.querySelectorAll(".searchable")) {
    const body = box.querySelector("tbody");
    const all = [...body.rows];
    const tools = box.querySelector(".tools");
    const count = tools.querySelector("output");
    tools.hidden = false;
    const search = (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of all) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? `${shown} of ${all.length}` : "";
    };
    tools.querySelector("input").addEventListener("input", search);

    const heads = [...box.querySelectorAll("thead th")];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => {
          const cell = row.cells[column];
          return "sort" in cell.dataset ? Number(cell.dataset.sort) : null;
        };
        const sorted = [...all].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          // What has no number stays at the end, whatever the order.
          if (x === null && y === null) {
            const order = a.cells[column].textContent.localeCompare(b.cells[column].textContent);
            return down ? -order : order;
          }
          if (x === null || y === null) return x === null ? 1 : -1;
          return down ? y - x : x - y;
        });
        body.append(...sorted);
      });
    });
  }

  const links = [...document.querySelectorAll("nav a")];
  const mark = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links) {
        const here = link.hash === `#${entry.target.id}`;
        if (here) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  for (const section of document.querySelectorAll("main > section")) mark.observe(section);
})();
