// Tabs by the ARIA pattern: arrow keys move between them, only the chosen one is in the tab order.

/**
 * @param {HTMLElement} list the element with role tablist
 * @param {(id: string) => void} onChange called with the id of the panel that is shown
 */
export function useTabs(list, onChange) {
  const tabs = [...list.querySelectorAll("[role=tab]")];

  function choose(tab) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    onChange(tab.getAttribute("aria-controls"));
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const now = tabs.indexOf(document.activeElement);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1 }[event.key];
    if (now < 0 || next === undefined) return;
    event.preventDefault();
    const tab = tabs.at(next % tabs.length);
    tab.focus();
    choose(tab);
  });
}
