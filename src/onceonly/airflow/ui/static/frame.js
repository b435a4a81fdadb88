// What must hold before the page is drawn: it looks like Airflow, and no click on it can come too early.
"use strict";

// Airflow keeps its theme in the local storage; without a choice there, the system's preference counts.
const follow = () => {
  const chosen = localStorage.getItem("theme");
  document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : "system";
};
addEventListener("storage", follow);
follow();

// Airflow's own pages open in its window: the frame that we are in may not navigate it, its own links may.
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-airflow]");
  if (!link || parent === window) return;
  event.preventDefault();
  const own = parent.document.createElement("a");
  own.href = link.href;
  own.click();
});
