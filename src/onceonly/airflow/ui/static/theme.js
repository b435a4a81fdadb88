// Airflow keeps its theme in the local storage; without a choice there, the system's preference counts.
"use strict";
const follow = () => {
  const chosen = localStorage.getItem("theme");
  document.documentElement.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : "system";
};
addEventListener("storage", follow);
follow();
