// -- pages -------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];
function page(name) {
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  $("open").hidden = $("list").hidden = name !== "chat";
  paint();
}
for (const tab of tabs) {
  tab.addEventListener("click", () => {
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    page(tab.getAttribute("aria-controls"));
  });
}
$("tab-chat").parentElement.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const other = tabs[1 - tabs.indexOf(document.activeElement)];
  other.focus();
  other.click();
});
addEventListener("hashchange", () => page(location.hash === "#dashboard" ? "dashboard" : "chat"));
addEventListener("resize", () => paint());

for (const svg of document.querySelectorAll("#charts svg")) {
  svg.addEventListener("pointermove", (event) => { svg.pointer = event.offsetX; paint(); });
  svg.addEventListener("pointerleave", () => { svg.pointer = undefined; paint(); });
}
for (const id of ["span", "window"]) $(id).addEventListener("change", paint);
show(null);
page(location.hash === "#dashboard" ? "dashboard" : "chat");
if (!$("chat").hidden) $("prompt").focus();
poll();
