// Light or dark: the system's choice until the reader makes one. Runs before the first paint.
(() => {
  const STORED = "jaxinfer-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(STORED);
    } catch {
      return null; // storage is blocked: the choice lasts as long as the page
    }
  }

  function store(theme) {
    try {
      localStorage.setItem(STORED, theme);
    } catch {
      // as above
    }
  }

  function isDark() {
    return (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  }

  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      store(root.dataset.theme);
      show();
    });
    dark.addEventListener("change", show);
    show();
  });
})();
